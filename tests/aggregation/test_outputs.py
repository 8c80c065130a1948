"""New outputs of a layer: the old rows keep their posterior, and the new ones have the prior."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_gaussian import double

from fedbary.aggregation.covariance import STRUCTURES, with_outputs

RIDGE = 0.7
GROW = [name for name, structure in STRUCTURES.items() if structure.grows]


def covariance(structure, held):
    """Return the inverse of the precision plus a ridge, (outputs, inputs, outputs, inputs)."""
    shape = structure.outputs, structure.inputs
    solve, side = structure.solve(held, RIDGE), structure.outputs * structure.inputs
    rows = [solve(each.view(shape)).flatten() for each in torch.eye(side, dtype=torch.float64)]
    return torch.stack(rows).view(*shape, *shape)


@pytest.mark.parametrize("name", GROW)
@given(seed=st.integers(0, 10**6), old=st.integers(1, 4), new=st.integers(1, 3), data=st.data())
def test_marginals_are_the_old_posterior_and_the_prior_of_what_is_new(name, seed, old, new, data):
    probs, inputs = double(20, old, seed=seed).softmax(1), 3
    bent = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    before = STRUCTURES[name](old, inputs)
    slope = double(old * inputs, seed=seed + 2)
    held = {"slope": slope, **before.expand(double(20, inputs, seed=seed + 1), bent)}
    places = data.draw(st.permutations([*range(old), *[-1] * new]))
    found, after = with_outputs(held, before, places), STRUCTURES[name](len(places), inputs)
    assert after.fault({n: t for n, t in found.items() if n != "slope"}) is None
    there = torch.tensor(places) >= 0
    rows = torch.tensor([place for place in places if place >= 0])
    whole, alone = covariance(after, found), covariance(before, held)
    torch.testing.assert_close(whole[there][:, :, there], alone[rows][:, :, rows])
    prior = torch.eye(new * inputs, dtype=torch.float64) / RIDGE
    torch.testing.assert_close(whole[~there][:, :, ~there].reshape(prior.shape), prior)
    assert whole[there][:, :, ~there].abs().max() < 1e-12
    laid = found["slope"].view(-1, inputs)
    assert torch.equal(laid[there], slope.view(old, inputs)[rows])
    assert not laid[~there].any()
