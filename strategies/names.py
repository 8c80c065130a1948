"""Conversion between a model's arrays and tensors in fedbary's names and unit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.aggregation.converted import Converted
from fedbary.aggregation.reals import flat_reals
from fedbary.aggregation.sums import PIECE
from fedbary.aggregation.threads import Threads, workers
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, gaussian_pairs
from fedbary.methods.hierarchy import OWN

from .arrays import Blanks, tensor_from_array
from .conventions import Convention
from .soundness import scale_from


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
