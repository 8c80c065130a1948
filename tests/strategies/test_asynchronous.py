"""A strategy without rounds, in a project of one's own."""

from contextlib import suppress

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_clients import CLIENTS, assert_posterior, grid, initial

from fedbary.errors import SettingError
from fedbary.methods import METHODS
from strategies import (
    CONVENTIONS,
    Asynchronous,
    AsynchronousStrategy,
    posterior_from_arrays,
    strategy_for,
)
from strategies.asking import CLIENTS_KEY, EXAMPLES_KEY
from strategies.clocks import VirtualClock
from strategies.distances import LEAST


def strategy(rule, mode, **changes):
    return strategy_for(rule)(
        asynchronous=mode, seconds=lambda node, now: 1.0 + node % 3, **changes
    )


class Own(strategy_for("RKLB")):
    """A strategy of a project's own."""


@pytest.mark.parametrize("kind", [strategy_for("RKLB"), strategy_for("PVI"), Own])
def test_a_strategy_does_not_wait_if_it_is_given_the_mode(kind):
    given = kind(asynchronous=Asynchronous(concurrency=10, buffer=5))
    assert isinstance(given, kind) and isinstance(given, AsynchronousStrategy)
    assert not isinstance(kind(), AsynchronousStrategy)


@pytest.mark.parametrize("rule", ["RKLB", "WB", "FKLB"])
def test_who_waits_for_all_makes_flower_s_rounds(rule):
    every = Asynchronous(buffer=CLIENTS)
    found = strategy(rule, every).start(grid=grid(), initial_arrays=initial(), num_rounds=3)
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

    run = strategy("WB", Asynchronous(), max_skipped=None)
    run.clock = VirtualClock(lambda node, now: {2: 9.0, 3: 1.0, 4: 2.0, 5: 3.0}[node])
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
        runs.append(strategy(name, Asynchronous(), **given))
    for run in runs:
        run.load_state_dict(held, 1)
        assert torch.equal(run.state_dict()["method.a tensor"], torch.ones(2))


def test_the_clock_is_that_of_the_replies():
    run = strategy("RKLB", Asynchronous(concurrency=1))
    run.clock = VirtualClock(lambda node, now: 2.0)
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=5)
    assert run.now == 2 * (LEAST + 4) and run.staleness == [0]


@given(st.lists(st.floats(0.05, 3), min_size=CLIENTS, max_size=CLIENTS), st.integers(1, 3))
@settings(max_examples=3, deadline=None)
def test_a_client_that_hurries_moves_the_model_no_further_than_its_examples_do_in_rounds(
    seconds, buffer
):
    """Each time client k adds 1 to entry k of a mean."""
    entry = "fc.weight_mean"

    def pushing(message, context, call_next):
        reply = call_next(message, context)
        held = message.content["arrays"].to_torch_state_dict()
        held[entry].view(-1)[context.node_config["partition-id"]] += 1
        reply.content["arrays"] = ArrayRecord(held)
        return reply

    examples, aggregates = [1 + k for k in range(CLIENTS)], 8
    mode = Asynchronous(staleness="even", buffer=buffer)
    told = {EXAMPLES_KEY: sum(examples), CLIENTS_KEY: CLIENTS}
    run = strategy("FedAvg", mode, tell=lambda: told)
    run.clock = VirtualClock(lambda node, now: seconds[node - 2])
    made = run.start(
        grid=grid(train_mods=[pushing]), initial_arrays=initial(), num_rounds=aggregates
    )
    before, after = (a.to_torch_state_dict()[entry].view(-1) for a in (initial(), made.arrays))
    say, rounds = (after - before)[:CLIENTS], aggregates * buffer / CLIENTS
    assert not run.refusals and float(say.max()) > 0
    for moved, own in zip(say.tolist(), examples, strict=True):
        assert moved <= rounds * own / sum(examples) + 1e-5


@pytest.mark.parametrize(("buffer", "remember"), [(1, False), (1, True), (2, False), (2, True)])
def test_a_reply_counts_once_even_if_nobody_told_how_many_examples_there_are(buffer, remember):
    entry = "fc.weight_mean"

    def pushing(message, context, call_next):
        reply = call_next(message, context)
        held = message.content["arrays"].to_torch_state_dict()
        held[entry] += 1
        reply.content["arrays"] = ArrayRecord(held)
        reply.content["metrics"]["num-examples"] = 7
        return reply

    run = strategy("FedAvg", Asynchronous(buffer=buffer), remember=remember)
    clients = grid(train_mods=[pushing])
    made = run.start(grid=clients, initial_arrays=initial(), num_rounds=1).arrays
    moved = made.to_torch_state_dict()[entry] - initial().to_torch_state_dict()[entry]
    torch.testing.assert_close(moved, torch.full_like(moved, max(buffer, LEAST) / CLIENTS))


def test_a_rule_that_needs_the_replies_of_a_round_is_refused_unless_all_are_remembered():
    with pytest.raises(SettingError, match=r"Median.*remember=true"):
        strategy("Median", Asynchronous())
    run = strategy("Median", Asynchronous(), remember=True)
    run.start(grid=grid(), initial_arrays=initial(), num_rounds=12)
    assert run.staleness and not run.refusals


def test_a_state_that_is_read_is_the_state_that_was_written():
    run, other = (strategy("RKLB", Asynchronous()) for _ in range(2))
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
    run.train_metrics_aggr_fn = lambda *_: journal.extend(run.journal)
    found = run.start(grid=grid(), initial_arrays=initial(), num_rounds=6)
    assert len(journal) == LEAST + 5 * 2 and all(row["end"] == "replied" for row in journal)
    assert [row["arrived"] for row in journal] == sorted({row["arrived"] for row in journal})
    again = strategy_for("RKLB")(asynchronous=every, journal=journal)
    repeated = again.start(grid=grid(), initial_arrays=initial(), num_rounds=6)
    assert again.now == run.now
    for name, tensor in found.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, repeated.arrays.to_torch_state_dict()[name])
