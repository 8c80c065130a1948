"""The analytic Gaussian mechanism: the least noise that is (ε, δ)-differentially private.

A function f of data with sensitivity Δ = max ‖f(D) − f(D')‖ over neighbours D, D' is sent as
f(D) + N(0, σ²). That is (ε, δ)-private if, and only if,

    Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) ≤ δ.

Reference: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy: Analytical
Calibration and Optimal Denoising, ICML 2018, theorem 8.
"""

from __future__ import annotations

import math
import secrets

import torch
from torch import Generator, Tensor

HALVINGS = 200
"""Steps of the bisection for σ: more than float64 tells apart."""


def delta_of(epsilon: float, multiplier: float) -> float:
    """Return the least δ for an ε and a noise of σ = multiplier · Δ."""
    half, part = 0.5 / multiplier, epsilon * multiplier
    above, below = (
        float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
        for x in (half - part, -half - part)
    )
    return max(0.0, math.exp(above) - math.exp(epsilon + below))


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the least σ/Δ with which noise is (ε, δ)-private; ε above 0, δ between 0 and 1."""
    low, high = 0.0, 1.0
    while delta_of(epsilon, high) > delta:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if delta_of(epsilon, middle) > delta else (low, middle)
    return high


def secret_generator() -> Generator:
    """Return a generator that nobody can repeat, who may know the run's seed."""
    return Generator().manual_seed(secrets.randbits(63))


def noised(values: Tensor, std: float, generator: Generator) -> Tensor:
    """Return values plus N(0, std²), in float64."""
    noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    return values.double() + std * noise
