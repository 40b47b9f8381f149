"""Run the update rules of a public benchmark in PyTorch, and write the results to a file.

    pip install torch numpy
    python tests/optimizers/torch_rules.py

The benchmark is the optimization track of github.com/KellerJordan/modded-nanogpt. The rules run in
float64 with matrices `[outputs, inputs]`, by the classes of `torch.optim` if possible.
`torch_rules.npz` contains params and gradients `[inputs, outputs]`, and params after some steps.
"""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import torch
from torch.optim import _muon

FILE = pathlib.Path(__file__).with_suffix(".npz")
STEPS, SAVED = 50, [0, 9, 29, 30, 49]
SHAPES = {"square": (4, 4), "tall": (6, 3), "wide": (3, 5), "bias": (3,)}
COEFFICIENTS = (2, -1.5, 0.5)


def ns(G):
    return _muon._zeropower_via_newtonschulz(G, COEFFICIENTS, 12, 1e-7)


def balanced(G):
    """Compute Aurora's polar factor by two iterations."""
    if len(G) == len(G.T):
        return ns(G)
    X = G.T if len(G) < len(G.T) else G
    D = 1 / X.norm(dim=1, keepdim=True)
    U = ns(D * X)
    D = D * ((len(X.T) / len(X)) / U.square().sum(1, keepdim=True)).sqrt()
    U = ns(D * X)
    return U.T if len(G) < len(G.T) else U


def contra(polar, G):
    v = torch.ones(len(G.T)) / len(G.T) ** 0.5
    for _ in range(5):
        u = G @ v
        v = G.T @ (u / u.norm())
        v = v / v.norm()
    U = polar(G)
    V = U - 0.2 * G / (G @ v).norm()
    return V * U.norm() / V.norm()


def muon(grads, polar=ns):
    buffer = torch.zeros_like(grads[0])
    for g in grads:
        buffer.lerp_(g, 0.05)
        yield polar(g.lerp(buffer, 0.95)) * max(1, len(g) / len(g.T)) ** 0.5


def normuon(grads, polar=ns):
    second = 0
    for u in muon(grads, polar):
        dim = 1 if len(u) >= len(u.T) else 0
        second = 0.95 * second + 0.05 * u.square().mean(dim, keepdim=True)
        w = u * second.rsqrt()
        yield w * u.norm() / w.norm()


def adam(grads):
    """Yield the directions of `torch.optim.Adam`."""
    steps = run(torch.optim.Adam, torch.zeros_like(grads[0]), grads, None, lr=1, betas=(0.9, 0.95))
    before = torch.zeros_like(grads[0])
    for after in steps:
        yield before - after
        before = after


def run(optimizer, W, grads, share, **options):
    """Yield the params after every step, with a linear cooldown over the last share of steps."""
    p = torch.nn.Parameter(W.clone())
    tx = optimizer([p], **options)
    decay = torch.optim.lr_scheduler.LambdaLR(tx, lambda t: rate(t, share) if share else 1)
    for g in grads:
        p.grad = g
        tx.step()
        decay.step()
        yield p.detach().clone()


def rate(t, share):
    return min(1, (1 - t / STEPS) / share)


def decoupled(W, us, lr, decay=0.0):
    for t, u in enumerate(us):
        W = W * (1 - lr * rate(t, 0.7) * decay) - lr * rate(t, 0.7) * u
        yield W


def floored(W, us):
    for t, u in enumerate(us):
        W = W - 0.0375 * rate(t, 0.7) * u * max(1, 0.35 * W.norm() / u.norm())
        yield W


def ball_step(W, u, t):
    V = W - 0.018 * rate(t, 1.0) * u * W.norm() / u.norm()
    return V / V.norm() * W.norm()


def ball(W, us):
    for t, u in enumerate(us):
        W = ball_step(W, u, t)
        yield W


def outer(W, step):
    """DiLoCo with one worker: `torch.optim.SGD` on the change of 30 inner steps."""
    p = torch.nn.Parameter(W.clone())
    sgd = torch.optim.SGD([p], lr=0.7, momentum=0.5, nesterov=True)
    for t in range(STEPS):
        W = step(W, t)
        if t % 30 == 29:
            p.grad = p.detach() - W
            sgd.step()
            W = p.detach().clone()
        yield W


def muloco(W, grads):
    us = [*normuon(grads)]
    return outer(W, lambda W, t: ball_step(W, us[t], t))


def torch_muon(W, grads, share, **options):
    return run(torch.optim.Muon, W, grads, share, lr=0.02, momentum=0.95, eps=1e-7, **options)


contra_ns, aurora = functools.partial(contra, ns), functools.partial(contra, balanced)
RULES = {
    "torch.optim.Muon": lambda W, g: torch_muon(W, g, None, weight_decay=0.1),
    "1, 3, 6, 12: Muon": lambda W, g: torch_muon(
        W, g, 0.7, weight_decay=0.01, ns_coefficients=COEFFICIENTS, ns_steps=12
    ),
    "2: AdamW": lambda W, g: run(
        torch.optim.AdamW, W, g, 0.7, lr=0.0015, betas=(0.9, 0.95), weight_decay=0.1
    ),
    "4: AdamH": lambda W, g: ball(W, adam(g)),
    "5: MuonH": lambda W, g: ball(W, muon(g)),
    "8: NorMuonH": lambda W, g: ball(W, normuon(g)),
    "9: NorMuon, floor": lambda W, g: floored(W, normuon(g)),
    "10: NorMuon": lambda W, g: decoupled(W, normuon(g), 0.035, 0.025),
    "11: Contra-Muon": lambda W, g: floored(W, normuon(g, contra_ns)),
    "13: MuLoCo": muloco,
    "17: Aurora": lambda W, g: floored(W, normuon(g, aurora)),
}


def bias_rule(name, b, grads):
    """AdamW for leaves that aren't matrices, also inside DiLoCo."""
    share = 0.4 if "H" in name.split(":")[-1] or "MuLoCo" in name else 0.7
    adamw = functools.partial(
        run, torch.optim.AdamW, b, grads, lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0
    )
    if name != "13: MuLoCo":
        return adamw(share)
    path = [b, *adamw(share)]
    return outer(b, lambda b, t: b + path[t + 1] - path[t])


def main():
    torch.set_default_dtype(torch.float64)
    torch.Tensor.bfloat16 = torch.Tensor.clone  # torch.optim.Muon rounds to 16 bits
    rng, bias = np.random.default_rng(0), SHAPES.pop("bias")
    params = {leaf: rng.standard_normal(shape) for leaf, shape in SHAPES.items()}
    grads = {leaf: rng.standard_normal((STEPS, *shape)) for leaf, shape in SHAPES.items()}
    params["bias"], grads["bias"] = rng.standard_normal(bias), rng.standard_normal((STEPS, *bias))
    arrays = {"saved": np.asarray(SAVED)}
    for leaf in params:
        arrays[f"params/{leaf}"], arrays[f"grads/{leaf}"] = W, g = params[leaf], grads[leaf]
        W, g = torch.asarray(W.T.copy()), [torch.asarray(x.T.copy()) for x in g]
        for name, rule in RULES.items():
            path = [*(rule(W, g) if leaf != "bias" else bias_rule(name, W, g))]
            arrays[f"{name}/{leaf}"] = np.stack([path[t].numpy().T for t in SAVED])
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
