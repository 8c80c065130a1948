"""Faults, injected between the real apps: a round ends with who is sound, and counts them once."""

import copy
import math
import time

import pytest
from flwr.app import Array
from hostile_site import run_with_a_hostile_site
from runs_of import SHORT, lines, posterior, same

from fedbary import client_app
from fedbary.errors import RunError, SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve

QUICK = {
    **SHORT, "clients": 3, "rounds": 3, "samples": 3, "round_timeout": 1, "normalise": "none",
    "train_fraction": 0.3,
}  # fmt: skip


def settings(**changes):
    return resolve({**QUICK, **changes})


class FaultyGrid(InlineGrid):
    """A federation that waits for replies as Flower does, and whose nodes can be struck dumb."""

    def __init__(self, chosen):
        super().__init__(client_app.app, chosen.clients, chosen.model_dump())
        self.dumb = set()
        self.waited = []

    def push_messages(self, messages):
        messages = list(messages)
        ids = []
        for message in messages:
            if message.metadata.dst_node_id in self.dumb:
                ids.append(message_id := f"never answered {len(self._open)}")
                self._open.add(message_id)
            else:
                ids.extend(super().push_messages([message]))
        return ids

    def send_and_receive(self, messages, *, timeout=None):
        ids = self.push_messages(messages)
        replies = list(self.pull_messages(ids))
        if len(replies) < len(ids):
            self.waited.append(timeout)
            time.sleep(timeout)
        return replies


class DumbFromRoundTwo(FaultyGrid):
    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if any(message.metadata.group_id == "train, round 2" for message in messages):
            self.dumb = set(self.lost)
        return super().send_and_receive(messages, timeout=timeout)


def test_a_client_that_never_answers_is_waited_for_once(tmp_path):
    chosen = settings(rounds=5)
    grid = DumbFromRoundTwo(chosen)
    grid.lost = list(grid.get_node_ids())[2:]
    run(grid, chosen, tmp_path / "run")
    assert grid.waited == [1.0]
    rounds = lines(tmp_path / "run")[1:]
    assert [line["admitted"] for line in rounds] == [3, 2, 2, 2, 2]
    assert [line["unanswered"] for line in rounds] == [[], ["partition 2"], [], [], []]
    assert not any(line["skipped"] for line in rounds)


def test_skipped_rounds_in_a_row_end_the_run_with_an_error_and_what_is_written_stays(tmp_path):
    chosen = settings(rounds=50, min_replies=2, max_skipped=3)
    grid = DumbFromRoundTwo(chosen)
    grid.lost = list(grid.get_node_ids())[1:]
    message = r"3 rounds in a row were skipped; round 4: 1 replies admitted, 2 needed"
    with pytest.raises(RunError, match=message):
        run(grid, chosen, tmp_path / "run")
    assert len(grid.waited) <= 3
    assert [line["skipped"] for line in lines(tmp_path / "run")] == [False, False, *3 * [True]]
    assert (tmp_path / "run" / "checkpoint-0004.safetensors").exists()


class EchoingGrid(FaultyGrid):
    """Brings every reply twice, and with it the node's reply of the round before."""

    def __init__(self, chosen):
        super().__init__(chosen)
        self.before = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if not messages:
            return []
        replies = list(super().send_and_receive(messages, timeout=timeout))
        late, self.before = self.before, copy.deepcopy(replies)
        return [*late, *replies, *copy.deepcopy(replies)]


def test_late_and_duplicate_replies_do_not_count(tmp_path):
    chosen = settings(rounds=2, evaluate_clients=0)
    run(EchoingGrid(chosen), chosen, tmp_path / "echoing")
    run_inline(chosen, tmp_path / "plain")
    assert same(posterior(tmp_path / "echoing"), posterior(tmp_path / "plain"))
    one, two = lines(tmp_path / "echoing")[1:]
    assert one["admitted"] == two["admitted"] == 3
    assert sum("it has replied already" in reason for reason in one["refused"]) == 3
    assert sum("late, it answers 'train, round 1'" in reason for reason in two["refused"]) == 3


class NoEvaluationFromRoundTwo(FaultyGrid):
    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if any(message.metadata.group_id == "evaluate, round 2" for message in messages):
            self.dumb = {self.get_node_ids()[-1]}
        return super().send_and_receive(messages, timeout=timeout)


def test_a_client_that_trains_but_does_not_evaluate_is_waited_for_once(tmp_path):
    chosen = settings(rounds=4)
    grid = NoEvaluationFromRoundTwo(chosen)
    run(grid, chosen, tmp_path / "run")
    assert grid.waited == [1.0]
    assert lines(tmp_path / "run")[2]["unanswered"] == ["partition 2"]


@pytest.mark.parametrize("kind", ["evaluate", "train", "byte order"])
def test_one_client_with_absurd_metrics_or_bytes_ends_nothing(kind, tmp_path):
    def spoil(action, reply):
        if action == kind:
            name = "local-accuracy" if kind == "train" else "accuracy"
            reply.content["metrics"][name] = math.nan
        if kind == "byte order" and action == "train":
            arrays = reply.content["arrays"]
            for key, array in arrays.items():
                swapped = array.numpy()
                arrays[key] = Array(swapped.astype(swapped.dtype.newbyteorder(">")))

    run_with_a_hostile_site(settings(rounds=1), tmp_path / "run", spoil, 1)
    line = lines(tmp_path / "run")[1]
    assert line["accuracy"] > 0 and line["admitted"] == 3
    assert len(line["held_out"]["clients"]) == (2 if kind == "evaluate" else 3)


def test_clients_whose_training_diverged_say_so(tmp_path, caplog):
    with pytest.raises(RunError, match="every round was skipped"):
        run_inline(settings(rounds=1, lr=1e30), tmp_path / "run")
    refused = [text for text in caplog.messages if "reply refused" in text]
    assert len(refused) == 3 and all("training diverged" in text for text in refused)


@pytest.mark.parametrize("words", [{}, {"method": "FOLA", "bayesian_layers": 0}])
def test_more_draws_than_fit_into_memory_are_refused_and_no_folder_is_left(words, tmp_path):
    """Also of a posterior that a method has over a network of point weights."""
    with pytest.raises(SettingError, match="samples: '1000000000 networks of .*half of this mach"):
        run_inline(settings(samples=10**9, **words), tmp_path / "run")
    assert not (tmp_path / "run").exists()
