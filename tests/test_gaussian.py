import copy
import dataclasses
import math

import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from fedbary.gaussian import Factor, Posterior, kl_divergence, wasserstein2_squared


def posterior(seed: int) -> Posterior:
    generator = torch.Generator().manual_seed(seed)
    return Posterior(
        {
            "conv": torch.randn(2, 3, generator=generator),
            "w": torch.randn(5, 4, generator=generator),
            "b": torch.randn(4, generator=generator),
            "steps": torch.tensor(seed),
        },
        {"w": torch.randn(5, 4, generator=generator) - 3, "b": torch.randn(4, generator=generator)},
    )


def normals(p: Posterior) -> dict[str, Normal]:
    return {n: Normal(p.mean[n].double(), (lv.double() / 2).exp()) for n, lv in p.log_var.items()}


def test_the_state_dict_is_read_and_written_unchanged():
    state = {
        "conv.weight": torch.randn(2, 2),
        "bn.running_mean": torch.randn(2),
        "bn.num_batches_tracked": torch.tensor(3),
        "fc.weight_mean": torch.randn(3),
        "fc.weight_log_var": torch.randn(3),
        "fc.bias": torch.randn(1),
    }
    p = Posterior.from_state_dict(state)
    assert list(p.mean) == [
        "conv.weight",
        "bn.running_mean",
        "bn.num_batches_tracked",
        "fc.weight",
        "fc.bias",
    ]
    assert list(p.log_var) == ["fc.weight"]
    assert list(p.state_dict()) == list(state)
    assert all(p.state_dict()[key] is tensor for key, tensor in state.items())


def test_a_log_variance_may_stand_before_its_mean():
    state = {"w_log_var": torch.zeros(2), "w_mean": torch.ones(2)}
    assert list(Posterior.from_state_dict(state).state_dict()) == ["w_mean", "w_log_var"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"w_log_var": torch.zeros(2)}, "'w_log_var' has no 'w_mean'"),
        ({"w_log_var": torch.zeros(2), "w_mean": torch.zeros(2), "w": torch.zeros(2)}, "named 'w'"),
        ({"w_log_var": torch.zeros(2), "w_mean": torch.zeros(3)}, r"\(3,\), the log-variance \(2,"),
        ({"w_log_var": torch.zeros(2), "w_mean": torch.zeros(2, dtype=int)}, "not floating"),
    ],
)
def test_a_state_dict_without_sense_is_an_error(state, message):
    with pytest.raises(ValueError, match=message):
        Posterior.from_state_dict(state)


def test_a_log_variance_needs_a_mean():
    with pytest.raises(ValueError, match="'w' has a log-variance but no mean"):
        Posterior({}, {"w": torch.zeros(1)})


def test_two_tensors_cannot_share_a_key():
    p = Posterior({"w": torch.zeros(1), "w_mean": torch.zeros(1)}, {"w": torch.zeros(1)})
    with pytest.raises(ValueError, match="'w_mean'"):
        p.state_dict()


def test_a_posterior_is_frozen_and_apart_from_the_mappings_it_was_made_of():
    mean = {"w": torch.zeros(1)}
    p = Posterior(mean, {})
    mean["v"] = torch.zeros(1)
    assert list(p.mean) == ["w"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.mean = {}


def test_kl_agrees_with_torch_and_has_a_direction():
    q, p = posterior(0), posterior(1)
    expected = sum(torch_kl(normals(q)[n], normals(p)[n]).sum().item() for n in q.log_var)
    assert kl_divergence(q, p) == pytest.approx(expected, rel=1e-12)
    assert isinstance(kl_divergence(q, p), float)
    assert kl_divergence(q, p) != pytest.approx(kl_divergence(p, q), rel=0.01)


def test_kl_is_zero_at_equality_and_quadratic_near_it():
    q = posterior(0)
    assert kl_divergence(q, q) == 0
    p = Posterior(q.mean, {n: lv.double() + 1e-6 for n, lv in q.log_var.items()})
    q = Posterior(q.mean, {n: lv.double() for n, lv in q.log_var.items()})
    assert kl_divergence(q, p) == pytest.approx(24 * 1e-12 / 4, rel=1e-3)


def test_wasserstein_sums_gaussian_and_deterministic_tensors():
    q, p = posterior(0), posterior(1)
    expected = sum((q.mean[n] - p.mean[n]).double().square().sum().item() for n in ("conv",))
    for name in q.log_var:
        a, b = normals(q)[name], normals(p)[name]
        expected += ((a.mean - b.mean) ** 2 + (a.stddev - b.stddev) ** 2).sum().item()
    assert wasserstein2_squared(q, p) == pytest.approx(expected, rel=1e-6)
    assert wasserstein2_squared(q, p) == pytest.approx(wasserstein2_squared(p, q))
    assert wasserstein2_squared(q, q) == 0


@pytest.mark.parametrize("divergence", [kl_divergence, wasserstein2_squared])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Posterior({"v": torch.zeros(2)}, {}), "mean of tensor 'v' is missing"),
        (Posterior({}, {}), "mean of tensor 'w' is not expected"),
        (Posterior({"w": torch.zeros(2)}, {}), "log-variance of tensor 'w' is not expected"),
        (
            Posterior({"w": torch.zeros(3)}, {"w": torch.zeros(3)}),
            r"tensor 'w' has shape \(2,\), not \(3,\)",
        ),
    ],
)
def test_posteriors_that_differ_are_refused(divergence, other, message):
    q = Posterior({"w": torch.zeros(2)}, {"w": torch.zeros(2)})
    with pytest.raises(ValueError, match=message):
        divergence(q, other)


