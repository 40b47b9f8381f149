"""The accelerator page: counting of kernels, and records that survive failures and repetition."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import measure, steps
from benchmarks.accelerator.measure import Case

# As a GPU's program looks after its kernels were put into a command buffer.
PROGRAM = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %add.1 = f32[8]{0} add(%p, %p)
}

%command_buffer (q: f32[8]) -> (f32[8], f32[8]) {
  %q = f32[8]{0:T(256)} parameter(0)
  %copy.1 = f32[8]{0} copy(%q)
  %fusion.1 = f32[8]{0} fusion(%q), kind=kLoop, calls=%fused
  ROOT %tuple.1 = (f32[8]{0}, f32[8]{0}) tuple(%copy.1, %fusion.1)
}

ENTRY %main (x: f32[8]) -> (f32[8]) {
  %x = f32[8]{0} parameter(0), metadata={op_name="x"}
  %call.1 = (f32[8]{0}, /*index=1*/f32[8]{0}) call(%x), to_apply=%command_buffer
  %get.1 = f32[8]{0} get-tuple-element(%call.1), index=0
  %gemm = (f32[8]{0}, s8[64]{0}) custom-call(%get.1), custom_call_target="__cublas$gemm"
  ROOT %out = (f32[8]{0}) tuple(%get.1)
}
"""


class Program:
    def as_text(self):
        return PROGRAM


def test_kernels_of_command_buffers_count_and_tuples_do_not():
    assert measure.kernels(Program()) == 3


def test_kernels_of_a_compiled_function():
    program = measure.compiled(lambda x, y: (jnp.sin(x) @ y, x), *[jnp.ones((64, 64))] * 2)
    assert 1 <= program.kernels <= 4
    assert program.seconds > 0


@pytest.mark.parametrize("total", [1_000, 10**7, 10**9])
@pytest.mark.parametrize("leaves", [1, 30, 300])
def test_trees_have_the_given_size(total, leaves):
    shapes = steps.shapes(total, leaves)
    size = sum(s[0] * (s[1] if len(s) > 1 else 1) for s in shapes)
    assert len(shapes) == leaves
    assert size == pytest.approx(total, rel=0.01 if total > 1_000 else 0.7)


def test_minimum_bytes_of_adamw_are_28_a_param():
    params = {"w": jnp.ones(100)}
    state = steps.ALIKE["adamw"](pytest.importorskip("optax")).init(params)
    assert steps.minimum_bytes("adamw", params, state, params) == 28 * 100 + 2 * 4  # and a count


def test_a_failure_is_recorded_and_a_second_run_repeats_only_that(tmp_path, monkeypatch, capsys):
    ran = []

    def good():
        ran.append("good")
        return [{"variant": "a", "seconds": 1e-3}]

    def bad():
        ran.append("bad")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(
        command, "PARTS", {"p": lambda run: iter([Case("bad", bad), Case("good", good)])}
    )
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    arguments = ["--out", str(tmp_path), "--parts", "p"]
    assert command.main(arguments) == 1
    assert command.main(arguments) == 1
    assert ran == ["bad", "good", "bad"]
    found = json.loads((tmp_path / "accelerator.json").read_text())["p"]
    assert found["bad"]["error"] == "RuntimeError: out of memory"
    assert found["good"]["rows"] == [{"variant": "a", "seconds": 1e-3}]
    assert "error: RuntimeError" in (tmp_path / "accelerator.md").read_text()
    assert command.main([*arguments, "--again", "--budget", "0"]) == 0
    assert "the budget of 0 s was spent" in capsys.readouterr().out


def test_a_lost_device_is_left_to_a_new_process(tmp_path, monkeypatch):
    # After a fault of a kernel every later call in the process fails.
    ran, commands = [], []

    def bad():
        ran.append("bad")
        raise RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS")

    def good():
        ran.append("good")
        return [{"variant": "a", "seconds": 1e-3}]

    def replace(path, given):
        commands.append(given)
        raise SystemExit

    monkeypatch.setattr(
        command, "PARTS", {"p": lambda run: iter([Case("bad", bad), Case("good", good)])}
    )
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    monkeypatch.setattr(command, "device_failed", lambda: True)
    monkeypatch.setattr(command.os, "execv", replace)
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path), "--parts", "p"])
    assert ran == ["bad"]
    assert command.main(commands[0][3:]) == 1
    assert ran == ["bad", "good"]


def test_a_device_that_answers_is_not_lost():
    assert not command.device_failed()
