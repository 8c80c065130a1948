"""Changes that the server remembers: each aggregate is a part of a round of all clients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.aggregation.sums import LARGEST_LOG_VAR
from fedbary.errors import SettingError
from fedbary.methods import Arrival, Reply, Server
from fedbary.methods import _remembered as remembered
from fedbary.methods._remembered import LONGEST
from fedbary.methods.barycentre import Barycentre

CLIENTS = 4


@given(st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=20), st.integers(1, 3))
def test_a_pass_over_all_examples_moves_the_model_by_a_round_of_the_newest_changes(turns, buffer):
    """Whoever replies how often, a client's say is that of its examples, while it is remembered."""
    method, examples = Barycentre("WB", remember=True), torch.arange(1.0, CLIENTS + 1)
    every = float(examples.sum())
    model = {"w_mean": torch.zeros(CLIENTS), "w_log_var": torch.zeros(CLIENTS), "b": torch.ones(1)}
    ways = torch.rand(CLIENTS, CLIENTS, generator=torch.Generator().manual_seed(0))
    state = {}

    def arrived(model, state, who):
        server = Server(model, state, examples=int(every), clients=CLIENTS)
        replies = []
        for k in who:
            own = {**model, "w_mean": model["w_mean"] + ways[k], "b": model["b"] - k}
            part = float(examples[k]) / every
            replies.append(Arrival(f"a/{k}", float(examples[k]), own, model, part, CLIENTS))
        return method.arrive(server, replies)

    model, state = arrived(model, state, range(CLIENTS))
    ages = torch.zeros(CLIENTS, dtype=torch.float64)
    for first in range(0, len(turns), buffer):
        who, before = sorted({*turns[first : first + buffer]}), model
        model, state = arrived(model, state, who)
        share = float(examples[who].sum()) / every
        counts = (ages < LONGEST).double() * share
        ages = (ages + share).index_fill(0, torch.tensor(who), 0.0)
        parts = (counts * examples / every).float()
        torch.testing.assert_close(model["w_mean"], before["w_mean"] + parts @ ways)
        torch.testing.assert_close(model["w_log_var"], before["w_log_var"], rtol=0, atol=1e-6)
        numbers = float(parts @ torch.arange(CLIENTS).float())
        torch.testing.assert_close(model["b"], before["b"] - numbers)


def arrive_in_turn(method, turns, change, rounds=60, clients=CLIENTS):
    """The weight after each of some replies of client k = turns(i), who moves it by `change`."""
    model, state, seen = {"w": torch.zeros(1)}, {}, []
    for number in range(rounds):
        k = turns(number)
        own = {"w": model["w"] + change(k, float(model["w"]))}
        arrival = Arrival(str(k), 1.0, own, model, 1 / clients, clients)
        model, state = method.arrive(
            Server(model, state, examples=clients, clients=clients), [arrival]
        )
        seen.append(float(model["w"]))
    return seen


def test_the_change_of_a_client_that_vanishes_counts_for_some_time_and_no_longer():
    """One of four clients replies once, and moves the weight by 1/4 a pass; the others stay."""
    method = Barycentre("FedAvg", remember=True)
    moved = arrive_in_turn(method, lambda i: 0 if i == 0 else 1 + i % 3, lambda k, w: float(k == 0))
    assert moved[-1] == pytest.approx(0.25 + LONGEST * 0.25) and moved[-2] == moved[-1]


