"""The attack that knows clipping and mixing passes them, and holds the server up the most."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.aggregation.mixing import Mixing
from findings.hostile.against_mixing import AgainstMixing, worst


def states(seed, count):
    """Posteriors of clients, with a plain tensor and an integer one."""
    generator = torch.Generator().manual_seed(seed)

    def state():
        mean, log_var, plain = torch.randn(3, 2, generator=generator)
        return {"w_mean": mean, "w_log_var": log_var, "b": plain, "steps": torch.tensor(seed)}

    return [state() for _ in range(count)]


def flat(tensors):
    return torch.cat([tensors["w_mean"], tensors["b"]])


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 3))
def test_who_knows_mixing_sends_means_that_clipping_leaves_and_deviations_of_honest_clients(
    seed, honest, hostile
):
    received, fitted, *others = states(seed, honest + 2)
    sent = AgainstMixing().sent(received, fitted, others, hostile)
    lengths = torch.stack([(flat(other) - flat(received)).norm() for other in others])
    assert float((flat(sent) - flat(received)).norm()) == pytest.approx(
        float(lengths.median()), rel=1e-4
    )
    stds = torch.stack([(other["w_log_var"] / 2).exp() for other in others])
    std = (sent["w_log_var"] / 2).exp()
    assert min(float((std - each).abs().max()) for each in (*stds, stds.mean(0))) < 1e-5
    assert torch.equal(sent["steps"], fitted["steps"])


def least_progress(honest, fraction):
    """How far along the honest mean the aggregate goes, as a part of it, under `against_mixing`."""
    mean, alike = honest.mean(0), torch.ones(7, 7).double()
    between = torch.stack([honest @ honest.T, alike])
    update = worst(between, 3, fraction)[0] @ honest
    length = float(update.norm())
    assert length == pytest.approx(float(honest.norm(dim=1).median()))

    def progress(sent):
        all_ten = torch.cat([honest, sent.expand(3, -1)])
        products = torch.stack([all_ten @ all_ten.T, torch.ones(10, 10).double()])
        matrix = Mixing(fraction, True).matrices(products)[0]
        return float((matrix.mean(0) @ all_ten) @ mean / (mean @ mean))

    assert progress(update) <= progress(-mean / mean.norm() * length) + 1e-9
    return progress(update)


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(0, 10**6), st.floats(0.2, 1))
def test_three_who_know_mixing_hold_seven_up_and_do_not_turn_them_back(seed, noise):
    """Nor if one in ten is reckoned with, not three, though then they hold them up more."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(30, generator=generator).double()
    honest = common + noise * torch.randn(7, 30, generator=generator).double()
    known, too_few = least_progress(honest, 0.3), least_progress(honest, 0.1)
    assert known > 0.5 and too_few > 0.1
    assert known > too_few
