"""The No-U-Turn sampler: Hamiltonian Monte Carlo that finds the length of its paths itself.

For a density exp(−U(z)) and a momentum p ~ N(0, I), H(z, p) = U(z) + |p|²/2. A path doubles in
length, forwards or backwards by chance. It ends where one of its halves, or the whole, turns back:
where Σ p along it points against the momentum at one of its ends. The next draw is a point of the
path, with probability in proportion to exp(−H), the later halves preferred. So draws are exact but
for the chain's length, whatever the step size.

References: Hoffman and Gelman, The No-U-Turn Sampler, JMLR 2014; Betancourt, A Conceptual
Introduction to Hamiltonian Monte Carlo, 2017, appendix A.3, for the draw within a path.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

MOST_DOUBLINGS, DIVERGED = 10, 1000.0
"""Limits of a path: of its doublings, and of the rise of H on it."""


class Point(NamedTuple):
    """z, the slope ∂U/∂z, and U."""

    z: Tensor
    slope: Tensor
    energy: float


class _State(NamedTuple):
    point: Point
    momentum: Tensor


class _Path(NamedTuple):
    """A path from its first state to its last, in time; `mass` is log Σ exp(H at its start − H)."""

    first: _State
    last: _State
    momenta: Tensor
    drawn: Point
    mass: float
    over: bool


def next_draw(
    here: Point, begun: Callable[[Tensor], Point], step: float, generator: Generator
) -> Point:
    """Return the draw after `here`.

    Parameters
    ----------
    here
        The last draw.
    begun
        Makes a point of z.
    step
        The mean step size of the leapfrog. Each path's own is within a fifth of it.
    generator
        Source of the momentum and of the choices.
    """
    momentum = torch.randn(len(here.z), generator=generator).double()
    step *= 0.8 + 0.4 * _chance(generator)
    start = _State(here, momentum)
    level = _total(start)

    def leap(state: _State, way: int) -> _State:
        half = state.momentum - 0.5 * way * step * state.point.slope
        point = begun(state.point.z + way * step * half)
        return _State(point, half - 0.5 * way * step * point.slope)

    def grown(end: _State, way: int, doublings: int) -> _Path:
        """Return a path of 2^doublings states that follows a state."""
        if doublings == 0:
            new = leap(end, way)
            mass = level - _total(new)
            return _Path(new, new, new.momentum, new.point, mass, not mass > -DIVERGED)
        near = grown(end, way, doublings - 1)
        if near.over:
            return near
        far = grown(near.last if way > 0 else near.first, way, doublings - 1)
        share = math.exp(far.mass - _log_sum(near.mass, far.mass))
        return _joined(near, far, way, _chance(generator) < share)

    path = _Path(start, start, momentum, here, 0.0, False)
    for doublings in range(MOST_DOUBLINGS):
        way = 1 if _chance(generator) < 0.5 else -1
        far = grown(path.last if way > 0 else path.first, way, doublings)
        if far.over:
            break
        path = _joined(
            path, far, way, _chance(generator) < math.exp(min(0.0, far.mass - path.mass))
        )
        if path.over:
            break
    return path.drawn


def _joined(near: _Path, far: _Path, way: int, takes_far: bool) -> _Path:
    first, last = (near.first, far.last) if way > 0 else (far.first, near.last)
    momenta = near.momenta + far.momenta
    turns = min(float(momenta @ end.momentum) for end in (first, last)) <= 0
    drawn = far.drawn if takes_far else near.drawn
    return _Path(first, last, momenta, drawn, _log_sum(near.mass, far.mass), far.over or turns)


def _total(state: _State) -> float:
    return state.point.energy + 0.5 * float(state.momentum @ state.momentum)


def _log_sum(one: float, other: float) -> float:
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


def _chance(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))
