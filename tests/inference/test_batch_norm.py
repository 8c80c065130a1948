"""Networks with batch norm train where a batch of one example would be left."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_posteriors import OF_ANY_NETWORK
from torch import nn

from fedbary.inference import Local, Training, local_method
from fedbary.variational.layers import variational


@given(examples=st.integers(2, 300), batch_size=st.integers(1, 64))
def test_a_network_with_batch_norm_gets_the_least_batches_without_one_of_a_single_example(
    examples, batch_size
):
    def last(size):
        return (examples - 1) % size + 1

    training, normed = Training(batch_size=batch_size), nn.Sequential(nn.BatchNorm1d(2))
    assert training.suited_to(nn.Linear(2, 2), examples) == training
    size = training.suited_to(normed, examples).batch_size
    assert size >= batch_size and last(size) > 1
    assert all(last(smaller) == 1 for smaller in range(batch_size, size))


@pytest.mark.parametrize("name", OF_ANY_NETWORK)
def test_batch_norm_trains_where_the_last_batch_would_be_of_one_example(name):
    model = variational(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), last=1)
    x, y, training = torch.randn(17, 3), torch.arange(17) % 2, Training(batch_size=16)
    with pytest.raises(ValueError, match="more than 1 value"):
        local_method(name)(Local(model, x, y, training=training))
    told = local_method(name)(Local(model, x, y, training=training.suited_to(model, len(x))))
    assert math.isfinite(told["train_nll"])
