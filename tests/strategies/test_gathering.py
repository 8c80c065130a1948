"""Whom a strategy without rounds asks, and what it does with those that do not answer."""

import copy
import time

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_clients import CLIENTS, client_app, grid, initial

from fedbary.errors import RunError, SettingError
from server_app.engine.inline import InlineGrid
from strategies import Asynchronous, strategy_for
from strategies.asking import CLIENTS_KEY, EXAMPLES_KEY

ENTRY = "fc.weight_mean"
NODES = range(2, 2 + CLIENTS)


def strategy(mode, rule="RKLB", seconds=lambda node, now: 1.0 + 0.01 * node, **changes):
    return strategy_for(rule)(asynchronous=mode, seconds=seconds, **changes)


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
@settings(max_examples=6, deadline=None)
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
    run = strategy(mode, remember=remember, max_weight_ratio=ratio, tell=lambda: told)
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
    assert len(run.staleness) == CLIENTS - 1
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
    run.train_metrics_aggr_fn = lambda *_: ends.extend(row["end"] for row in run.journal)
    some = Dead(dead={NODES[-1]}, train_mods=[slow])
    run.start(grid=some, initial_arrays=initial(), num_rounds=40, timeout=0.2)
    assert "lost" in ends


def test_a_second_start_is_like_the_first():
    run = strategy(Asynchronous(buffer=2))
    made = [
        run.start(grid=grid(), initial_arrays=initial(), num_rounds=3).arrays.to_torch_state_dict()
        for _ in range(2)
    ]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_a_copy_asks_for_itself():
    first = strategy(Asynchronous(buffer=2))
    other = copy.deepcopy(first)
    made = [
        run.start(grid=grid(), initial_arrays=initial(), num_rounds=3).arrays.to_torch_state_dict()
        for run in (first, other)
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
    assert run.now == 2.0


def test_a_journal_of_another_kind_is_refused():
    with pytest.raises(SettingError, match="journal"):
        strategy(Asynchronous(), journal=[{"site": "2"}])


@pytest.mark.parametrize("value", [5, {"buffer": 2}, Asynchronous])
def test_what_says_no_mode_is_refused(value):
    with pytest.raises(SettingError, match=r"asynchronous.*an Asynchronous\(\)"):
        strategy_for("RKLB")(asynchronous=value)


def test_none_is_rounds_and_a_class_of_one_s_own_may_pass_the_mode_on():
    class Own(strategy_for("RKLB")):
        def __init__(self, asynchronous, speed):
            super().__init__(asynchronous=asynchronous)
            self.speed = speed

    class Hidden(strategy_for("RKLB")):
        def __init__(self):
            super().__init__(asynchronous=Asynchronous())

    assert not hasattr(strategy_for("RKLB")(asynchronous=None), "clock")
    assert Own(asynchronous=Asynchronous(buffer=3), speed=2).asynchronous.buffer == 3
    with pytest.raises(TypeError, match=r"give asynchronous to Hidden itself"):
        Hidden()


def test_a_wrapper_that_drives_rounds_is_refused():
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        strategy_for("FedAvg")(asynchronous=Asynchronous()), 0.1, 1.0, CLIENTS
    )
    with pytest.raises(SettingError, match="DifferentialPrivacyServerSideFixedClipping"):
        wrapped.start(grid=grid(), initial_arrays=initial(), num_rounds=2)
