"""Arrays of a posterior in a fraction of their bytes, and back."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import Generator, Tensor

from fedbary.errors import SettingError

from .arrays import array_from_tensor, tensor_from_array
from .charts import PREFIX
from .conventions import Convention
from .quantise import halved, packed, quantised, restored, unpacked, whole
from .soundness import scale_from

PACKINGS = ("log_var", "all")
"""Choices: pack log-variances; or means, point weights and the coordinates of charts too."""

HALF = 0
"""Code for bfloat16, in place of the bits of a grid."""

_DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.float32, torch.float64)
}
"""Dtypes of packed arrays, by their names in a message."""

_OVERHEAD = 250
"""Bytes of a packed array's description, beside its codes."""


@dataclass(frozen=True)
class Packing:
    """Packing of a message's arrays.

    Log-variances travel in 8 bits. "all" also sends means and point weights in 16 bits, and the
    coordinates of a chart as bfloat16, because precisions span orders of magnitude. A reply holds
    the differences from the sent arrays. All are rounded at random, without bias (see
    `strategies.quantise`); the draws follow from the numbers themselves, so runs repeat. Unpacked
    are integers, float64 in a chart, a method's other arrays, and arrays that would not be smaller.

    Parameters
    ----------
    what : str
        One of `PACKINGS`.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.

    Raises
    ------
    SettingError
        If `what` is unknown.
    """

    what: str
    convention: Convention

    def __post_init__(self) -> None:
        if self.what not in PACKINGS:
            raise SettingError("compress", self.what, ", ".join(PACKINGS))

    def pack(
        self, arrays: ArrayRecord, sent: ArrayRecord | None
    ) -> tuple[ArrayRecord, ConfigRecord]:
        """Return packed arrays, and the description that unpacks them.

        `sent` is the message that a reply answers, unpacked by its client; None at the server.
        """
        scales, record, told = self._scales(arrays), ArrayRecord(), {}
        for key, array in arrays.items():
            bits = self._bits(key, key in scales)
            found = None
            if bits is not None and (sent is None or _alike(sent.get(key), array)):
                found = self._packed(array, bits, sent[key] if sent else None, key in scales)
            record[key] = array if found is None else found[0]
            if found is not None:
                told[key] = found[1]
        words = {"what": self.what, "convention": asdict(self.convention), "arrays": told}
        return record, ConfigRecord({"packing": json.dumps(words)})

    def unpack(
        self, arrays: ArrayRecord, told: Mapping[str, Any], sent: ArrayRecord | None
    ) -> ArrayRecord:
        """Return the arrays as they were, up to rounding.

        Parameters
        ----------
        told : mapping
            Description of the packed arrays from `pack`, by key.
        sent : ArrayRecord, optional
            As for `pack`. No more bytes are inflated than its arrays have.

        Raises
        ------
        ValueError
            If an array cannot be read; the message names it.
        """
        scales, record = self._scales(arrays), ArrayRecord()
        for key, array in arrays.items():
            try:
                if key in told and sent is not None and key not in sent:
                    raise ValueError("nothing of its name was sent")
                before = None if sent is None else sent.get(key)
                record[key] = (
                    self._unpacked(array, told[key], before, key in scales)
                    if key in told
                    else array
                )
            except Exception as error:  # a stranger's words and bytes raise many kinds of errors
                raise ValueError(f"array {key!r} cannot be unpacked: {error}") from error
        return record

    def _scales(self, arrays: ArrayRecord) -> set[str]:
        """Return the keys of scales; none for arrays that admission refuses."""
        try:
            return set(self.convention.pairs(arrays.keys()).values())
        except ValueError:
            return set()

    def _bits(self, key: str, is_scale: bool) -> int | None:
        """Return the bits of an array on the way; None: not packed."""
        if is_scale:
            return 8
        if self.what == "log_var" or ("/" in key and not key.startswith(PREFIX + "/")):
            return None
        return HALF if "/" in key else 16

    def _packed(
        self, array: Array, bits: int, before: Array | None, is_scale: bool
    ) -> tuple[Array, list[Any]] | None:
        tensor = tensor_from_array(array)
        if not tensor.is_floating_point() or (bits == HALF and tensor.itemsize > 4):
            return None
        values = self._numbers(tensor, is_scale)
        if before is not None and bits != HALF:
            values = values - self._numbers(tensor_from_array(before), is_scale)
        if not values.isfinite().all():
            return None
        generator = Generator().manual_seed(zlib.crc32(array.data))
        if bits == HALF:
            codes, low, step = halved(values, generator), 0.0, 0.0
        else:
            codes, low, step = quantised(values, bits, generator)
        content = packed(codes)
        if len(content) + _OVERHEAD >= len(array.data):
            return None
        dtype = str(tensor.dtype).removeprefix("torch.")
        told = [bits, dtype, list(tensor.shape), low, step]
        return array_from_tensor(torch.frombuffer(bytearray(content), dtype=torch.uint8)), told

    def _unpacked(self, array: Array, told: Any, before: Array | None, is_scale: bool) -> Array:
        bits, name, sizes, low, step = told
        shape, dtype = tuple(map(int, sizes)), _DTYPES[name]
        if before is not None and shape != tuple(before.shape):
            raise ValueError(f"its shape is {shape}, not {tuple(before.shape)}")
        if not (math.isfinite(low) and math.isfinite(step)):
            raise ValueError("its grid is not finite")
        content = tensor_from_array(array).numpy().tobytes()
        if bits == HALF:
            return array_from_tensor(whole(unpacked(content, shape, 16)).to(dtype))
        values = restored(unpacked(content, shape, bits), low, step)
        if before is not None:
            values = values + self._numbers(tensor_from_array(before), is_scale)
        if is_scale:
            return array_from_tensor(scale_from(values, self.convention, dtype))
        return array_from_tensor(values.to(dtype))

    def _numbers(self, tensor: Tensor, is_scale: bool) -> Tensor:
        """Return the numbers for the grid, in float64; scales become log-variances."""
        return self.convention.to_log_var(tensor.double()) if is_scale else tensor.double()


def packing_from(words: str) -> tuple[Packing, Mapping[str, Any]]:
    """Return a message's packing, and its description of each array.

    Raises
    ------
    ValueError
        If the words are not those of `Packing.pack`.
    """
    try:
        told = json.loads(words)
        return Packing(told["what"], Convention(**told["convention"])), dict(told["arrays"])
    except Exception as error:  # RecursionError too
        raise ValueError(f"its packing cannot be read: {error}") from error


def _alike(sent: Array | None, array: Array) -> bool:
    return sent is not None and (sent.shape, sent.dtype) == (array.shape, array.dtype)