def test_divergences_change_nothing():
    q, p = posterior(0), posterior(1)
    before = copy.deepcopy((q.state_dict(), p.state_dict()))
    kl_divergence(q, p)
    wasserstein2_squared(q, p)
    for was, now in zip(before, (q.state_dict(), p.state_dict()), strict=True):
        assert all(torch.equal(was[key], now[key]) for key in was)


def gaussian_part(p: Posterior) -> dict[str, torch.Tensor]:
    return {name: p.mean[name] for name in p.log_var}


@pytest.mark.parametrize("seed", range(5))
def test_products_quotients_and_powers_are_those_of_the_densities(seed):
    p, q = (Factor.of(posterior(seed + offset)) for offset in (0, 100))
    theta = torch.randn(4, dtype=torch.float64)

    def log_f(factor, name="b"):
        e, s = factor.shift[name].double(), factor.precision[name].double()
        return e * theta - 0.5 * s * theta.square()

    torch.testing.assert_close(log_f(p * q), log_f(p) + log_f(q), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(log_f(p / q), log_f(p) - log_f(q), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(log_f(p**-0.3), -0.3 * log_f(p), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_posterior_comes_back_from_its_factor_with_its_points(seed):
    p = posterior(seed)
    points = {name: p.mean[name] for name in p.mean if name not in p.log_var}
    back = Factor.of(p).posterior(points)
    assert back.mean.keys() == p.mean.keys()
    for name, mean in p.mean.items():
        torch.testing.assert_close(back.mean[name], mean, rtol=1e-5, atol=1e-6)
    for name, log_var in p.log_var.items():
        torch.testing.assert_close(back.log_var[name], log_var, rtol=1e-5, atol=1e-6)


def test_a_factor_that_is_no_density_has_no_posterior_until_it_is_clipped():
    p, q = posterior(0), posterior(1)
    quotient = Factor.of(p) / Factor.of(q)
    assert any((s < 0).any() for s in quotient.precision.values())
    with pytest.raises(ValueError, match="not positive"):
        quotient.posterior()
    clipped = quotient.clipped(1e-3).posterior()
    for name, s in quotient.precision.items():
        sound = s > 1e-3
        kept = (quotient.shift[name] / s)[sound]
        torch.testing.assert_close(clipped.mean[name][sound], kept, rtol=1e-5, atol=1e-5)
        assert (clipped.mean[name][s <= 0] == 0).all()
        assert clipped.log_var[name].max() <= -math.log(1e-3) + 1e-4


def test_a_factor_s_parts_may_name_its_tensors_in_different_orders():
    """As after a checkpoint, which sorts names its own way."""
    shift = {"a": torch.ones(2), "b": torch.ones(3)}
    precision = {"b": torch.full((3,), 4.0), "a": torch.tensor([2.0, -1.0])}
    clipped = Factor(shift, precision).clipped(1e-3)
    torch.testing.assert_close(clipped.shift["a"], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(clipped.shift["b"], torch.ones(3))


def test_a_normal_factor_is_that_normal():
    p = Factor.normal(0.5, gaussian_part(posterior(0))).posterior()
    assert all((mean == 0).all() for mean in p.mean.values())
    for log_var in p.log_var.values():
        torch.testing.assert_close(log_var.exp(), torch.full_like(log_var, 0.25))


def test_factors_of_other_tensors_do_not_mix():
    one, other = Factor({"a": torch.ones(2)}, {"a": torch.ones(2)}), Factor({}, {})
    with pytest.raises(ValueError, match="same tensors"):
        one * other
    with pytest.raises(ValueError, match="same names"):
        Factor({"a": torch.ones(2)}, {})
    with pytest.raises(ValueError, match="'a'"):
        Factor({"a": torch.ones(2)}, {"a": torch.ones(3)})
