"""What a client keeps holds for admitted rounds alone, and outlives restarts on either side."""

from dataclasses import dataclass, replace

import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_apps import answering
from torch import nn

from fedbary.client_app.node import Node
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.inference import Training
from fedbary.methods import METHODS, Fitted, Method
from fedbary.methods._method import weighted_mean
from fedbary.runs.memory import Memory
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from fedbary.strategies import Client, MethodStrategy
from fedbary.strategies.state_memory import StateMemory

CLIENTS = 3


@dataclass(frozen=True)
class Counting(Method):
    """Each client counts the rounds in which its reply was admitted, and sends the count."""

    deterministic = True
    remembers = True

    def fit(self, local, received, kept):
        count = kept.get("count", torch.zeros(())) + 1
        reply = {name: torch.full_like(tensor, float(count)) for name, tensor in received.items()}
        return Fitted(reply, {"train_nll": 0.0}, {"count": count})

    def aggregate(self, server, replies):
        counts = {f"{reply.client}": reply.tensors["bias"][0].clone() for reply in replies}
        return weighted_mean(replies, list(server.model)), {**server.state, **counts}


class CountingStrategy(MethodStrategy):
    method_class = Counting


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr("fedbary.methods.METHODS", {**METHODS, "Counting": Counting})


def client_app(folder, spoiled):
    def client(k):
        keeps = folder and folder / str(k)
        return Client(nn.Linear(1, 1), torch.ones(5, 1), torch.ones(5), Training(), keep_in=keeps)

    return answering(client, spoiled)


def run(folder, rounds, spoiled=(), resumed=None, start=None):
    """Return the strategy and the arrays; a new ClientApp each time, as after a restart."""
    chosen = CountingStrategy(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    if resumed:
        chosen.load_state_dict(*resumed)
    arrays = start or ArrayRecord(nn.Linear(1, 1).state_dict())
    grid = InlineGrid(client_app(folder, spoiled), CLIENTS, {})
    return chosen, chosen.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays


def counts(strategy):
    state = strategy.state_dict()
    return [int(state.get(f"method.{node}", 0)) for node in range(2, 2 + CLIENTS)]


@settings(max_examples=15)
@given(st.sets(st.tuples(st.integers(0, CLIENTS - 1), st.integers(1, 5)), max_size=6))
@example({(2, t) for t in range(1, 6)})
def test_a_refused_reply_leaves_no_trace_at_its_client(tmp_path_factory, spoiled):
    rounds = 5
    alone = {t for t in range(1, rounds + 1) if all((k, t) in spoiled for k in range(CLIENTS))}
    spoiled -= {(0, t) for t in alone}  # at least one reply counts
    strategy, _ = run(tmp_path_factory.mktemp("kept"), rounds, spoiled)
    admitted = [rounds - sum((k, t) in spoiled for t in range(1, rounds + 1)) for k in range(3)]
    last = [max({0, *range(1, rounds + 1)} - {t for j, t in spoiled if j == k}) for k in range(3)]
    assert counts(strategy) == admitted
    state = strategy.state_dict()
    assert [int(state.get(f"kept.{k + 2}", 0)) for k in range(CLIENTS)] == last


def test_a_server_that_goes_back_finds_its_clients_as_they_were(tmp_path):
    first, arrays = run(tmp_path, 3)
    state = first.state_dict()
    run(tmp_path, 2, resumed=(state, 3), start=arrays)  # lost with a server that was killed
    again, _ = run(tmp_path, 2, resumed=(state, 3), start=arrays)
    assert counts(again) == [5, 5, 5]


def test_a_second_start_of_one_strategy_begins_anew(tmp_path):
    strategy = CountingStrategy(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    for _ in range(2):
        grid = InlineGrid(client_app(tmp_path, ()), CLIENTS, {})
        arrays = ArrayRecord(nn.Linear(1, 1).state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=3)
        assert counts(strategy) == [3, 3, 3]


def test_another_run_in_the_same_folder_begins_anew(tmp_path):
    run(tmp_path, 3)
    other, _ = run(tmp_path, 2)
    assert counts(other) == [2, 2, 2]


def test_a_client_that_has_lost_its_folder_says_so(tmp_path):
    strategy, arrays = run(tmp_path, 2)
    for file in (tmp_path / "1").rglob("kept-*"):
        file.write_bytes(b"not safetensors")
    again, _ = run(tmp_path, 1, resumed=(strategy.state_dict(), 2), start=arrays)
    assert [refusal.round for refusal in again.refusals] == [3]
    assert "tensors of round 2" in again.refusals[0].reason


def test_a_client_without_a_folder_keeps_things_in_its_node_s_state(tmp_path):
    strategy, arrays = run(None, 3, spoiled={(0, 2)})
    assert counts(strategy) == [2, 3, 3]
    again, _ = run(None, 1, resumed=(strategy.state_dict(), 3), start=arrays)  # in new contexts
    assert len(again.refusals) == CLIENTS
    assert all("tensors of round 3" in refusal.reason for refusal in again.refusals)


@pytest.mark.parametrize("make", [Memory, lambda _: StateMemory(RecordDict(), "run")])
def test_only_what_can_still_be_asked_for_is_kept(make, tmp_path):
    memory = make(tmp_path / "kept")
    for server_round in range(1, 9):
        needed = {server_round - 1, server_round - 2} if server_round > 3 else None
        memory.keep(server_round, {"w": torch.tensor(server_round)}, needed)
    for kept in (6, 7, 8):
        assert memory.recall(kept) == {"w": torch.tensor(kept)}
    assert memory.recall(0) == {}
    for dropped in range(1, 6):
        with pytest.raises(SettingError, match=f"round {dropped}"):
            memory.recall(dropped)


def test_a_partition_of_a_run_that_is_not_told_its_folder_keeps_nothing(tmp_path):
    """A bare `flwr run` leaves output=auto, which is no folder."""
    partition = Site("partition 1", "", 1, 3)
    assert Node(resolve({}), partition).keeps_in is None
    assert Node(resolve({"output": str(tmp_path)}), partition).keeps_in == tmp_path / "clients/1"
    told = replace(partition, state_path=str(tmp_path / "state"))
    assert Node(resolve({}), told).keeps_in == tmp_path / "state"
