"""A strategy without rounds, in a project of one's own: whom it asks, what it makes of replies."""

import copy
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from strategies_clients import CLIENTS, assert_posterior, client_app, grid, initial

from fedbary.errors import RunError, SettingError
from fedbary.methods import METHODS
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import (
    CONVENTIONS,
    Arrivals,
    Asynchronous,
    Federation,
    posterior_from_arrays,
    strategy_for,
)
from fedbary.strategies.clocks import VirtualClock
from fedbary.strategies.federation import CLIENTS_KEY, EXAMPLES_KEY
from fedbary.strategies.gate import LEAST

ENTRY = "fc.weight_mean"
NODES = range(2, 2 + CLIENTS)


def strategy(mode, rule="RKLB", seconds=lambda node, now: 1.0 + 0.01 * node, **changes):
    return strategy_for(rule)(asynchronous=mode, seconds=seconds, **changes)


def turning(rule, mode, **changes):
    return strategy(mode, rule, lambda node, now: 1.0 + node % 3, **changes)


def pushing(claims):
    """A client's part: it adds 1 to an entry of its own, and claims so many examples."""

    def mod(message, context, call_next):
        reply, place = call_next(message, context), context.node_config["partition-id"]
        held = message.content["arrays"].to_torch_state_dict()
        held[ENTRY].view(-1)[place] += 1
        reply.content["arrays"] = ArrayRecord(held)
        reply.content["metrics"]["num-examples"] = claims[place]
        return reply

    return mod


def moved(run, rounds, claims):
    """How far each client's entry goes."""
    clients = grid(train_mods=[pushing(claims)])
    made = run.start(grid=clients, initial_arrays=initial(), num_rounds=rounds).arrays
    after, before = (each.to_torch_state_dict()[ENTRY].view(-1) for each in (made, initial()))
    return (after - before)[:CLIENTS]


class Dead(InlineGrid):
    """Some nodes take training messages, and never reply."""

    def __init__(self, dead, train_mods=()):
        super().__init__(client_app(train_mods=train_mods), CLIENTS, {})
        self.dead, self.asked = dead, []

    def push_messages(self, messages):
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for message, sent in zip(messages, ids, strict=True):
            if message.metadata.message_type == "train":
                self.asked.append(message.metadata.dst_node_id)
                if message.metadata.dst_node_id in self.dead:
                    self._replies.pop(sent, None)
        return ids


@given(st.integers(1, 30), st.sampled_from(["constant", "even"]), st.booleans())
@settings(max_examples=6)
def test_more_clients_at_work_than_there_are_change_nothing(concurrency, staleness, remember):
    def of(mode):
        return moved(strategy(mode, remember=remember), 8, [10] * CLIENTS)

    many = Asynchronous(concurrency=CLIENTS + concurrency, staleness=staleness)
    torch.testing.assert_close(of(many), of(Asynchronous(staleness=staleness)))


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("buffer", [1, CLIENTS])
def test_a_claim_of_a_thousand_million_examples_counts_as_in_rounds(buffer, remember):
    claims = [100] * (CLIENTS - 1) + [10**9]
    told = {EXAMPLES_KEY: sum(claims), CLIENTS_KEY: CLIENTS}
    mode, ratio, passes = Asynchronous(buffer=buffer), 3.0, 4
    run = strategy(
        mode, remember=remember, max_weight_ratio=ratio, federation=Federation(tell=lambda: told)
    )
    say = moved(run, passes * CLIENTS // buffer, claims)
    share = ratio / (ratio + CLIENTS - 1)
    others = say[:-1] / passes
    assert float(others.min()) > 0.7 * (1 - share) / (CLIENTS - 1)
    assert float(say[-1] / passes) < 1.3 * share


@pytest.mark.parametrize("seconds", [None, lambda node, now: 1.0])
def test_a_client_that_never_answers_holds_up_nobody(seconds):
    nobody = Dead(dead={NODES[-1]})
    run = strategy(Asynchronous(buffer=CLIENTS), seconds=seconds)
    run.start(grid=nobody, initial_arrays=initial(), num_rounds=3, timeout=0.3)
    assert len(run.pace.staleness) == CLIENTS - 1
    assert nobody.asked.count(NODES[-1]) == 3


def test_if_nobody_answers_the_run_ends_after_the_rounds_that_may_be_skipped():
    nobody = Dead(dead={*NODES})
    run = strategy(Asynchronous(), seconds=None, max_skipped=2)
    with pytest.raises(RunError, match="2 rounds"):
        run.start(grid=nobody, initial_arrays=initial(), num_rounds=9, timeout=0.1)
    assert len(nobody.asked) == 2 * CLIENTS


def test_in_real_time_a_dead_client_gives_its_place_up_while_others_reply():
    def slow(message, context, call_next):
        time.sleep(0.02)
        return call_next(message, context)

    run, ends = strategy(Asynchronous(concurrency=2), seconds=None), []
    run.train_metrics_aggr_fn = lambda *_: ends.extend(row["end"] for row in run.pace.journal)
    some = Dead(dead={NODES[-1]}, train_mods=[slow])
    run.start(grid=some, initial_arrays=initial(), num_rounds=40, timeout=0.2)
    assert "lost" in ends


@pytest.mark.parametrize("again", [lambda run: run, copy.deepcopy])
def test_a_second_start_is_like_the_first_and_so_is_that_of_a_copy(again):
    first = strategy(Asynchronous(buffer=2))
    made = [
        run.start(grid=grid(), initial_arrays=initial(), num_rounds=3).arrays.to_torch_state_dict()
        for run in (first, again(first))
    ]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), None])
