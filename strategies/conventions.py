"""Conventions: which arrays of a model are Gaussian, by name, their units and their soundness."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor
from torch.nn.functional import softplus

from fedbary.aggregation.sums import (
    LARGEST_LOG_VAR,
    LOG_VAR_LIMIT,
    PIECE,
    Threads,
    check_values,
    extremes,
    flat_reals,
    is_continuous,
    workers,
)
from fedbary.aggregation.tensors import Converted
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, gaussian_pairs
from fedbary.methods.hierarchy import OWN

from .arrays import Blanks, tensor_from_array

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
        return dict(_pairs(self, tuple(keys)))

    def name(self, mean_key: str) -> str:
        """Return the name of a Gaussian tensor: its mean's key without the words of the pattern."""
        return "".join(_parts(self.mean, mean_key) or (mean_key,))

    def to_log_var(self, scale: Tensor) -> Tensor:
        """Convert a scale to a log-variance; a std that is not positive gives NaN or −inf."""
        return _UNITS[self.unit][0](scale)

    def from_log_var(self, log_var: Tensor) -> Tensor:
        """Convert a log-variance to a scale in this convention's unit."""
        return _UNITS[self.unit][1](log_var)


@lru_cache(maxsize=16)
def _pairs(convention: Convention, keys: tuple[str, ...]) -> Mapping[str, str]:
    """Return `Convention.pairs`, found once for the arrays of a run."""
    means = {
        key: "".join(_interleave(convention.mean.split("*"), parts))
        for key in keys
        if (parts := _parts(convention.scale, key)) is not None
    }
    there = set(keys)
    pairs = {mean_key: scale_key for scale_key, mean_key in means.items() if mean_key in there}
    for scale_key, mean_key in means.items():
        if mean_key not in pairs and scale_key not in pairs:
            raise ValueError(f"array {scale_key!r} is a scale without its mean {mean_key!r}")
    return pairs


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


def scale_from(log_var: Tensor, convention: Convention, dtype: torch.dtype) -> Tensor:
    """Return log-variances as scales in a convention's unit and a dtype; admission passes them.

    Log-variances are clamped to ±39.6, and scales to the numbers of the dtype: a standard deviation
    of 1e-9 is 0 in float16.
    """
    scale = convention.from_log_var(log_var.clamp(-LARGEST_LOG_VAR, LARGEST_LOG_VAR))
    numbers = torch.finfo(dtype)
    if numbers.max < torch.finfo(scale.dtype).max:
        least = numbers.tiny * numbers.eps if convention.unit == "std" else numbers.min
        scale = scale.clamp(least, numbers.max)
    return scale.to(dtype)


def check_arrays(record: ArrayRecord, reference: ArrayRecord, convention: Convention) -> None:
    """Raise a ValueError that names the first array that may not enter an aggregate.

    Arrays must have the reference's keys, shapes and dtypes and finite values: log-variances within
    ±40, whatever the unit of the scales, and other values within `value_limit`.
    """
    if missing := reference.keys() - record.keys():
        raise ValueError(f"array {min(missing)!r} is missing")
    if extra := record.keys() - reference.keys():
        raise ValueError(f"array {min(extra)!r} is not the global model's")
    pairs = convention.pairs(reference.keys())
    scales = set(pairs.values())
    for key in reference:
        try:
            tensor = _same_kind(record[key], reference[key])
            if tensor.numel() == 0 or not is_continuous(tensor):
                continue
            if key in scales:
                _check_log_vars(tensor, convention)
            else:
                check_values(tensor, key in pairs)
        except ValueError as error:
            raise ValueError(f"array {key!r}: {error}") from error


def _same_kind(array: Array, reference: Array) -> Tensor:
    tensor, expected = tensor_from_array(array), tensor_from_array(reference)
    if tensor.shape != expected.shape:
        raise ValueError(f"its shape is {tuple(tensor.shape)}, not {tuple(expected.shape)}")
    if tensor.dtype != expected.dtype:
        raise ValueError(f"its dtype is {tensor.dtype}, not {expected.dtype}")
    return tensor


