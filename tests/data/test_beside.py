"""Sites beside each other, by their sums alone: laws of what is called far."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.beside import UNITS, far_sites, lines
from fedbary.data.digest import checksum
from fedbary.data.standardise import Sums


def sites(count, seed=0, rows=80, mean=50.0, std=10.0, shift=None):
    rng = np.random.default_rng(seed)
    held = [rng.normal(mean + rng.normal() * std / 4, std, (rows, 1)) for _ in range(count)]
    return [torch.from_numpy(each) for each in held]


def far(parts, shift=None):
    return far_sites([Sums.of(part, shift) for part in parts])


def places(found):
    return [(each.site, each.column) for each in found]


@given(st.integers(0, 999), st.integers(1, 6), st.floats(-1e3, 1e3))
def test_sites_of_one_population_are_never_far_whatever_the_unit_and_the_shift(seed, count, shift):
    parts = sites(count, seed)
    scaled = [1e3 * part for part in parts]
    assert far(parts) == far(scaled) == far(parts, torch.tensor([shift])) == []


@pytest.mark.parametrize(("factor", "words"), UNITS)
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("up", [True, False])
def test_a_known_factor_is_named_up_and_down_and_the_site_is_found(factor, words, count, up):
    parts = sites(count, seed=3)
    parts[1] = parts[1] * factor if up else parts[1] / factor
    (found,) = far(parts)
    assert found.site == (1 if up or count > 2 else 0)
    assert f"factor {factor:g}: {words}" in found.units


@pytest.mark.parametrize(
    ("slope", "shift", "words"), [(1.8, 32, "°C and °F"), (1, 273.15, "°C and K")]
)
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_degrees_are_named_whichever_way(slope, shift, words, odd):
    cold = sites(3, mean=37.0, std=0.6)
    warm = [slope * part + shift for part in cold]
    for one, other in ((cold, warm), (warm, cold)):
        mixed = [other[n] if n == odd else part for n, part in enumerate(one)]
        assert [(each.site, each.units) for each in far(mixed)] == [(odd, (words,))]


@given(st.permutations(range(5)), st.sampled_from([88.4, 18.02, 1 / 12]))
def test_the_order_of_sites_and_columns_does_not_matter(order, factor):
    parts = sites(5, seed=1)
    parts[2] = parts[2] * factor
    (alone,) = far(parts)
    turned = [
        torch.cat([part[:, :1] * 0 + 1, parts[k]], 1) for k, part in zip(order, parts, strict=True)
    ]
    (found,) = far(turned)
    assert (found.site, found.column) == (order.index(2), 1)
    assert found.distance == pytest.approx(alone.distance) and found.units == alone.units


@pytest.mark.parametrize(
    "parts",
    [
        [],
        sites(1),
        [torch.zeros(9, 1), torch.ones(9, 1)],  # a level that is a site's own
        [torch.full((9, 1), 2.0), torch.ones(9, 1), torch.ones(9, 1)],
        [torch.full((4, 1), 1e9), *sites(2)],  # too few rows
        [sites(1)[0] - 50, sites(1)[0] + 50 - 90],  # means of two signs
        [torch.tensor([[3.0]]), torch.tensor([[float("nan")]])],
    ],
)
def test_what_cannot_be_compared_is_not_far(parts):
    sums = [Sums.of(part.double(), missing=True) for part in parts]
    assert far_sites(sums) == []


def test_half_of_the_sites_in_another_unit_are_named_all_alike():
    parts = sites(5)
    parts[0], parts[3] = parts[0] * 88.4, parts[3] * 88.4
    assert places(far(parts)) == [(0, 0), (3, 0)]


def test_a_site_neither_hides_what_is_said_of_others_nor_fills_the_log():
    """It marks all of its columns, and its numbers lie far off in all that it does not mark."""
    parts = [torch.cat([part] * 40, 1) for part in sites(4)]
    parts[1][:, 39] *= 88.4
    sums = {n: Sums.of(part) for n, part in zip("abcd", parts, strict=True)}
    names = [f"x{k}" for k in range(40)]
    (alone,) = lines(sums, names)
    d = sums["d"]
    marked = Sums(d.count, d.shift, d.total, d.squares, None, (True,) * 40)
    of_d, of_b = lines({**sums, "d": marked}, names)
    assert of_d.startswith("columns x0, x1, ") and "repeats at d; " in of_d
    assert of_b.startswith("column x39 ") and of_b[:60] == alone[:60] and "at d" not in of_b
    parts[3] = 88.4 * parts[3]
    found = list(lines({**sums, "d": Sums.of(parts[3])}, names))
    assert len(found) == 12 and sum("at b (" in line for line in found) == 1
    assert found[-1] == "d lies far off in 30 more columns"


def test_a_number_that_repeats_is_the_cause_that_is_named_and_no_unit():
    parts = sites(3)
    parts[1] = parts[1] * 88.4
    sums = {n: Sums.of(part) for n, part in zip("abc", parts, strict=True)}
    (line,) = lines(sums, ["dose"])
    assert line.startswith("column dose may have another unit at b (mean ")
    marked = {
        n: Sums(s.count, s.shift, s.total, s.squares, None, (n != "b",)) for n, s in sums.items()
    }
    (line,) = lines(marked, ["dose"])
    assert line.startswith("column dose: a number far from all others repeats at a, c; ")
    assert list(lines(sums, [])) == []


def test_a_checksum_is_that_of_rows_and_targets_in_any_order():
    x, y = torch.rand(30, 4).double(), torch.arange(30) % 3
    order = torch.randperm(30)
    assert checksum(x, y) == checksum(x[order], y[order]) and len(checksum(x, y)) == 8
    twice = torch.arange(30).clamp(max=28)
    others = {checksum(x, y.roll(1)), checksum(x[1:], y[1:]), checksum(x[twice], y[twice])}
    assert len({checksum(x, y), *others}) == 4
    assert checksum(x, y.double() / 7) != checksum(x, y)
