"""Replies that are sound by themselves and spoil what a method computes, or keeps: refused by name.

Each method is given a model of one layer and replies of its own layout, without any training.
"""

import json

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from strategies_replies import reply, started
from torch import nn

from fedbary.methods import METHODS, Bench
from fedbary.strategies import strategy_for
from fedbary.strategies.arrays import PACKING, bytes_of
from fedbary.strategies.compression import packing_from

MODEL = {name: tensor.detach() for name, tensor in nn.Linear(3, 2).state_dict().items()}

X = 1e7 * torch.eye(3).repeat(4, 1)
BENCH = Bench(nn.Linear(3, 2), X, (X[:, 0] > 0).long(), nn.functional.cross_entropy)


def sent(name, value=None, seed=0):
    """A reply of a method's layout that lies near what was sent; or one that holds a value."""
    generator = torch.Generator().manual_seed(seed)
    like = METHODS[name]().reply_like(MODEL)
    return {
        key: tensor + 0.1 * torch.rand(tensor.shape, generator=generator)
        if value is None
        else torch.full_like(tensor, value)
        for key, tensor in like.items()
    }


def after(name, *replies, rounds=1):
    """A method's strategy after rounds in which nodes 1, 2, … reply with these tensors."""
    strategy = strategy_for(name)(fraction_evaluate=0.0, bench=BENCH)
    arrays = ArrayRecord(MODEL)
    for server_round in range(1, rounds + 1):
        messages = [
            reply(node, tensors, num_examples=10) for node, tensors in enumerate(replies, 1)
        ]
        arrays = (
            started(strategy, arrays, server_round).aggregate_train(server_round, messages)[0]
            or arrays
        )
    return strategy, arrays


@pytest.mark.parametrize("name", ["FedLPA", "LastLayerLaplace"])
@pytest.mark.parametrize("value", [1e17, 1e19, 1e30, -1e19])
def test_factors_that_cannot_be_inverted_name_their_client(name, value):
    hostile = sent(name)
    for key in hostile.keys() - MODEL.keys():
        hostile[key] = torch.full_like(hostile[key], value)
    strategy, arrays = after(name, sent(name, seed=1), hostile)
    assert {refusal.node_id for refusal in strategy.refusals} <= {2}
    assert all(tensor.isfinite().all() for tensor in arrays.to_torch_state_dict().values())


@pytest.mark.parametrize("name", ["FedAdam", "FedHB", "PredBayes"])
def test_a_state_that_would_not_be_finite_names_its_client_and_is_not_kept(name):
    """Each value is admitted; what the method makes of it, a square say, is no number of float32.

    Of two replies none can be called the far one.
    """
    strategy, arrays = after(name, sent(name, seed=1), sent(name, 1e32))
    assert [refusal.node_id for refusal in strategy.refusals] == [2]
    assert "would not be finite" in strategy.refusals[0].reason
    alone, _ = after(name, sent(name, seed=1))
    state = {k: t for k, t in strategy.state_dict().items() if k.startswith("method.")}
    assert state.keys() == {k for k in alone.state_dict() if k.startswith("method.")}
    assert all(torch.equal(tensor, alone.state_dict()[key]) for key, tensor in state.items())
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_a_posterior_without_positive_variances_names_its_client(monkeypatch):
    """Whatever a method makes of replies, the posterior that it gives is checked."""
    kind = METHODS["FedHB"]
    monkeypatch.setattr(
        kind, "optimum", lambda self, networks: (networks.mean(0), 1 - networks.amax(0))
    )
    strategy, _ = after("FedHB", sent("FedHB", 0.1), sent("FedHB", 2.0))
    assert [refusal.node_id for refusal in strategy.refusals] == [2]


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.lists(st.floats(), max_size=3),
)


@given(st.dictionaries(st.text(max_size=9) | st.just("packing"), VALUES, max_size=4))
def test_whatever_a_message_tells_of_its_packing_has_a_number_of_bytes(told):
    content = RecordDict({"arrays": ArrayRecord(MODEL), PACKING: ConfigRecord(told)})
    plain = bytes_of(RecordDict({"arrays": ArrayRecord(MODEL)}))
    assert bytes_of(content) >= plain


@given(
    st.sampled_from(["[", '{"a":', '[{"arrays":']).flatmap(
        lambda part: st.integers(1, 200_000).map(lambda count: part * count)
    )
    | st.recursive(st.none() | st.floats() | st.text(), st.lists, max_leaves=5).map(json.dumps)
)
def test_words_of_a_packing_are_read_or_are_a_value_error(words):
    with pytest.raises(ValueError, match="its packing cannot be read"):
        packing_from(words)
