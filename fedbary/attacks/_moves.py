"""Replies whose update is another: moved, flipped, or replaced by what all honest clients say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedbary.gaussian import gaussian_pairs

NamedTensors = Mapping[str, Tensor]


def moved(received: NamedTensors, fitted: NamedTensors, factor: float) -> dict[str, Tensor]:
    """Return the reply with all but its scales at m + factor · (m_k − m)."""
    scales = _scales(fitted)

    def one(name: str, new: Tensor) -> Tensor:
        if name in scales or not new.is_floating_point():
            return new
        old = received[name].to(new) if name in received else new.new_zeros(())
        return old + factor * (new - old)

    return {name: one(name, new) for name, new in fitted.items()}


def replaced(
    fitted: NamedTensors, honest: Sequence[NamedTensors], by: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the reply with what the honest clients have too, scales apart, replaced.

    `by` is given a name and the honest clients' tensors, [clients, *shape], in float64. Tensors
    that no honest client has in that shape are sent as fitted.
    """
    scales = _scales(fitted)
    sent = dict(fitted)
    for name, new in fitted.items():
        others = [o[name] for o in honest if name in o and o[name].shape == new.shape]
        if others and name not in scales and new.is_floating_point():
            sent[name] = by(name, torch.stack(others).double()).to(new)
    return sent


def flipped(received: NamedTensors, fitted: NamedTensors, log_var: float) -> dict[str, Tensor]:
    """Return the reply with its update's sign flipped and this log-variance everywhere."""
    flat = {name: fitted[name].new_full(fitted[name].shape, log_var) for name in _scales(fitted)}
    return moved(received, fitted, -1.0) | flat


def _scales(fitted: NamedTensors) -> set[str]:
    """Return the names of the log-variances."""
    return set(gaussian_pairs(fitted).values())
