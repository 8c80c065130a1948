"""SVGD's direction is its formula; particles' densities have gradients in any dimension."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_gaussian import double

from fedbary.methods._particles import Smooth, descended, direction


def test_one_particle_climbs_the_gradient():
    x, scores = double(1, 7), double(1, 7, seed=1)
    torch.testing.assert_close(direction(x, scores), scores)


@given(count=st.integers(2, 40), weights=st.integers(1, 60), far=st.floats(-1e4, 1e4))
def test_the_direction_is_its_formula_by_autograd(count, weights, far):
    x, scores = double(count, weights) + far, double(count, weights, seed=1)
    squares = torch.stack([(x - other).square().sum(1) for other in x])
    med = squares[~torch.eye(count, dtype=bool)].median()
    h_squared = med / (2 * math.log(count + 1))
    expected = []
    for i in range(count):
        y = x.clone().requires_grad_()
        kernel = (-(y - x[i]).square().sum(1) / (2 * h_squared)).exp()
        kernel.sum().backward()
        expected.append((kernel.detach() @ scores + y.grad.sum(0)) / count)
    torch.testing.assert_close(direction(x, scores), torch.stack(expected), rtol=1e-6, atol=1e-8)


@given(
    count=st.integers(2, 30),
    weights=st.integers(1, 600),
    width=st.sampled_from([0.0, 0.55, 3.0]),
    far=st.floats(0, 1e3),
)
def test_a_density_s_gradient_is_that_of_its_logarithm(count, weights, width, far):
    """The gradient must not vanish in many dimensions, nor far from all particles."""
    particles, at = double(count, weights), (double(3, weights, seed=1) + far).requires_grad_()
    h = count ** (-1 / (weights + 4))
    mean, var = particles.mean(0), particles.var(0, correction=0)
    centres, u = particles, torch.full_like(mean, width**2)
    if not width:
        centres, u = mean + (1 - h**2) ** 0.5 * (particles - mean), h**2 * var
    squares = ((at[:, None] - centres).square() / u).sum(2)
    (-squares / 2).logsumexp(1).sum().backward()
    found = Smooth(particles, width)(at.detach())
    torch.testing.assert_close(found, at.grad, rtol=1e-6, atol=1e-6)
    assert (found.norm(dim=1) > 1e-3).all()


def test_the_published_density_is_dead_where_this_one_is_not():
    particles, at = double(20, 502), double(1, 502, seed=1).requires_grad_()
    squares = (at[:, None] - particles).square().sum(2)
    density = ((-squares / (2 * 0.55**2)).exp() / (2 * math.pi * 0.55**2) ** 251).mean(1)
    (density + 1e-10).log().sum().backward()
    assert at.grad.norm() == 0
    assert Smooth(particles, 0.55)(at.detach()).norm() > 1
    assert Smooth(particles)(at.detach()).norm() > 1


@pytest.mark.parametrize("count", [2, 5, 20])
def test_without_a_width_a_density_has_the_particles_mean_and_variance(count):
    particles = 3 + 0.7 * double(count, 1)
    grid = torch.linspace(-9, 15, 40_001, dtype=torch.float64)[:, None]
    score, gap = Smooth(particles)(grid)[:, 0], float(grid[1] - grid[0])
    log_q = torch.cat([score.new_zeros(1), (score[1:] + score[:-1]).cumsum(0) * gap / 2])
    q = (log_q - log_q.logsumexp(0)).exp()
    mean = (q * grid[:, 0]).sum()
    var = (q * (grid[:, 0] - mean).square()).sum()
    torch.testing.assert_close(mean, particles.mean(), rtol=1e-4, atol=0)
    torch.testing.assert_close(var, particles.var(correction=0), rtol=1e-3, atol=0)


def test_the_product_of_two_gaussians_in_one_dimension():
    """SVGD's 20 particles have 12 % less than a Gaussian's variance."""
    levels = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    gaussian = torch.special.ndtri(levels)[:, None]
    one, other = Smooth(1 + gaussian), Smooth(-0.5 + 0.5 * gaussian)
    found = descended(double(20, 1, seed=2), lambda x: one(x) + other(x), 600, 0.05)
    mean, var = (1 / 1 - 0.5 / 0.25) / (1 + 4), 1 / (1 + 4)
    assert float(found.mean()) == pytest.approx(mean, abs=0.05)
    assert 0.75 * var < float(found.var(correction=0)) < var
