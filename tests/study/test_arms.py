"""The settings that tell a method's runs apart: few, and enough."""

import itertools

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from fedbary.study.arms import differing, told_apart

RUNS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), max_size=8)


def differences(one, other):
    return {key for key in one if key in other and one[key] != other[key]}


def names(runs):
    return [
        tuple((key, run[key]) for key in keys)
        for run, keys in zip(runs, told_apart(runs), strict=True)
    ]


@given(RUNS)
def test_names_differ_wherever_runs_do_and_say_nothing_that_no_run_differs_in(runs):
    named = list(zip(runs, names(runs), strict=True))
    for (one, name), (other, second) in itertools.product(named, repeat=2):
        assert name != second or not differences(one, other)
    for _, name in named:
        assert all(any(other.get(key, value) != value for other in runs) for key, value in name)


@given(RUNS, st.randoms())
def test_a_name_depends_neither_on_the_order_of_the_runs_nor_on_repeats(runs, random):
    again = random.sample(runs, len(runs)) + runs
    known = dict(zip(map(repr, again), names(again), strict=True))
    assert [known[repr(run)] for run in runs] == names(runs)


def test_a_grid_names_what_it_varies_and_steps_from_a_base_name_their_step():
    grid = [{"a": a, "b": b, "c": 0} for a in (0, 1) for b in (0, 1)]
    assert told_apart(grid) == 4 * [["a", "b"]]
    assert told_apart(grid[:3]) == [["a", "b"], ["b"], ["a"]]


def test_what_changes_together_is_told_together_and_what_follows_is_not():
    assert told_apart([{"a": 0, "b": 0}, {"a": 1, "b": 1}]) == 2 * [["a", "b"]]
    kinds = [{"kind": 0, "lr": 1}, {"kind": 0, "lr": 2}, {"kind": 1, "own": 1, "lr": 1}]
    assert told_apart(kinds) == [["kind", "lr"], ["lr"], ["kind"]]


def test_bookkeeping_and_a_setting_that_one_method_has_alone_tell_no_runs_apart():
    runs = pd.DataFrame({"output": ["a", "b"], "damping": [0.1, None], "lr": [0.1, 0.2]})
    assert differing(runs) == ["lr"]
