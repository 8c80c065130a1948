"""Messages in a fraction of their bytes: a client mod, and the grid that is its counterpart."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Generator, Tensor

from fedbary.errors import SettingError

from .arrays import PACKING, array_from_tensor, bytes_of, tensor_from_array
from .charts import PREFIX
from .conventions import Convention, convention_named, scale_from
from .internals import ClientAppCallable, with_content

if TYPE_CHECKING:
    from .internals import NodeInfo, Run

CODES: Mapping[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2")}
"""Bits that a code may have, and their dtypes."""

_STEPS_A_STD = {8: 16, 16: 1024}
"""Most steps of a grid in a standard deviation of the numbers."""


def quantised(values: Tensor, bits: int, generator: Generator) -> tuple[NDArray[Any], float, float]:
    """Return the codes of finite numbers, of their shape, with the grid's least point and step.

    Parameters
    ----------
    values : Tensor
        Real and finite, on the CPU.
    bits : int
        8 or 16.
    generator : Generator
        Source of the rounding.
    """
    values, levels = values.double(), 2**bits - 1
    low = float(values.min()) if values.numel() else 0.0
    spread = float(values.max()) - low if values.numel() else 0.0
    if spread == 0:
        return np.zeros(values.shape, CODES[bits]), low, 0.0
    step = max(spread / levels, float(values.std(correction=0)) / _STEPS_A_STD[bits])
    u = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    codes = ((values - low) / step + u).floor_().clamp_(0, levels)
    return codes.numpy().astype(CODES[bits]), low, step


def restored(codes: NDArray[Any], low: float, step: float) -> Tensor:
    """Return the numbers of codes, in float64."""
    return low + step * torch.from_numpy(codes.astype(np.float64))


def packed(codes: NDArray[Any]) -> bytes:
    """Return the codes' bytes, the first of all, then the second of all, deflated.

    The upper bytes of neighbours are alike, so they deflate well side by side.
    """
    planes = np.ascontiguousarray(codes).reshape(-1).view(np.uint8).reshape(-1, codes.itemsize)
    return zlib.compress(np.ascontiguousarray(planes.T).tobytes(), 1)


def unpacked(content: bytes, shape: tuple[int, ...], bits: int) -> NDArray[Any]:
    """Return the codes of that shape; no more is inflated than they need.

    Raises
    ------
    ValueError
        If the bytes are not those of so many codes.
    """
    dtype = CODES[bits]
    count = int(np.prod(shape, dtype=np.int64))
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(content, count * dtype.itemsize + 1)
    except zlib.error as error:
        raise ValueError("its packed bytes cannot be read") from error
    if len(found) != count * dtype.itemsize or not inflate.eof:
        raise ValueError(f"its packed bytes are not those of {count} codes")
    planes = np.frombuffer(found, np.uint8).reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)


def halved(values: Tensor, generator: Generator) -> NDArray[Any]:
    """Return finite numbers as bfloat16, rounded to either neighbour so that the mean is x.

    The relative error is below 2⁻⁷, whatever the numbers' magnitudes.
    """
    largest = torch.finfo(torch.bfloat16).max
    held = values.float().clamp(-largest, largest).contiguous()
    noise = torch.randint(2**16, held.shape, generator=generator, dtype=torch.int32)
    exact = held.abs() == largest
    bits = held.view(torch.int32) + noise.masked_fill(exact, 0)
    return (bits.numpy().view(np.uint32) >> 16).astype(CODES[16])


def whole(codes: NDArray[Any]) -> Tensor:
    """Return the numbers that `halved` made, in float32."""
    return torch.from_numpy((codes.astype(np.uint32) << 16).view(np.float32))


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
    `quantised`); the draws follow from the numbers themselves, so runs repeat. Unpacked are
    integers, float64 in a chart, a method's other arrays, and arrays that would not be smaller.

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


def compression(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Unpack the messages of a `CompressedGrid`, and pack the reply's arrays in the same way.

    A Flower client mod, ``ClientApp(mods=[compression])``; other messages pass unchanged. Name it
    before `chart`: ``mods=[compression, chart("RKLB")]``.

    Raises
    ------
    ValueError
        If the message's arrays cannot be unpacked.
    """
    told = message.content.config_records.get(PACKING)
    if told is None:
        return call_next(message, context)
    (name, arrays), *_ = message.content.array_records.items()
    packing, how = packing_from(str(told["packing"]))
    sent = packing.unpack(arrays, how, None)
    message.content[name] = sent
    del message.content[PACKING]
    reply = call_next(message, context)
    if reply.has_content() and len(reply.content.array_records) == 1:
        (name, arrays), *_ = reply.content.array_records.items()
        reply.content[name], reply.content[PACKING] = packing.pack(arrays, sent)
    return reply


