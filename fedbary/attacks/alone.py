"""Attacks of a client alone: it moves its own update."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbary.attacks import Attack, Tensors
from fedbary.gaussian import gaussian_pairs


@dataclass(frozen=True)
class SignFlip(Attack):
    """The update with its sign flipped, m − (m_k − m), and log v_k."""

    def sent(self, received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
        """Send the update with its sign flipped."""
        return _moved(received, fitted, -1.0)


@dataclass(frozen=True)
class Scaling(Attack):
    """The update ten times as large, m + 10 (m_k − m), and log v_k.

    One of ten equal clients under a plain mean replaces the global means by its own (Bagdasaryan et
    al., How To Backdoor Federated Learning, 2020, eq. 3); several overshoot.
    """

    def sent(self, received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
        """Send the update ten times as large."""
        return _moved(received, fitted, 10.0)


@dataclass(frozen=True)
class VarianceCollapse(Attack):
    """The flipped update with tiny variances: m − (m_k − m), −30.

    The attack peculiar to posteriors: in the reverse-KL barycentre a client's say is w/v, and one
    such client owns it. A standard deviation is 3e-7. Tensors without a log-variance get
    `sign_flip`.
    """

    def sent(self, received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
        """Send the flipped update with tiny variances."""
        return _moved(received, fitted, -1.0, -30.0)


@dataclass(frozen=True)
class VarianceExplosion(Attack):
    """The flipped update with huge variances: m − (m_k − m), 10.

    In the Wasserstein-2 barycentre a standard deviation is a mean of the clients', and one such
    client makes all of them large. Its own is 148. Tensors without a log-variance get `sign_flip`.
    """

    def sent(self, received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
        """Send the flipped update with huge variances."""
        return _moved(received, fitted, -1.0, 10.0)


def _moved(
    received: Tensors, fitted: Tensors, factor: float, log_var: float | None = None
) -> dict[str, Tensor]:
    """Return the reply at m + factor · (m_k − m), with its log-variances or this one everywhere."""
    scales = set(gaussian_pairs(fitted).values())

    def one(name: str, new: Tensor) -> Tensor:
        if name in scales:
            return new if log_var is None else new.new_full(new.shape, log_var)
        if not new.is_floating_point():
            return new
        old = received[name].to(new) if name in received else new.new_zeros(())
        return old + factor * (new - old)

    return {name: one(name, new) for name, new in fitted.items()}
