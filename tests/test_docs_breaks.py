"""Where the code in tables of the documentation may break."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parent.parent / "docs" / "_ext" / "breaks.py"


def test_code_in_cells_breaks_at_its_joints():
    spec = importlib.util.spec_from_file_location("breaks", PATH)
    breaks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(breaks)
    code = '<span class="pre">fnopt.add_noise(eta=0.5)</span>'
    found = breaks.with_breaks(f"<p>{code}</p><td>a.b {code}</td>")
    broken = code.replace("fnopt.add_noise(", "fnopt.<wbr>add_<wbr>noise(<wbr>")
    assert found == f"<p>{code}</p><td>a.b {broken}</td>"
