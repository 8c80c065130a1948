"""Flower's arrays as tensors, without copies."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

PACKING = "fedbary.packing"
"""The ConfigRecord of a message that tells how its arrays are packed."""

_STYPE = "numpy.ndarray"

with warnings.catch_warnings():  # torch warns of read-only memory once a process: do it here
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))

_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LENGTH = {b"\1\0": slice(8, 10), b"\2\0": slice(8, 12)}
"""Place of a header's length, by version."""

_LONGEST_HEADER = 10_000


def tensor_from_array(array: Array) -> Tensor:
    """View an array's bytes as a contiguous tensor, without a copy where that is possible.

    The tensor shares the bytes: do not write to it. Nothing is unpickled.

    Raises
    ------
    ValueError
        If the bytes are not those of one array of numbers. No other error of numpy or PyTorch gets
        through.
    """
    try:
        return _view(array)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from error


def _view(array: Array) -> Tensor:
    if array.stype != _STYPE:
        raise ValueError(f"its serialisation is {array.stype!r}, not {_STYPE!r}")
    try:
        length = _LENGTH[array.data[6:8]]
        start = length.stop + int.from_bytes(array.data[length], "little")
        if start > _LONGEST_HEADER:
            raise ValueError("it is too long")
        shape, fortran_order, dtype = _header(array.data[:start])
    except Exception as error:  # numpy's parser raises many kinds on hostile bytes
        raise ValueError("its header cannot be read") from error  # whose text may hold addresses
    if dtype.kind not in "biufc":
        raise ValueError(f"its dtype is {str(dtype)!r}, not one of numbers")
    size = start + math.prod(shape) * dtype.itemsize
    if len(array.data) != size:
        raise ValueError(f"it has {len(array.data)} bytes where its header asks for {size}")
    values = np.ndarray(shape, dtype, array.data, start, order="F" if fortran_order else "C")
    try:
        return torch.from_numpy(np.require(values, dtype.newbyteorder("="), ["C", "A"]))
    except TypeError as error:
        raise ValueError(f"its dtype is {str(dtype)!r}, which PyTorch does not have") from error


@lru_cache(maxsize=1024)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype; replies of a round have the same headers."""
    stream = BytesIO(head)
    return _READ_HEADER[npy.read_magic(stream)](stream)


def array_from_tensor(tensor: Tensor) -> Array:
    """Store a tensor as an array."""
    blank = BlankArray(tensor, tensor.dtype)
    blank.tensor.copy_(tensor.detach())
    return blank.filled()


def bytes_of(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, and of the description of their packing.

    The message may be a stranger's: its entries are counted, not read.
    """
    arrays = [array for record in content.array_records.values() for array in record.values()]
    told = content.config_records.get(PACKING, ConfigRecord()).values()
    return sum(len(array.data) for array in arrays) + sum(len(str(words)) for words in told)


class BlankArray:
    """An array whose bytes are written in place.

    Write its values to `tensor`, which has the shape of another, then call `filled`.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._shape = tuple(like.shape)
        self._dtype = np.dtype(str(dtype).removeprefix("torch."))
        header = BytesIO()
        npy.write_array_header_1_0(
            header,
            {
                "descr": npy.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": self._shape,
            },
        )
        start = header.tell()
        self._stream = BytesIO(bytes(start + like.numel() * self._dtype.itemsize))
        self._stream.write(header.getvalue())
        values = np.frombuffer(self._stream.getbuffer(), self._dtype, offset=start)
        self.tensor = torch.from_numpy(values).reshape(self._shape)

    def filled(self) -> Array:
        """Return the array and drop `tensor`; if nothing else refers to it, nothing is copied."""
        del self.tensor
        return Array(str(self._dtype), self._shape, _STYPE, self._stream.getvalue())


class Blanks:
    """Tensors in the bytes of future arrays, so that a result is not copied."""

    def __init__(self) -> None:
        self._made: dict[int, BlankArray] = {}

    def empty(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor of another's shape that lies in the bytes of an array."""
        blank = BlankArray(like, dtype)
        self._made[blank.tensor.data_ptr()] = blank
        return blank.tensor

    def arrays(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """Store tensors as arrays, and remove them from the dictionary.

        Tensors that `empty` made are not copied if nothing else refers to them.
        """
        arrays = {}
        for name in list(tensors):
            tensor = tensors.pop(name)
            blank = self._made.pop(tensor.data_ptr(), None)
            if blank is None or not _is_same(blank.tensor, tensor):
                arrays[name] = array_from_tensor(tensor)
            else:
                del tensor
                arrays[name] = blank.filled()
        return arrays


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors that begin at one address are the same."""
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