@pytest.mark.parametrize(
    "parameters", [{"rule": "Median"}, {"rule": "TrimmedMean"}, {"rule": "MultiKrum"},
                   {"rule": "FedAvg", "clipping": True}, {"rule": "FedAvg", "mixing": True}],
)  # fmt: skip
@pytest.mark.parametrize("turns", [lambda i: i % 10, lambda i: 0 if i % 2 else 1 + (i // 2) % 9])
def test_a_hostile_client_is_bounded_as_in_rounds_however_often_it_replies(parameters, turns):
    """Nine clients go to 1, a tenth of the way each time; one goes the other way, or far off."""
    for false in (lambda w: -0.1 * (1 - w) - 0.01, lambda w: 1e4):

        def change(k, w, false=false):
            return false(w) if k == 0 else 0.1 * (1 - w)

        method = Barycentre(**parameters, trim_fraction=0.2, remember=True)
        seen = arrive_in_turn(method, turns, change, rounds=900, clients=10)
        assert abs(seen[-1] - 1) < 0.05
        assert max(map(abs, seen)) < 1.2


@given(st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=20), st.integers(0, 10**6))
def test_remembered_changes_of_any_kind_leave_a_gaussian(turns, seed):
    generator = torch.Generator().manual_seed(seed)

    def wild():
        far = torch.rand(2, 5, generator=generator) - 0.5
        return {"w_mean": 10 ** (12 * far[0]), "w_log_var": 70 * far[1]}

    for rule in ("RKLB", "WB", "FKLB", "Median"):
        method, model, state = Barycentre(rule, remember=True), wild(), {}
        for k in turns:
            arrival = Arrival(str(k), 1.0, wild(), wild(), 0.25, CLIENTS)
            server = Server(model, state, examples=CLIENTS, clients=CLIENTS)
            model, state = method.arrive(server, [arrival])
            assert model["w_mean"].isfinite().all()
            assert (model["w_log_var"].abs() <= LARGEST_LOG_VAR).all()


@given(st.lists(st.integers(0, CLIENTS - 1), max_size=8))
@settings(max_examples=20)
def test_a_running_statistic_is_the_mean_of_the_clients_newest_ones(turns):
    method, newest, state = Barycentre("RKLB", remember=True), {}, {}
    model = {"n.running_mean": torch.zeros(1), "n.num_batches_tracked": torch.tensor(0)}
    for number, k in enumerate([*range(CLIENTS), *turns]):
        own = {"n.running_mean": torch.tensor([100.0 + number]),
               "n.num_batches_tracked": torch.tensor(number)}  # fmt: skip
        newest[k] = (k + 1) * own["n.running_mean"] / sum(range(1, CLIENTS + 1))
        arrival = Arrival(str(k), k + 1.0, own, model, 0.25, CLIENTS)
        model, state = method.arrive(Server(model, state, examples=10, clients=CLIENTS), [arrival])
        if len(newest) == CLIENTS:
            torch.testing.assert_close(model["n.running_mean"], sum(newest.values()))


@pytest.mark.parametrize("parameters", [{"rule": "Median"}, {"rule": "FedAvg", "clipping": True}])
def test_rounds_of_a_part_of_the_clients_never_move_further_than_two_of_all(parameters):
    """Twenty clients move a weight by 1; two of them reply each time."""
    method, state, model = Barycentre(**parameters, remember=True), {}, {"w": torch.zeros(1)}
    for number in range(30):
        who = [str((2 * number + k) % 20) for k in range(2)]
        own = {"w": model["w"] + 1}
        before, server = model, Server(model, state, examples=20, clients=20)
        model, state = method.aggregate(server, [Reply(client, 1.0, own) for client in who])
        assert 0 <= float(model["w"] - before["w"]) <= 1.2
    assert float(model["w"]) > 1


def test_the_state_of_the_memory_is_read_as_it_was_written():
    method, one = Barycentre("RKLB", remember=True), torch.zeros(1)
    model = {"w_mean": one, "w_log_var": one, "n.running_mean": one, "n.count": torch.tensor(0)}
    state = {}
    for number, client in enumerate(("a/b", "c d", "a/b", "\u00fc/%2F")):
        own = {name: tensor + number for name, tensor in model.items()}
        arrival = Arrival(client, 2.0, own, model, 0.25, 4)
        model, state = method.arrive(Server(model, state, clients=4), [arrival])
    held = remembered._read(state)
    assert {*held} == {"a/b", "c d", "\u00fc/%2F"}
    assert [own.examples for own in held.values()] == [2.0] * 3
    assert held["a/b"].age == pytest.approx(0.25) and held["c d"].age == pytest.approx(0.5)
    assert all(own.change.keys() == model.keys() for own in held.values())


def test_a_rule_that_moves_equal_posteriors_is_refused_for_the_memory():
    with pytest.raises(SettingError, match="remember=true"):
        Barycentre("GAA", remember=True)
