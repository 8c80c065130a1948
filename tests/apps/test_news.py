"""A run starts once its sites report enough new examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import SMALL
from runs_of import lines

from fedbary import client_app
from fedbary.errors import RunError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.roster.member import MOST_EXAMPLES, Member, require_enough
from fedbary.settings.config import resolve

OWN = {
    **SMALL, "clients": 2, "dataset": "none", "classes": 3, "input_shape": "4", "rounds": 1,
    "method": "LDA", "normalise": "none", "model": "linear", "holdout": 0.0, "round_timeout": 1,
}  # fmt: skip

CHOSEN = resolve({**OWN, "clients": 5})


def held(folder, name, count):
    rng = np.random.default_rng(count)
    x = rng.standard_normal((count, 4)).astype(np.float32)
    np.savez(folder / f"{name}.npz", x=x, y=np.arange(count) % 3)


def made(place, name, **changes):
    """Make a run of both sites; return who took part."""
    nodes = [{"data-path": str(place / f"{n}.npz"), "name": n} for n in ("north", "south")]
    chosen = resolve({**OWN, **changes})
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, place / name)
    return [client["site"] for client in lines(place / name)[1]["clients"]]


def test_a_site_counts_from_when_its_numbers_are_not_those_of_its_last_run(tmp_path):
    held(tmp_path, "north", 30)
    held(tmp_path, "south", 21)
    first = {"start_from": str(tmp_path / "first"), "new_examples": 9}
    assert made(tmp_path, "first", new_examples=51) == ["north", "south"]
    with pytest.raises(RunError, match="as many examples as in its last run, so none is new"):
        made(tmp_path, "second", **first)
    held(tmp_path, "north", 9)
    with pytest.raises(RunError, match=r"no run starts yet: 9 of 10 new examples \(north 9\)"):
        made(tmp_path, "second", **{**first, "new_examples": 10})
    assert not (tmp_path / "second").exists()
    assert made(tmp_path, "second", **first) == ["north"]
    second = {**first, "start_from": str(tmp_path / "second")}
    held(tmp_path, "north", 12)
    assert made(tmp_path, "third", **second) == ["north"]
    held(tmp_path, "south", 12)
    assert made(tmp_path, "fourth", **second) == ["north", "south"]
    assert made(tmp_path, "without", **{**second, "new_examples": 0}) == ["north", "south"]


@given(
    claims=st.lists(st.integers(1, MOST_EXAMPLES), max_size=4),
    wanted=st.integers(1, 10**6),
    least=st.integers(2, 5),
)
def test_fewer_sites_than_min_replies_start_no_run_whatever_they_claim(claims, wanted, least):
    chosen = CHOSEN.model_copy(update={"min_replies": least, "new_examples": wanted})
    members = [Member(n, f"site {n}", -1, 0, claim, 0, []) for n, claim in enumerate(claims)]
    if len(members) < least and wanted >= least:
        with pytest.raises(RunError, match="no run starts yet"):
            require_enough(chosen, members)
    elif len(members) >= least and min(claims) >= wanted:
        require_enough(chosen, members)