def _check_log_vars(tensor: Tensor, convention: Convention) -> None:
    low, high = convention.to_log_var(extremes(tensor)).float().tolist()
    if not -LOG_VAR_LIMIT <= low <= high <= LOG_VAR_LIMIT:
        raise ValueError(
            f"its log-variances run from {low:.6g} to {high:.6g}, "
            f"allowed are {-LOG_VAR_LIMIT:g} to {LOG_VAR_LIMIT:g}"
        )


class Names:
    """The names that the arrays of a convention have in fedbary.

    The mean of a Gaussian tensor is ``<name>_mean`` and its scale, a log-variance,
    ``<name>_log_var``; `Convention.name` gives the name. Other arrays keep their keys.

    Parameters
    ----------
    keys : collection of str
        The keys of the arrays.
    convention : Convention
        Rule that tells Gaussian ones, and the unit of their scales.

    Raises
    ------
    ValueError
        If a scale has no mean, if two arrays would have one name, or if arrays that are not
        Gaussian would have a Gaussian's names.
    """

    def __init__(self, keys: Collection[str], convention: Convention) -> None:
        self._convention = convention
        pairs = convention.pairs(keys)
        names = {key: key for key in keys}
        for mean, scale in pairs.items():
            name = convention.name(mean)
            names[mean], names[scale] = name + MEAN_SUFFIX, name + LOG_VAR_SUFFIX
        self._keys = {name: key for key, name in names.items()}
        if len(self._keys) < len(names):
            twice = min(key for key, name in names.items() if self._keys[name] != key)
            raise ValueError(f"two arrays would be named {names[twice]!r}; one is {twice!r}")
        for mean in gaussian_pairs(self._keys.keys()):
            if self._keys[mean] not in pairs:
                raise ValueError(f"array {self._keys[mean]!r} is Gaussian in fedbary's names alone")
        self._converted = (
            {names[scale] for scale in pairs.values()} if convention.unit != "log_var" else set()
        )

    def key(self, name: str) -> str:
        """Return the key of the array with a name; names of no array are returned as they are.

        A group's array has the global one's key behind the prefix `OWN`.
        """
        prefix = OWN if name.startswith(OWN) else ""
        return prefix + self._keys.get(name.removeprefix(OWN), name.removeprefix(OWN))

    def read(self, record: ArrayRecord) -> Mapping[str, Tensor]:
        """Return a record's tensors. They share its bytes: do not write to them.

        Scales in another unit are converted on access, in float32 or wider.

        Raises
        ------
        ValueError
            If an array is missing or cannot be read.
        """
        held = {name: tensor_from_array(record[key]) for name, key in self._keys.items()}
        return Converted(held, dict.fromkeys(self._converted, self._log_var))

    def write(self, tensors: dict[str, Tensor], like: ArrayRecord, blanks: Blanks) -> ArrayRecord:
        """Store tensors under their keys in `like`, and empty the dictionary.

        Names that `like` does not have are kept. `scale_from` converts log-variances to scales.
        Tensors that lie in blanks are not copied.
        """
        with workers() as pool:
            for name in [n for n in tensors if n.removeprefix(OWN) in self._converted]:
                dtype = tensor_from_array(like[self._keys[name.removeprefix(OWN)]]).dtype
                tensors[name] = self._scales(tensors[name], dtype, blanks, pool)
        arrays = blanks.arrays(tensors)
        return ArrayRecord({self.key(name): array for name, array in arrays.items()})

    def _log_var(self, scale: Tensor) -> Tensor:
        wide = torch.promote_types(scale.dtype, torch.float32)
        return self._convention.to_log_var(scale.to(wide))

    def _scales(self, log_var: Tensor, dtype: torch.dtype, blanks: Blanks, pool: Threads) -> Tensor:
        scales = blanks.empty(log_var, dtype)

        def convert(source: Tensor, target: Tensor) -> None:
            target.copy_(scale_from(source, self._convention, dtype))

        for _ in pool.map(convert, *(flat_reals(t).split(PIECE) for t in (log_var, scales))):
            pass
        return scales


@lru_cache(maxsize=16)
def _names(keys: tuple[str, ...], convention: Convention) -> Names:
    return Names(keys, convention)


def names_of(keys: Collection[str], convention: Convention) -> Names:
    """Return the `Names` of some arrays, found once for those of a run."""
    return _names(tuple(keys), convention)
