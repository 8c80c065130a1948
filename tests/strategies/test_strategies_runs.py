"""Whole federations under a strategy outlive what one client or one round does."""

import math

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small_apps import moving

from server_app.engine.inline import InlineGrid
from strategies import RKLB, strategy_for


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
