"""Each block of the README runs when it is pasted alone, and prints something."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
SHOWN = ["slope", "Adam", "least squares", "(64, 3)", "FLOP"]


@pytest.mark.parametrize(("block", "shown"), list(zip(BLOCKS, SHOWN, strict=True)), ids=SHOWN)
def test_a_block_runs_alone(block, shown, capsys):
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        exec(block, {})
    assert shown.lower() in capsys.readouterr().out.lower()
