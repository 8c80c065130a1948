"""A run outlives what one client or one round does, and says how many of its rounds counted."""

import math
from itertools import groupby

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import example, given
from hypothesis import strategies as st
from small_apps import moving

from fedbary.errors import RunError, SettingError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import RKLB, strategy_for

INITIAL = ArrayRecord({"w_mean": torch.zeros(3), "w_log_var": torch.full((3,), -2.0)})


def grid(sound):
    """Two clients whose replies are NaN in the rounds that are not sound."""

    def train(state, _, number):
        return {**state, "w_mean": state["w_mean"] + (1 if sound[number - 1] else math.nan)}

    return InlineGrid(moving(train, lambda k: 1), 2, {})


def run(sound, **arguments):
    strategy = RKLB(fraction_evaluate=0.0, **arguments)
    return strategy.start(grid(sound), INITIAL, num_rounds=len(sound))


def outcome(strategy, sound):
    """What a run ends with: its error, or its means and what the log says last of the rounds."""
    left, means = len(sound) - strategy.completed_rounds, []

    def evaluate(round_here, arrays):
        means.append(arrays["w_mean"].numpy().tolist())

    with pytest.MonkeyPatch.context() as patched:
        lines = []
        patched.setattr(
            "fedbary.strategies.admission.log", lambda _, text, *values: lines.append(text % values)
        )
        try:
            strategy.start(grid(sound), INITIAL, left, evaluate_fn=evaluate)
        except RunError as error:
            return str(error)
    return means[-1], lines[-1]


@given(
    sound=st.lists(st.booleans(), min_size=1, max_size=8), max_skipped=st.none() | st.integers(1, 4)
)
@example(sound=[True, False, False, False, True], max_skipped=3)
def test_a_run_ends_early_or_says_how_many_rounds_counted(sound, max_skipped):
    runs = [len(list(group)) for same, group in groupby(sound[:-1]) if not same]
    ends_early = max_skipped is not None and any(length >= max_skipped for length in runs)
    if ends_early:
        with pytest.raises(RunError, match=f"^{max_skipped} rounds in a row were skipped; round"):
            run(sound, max_skipped=max_skipped)
    elif not any(sound):
        with pytest.raises(RunError, match=f"^every round was skipped; round {len(sound)}: "):
            run(sound, max_skipped=max_skipped)
    else:
        strategy = RKLB(fraction_evaluate=0.0, max_skipped=max_skipped)
        means, said = outcome(strategy, sound)
        assert said.startswith(f"{sum(sound)} of {len(sound)} rounds counted")
        assert means == [sum(sound)] * 3


def test_a_run_that_ended_goes_on_with_a_larger_max_skipped_alone():
    first = RKLB(fraction_evaluate=0.0, max_skipped=2)
    with pytest.raises(RunError, match="a max_skipped above 2"):
        first.start(grid([True, False, False, True]), INITIAL, num_rounds=4)
    for allowed in (1, 2, 3, None):
        again = RKLB(fraction_evaluate=0.0, max_skipped=allowed)
        again.load_state_dict(first.state_dict(), 3)
        ended = outcome(again, [True, False, False, True])
        if allowed in (1, 2):
            assert ended.startswith("2 rounds in a row were skipped; round 3: ")
        else:
            assert ended[1].startswith("2 of 4 rounds counted; the last that was skipped: round 3")


def test_a_state_without_counts_is_one_whose_rounds_counted():
    strategy = RKLB(fraction_evaluate=0.0)
    strategy.load_state_dict({}, completed_rounds=5)
    assert outcome(strategy, [True] * 5 + [False])[1].startswith("5 of 6 rounds counted")


def test_no_rounds_are_no_error_and_no_limit_below_one_is_taken():
    RKLB(fraction_evaluate=0.0).start(grid([]), INITIAL, num_rounds=0)
    with pytest.raises(SettingError, match="max_skipped: 0"):
        RKLB(max_skipped=0)


def client_app(faulty: int, round_of_fault: int) -> ClientApp:
    """Clients that move every mean a third of the way to their partition id; one sends NaN once."""

    def train(state, k, number):
        if (k, number) == (faulty, round_of_fault):
            if faulty == 0:
                raise RuntimeError("broken")
            state["w_mean"].fill_(math.nan)
        return {**state, "w_mean": state["w_mean"] + (k - state["w_mean"]) / 3}

    app = moving(train)

    @app.evaluate()
    def evaluate(message, context):
        w = message.content["arrays"]["w_mean"].numpy().mean()
        metrics = MetricRecord({"num-examples": 1, "w": float(w)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("faulty", [0, 2])
def test_a_run_outlives_a_faulty_client(faulty):
    grid = InlineGrid(client_app(faulty, round_of_fault=2), 4, {})
    initial = ArrayRecord({"w_mean": torch.zeros(3), "w_log_var": torch.full((3,), -2.0)})
    strategy = RKLB()
    result = strategy.start(grid, initial, num_rounds=3)

    expected, weights = 0.0, np.arange(1.0, 5)
    for server_round in (1, 2, 3):
        present = [k for k in range(4) if (k, server_round) != (faulty, 2)]
        replies = [expected + (k - expected) / 3 for k in present]
        expected = np.average(replies, weights=weights[present])
        assert result.evaluate_metrics_clientapp[server_round]["w"] == pytest.approx(expected)
    np.testing.assert_allclose(result.arrays["w_mean"].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(result.arrays["w_log_var"].numpy(), -2, rtol=1e-6)
    ((refused),) = strategy.refusals
    assert refused.round == 2
    assert ("broken" if faulty == 0 else "(partition 2)") in refused.reason


def test_a_skipped_round_keeps_the_global_model():
    grid = InlineGrid(client_app(1, round_of_fault=2), 2, {})
    initial = ArrayRecord({"w_mean": torch.zeros(3), "w_log_var": torch.full((3,), -2.0)})
    result = strategy_for("WB")(min_replies=2).start(grid, initial, num_rounds=2)
    assert result.train_metrics_clientapp[2] == MetricRecord({"skipped": 1})
    first, second = (result.evaluate_metrics_clientapp[r]["w"] for r in (1, 2))
    assert first == second == pytest.approx(2 / 9)
