"""Posteriors over a model's tensors, mean-field Gaussians beside points; factors of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MEAN_SUFFIX = "_mean"
LOG_VAR_SUFFIX = "_log_var"


@dataclass(frozen=True, eq=False)
class Posterior:
    """A model's tensors by name, each a mean, some of them with a log-variance.

    A tensor with a log-variance is N(mean, diag(exp(log_var))); one without is deterministic (a
    point mass), or a buffer if it is not floating.

    Parameters
    ----------
    mean : Mapping[str, Tensor]
        Every tensor of the model, buffers included, in the model's order.
    log_var : Mapping[str, Tensor]
        The natural logarithm of the variance of each Gaussian tensor: its names are some of
        `mean`'s, its shapes the same.

    Raises
    ------
    ValueError
        If a log-variance has no mean, another shape than its mean, or either is not floating.
    """

    mean: Mapping[str, Tensor]
    log_var: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", dict(self.mean))
        object.__setattr__(self, "log_var", dict(self.log_var))
        for name, log_var in self.log_var.items():
            mean = self.mean.get(name)
            if mean is None:
                raise ValueError(f"tensor {name!r} has a log-variance but no mean")
            if mean.shape != log_var.shape:
                raise ValueError(
                    f"tensor {name!r}: the mean has shape {tuple(mean.shape)}, "
                    f"the log-variance {tuple(log_var.shape)}"
                )
            if not (mean.is_floating_point() and log_var.is_floating_point()):
                raise ValueError(
                    f"tensor {name!r} is Gaussian but not floating: the mean is {mean.dtype}, "
                    f"the log-variance {log_var.dtype}"
                )

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Posterior:
        """Read a state dict in which ``<name>_mean`` stands beside ``<name>_log_var``.

        A key that ends in ``_mean`` without such a partner (a batch norm's ``running_mean``) is a
        deterministic tensor under its own name, like every other key.

        Raises
        ------
        ValueError
            If a ``_log_var`` has no ``_mean``, or if a key already bears the name of a pair.
        """
        pairs = gaussian_pairs(state.keys())
        log_vars = set(pairs.values())
        mean: dict[str, Tensor] = {}
        log_var: dict[str, Tensor] = {}
        for key, tensor in state.items():
            if key in log_vars:
                continue
            name = key.removesuffix(MEAN_SUFFIX) if key in pairs else key
            if name in mean:
                raise ValueError(f"two tensors of the state dict are named {name!r}")
            mean[name] = tensor
            if key in pairs:
                log_var[name] = state[pairs[key]]
        return cls(mean, log_var)

    def state_dict(self) -> dict[str, Tensor]:
        """Write the state dict that `from_state_dict` reads, each pair side by side.

        Raises
        ------
        ValueError
            If two tensors would bear the same key.
        """
        state: dict[str, Tensor] = {}
        for name, mean in self.mean.items():
            pair = {name: mean}
            if name in self.log_var:
                pair = {name + MEAN_SUFFIX: mean, name + LOG_VAR_SUFFIX: self.log_var[name]}
            if twice := state.keys() & pair.keys():
                raise ValueError(f"two tensors of the posterior have the key {min(twice)!r}")
            state |= pair
        return state


@dataclass(frozen=True, eq=False)
class Factor:
    """An unnormalised Gaussian per weight, exp(e θ − ½ s θ²), whose precision s may have any sign.

    Products, quotients and powers of Gaussians are sums, differences and multiples of these
    natural parameters. A quotient need not be a density: a cavity or a site of an approximate
    posterior may have s ≤ 0, and still serves a local method as its prior.

    Parameters
    ----------
    shift : Mapping[str, Tensor]
        e by tensor; of N(m, v) it is m/v.
    precision : Mapping[str, Tensor]
        s by tensor, with the names and shapes of `shift`; of N(m, v) it is 1/v.

    Raises
    ------
    ValueError
        If names or shapes of the two differ.
    """

    shift: Mapping[str, Tensor]
    precision: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shift", dict(self.shift))
        object.__setattr__(self, "precision", dict(self.precision))
        if self.shift.keys() != self.precision.keys():
            raise ValueError("shift and precision do not have the same names")
        for name, shift in self.shift.items():
            if shift.shape != self.precision[name].shape:
                raise ValueError(
                    f"tensor {name!r}: the shift has shape {tuple(shift.shape)}, "
                    f"the precision {tuple(self.precision[name].shape)}"
                )

    @classmethod
    def of(cls, posterior: Posterior) -> Factor:
        """Return the density of a posterior's Gaussian tensors: (m/v, 1/v)."""
        precision = {name: (-log_var).exp() for name, log_var in posterior.log_var.items()}
        return cls({name: s * posterior.mean[name] for name, s in precision.items()}, precision)

    @classmethod
    def normal(cls, std: float, like: Mapping[str, Tensor]) -> Factor:
        """Return N(0, std²) for every weight of the tensors `like`."""
        precision = {name: torch.full_like(tensor, std**-2) for name, tensor in like.items()}
        return cls({name: torch.zeros_like(tensor) for name, tensor in like.items()}, precision)

    def __mul__(self, other: Factor) -> Factor:
        """Return the product of two factors of the same tensors: (e + e′, s + s′)."""
        return self._with(other, 1.0)

    def __truediv__(self, other: Factor) -> Factor:
        """Return the quotient of two factors of the same tensors: (e − e′, s − s′)."""
        return self._with(other, -1.0)

    def __pow__(self, power: float) -> Factor:
        """Return the factor to a real power: (power · e, power · s)."""
        return Factor(
            {name: power * shift for name, shift in self.shift.items()},
            {name: power * precision for name, precision in self.precision.items()},
        )

    def clipped(self, least_precision: float) -> Factor:
        """Return the factor with precisions of at least a positive number; means stay.

        A weight whose precision is not positive has no mean: its shift becomes 0.
        """
        precision = {name: s.clamp_min(least_precision) for name, s in self.precision.items()}
        shift = {
            name: torch.where(s > 0, self.shift[name] / s * precision[name], 0.0)
            for name, s in self.precision.items()
        }
        return Factor(shift, precision)

    def posterior(self, points: Mapping[str, Tensor] | None = None) -> Posterior:
        """Return N(e/s, 1/s), with `points` as deterministic tensors beside it.

        Raises
        ------
        ValueError
            If a precision is not positive; names the tensor.
        """
        for name, precision in self.precision.items():
            if precision.numel() and not bool((precision > 0).all()):
                raise ValueError(f"tensor {name!r} has precisions that are not positive")
        mean = {name: e / self.precision[name] for name, e in self.shift.items()}
        log_var = {name: -s.log() for name, s in self.precision.items()}
        return Posterior({**(points or {}), **mean}, log_var)

    def _with(self, other: Factor, sign: float) -> Factor:
        if self.shift.keys() != other.shift.keys():
            raise ValueError("the factors are not of the same tensors")
        return Factor(
            {name: e + sign * other.shift[name] for name, e in self.shift.items()},
            {name: s + sign * other.precision[name] for name, s in self.precision.items()},
        )


def kl_divergence(q: Posterior, p: Posterior) -> float:
    """Kullback-Leibler divergence KL(q || p) in nats, summed over the Gaussian tensors.

    Per weight, ½ [log(v_p / v_q) + v_q / v_p + (m_q − m_p)² / v_p − 1], accumulated in float64.
    Deterministic tensors have no density and are left out. The direction matters: RKLB is argmin_q
    Σ w_k KL(q || p_k), FKLB is argmin_q Σ w_k KL(p_k || q). Swap the arguments for the other
    direction.

    Raises
    ------
    ValueError
        If the posteriors differ in names or shapes.
    """
    _require_same_layout(q, p)
    total = 0.0
    for name, q_log_var in q.log_var.items():
        p_log_var = p.log_var[name].double()
        log_ratio = q_log_var.double() - p_log_var
        offset = q.mean[name].double() - p.mean[name].double()
        nats = torch.expm1(log_ratio) - log_ratio + offset.square() * torch.exp(-p_log_var)
        total += 0.5 * nats.sum().item()
    return total


def wasserstein2_squared(q: Posterior, p: Posterior) -> float:
    """Squared Wasserstein-2 distance, summed over all floating tensors.

    Per weight, (m_q − m_p)² + (√v_q − √v_p)², accumulated in float64; deterministic floating
    tensors are point masses (v = 0), integer and bool buffers are left out.

    Raises
    ------
    ValueError
        If the posteriors differ in names or shapes.
    """
    _require_same_layout(q, p)
    total = 0.0
    for name, mean in q.mean.items():
        if mean.is_floating_point():
            total += (mean.double() - p.mean[name].double()).square().sum().item()
    for name, log_var in q.log_var.items():
        std_q, std_p = (0.5 * log_var.double()).exp(), (0.5 * p.log_var[name].double()).exp()
        total += (std_q - std_p).square().sum().item()
    return total


def gaussian_pairs(keys: Collection[str]) -> dict[str, str]:
    """Find the Gaussian tensors of a state dict: the key of each mean, with its log-variance's.

    Raises
    ------
    ValueError
        If a ``_log_var`` has no ``_mean``.
    """
    pairs = {}
    for key in keys:
        if key.endswith(LOG_VAR_SUFFIX):
            mean = key.removesuffix(LOG_VAR_SUFFIX) + MEAN_SUFFIX
            if mean not in keys:
                raise ValueError(f"{key!r} has no {mean!r} beside it")
            pairs[mean] = key
    return pairs


def layout_difference(posterior: Posterior, reference: Posterior) -> str | None:
    """Name the first tensor in which two posteriors' names or shapes differ; None if they agree."""
    for part, tensors, expected in (
        ("mean", posterior.mean, reference.mean),
        ("log-variance", posterior.log_var, reference.log_var),
    ):
        if missing := expected.keys() - tensors.keys():
            return f"the {part} of tensor {min(missing)!r} is missing"
        if extra := tensors.keys() - expected.keys():
            return f"the {part} of tensor {min(extra)!r} is not expected"
        for name, tensor in tensors.items():
            if tensor.shape != expected[name].shape:
                return (
                    f"the {part} of tensor {name!r} has shape {tuple(tensor.shape)}, "
                    f"not {tuple(expected[name].shape)}"
                )
    return None


def _require_same_layout(q: Posterior, p: Posterior) -> None:
    if difference := layout_difference(q, p):
        raise ValueError(f"the posteriors differ: in the first, {difference}")


def variance_power(log_var: Tensor, power: float) -> Tensor:
    """Return v to a power, exp(power · log v), through base 2: half the time of torch's exp."""
    return (log_var * (power / math.log(2))).exp2_()


def variance_power_into(out: np.ndarray, log_var: np.ndarray, power: float) -> None:
    """Write v to a power into an array; see `variance_power`."""
    np.multiply(log_var, power / math.log(2), out=out)
    torch.from_numpy(out).exp2_()  # NumPy's has no vector instructions on processors without AVX512
