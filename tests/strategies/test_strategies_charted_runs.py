"""Charted arrays through a federation: what a client withholds, and what masks and mods do."""

import math
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from strategies_clients import CLIENTS, assert_close, grid, initial, masking_mod

from strategies import chart, strategy_for


def spoiling_mod(message, context, call_next):
    """The innermost mod: partition 3 trains to NaN, partition 2 to a log-variance of 50."""
    reply = call_next(message, context)
    partition = context.node_config["partition-id"]
    if "arrays" in reply.content and partition >= 2:
        key, value = ("fc.weight_log_var", 50) if partition == 2 else ("fc.weight_mean", math.nan)
        array = np.full((4, 3), value, np.float32)
        reply.content["arrays"] = ArrayRecord({**reply.content["arrays"], key: Array(array)})
    return reply


def test_the_client_itself_withholds_what_a_strategy_would_refuse():
    mod = chart("WB")
    charted = FedAvg().start(grid(mods=[mod, spoiling_mod]), initial(), num_rounds=2)
    strategy = strategy_for("WB")()
    plain = strategy.start(grid(mods=[spoiling_mod]), initial(), num_rounds=2)
    assert strategy.num_admitted == 2
    assert_close(mod.inverse(charted.arrays), plain.arrays)


@pytest.mark.parametrize("records", [0, 2])
def test_training_takes_one_array_record_each_way(records):
    def more(message, context, call_next):
        reply = call_next(message, context)
        del reply.content["arrays"]
        for i in range(records):
            reply.content[f"a{i}"] = initial()
        return reply

    replies = []

    class Recording(FedAvg):
        def aggregate_train(self, server_round, messages):
            replies.extend(messages)
            return None, None

    Recording().start(grid(mods=[chart("WB"), more]), initial(), num_rounds=1)
    assert len(replies) == CLIENTS
    for reply in replies:
        assert re.search(f"has {records} ArrayRecords, not one", reply.error.reason)


def test_a_client_s_failure_stays_its_own():
    def failing(message, context, call_next):
        raise RuntimeError("out of memory")

    result = FedAvg().start(grid(mods=[chart("WB"), failing]), initial(), num_rounds=1)
    assert result.arrays == ArrayRecord({})


@pytest.mark.parametrize("rule", ["RKLB", "WB"])
def test_a_server_that_sees_only_masked_replies_computes_the_barycentre(rule):
    mod = chart(rule)
    start = initial(dtype=torch.float64)
    seen = []

    class Curious(FedAvg):
        def aggregate_train(self, server_round, messages):
            messages = list(messages)
            seen.extend(message.content["arrays"] for message in messages)
            return super().aggregate_train(server_round, messages)

    masked = Curious().start(grid(mods=[masking_mod, mod]), start, num_rounds=2)
    plain = strategy_for(rule)().start(grid(), start, num_rounds=2)
    for key, array in mod.inverse(masked.arrays).items():
        np.testing.assert_allclose(array.numpy(), plain.arrays[key].numpy(), 1e-9, 1e-9)
    for arrays in seen:
        with pytest.raises(ValueError, match="of no Gaussian"):
            mod.inverse(arrays)


def test_flower_s_clipping_acts_in_the_chart_if_its_mod_stands_outside():
    mod, config = chart("RKLB"), ConfigRecord({"equal": True})
    plain = ArrayRecord({k: v for k, v in initial().items() if v.dtype == "float32"})
    start = mod.forward(plain)
    clients = grid(train_mods=[fixedclipping_mod, mod])

    def trained(clipping_norm):
        inner = FedAvg(fraction_evaluate=0.0)
        wrapper = DifferentialPrivacyClientSideFixedClipping(inner, 0.0, clipping_norm, CLIENTS)
        return wrapper.start(clients, start, num_rounds=1, train_config=config).arrays

    def step(arrays):
        squares = [((arrays[k].numpy() - start[k].numpy()) ** 2).sum() for k in start]
        return math.sqrt(sum(squares))

    expected = strategy_for("RKLB")().start(grid(), plain, num_rounds=1, train_config=config)
    assert_close(mod.inverse(trained(1e9)), expected.arrays)
    assert step(trained(1e9)) > 0.25 > step(trained(0.25)) * (1 - 1e-5) > 0
