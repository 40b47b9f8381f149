from __future__ import annotations

import sys

import numpy as np
import pytest

from fnopt.monitor import Flag, History, plot_gradient_flow
from fnopt.monitor._plot import MARKS

mpl = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def _no_window():
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


def history(**values):
    names = ("head", "layer_0", "layer_10", "layer_2")
    norm = np.ones((5, 4)) * 10.0 ** np.arange(4)
    values = {"norm": norm} | values
    return History(names, np.arange(5) * 2, values)


def rows(ax):
    return [t.get_text() for t in ax.get_yticklabels()]


def test_layers_by_depth():
    assert rows(plot_gradient_flow(history())) == ["head", "layer_0", "layer_2", "layer_10"]
    ax = plot_gradient_flow(history(), order=["layer_*", "head"])
    assert rows(ax) == ["layer_0", "layer_2", "layer_10", "head"]


def test_colors_are_logarithms_in_the_order_of_the_rows():
    ax = plot_gradient_flow(history(), order=["layer_*"])
    drawn = ax.collections[0].get_array()
    np.testing.assert_allclose(drawn[:, 0], [1, 3, 2, 0])
    np.testing.assert_allclose(ax.get_xlim(), [-1, 9])


def test_dead_and_bad_cells_and_names_are_marked():
    values = history().values["norm"]
    values[2:, 1] = 0
    values[4:, 2] = np.nan
    flag = np.zeros((5, 4), int)
    flag[-1] = [Flag.EXPLODING, Flag.DEAD, Flag.NONFINITE, Flag.FINE]
    ax = plot_gradient_flow(history(norm=values, flag=flag))
    _, dead, bad = (c.get_array() for c in ax.collections)
    np.testing.assert_array_equal(~np.ma.getmaskarray(dead)[1], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(~np.ma.getmaskarray(bad)[3], [0, 0, 0, 0, 1])
    assert [t.get_text() for t in ax.texts] == ["exploding", "dead", "not finite"]
    weights = [t.get_fontweight() for t in ax.get_yticklabels()]
    assert [w == "bold" for w in weights] == [True, True, False, True]
    ax.figure.canvas.draw()


def test_every_flag_has_a_mark():
    flag = np.zeros((5, 4), int)
    flag[-1] = [Flag.VANISHING, Flag.HALF_DEAD, Flag.FINE, Flag.FINE]
    ax = plot_gradient_flow(history(flag=flag))
    assert [t.get_text() for t in ax.texts] == ["vanishing", "half dead"]
    assert set(MARKS) == set(Flag) - {Flag.FINE}


def test_without_recorded_flags_the_values_speak():
    values = history().values["norm"]
    values[:, 3] = 0
    assert [t.get_text() for t in plot_gradient_flow(history(norm=values)).texts] == ["dead"]


def test_one_step_only_and_an_axes_of_the_user():
    import matplotlib.pyplot as plt

    one = History(("w",), np.asarray([7]), {"zeros": np.asarray([[0.25]])})
    _, ax = plt.subplots()
    assert plot_gradient_flow(one, stat="zeros", ax=ax) is ax
    np.testing.assert_allclose(ax.collections[0].get_array(), [[0.25]])
    assert ax.get_title(loc="left") == "gradient flow: zeros"


def test_many_layers_still_show_the_sick_one():
    names = tuple(f"layer_{i}" for i in range(301))
    norm = np.ones((2, 301))
    norm[:, 100] = 0
    ax = plot_gradient_flow(History(names, np.arange(2), {"norm": norm}))
    assert "layer_100" in rows(ax)
    assert len(rows(ax)) < 60


def test_wrong_use(monkeypatch):
    with pytest.raises(ValueError, match=r"stat is 'rms', expected one of \['norm'\]"):
        plot_gradient_flow(history(), stat="rms")
    with pytest.raises(ValueError, match=r"patterns \['tail'\] in order match no name"):
        plot_gradient_flow(history(), order=["tail"])
    with pytest.raises(ValueError, match="the history is empty"):
        plot_gradient_flow(History(("w",), np.zeros(0), {"norm": np.zeros((0, 1))}))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="plot_gradient_flow needs matplotlib"):
        plot_gradient_flow(history())
