"""The analytic Gaussian mechanism: the least noise that is (ε, δ)-differentially private.

A function f of data with sensitivity Δ = max ‖f(D) − f(D')‖ over neighbours D, D' is sent as
f(D) + N(0, σ²). That is (ε, δ)-private if, and only if,

    Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) ≤ δ.

Reference: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy: Analytical
Calibration and Optimal Denoising, ICML 2018, theorem 8.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
    return _least(lambda multiplier: delta_of(epsilon, multiplier) <= delta)


def epsilon_of(delta: float, multiplier: float) -> float:
    """Return the least ε for a δ and a noise of σ = multiplier · Δ; 0 if that is private too."""
    if delta_of(0.0, multiplier) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(epsilon, multiplier) <= delta)


def _least(is_enough: Callable[[float], bool]) -> float:
    """Return the least number above 0 that is enough, by bisection; larger ones are enough too."""
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def secret_noise(count: int) -> Tensor:
    """Return so many draws of N(0, 1), float64, each of 64 random bits of the operating system.

    No seed stands behind them: they are the Box-Muller transform of the bytes of `os.urandom`.
    """
    pairs = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).astype(np.float64).reshape(2, pairs)
    radius = np.sqrt(-2 * np.log((words[0] + 1) / 2**64))
    angle = 2 * math.pi * (words[1] / 2**64)
    noise = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(noise[:count])


def noised(values: Tensor, std: float | Tensor) -> Tensor:
    """Return values plus N(0, std²) that nobody can draw again, in float64."""
    return values.double() + std * secret_noise(values.numel()).view(values.shape)


@dataclass(frozen=True, eq=False)
class Release:
    """Numbers with Gaussian noise that a client is asked for.

    Parameters
    ----------
    question : str
        A digest of all that decides the numbers before the noise, and of how much noise there is.
    examples : Tensor
        A hash of each example (n_k,) that they tell of, as the client holds it.
    epsilon, delta : float
        ε and δ that were asked for.
    multiplier : float
        The noise's standard deviation over the sensitivity.
    draw : callable
        Return the numbers, each time with new noise.
    """

    question: str
    examples: Tensor
    epsilon: float
    delta: float
    multiplier: float
    draw: Callable[[], Mapping[str, Tensor]]


def drawn(release: Release) -> Mapping[str, Tensor]:
    """Return the numbers with new noise: what a client without a memory sends."""
    return release.draw()
