"""Conventions: which arrays of a model are Gaussian, by name, and the unit of their scales."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedbary.errors import SettingError

_LINEAR_BELOW = -40.0
"""Below this log softplus(x) equals x in floating point."""


def _log_var_from_rho(rho: Tensor) -> Tensor:
    return 2 * torch.where(rho < _LINEAR_BELOW, rho, softplus(rho).log())


def _rho_from_log_var(log_var: Tensor) -> Tensor:
    log_std = log_var / 2
    std = log_std.exp()
    return torch.where(log_std < _LINEAR_BELOW, log_std, std + (-torch.expm1(-std)).log())


_UNITS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "log_var": (lambda log_var: log_var, lambda log_var: log_var),
    "log_std": (lambda log_std: 2 * log_std, lambda log_var: log_var / 2),
    "std": (lambda std: 2 * std.log(), lambda log_var: (log_var / 2).exp()),
    "rho": (_log_var_from_rho, _rho_from_log_var),
}


@dataclass(frozen=True)
class Convention:
    """Names of the mean and the scale of a Gaussian tensor.

    Parameters
    ----------
    mean : str
        Pattern of a mean's key, such as ``"*_mean"``; each ``*`` stands for any characters.
    scale : str
        Pattern of its scale's key, with as many ``*``, which stand for the same characters.
    unit : str
        Unit of a scale: ``"log_var"``, ``"log_std"``, ``"std"``, or ``"rho"``, std = softplus(rho).

    Raises
    ------
    SettingError
        If the unit is unknown, or the patterns have no ``*`` or not equally many.
    """

    mean: str
    scale: str
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in _UNITS:
            raise SettingError("unit", self.unit, ", ".join(_UNITS))
        if "*" not in self.mean:
            raise SettingError("mean", self.mean, "a pattern with at least one *")
        if self.scale.count("*") != self.mean.count("*") or self.scale == self.mean:
            raise SettingError("scale", self.scale, f"another pattern with the *s of {self.mean!r}")

    def pairs(self, keys: Collection[str]) -> dict[str, str]:
        """Return the key of each Gaussian tensor's mean with the key of its scale.

        Raises
        ------
        ValueError
            If a scale has no mean, and so would be averaged as a plain weight.
        """
        means = {
            key: "".join(_interleave(self.mean.split("*"), parts))
            for key in keys
            if (parts := _parts(self.scale, key)) is not None
        }
        pairs = {mean_key: scale_key for scale_key, mean_key in means.items() if mean_key in keys}
        for scale_key, mean_key in means.items():
            if mean_key not in pairs and scale_key not in pairs:
                raise ValueError(f"array {scale_key!r} is a scale without its mean {mean_key!r}")
        return pairs

    def name(self, mean_key: str) -> str:
        """Return the name of a Gaussian tensor: its mean's key without the words of the pattern."""
        return "".join(_parts(self.mean, mean_key) or (mean_key,))

    def to_log_var(self, scale: Tensor) -> Tensor:
        """Convert a scale to a log-variance; a std that is not positive gives NaN or −inf."""
        return _UNITS[self.unit][0](scale)

    def from_log_var(self, log_var: Tensor) -> Tensor:
        """Convert a log-variance to a scale in this convention's unit."""
        return _UNITS[self.unit][1](log_var)


def _parts(pattern: str, key: str) -> tuple[str, ...] | None:
    match = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), key, re.DOTALL)
    return match.groups() if match else None


def _interleave(words: list[str], parts: tuple[str, ...]) -> list[str]:
    return [text for pair in zip(words, (*parts, ""), strict=True) for text in pair]


CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        "fedbary": Convention("*_mean", "*_log_var", "log_var"),
        "bayesian-torch": Convention("*mu_*", "*rho_*", "rho"),
        "torchbnn": Convention("*_mu", "*_log_sigma", "log_std"),
        "blitz": Convention("*mu", "*rho", "rho"),
        "pyro": Convention("*locs.*_unconstrained", "*scales.*_unconstrained", "rho"),
        "scale": Convention("*loc", "*scale", "std"),
    }
)
"""The conventions with a name. "pyro" is the state dict of an AutoNormal guide; "blitz" includes
the samplers' duplicates of the parameters, which thus stay equal to them."""


def convention_named(convention: str | Convention) -> Convention:
    """Return the convention itself, or the one of that name.

    Raises
    ------
    SettingError
        If there is none of that name; the message lists the names.
    """
    if isinstance(convention, Convention):
        return convention
    if convention not in CONVENTIONS:
        raise SettingError("convention", convention, ", ".join(CONVENTIONS) + ", or a Convention")
    return CONVENTIONS[convention]