def test_seconds_that_are_none_are_refused(seconds):
    run = strategy(Asynchronous(), seconds=lambda node, now: seconds)
    with pytest.raises(SettingError, match="seconds of node"):
        run.start(grid=grid(), initial_arrays=initial(), num_rounds=1)


def test_seconds_may_be_numpy_s():
    run = strategy(Asynchronous(), seconds=lambda node, now: np.float32(2.0))
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=1)
    assert run.pace.now == 2.0


def test_a_journal_of_another_kind_is_refused():
    refused("journal", lambda: strategy(Asynchronous(), journal=[{"site": "2"}]))


@pytest.mark.parametrize("value", [5, {"buffer": 2}, Asynchronous])
def test_what_says_no_mode_is_refused(value):
    refused(r"asynchronous.*an Asynchronous\(\)", lambda: strategy_for("RKLB")(asynchronous=value))


def test_none_is_rounds_and_a_class_of_one_s_own_may_pass_the_mode_on():
    class Own(strategy_for("RKLB")):
        def __init__(self, asynchronous, speed):
            super().__init__(asynchronous=asynchronous)
            self.speed = speed

    class Hidden(strategy_for("RKLB")):
        def __init__(self):
            super().__init__(asynchronous=Asynchronous())

    assert Own(asynchronous=Asynchronous(buffer=3), speed=2).pace.asynchronous.buffer == 3
    assert Hidden().pace.asynchronous == Asynchronous()


def test_a_wrapper_that_drives_rounds_is_refused():
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        strategy_for("FedAvg")(asynchronous=Asynchronous()), 0.1, 1.0, CLIENTS
    )
    with pytest.raises(SettingError, match="DifferentialPrivacyServerSideFixedClipping"):
        wrapped.start(grid=grid(), initial_arrays=initial(), num_rounds=2)


class Own(strategy_for("RKLB")):
    """A strategy of a project's own."""


@pytest.mark.parametrize("kind", [strategy_for("RKLB"), strategy_for("PVI"), Own])
def test_a_strategy_does_not_wait_if_it_is_given_the_mode(kind):
    given = kind(asynchronous=Asynchronous(concurrency=10, buffer=5))
    assert isinstance(given, kind) and isinstance(given.pace, Arrivals)
    assert not isinstance(kind().pace, Arrivals)


@pytest.mark.parametrize("rule", ["RKLB", "WB", "FKLB"])
def test_who_waits_for_all_makes_flower_s_rounds(rule):
    every = Asynchronous(buffer=CLIENTS)
    found = turning(rule, every).start(grid=grid(), initial_arrays=initial(), num_rounds=3)
    expected = strategy_for(rule)().start(grid=grid(), initial_arrays=initial(), num_rounds=3)
    wanted = posterior_from_arrays(expected.arrays, CONVENTIONS["fedbary"])
    assert_posterior(found.arrays, wanted, tolerance=1e-4)


