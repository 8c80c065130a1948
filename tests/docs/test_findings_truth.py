"""Federations without Flower are those of runs, and the sampled posterior is the true one."""

import pytest
import torch
from safetensors.torch import load_file

from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from findings.truth.federation import Federation
from findings.truth.posterior import Softmax, effective_size, laplace, next_draw, predictive, sample

WORDS = {
    "engine": "inline", "device": "cpu", "pictures": False, "train_fraction": 0.1, "clients": 3,
    "rounds": 2, "local_epochs": 1, "normalise": "none", "model": "linear", "evaluate_clients": 0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        {"rule": "RKLB", "bayesian_layers": 1, "kl_weight": "share"},
        {"method": "SCAFFOLD", "momentum": 0.0, "bayesian_layers": 0},
    ],
    ids=["RKLB", "SCAFFOLD"],
)
def test_a_federation_without_flower_is_a_run(own, tmp_path):
    several = [resolve({**WORDS, **own, "seed": seed}) for seed in (3, 4)]
    run_inline(several[1], tmp_path / "run")
    kept, found = load_file(tmp_path / "run" / "posterior.safetensors"), []
    for each in map(Federation, several):
        for _ in range(WORDS["rounds"]):
            each.take_round()
        found.append(each.model)
    assert kept.keys() == found[1].keys()
    for name, tensor in found[1].items():
        torch.testing.assert_close(tensor, kept[name], rtol=0, atol=2e-6)
        assert not torch.equal(tensor, found[0][name])


def two_classes():
    """Two classes and a feature: w₁ − w₀ and b₁ − b₀ are N(0, 2 s²) before the data."""
    x = torch.linspace(-2, 3, 12)[:, None]
    y = torch.tensor([0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1])
    return x, y, 1.5


@pytest.mark.slow
def test_chains_have_the_predictive_of_quadrature():
    x, y, std = two_classes()
    model = Softmax(x, y, 2, std)
    grid = torch.linspace(-8, 8, 401, dtype=torch.float64)
    slope, bias = torch.meshgrid(grid, grid, indexing="ij")
    logits = slope[..., None] * x[:, 0] + bias[..., None]
    log = torch.nn.functional.logsigmoid(torch.where(y > 0, logits, -logits)).sum(-1)
    weight = (log - (slope**2 + bias**2) / (4 * std**2)).flatten().softmax(0)
    wanted = weight @ torch.sigmoid(logits).flatten(0, 1)
    found = predictive(sample(model, 1, 300, seed=1), x)[:, 1]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)
    assert model.slope(model.mode()).abs().max() < 1e-8
    cover = torch.cov(laplace(model, 20_000, 0).flatten(1).T)
    torch.testing.assert_close(
        cover, torch.linalg.inv(model.hessian(model.mode())), rtol=0.1, atol=0.1
    )


def test_the_sampler_has_the_moments_of_a_gaussian_that_is_not_round():
    """In coordinates that do not fit: standard deviations from 0.5 to 2.4, correlated."""
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    root = torch.tensor([[0.5, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 1.0, 2.0]]).double()
    precision, generator = torch.linalg.inv(root @ root.T), torch.Generator().manual_seed(0)

    def begun(z):
        slope = precision @ (z - mean)
        return z, slope, float(0.5 * (z - mean) @ slope)

    here, drawn = begun(mean), []
    for _ in range(1200):
        here = next_draw(here, begun, 0.35, generator)
        drawn.append(here[0])
    white = torch.linalg.solve(root, (torch.stack(drawn) - mean).T).T
    error = 5 / effective_size(torch.stack(white.chunk(2))).sqrt()
    assert (error < 0.4).all() and (white.mean(0).abs() < error).all()
    torch.testing.assert_close(torch.cov(white.T), torch.eye(3).double(), rtol=0, atol=0.25)


def test_the_effective_size_of_an_autoregression_is_known():
    rho, values = 0.6, [torch.randn(4)]
    torch.manual_seed(0)
    for _ in range(4000):
        values.append(rho * values[-1] + (1 - rho**2) ** 0.5 * torch.randn(4))
    size = effective_size(torch.stack(values[1:], 1)[..., None].double())
    assert float(size) == pytest.approx(16_000 * (1 - rho) / (1 + rho), rel=0.12)
