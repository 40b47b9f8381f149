import jax
import jax.numpy as jnp
import pytest

from fnopt.costs import Cost, Hardware, Work, cost, measure_hardware
from fnopt.costs._remarks import binary, seconds, si
from tests.costs.cost_models import f32


def two_parts(x, w):
    with jax.named_scope("first"):
        x = jnp.tanh(x @ w)
    with jax.named_scope("second"):
        return jnp.exp(x @ w) @ w


def test_a_table_lists_the_heaviest_part_first():
    lines = cost(two_parts)(f32(8, 8), f32(8, 8)).table().splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["second", "first"]
    assert lines[-1].split()[:4] == ["total", "3.072", "k", "0"]
    assert "66.7%" in lines[2]
    assert len({line.index("%") for line in lines[2:4]}) == 1  # columns are aligned


def test_one_part_is_one_line():
    assert len(str(cost(jnp.matmul)(f32(8, 8), f32(8, 8))).splitlines()) == 3
    assert len(str(cost(lambda x: x)(f32(8))).splitlines()) == 3


def test_a_long_list_of_unknowns_is_cut():
    def fn(x):
        for i in range(12):
            with jax.named_scope(f"part{i}"):
                x = jax.pure_callback(lambda x: x, jax.typeof(x), x)
        return x

    text = str(cost(fn)(f32(3)))
    assert text.count("it runs on the host") == 8
    assert "incomplete: 4 more, see .unknown" in text


def test_repr_and_addition():
    c = cost(jnp.matmul)(f32(8, 8), f32(8, 8))
    assert repr(c) == "Cost(flops=1024, bytes=768, parts=1)"
    assert (c + c).total == c.total * 2
    assert Cost({}).total == Work()
    with pytest.raises(TypeError):
        c + 1


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (si(0), "0 "),
        (si(999), "999 "),
        (si(1_234_000), "1.234 M"),
        (si(5e22), "5e+04 E"),
        (binary(512), "512 B"),
        (binary(3 * 2**20), "3 MiB"),
        (seconds(2.0), "2 s"),
        (seconds(0.0123), "12.3 ms"),
        (seconds(4.5e-6), "4.5 us"),
        (seconds(7e-10), "0.7 ns"),
    ],
)
def test_prefixes(shown, text):
    assert shown == text


def test_roofline():
    machine = Hardware(flops=100.0, bandwidth=10.0, vector_flops=20.0, name="toy")
    work = Work(matmul_flops=500, elementwise_flops=30, transcendentals=10, bytes=20)
    assert machine.seconds(work) == 500 / 100 + 40 / 20
    assert machine.limit(work) == "compute"
    assert machine.seconds(Work(bytes=200)) == 20.0
    assert machine.limit(Work(bytes=200)) == "memory"
    assert machine.ridge == 10.0
    table = cost(jnp.matmul)(f32(8, 8), f32(8, 8)).table(hardware=machine)
    assert table.splitlines()[-1].split()[-3:] == ["76.8", "s", "memory"]


@pytest.mark.parametrize("rate", ["flops", "bandwidth", "vector_flops"])
def test_rates_are_above_zero(rate):
    with pytest.raises(ValueError, match=f"Hardware: {rate} is 0, expected a rate above 0"):
        Hardware(**{"flops": 1.0, "bandwidth": 1.0, rate: 0})


def test_rates_of_this_machine():
    machine = measure_hardware(size=32, repeats=2)
    assert 0 < machine.flops < 1e18
    assert 0 < machine.bandwidth < 1e15
    assert machine.name


def test_a_root_that_all_parts_share_is_no_level():
    one = Work(matmul_flops=10)
    parts = {"": one, "M/Dense_0": one, "M/Block/Dense_0": one, "M/Block/Dense_1": one}
    assert Cost(parts).grouped(1) == {"": one, "M/Dense_0": one, "M/Block": one + one}
    table = Cost(parts).table(depth=1)
    assert "(rest)" in table
    assert "M/Block" in table
    assert Cost({"M": one, "": one}).grouped(1) == {"M": one, "": one}


def test_what_is_in_no_inner_part_is_the_rest_of_the_outer():
    one = Work(matmul_flops=10)
    parts = {"": one, "enc": one, "enc/mlp": one, "enc/mlp/up": one, "dec/mlp": one, "dec": one}
    rows = [line.split("  ")[0] for line in Cost(parts).table().splitlines()[2:-2]]
    assert sorted(rows) == ["(rest)", "dec (rest)", "dec/mlp", "enc (rest)", "enc/mlp"]
    outer = [line.split("  ")[0] for line in Cost(parts).table(depth=1).splitlines()[2:-2]]
    assert sorted(outer) == ["(rest)", "dec", "enc"]