def test_a_reply_that_arrives_alone_is_refused_if_it_lies_far_beyond_the_latest_ones():
    def far(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0:
            held = reply.content["arrays"].to_torch_state_dict()
            moved = {n: t + 1e5 if t.is_floating_point() and "log" not in n else t
                     for n, t in held.items()}  # fmt: skip
            reply.content["arrays"] = ArrayRecord(moved)
        return reply

    run = turning("WB", Asynchronous(), max_skipped=None)
    run.pace.clock = VirtualClock(lambda node, now: {2: 9.0, 3: 1.0, 4: 2.0, 5: 3.0}[node])
    result = run.start(grid=grid(train_mods=[far]), initial_arrays=initial(), num_rounds=20)
    assert {refusal.node_id for refusal in run.refusals} == {2}
    assert all("as far from the sent arrays as usual" in each.reason for each in run.refusals)
    tensors = result.arrays.to_torch_state_dict().values()
    assert all(float(tensor.double().abs().max()) < 100 for tensor in tensors)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_s_own_state_is_enough_to_go_on_from(name):
    """`fedbary forget` writes no other: no clock, no counts, nothing of the sites' questions."""
    given = {"bench": object()} if METHODS[name].needs_bench else {}
    held = {"method.a tensor": torch.ones(2)}
    runs = [strategy_for(name)(**given)]
    with suppress(SettingError):
        runs.append(turning(name, Asynchronous(), **given))
    for run in runs:
        run.load_state_dict(held, 1)
        assert torch.equal(run.state_dict()["method.a tensor"], torch.ones(2))


def test_the_clock_is_that_of_the_replies():
    run = turning("RKLB", Asynchronous(concurrency=1))
    run.pace.clock = VirtualClock(lambda node, now: 2.0)
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=5)
    assert run.pace.now == 2 * (LEAST + 4) and run.pace.staleness == [0]


@given(st.lists(st.floats(0.05, 3), min_size=CLIENTS, max_size=CLIENTS), st.integers(1, 3))
@settings(max_examples=3)
def test_a_client_that_hurries_moves_the_model_no_further_than_its_examples_do_in_rounds(
    seconds, buffer
):
    """Each time client k adds 1 to entry k of a mean."""
    examples, aggregates = [1 + k for k in range(CLIENTS)], 8
    mode = Asynchronous(staleness="even", buffer=buffer)
    told = {EXAMPLES_KEY: sum(examples), CLIENTS_KEY: CLIENTS}
    run = turning("FedAvg", mode, federation=Federation(tell=lambda: told))
    run.pace.clock = VirtualClock(lambda node, now: seconds[node - 2])
    say, rounds = moved(run, aggregates, examples), aggregates * buffer / CLIENTS
    assert not run.refusals and float(say.max()) > 0
    for step, own in zip(say.tolist(), examples, strict=True):
        assert step <= rounds * own / sum(examples) + 1e-5


@pytest.mark.parametrize(("buffer", "remember"), [(1, False), (1, True), (2, False), (2, True)])
def test_a_reply_counts_once_even_if_nobody_told_how_many_examples_there_are(buffer, remember):
    def together(message, context, call_next):
        reply = call_next(message, context)
        held = message.content["arrays"].to_torch_state_dict()
        held[ENTRY] += 1
        reply.content["arrays"] = ArrayRecord(held)
        reply.content["metrics"]["num-examples"] = 7
        return reply

    run = turning("FedAvg", Asynchronous(buffer=buffer), remember=remember)
    clients = grid(train_mods=[together])
    made = run.start(grid=clients, initial_arrays=initial(), num_rounds=1).arrays
    moved = made.to_torch_state_dict()[ENTRY] - initial().to_torch_state_dict()[ENTRY]
    torch.testing.assert_close(moved, torch.full_like(moved, max(buffer, LEAST) / CLIENTS))


def test_a_rule_that_needs_the_replies_of_a_round_is_refused_unless_all_are_remembered():
    refused(r"Median.*remember=true", lambda: turning("Median", Asynchronous()))
    run = turning("Median", Asynchronous(), remember=True)
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=12)
    assert run.pace.staleness and not run.refusals


def test_a_state_that_is_read_is_the_state_that_was_written():
    run, other = (turning("RKLB", Asynchronous()) for _ in range(2))
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=4)
    state = run.state_dict()
    other.load_state_dict(state, 4)
    again = other.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)


def test_replies_in_real_time_are_replayed_to_the_same_bits():
    every = Asynchronous(concurrency=3, buffer=2)
    run = strategy_for("RKLB")(asynchronous=every)
    journal = []
    run.train_metrics_aggr_fn = lambda *_: journal.extend(run.pace.journal)
    found = run.start(grid=grid(), initial_arrays=initial(), num_rounds=6)
    assert len(journal) == LEAST + 5 * 2 and all(row["end"] == "replied" for row in journal)
    assert [row["arrived"] for row in journal] == sorted({row["arrived"] for row in journal})
    again = strategy_for("RKLB")(asynchronous=every, journal=journal)
    repeated = again.start(grid=grid(), initial_arrays=initial(), num_rounds=6)
    assert again.pace.now == run.pace.now
    for name, tensor in found.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, repeated.arrays.to_torch_state_dict()[name])
