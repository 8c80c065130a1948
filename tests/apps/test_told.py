"""What the server tells with each training message: examples of all, of those asked, rounds."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from nodes import Grid

import client_app
from client_app.node import Node
from fedbary.gaussian import Posterior
from fedbary.settings.config import resolve
from server_app import run
from strategies.answering import Request, part_asked, share_of


class Heard(Grid):
    """It notes what training messages say, and in round 1 lets nobody answer."""

    def push_messages(self, messages):
        messages = list(messages)
        configs = [m.content.config_records.get("config", {}) for m in messages]
        trains = [m.metadata.message_type == "train" for m in messages]
        self.said += [dict(c) for c, is_train in zip(configs, trains, strict=True) if is_train]
        first = any(trains) and configs[0]["server-round"] == 1
        self.mute = {m.metadata.dst_node_id for m in messages} if first else set()
        return super().push_messages(messages)


def test_a_message_says_how_many_examples_are_asked_of_all_and_how_many_rounds_counted(tmp_path):
    chosen = resolve(
        {"task": "regression", "method": "FALD", "engine": "inline", "pictures": False,
         "device": "cpu", "clients": 4, "participation": 0.5, "rounds": 3, "min_replies": 1,
         "noise": "learned", "local_steps": 1, "evaluate_clients": 0, "round_timeout": 1}
    )  # fmt: skip
    grid = Heard(client_app.app, chosen)
    grid.said = []
    run(grid, chosen, tmp_path / "run")
    rounds = {n: [s for s in grid.said if s["server-round"] == n] for n in (1, 2, 3)}
    assert [rounds[n][0]["counted-rounds"] for n in rounds] == [0, 0, 1]
    for said in grid.said:
        assert said["all-examples"] > said["asked-examples"] > 0 and said["all-clients"] == 4
        assert 0.2 < part_asked(ConfigRecord(said)) < 0.8


def test_until_a_round_counts_there_is_no_global_posterior_to_be_the_prior():
    """Trap: after a skipped round 1 the untrained start was the prior, a precision of 1097."""
    start = {"a_mean": torch.tensor(0.7), "a_log_var": torch.tensor(-7.0)}
    node = Node(SimpleNamespace(prior="global", prior_std=1.0), None)
    first, later = (
        Request(None, ConfigRecord({"counted-rounds": count}), start, None) for count in (0, 1)
    )
    assert node.prior(first) == 1.0
    assert isinstance(node.prior(later), Posterior)


@given(st.integers(-5, 100), st.integers(-5, 100))
def test_the_part_asked_is_above_nothing_and_at_most_all(asked, every):
    found = part_asked(ConfigRecord({"asked-examples": asked, "all-examples": every}))
    assert 0 < found <= 1
    assert found == pytest.approx(asked / every) if 0 < asked <= every else found == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_the_mean_client_has_a_share_of_one(sizes):
    told = ConfigRecord({"all-clients": len(sizes), "all-examples": sum(sizes)})
    assert sum(share_of(told, size) for size in sizes) == pytest.approx(len(sizes))


def test_where_nobody_says_so_all_are_asked_and_alike():
    assert part_asked(ConfigRecord({})) == share_of(ConfigRecord({}), 7) == 1
