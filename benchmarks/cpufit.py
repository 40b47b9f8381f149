"""C implementation of Cpufit's published algorithm, for comparison with `curve_fit_batch`.

The algorithm is Levenberg-Marquardt as in Numerical Recipes, one fit after the other. The diagonal
is multiplied by `1 + lambda`, Gauss-Jordan elimination with pivoting solves the equations, and
`lambda` changes by a factor of ten. A fit ends when chi-square changes by less than a tolerance.
Derivatives are analytic, and fits aren't vectorized. The code isn't Cpufit's, so its times describe
the algorithm only.

Reference:
    Przybylski, Thiel, Keller-Findeisen, Stock and Bates (2017), Gpufit: an open-source toolkit for
    GPU-accelerated curve fitting, doi:10.1038/s41598-017-15313-9.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.metric import Skipped

SOURCE = r"""
#include <math.h>
#include <string.h>
#define N 5
typedef REAL real;

static real sums(const real *x, const real *y, int m, const real *p, real *g, real *A) {
    real f = 0;
    memset(g, 0, N * sizeof(real));
    memset(A, 0, N * N * sizeof(real));
    for (int i = 0; i < m; i++) {
        real u = (x[i] - p[1]) / p[2], e = EXP(-u * u / 2);
        real d[N] = {e, p[0] * e * u / p[2], p[0] * e * u * u / p[2], 1, x[i]};
        real r = y[i] - (p[0] * e + p[3] + p[4] * x[i]);
        f += r * r;
        for (int j = 0; j < N; j++) {
            g[j] += d[j] * r;
            for (int k = 0; k <= j; k++) A[j * N + k] += d[j] * d[k];
        }
    }
    for (int j = 0; j < N; j++)
        for (int k = 0; k < j; k++) A[k * N + j] = A[j * N + k];
    return f;
}

static int gauss_jordan(real *A, real *b) {
    int used[N] = {0};
    for (int step = 0; step < N; step++) {
        int row = 0, col = 0;
        real big = 0;
        for (int i = 0; i < N; i++) if (!used[i])
            for (int j = 0; j < N; j++) if (!used[j] && FABS(A[i * N + j]) >= big) {
                big = FABS(A[i * N + j]); row = i; col = j;
            }
        if (big == 0) return 0;
        used[col] = 1;
        if (row != col) {
            for (int j = 0; j < N; j++) {
                real t = A[row * N + j]; A[row * N + j] = A[col * N + j]; A[col * N + j] = t;
            }
            real t = b[row]; b[row] = b[col]; b[col] = t;
        }
        real inverse = 1 / A[col * N + col];
        for (int j = 0; j < N; j++) A[col * N + j] *= inverse;
        b[col] *= inverse;
        for (int i = 0; i < N; i++) if (i != col) {
            real factor = A[i * N + col];
            for (int j = 0; j < N; j++) A[i * N + j] -= factor * A[col * N + j];
            b[i] -= factor * b[col];
        }
    }
    return 1;
}

static int fit(const real *x, const real *y, int m, real *p, real tolerance, int most) {
    real g[N], A[N * N], lambda = (real)1e-3;
    real f = sums(x, y, m, p, g, A);
    for (int step = 1; step <= most; step++) {
        real B[N * N], b[N], q[N], h[N], H[N * N];
        memcpy(B, A, sizeof A);
        memcpy(b, g, sizeof g);
        for (int j = 0; j < N; j++) B[j * N + j] *= 1 + lambda;
        if (!gauss_jordan(B, b)) return -step;
        for (int j = 0; j < N; j++) q[j] = p[j] + b[j];
        real new = sums(x, y, m, q, h, H);
        int done = FABS(new - f) < tolerance * f;
        if (new < f) {
            memcpy(p, q, sizeof q); memcpy(g, h, sizeof h); memcpy(A, H, sizeof H);
            f = new; lambda *= (real)0.1;
        } else lambda *= 10;
        if (done) return step;
    }
    return -most;
}

void fit_all(const real *x, const real *y, int m, real *p, int fits, double tolerance, int most,
             int *steps) {
    for (int k = 0; k < fits; k++)
        steps[k] = fit(x, y + (long)k * m, m, p + (long)k * N, (real)tolerance, most);
}
"""

_TYPES = {
    np.dtype(np.float32): ["-DREAL=float", "-DEXP=expf", "-DFABS=fabsf"],
    np.dtype(np.float64): ["-DREAL=double", "-DEXP=exp", "-DFABS=fabs"],
}


@functools.cache
def _library(dtype: np.dtype) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Skipped("no C compiler found: expected cc, gcc or clang")
    folder = Path(tempfile.mkdtemp())
    (folder / "fit.c").write_text(SOURCE)
    flags = ["-O3", "-march=native", "-shared", "-fPIC", *_TYPES[dtype]]
    command = [compiler, *flags, "-o", str(folder / "fit.so"), str(folder / "fit.c"), "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "fit.so"))


def gaussians(
    x: np.ndarray, y: np.ndarray, p0: np.ndarray, tolerance: float, max_steps: int = 100
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return a function that fits Gaussian peaks with a linear background, one after the other.

    Args:
        x: Positions of the data, `[m]`.
        y: Data, `[fits, m]`.
        p0: Initial guesses `[fits, 5]`: amplitude, center, width, offset, slope.
        tolerance: Relative change of chi-square at which a fit ends.
        max_steps: Maximum number of steps of a fit.

    Returns:
        A function that returns the params, and the numbers of steps (negative for failed fits).
    """
    x, y, p0 = (np.ascontiguousarray(a) for a in (x, y, p0))
    library = _library(y.dtype)
    steps = np.zeros(len(y), np.int32)

    def solve() -> tuple[np.ndarray, np.ndarray]:
        p = p0.copy()
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, p, steps)]
        library.fit_all(
            *pointers[:2],
            len(x),
            pointers[2],
            len(y),
            ctypes.c_double(tolerance),
            max_steps,
            pointers[3],
        )
        return p, steps

    return solve
