"""Random federations whose clients send what they should, what they should not, and what they may.

Everything is drawn from one generator, so that a seed repeats it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from strategies_replies import failure, metadata

from fedbary.aggregation.sums import value_limit
from fedbary.strategies import CONVENTIONS, Convention
from fedbary.strategies.conventions import scale_from

FLOATS = [torch.float16, torch.float32, torch.float64]
INTEGERS = ["?", "i1", "u1", "i2", "i4", "i8", "u8"]
SHAPES = [(), (1,), (3,), (2, 2), (0, 2)]
EXTREMES = [0.0, -0.0, 1e-300, 5e-324, 1.0, 1e3, 65504.0, 1e19, 1e30, 3.4e38, 1e150, 1.7e308]
TEXTS = ["", "loss", "num-examples", "partition-id", "a\nb", "\x1b[31m", "é" * 999, "{}%s%d"]
NUMBERS = [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1, math.nan, math.inf, -math.inf, *EXTREMES]
DIMENSIONS = [0, 1, 2, 3, True, False, -1, 2**31, 2**62, 2**63, 2**99, 1.5, "3", None, ()]
DESCRIPTIONS = ["<f4", "<f2", ">f8", "<i8", "|b1", "<c8", "<g", "O", "V4", "<U1", "4f4", [], 7]


@dataclass
class Kind:
    """One array of the model: its dtype, its shape, and its part in the posterior."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    part: str


