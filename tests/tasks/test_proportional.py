"""Tests of proportional hazards are score tests of the likelihood with x·log t, by autograd."""

import pytest
import torch
from scipy.special import chdtrc
from torch.autograd.functional import hessian, jacobian

from fedbary.tasks._proportional import answer, ask, score_tests, unpacked


def likelihood(weights, x, time, event):
    """Breslow's, with the columns x and x·log t."""
    beta, theta = weights.chunk(2)
    found = torch.zeros(()).double()
    for i in event.nonzero()[:, 0]:
        predictor = x @ (beta + theta * time[i].log())
        found = found + predictor[i] - predictor[time >= time[i]].logsumexp(0)
    return found


def sums(*held):
    """A site's answer."""
    return torch.tensor(answer(*held)["proportional"], dtype=torch.float64)


def rows(seed, count=40):
    torch.manual_seed(seed)
    x, time = torch.randn(count, 3).double(), torch.randint(1, 15, (count,)).double()
    return x, torch.randn(3).double() / 2, time, (torch.rand(count) < 0.6).double()


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_sites_are_the_derivatives_of_their_likelihoods(seed):
    sites = [rows(seed), rows(seed + 50, 25)]
    beta, told, slope, curve = sites[0][1], 0, 0, 0
    at = torch.cat([beta, torch.zeros(3).double()])
    for x, _, time, event in sites:
        told = told + sums(x, x @ beta, time, event)
        slope = slope + jacobian(lambda w: likelihood(w, x, time, event), at)  # noqa: B023
        curve = curve - hessian(lambda w: likelihood(w, x, time, event), at)  # noqa: B023
    u, a = unpacked(told, 3)
    assert torch.allclose(u.flatten(), slope)
    whole = torch.cat([torch.cat([a[0], a[1]], 1), torch.cat([a[1], a[2]], 1)])
    assert torch.allclose(whole, curve)
    inverse, both = torch.linalg.inv(curve), curve[:3, :3].inverse()
    wanted = float(slope @ inverse @ slope - slope[:3] @ both @ slope[:3])
    for back in (torch.eye(3).double(), torch.randn(3, 3).double()):
        (_, found, degrees), *_ = score_tests(told, back, {})
        assert found == pytest.approx(wanted, rel=1e-6) and degrees == 3


def test_another_unit_of_time_changes_nothing():
    x, beta, time, event = rows(0)
    one, other = (
        list(score_tests(sums(x, x @ beta, unit * time, event), torch.eye(3).double(), {"a": [0]}))
        for unit in (1.0, 365.25)
    )
    for (_, wanted, _), (_, found, _) in zip(one, other, strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)


def test_p_is_even_where_hazards_are_proportional_and_small_where_not():
    torch.manual_seed(1)
    found = {0.0: [], 1.0: []}
    for bend, held in found.items():
        for _ in range(150):
            x = torch.randn(300, 1).double()
            even = -torch.rand(300).double().log() * (-0.5 * x[:, 0]).exp()
            time = even ** (1 / (1 + bend * (x[:, 0] > 0)))
            event = (torch.rand(300) < 0.8).double()
            told = sums(x, 0.5 * x[:, 0], time, event)
            (_, chi2, degrees), *_ = score_tests(told, torch.eye(1).double(), {})
            held.append(chdtrc(degrees, chi2) < 0.05)
    rates = [sum(held) / 150 for held in found.values()]
    assert 0.01 < rates[0] < 0.1 and rates[1] > 0.8


def test_covariances_that_no_rows_have_are_not_believed():
    x, beta, time, event = rows(0)
    told, question = answer(x, x @ beta, time, event)["proportional"], next(ask({}, 3, 120.0))
    question.read({"proportional": told}, 40)
    beyond = ((0, 1e30), (3, -1e30), (6, -1.0), (6, 1e30), (0, float("nan")), (13, 1e6))
    for place, number in beyond:
        wrong = [*told]
        wrong[place] = number
        with pytest.raises(ValueError):
            question.read({"proportional": wrong}, 40)
    with pytest.raises(ValueError):
        question.read({"proportional": told[1:]}, 40)