class CompressedGrid(Grid):
    """A Flower grid whose training and evaluation messages have packed arrays, both ways.

    ``strategy.start(grid=CompressedGrid(grid), …)`` with any strategy, and `compression` at the
    clients. The strategy sees unpacked arrays. A reply that cannot be unpacked stays packed, and is
    refused for its arrays. Other messages pass unchanged.

    Parameters
    ----------
    grid : Grid
        Carrier of the messages.
    what : str
        "log_var": log-variances in 8 bits, which leaves five eighths of the bytes. "all": means and
        deterministic weights in 16 bits too, rounded at random.
    convention : str or Convention
        Rule that tells Gaussian arrays: a name in `CONVENTIONS`, or your own.

    Attributes
    ----------
    traffic : dict of str to float
        Mean bytes of the arrays of the last training messages, "down" to a client and "up".

    Raises
    ------
    SettingError
        If `what` or the convention is unknown.
    """

    def __init__(
        self, grid: Grid, what: str = "all", convention: str | Convention = "fedbary"
    ) -> None:
        self._grid = grid
        self._packing = Packing(what, convention_named(convention))
        self._sent: dict[int, ArrayRecord] = {}
        self.traffic: dict[str, float] = {}

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack messages and push them."""
        return self._grid.push_messages(self._packed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and unpack them."""
        return self._unpacked(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send packed messages, and return the replies unpacked."""
        replies = self._grid.send_and_receive(self._packed(messages), timeout=timeout)
        return self._unpacked(replies)

    def _packed(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages of packed arrays; a record that several have is packed once."""
        found: dict[int, tuple[ArrayRecord, ConfigRecord, ArrayRecord]] = {}
        packed = []
        for message in messages:
            records = message.content.array_records
            if _phase(message) is None or len(records) != 1:
                packed.append(message)
                continue
            (name, arrays), *_ = records.items()
            if id(arrays) not in found:
                small, told = self._packing.pack(arrays, None)
                _, how = packing_from(str(told["packing"]))
                found[id(arrays)] = small, told, self._packing.unpack(small, how, None)
            small, told, whole = found[id(arrays)]
            self._sent[message.metadata.dst_node_id] = whole
            content = RecordDict({**message.content, name: small, PACKING: told})
            packed.append(with_content(message, content))
        if training := [m.content for m in packed if _phase(m) == MessageType.TRAIN]:
            self.traffic["down"] = mean(map(bytes_of, training))
        return packed

    def _unpacked(self, replies: Iterable[Message]) -> list[Message]:
        replies = list(replies)
        training = [
            r.content for r in replies if _phase(r) == MessageType.TRAIN and r.has_content()
        ]
        if training:
            self.traffic["up"] = mean(map(bytes_of, training))
        return [self._whole(reply) for reply in replies]

    def _whole(self, reply: Message) -> Message:
        told = reply.content.config_records.get(PACKING) if reply.has_content() else None
        sent = self._sent.get(reply.metadata.src_node_id)
        if told is None or sent is None or len(reply.content.array_records) != 1:
            return reply
        (name, arrays), *_ = reply.content.array_records.items()
        try:
            packing, how = packing_from(str(told.get("packing")))
            if packing != self._packing:
                return reply
            plain = packing.unpack(arrays, how, sent)
        except ValueError:
            return reply
        rest = {key: record for key, record in reply.content.items() if key != PACKING}
        return with_content(reply, RecordDict({**rest, name: plain}))


def _phase(message: Message) -> str | None:
    """Return a message's phase, training or evaluation; None for others."""
    phase = message.metadata.message_type.partition(".")[0]
    return phase if phase in (MessageType.TRAIN, MessageType.EVALUATE) else None