class Federation:
    """A random model in a random convention, and its clients' replies."""

    def __init__(self, rng: np.random.Generator, gaussian: bool) -> None:
        self.rng = rng
        name = self.pick(list(CONVENTIONS))
        self.convention: Convention = CONVENTIONS[name]
        self.kinds: dict[str, Kind] = {}
        for i in range(rng.integers(0, 3) if gaussian else 0):
            shape = self.pick(SHAPES)
            mean, scale = (
                pattern.replace("*", f"l{i}")
                for pattern in (self.convention.mean, self.convention.scale)
            )
            self.kinds[mean] = Kind(self.pick(FLOATS), shape, "mean")
            self.kinds[scale] = Kind(self.pick(FLOATS), shape, "scale")
        for i in range(rng.integers(1, 3)):
            self.kinds[f"point{i}"] = Kind(self.pick(FLOATS), self.pick(SHAPES), "point")
        if rng.random() < 0.5:
            dtype = torch.from_numpy(np.zeros(1, self.pick(INTEGERS))).dtype
            self.kinds["steps"] = Kind(dtype, self.pick(SHAPES), "buffer")
        if rng.random() < 0.2:
            self.kinds["wave"] = Kind(torch.complex64, self.pick(SHAPES), "complex")
        self.arrays = ArrayRecord({key: self.drawn(kind) for key, kind in self.kinds.items()})

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def drawn(self, kind: Kind, value: float | None = None) -> torch.Tensor:
        """An honest array; or one that holds a value, of scales as their log-variance."""
        size = math.prod(kind.shape)
        if kind.part == "buffer":
            values = np.frombuffer(self.rng.bytes(size * 8), np.int64)
            if value is None:
                values = values % 2
            dtype = np.dtype(str(kind.dtype).removeprefix("torch."))
            return torch.from_numpy(values.astype(dtype)).reshape(kind.shape)
        noise = torch.from_numpy(self.rng.standard_normal(size))
        if kind.part == "scale":
            log_var = noise - 4 if value is None else torch.full((size,), value, dtype=noise.dtype)
            return scale_from(log_var, self.convention, kind.dtype).reshape(kind.shape)
        if value is not None:
            noise = noise.sign() * value
        return noise.to(kind.dtype).reshape(kind.shape)

    def honest(self, node: int, before: ArrayRecord) -> Message:
        """A client that has moved the global arrays a little."""
        moved = {}
        for key, array in before.items():
            kind, old = self.kinds[key], torch.from_numpy(np.array(array.numpy()))
            noise = torch.from_numpy(self.rng.standard_normal(old.shape)) * 0.1
            if kind.part == "scale":
                log_var = self.convention.to_log_var(old.double()) + noise
                moved[key] = scale_from(log_var, self.convention, kind.dtype)
            elif kind.part in ("mean", "point"):
                most = torch.finfo(kind.dtype).max
                moved[key] = (old.double() + noise).clamp(-most, most).to(kind.dtype)
            else:
                moved[key] = old
        metrics = {"num-examples": int(self.rng.integers(1, 100)), "loss": float(node)}
        return self.message(node, ArrayRecord(moved), MetricRecord(metrics))

    @staticmethod
    def message(node, arrays, metrics):
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), metadata=metadata(node))

    def hostile(self, node: int, before: ArrayRecord, evaluates: bool = False) -> tuple:
        """A reply, and whether it has to be refused (None: it may be)."""
        message = self.honest(node, before)
        attacks = [self.weight, self.metrics, self.records, self.error]
        if not evaluates:
            attacks += [self.array] * 3 + [self.extreme] * 3 + [self.bytes] * 3
        return self.pick(attacks)(message, before)

    def error(self, message, before):
        return failure(message.metadata.src_node_id, self.pick([*TEXTS, None])), True

    def weight(self, message, before):
        metrics = message.content["metrics"]
        bad = [None, 0, -1, -0.0, math.nan, math.inf, -math.inf, [], [1, 2], [0.5]]
        weight = self.pick([*bad, 5e-324, 1e-300, 1e-9, 1e12, 1e300, 2**63])
        if weight is None:
            del metrics["num-examples"]
        else:
            metrics["num-examples"] = weight
        return message, True if weight in bad[:4] or weight != weight or weight in bad[5:] else None

    def metrics(self, message, before):
        metrics = message.content["metrics"]
        for _ in range(self.rng.integers(1, 5)):
            key = self.pick(TEXTS)
            if key != "num-examples":
                value = self.pick([n for n in NUMBERS if abs(n) < 2**64 or isinstance(n, float)])
                metrics[key] = self.pick([value, [value] * self.rng.integers(0, 5)])
        if self.rng.random() < 0.1:
            del metrics["loss"]
        return message, None

    def records(self, message, before):
        content = message.content
        attack = self.rng.integers(5)
        if attack == 0:
            content["config"] = ConfigRecord(
                {text: self.pick([text, b"\0", True, 1.5, [1], ["a"], [b""]]) for text in TEXTS}
            )
            return message, None
        if attack == 1:
            content["more"] = MetricRecord({"num-examples": 1})
        elif attack == 2:
            del content["metrics"]
        elif attack == 3:
            content["more"] = ArrayRecord({"x": Array(np.zeros(1))})
            return message, "train"
        else:
            del content["arrays"]
            return message, "train"
        return message, True

    def array(self, message, before):
        arrays = message.content["arrays"]
        key = self.pick(list(arrays))
        kind = self.kinds[key]
        attack = self.rng.integers(5)
        if attack == 0:
            del arrays[key]
        elif attack == 1:
            arrays[self.pick(["new", key + "_log_var", "", "a\nb"])] = arrays[key]
        elif attack == 2:
            arrays[key] = Array(np.zeros((*kind.shape, 2)))
        elif attack == 3:
            arrays[key] = Array(np.zeros(kind.shape, "u4"))
        else:
            arrays[key].stype = self.pick(["", "pickle", "numpy.ndarray "])
        return message, True

    def extreme(self, message, before):
        """Values to the ends of the dtype: refused if not finite or beyond the limits."""
        arrays, refused = message.content["arrays"], None
        for key in self.rng.permutation(list(arrays))[: self.rng.integers(1, 4)].tolist():
            kind = self.kinds[key]
            if kind.part == "buffer":
                arrays[key] = Array(np.array(self.drawn(kind, 1.0).numpy()))
                continue
            if kind.part == "scale":
                log_var = float(self.pick([-40, -39.9, -20, 0, 20, 39.9, 40]))
                tensor = self.drawn(kind, log_var)
            else:
                tensor = self.drawn(kind, float(self.pick(EXTREMES)))
            if self.rng.random() < 0.2 and tensor.numel():
                tensor.view(-1)[-1] = self.pick([math.nan, math.inf, -math.inf])
            arrays[key] = Array(np.array(tensor.numpy()))
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            if not real.isfinite().all():
                refused = "train"
            if kind.part != "scale" and tensor.numel():
                limit = value_limit(tensor.dtype, kind.part == "mean")
                if not real.double().abs().max() <= limit:
                    refused = "train"
        weight = self.pick([1, 1e-9, 1e12])
        message.content["metrics"]["num-examples"] = weight
        return message, refused

    def bytes(self, message, before):
        """Bytes that are cut, lengthened, changed at random, of another order, or under a header
        of another's making; the array's own dtype and shape may lie."""
        arrays = message.content["arrays"]
        key = self.pick(list(arrays))
        array = arrays[key]
        attack = self.rng.integers(7)
        if attack == 0:
            array.data = array.data[: self.rng.integers(len(array.data))]
            return message, "train"
        if attack == 1:
            array.data += self.rng.bytes(self.rng.integers(1, 9))
            return message, "train"
        if attack == 2:
            data = bytearray(array.data)
            for _ in range(self.rng.integers(1, 5)):
                data[self.rng.integers(len(data))] = self.rng.integers(256)
            array.data = bytes(data)
        elif attack == 3:
            text = repr(
                {
                    "descr": self.pick(DESCRIPTIONS),
                    "fortran_order": self.pick([True, False]),
                    "shape": tuple(self.pick(DIMENSIONS) for _ in range(self.rng.integers(0, 5))),
                }
            )
            text = self.pick([text, "-" * 5000 + "1", "(" * 150, text.replace("(", "[")])
            head = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text.encode()
            array.data = head + self.rng.bytes(self.rng.integers(0, 64))
        elif attack == 4:
            values = array.numpy()
            arrays[key] = Array(np.asfortranarray(values.astype(values.dtype.newbyteorder(">"))))
        elif attack == 5:
            array.dtype, array.shape = self.pick(["", "float64", "O"]), self.pick([(), (9, 9)])
        else:
            array.data = self.rng.bytes(self.rng.integers(0, 200))
        return message, None
