"""A model as one ONNX graph: a single network, or several drawn ones that predict together."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbary.data.layout import Layout
from fedbary.errors import SettingError, one_line
from fedbary.predictive import Forecast
from fedbary.predictive.conformal import Thresholds

if TYPE_CHECKING:
    from fedbary.tasks import Graph

INPUT, OUTPUT = "x", "output."

EXTRA = "pip install 'fedbary[onnx]'"


class _Graph(nn.Module):
    """A graph as a module, whose answers are a tuple."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._graph(x).values())


def onnx_bytes(graph: Graph, example: Tensor, facts: Mapping[str, object]) -> bytes:
    """Return an ONNX file of a graph.

    Parameters
    ----------
    graph
        On the CPU, in plain operations of PyTorch.
    example
        Two inputs, (2, …); in the file the number of inputs is free.
    facts
        Metadata of the file, by name.

    Raises
    ------
    SettingError
        If the extra `onnx` is not installed, or the network has an operation that ONNX lacks.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError:
        raise SettingError("export", "no package onnx or onnxscript", EXTRA) from None
    module = _Graph(graph).eval()
    names = list(graph(example))
    try:
        with _quietly():
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                verbose=False,
                dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
                input_names=[INPUT],
                output_names=[f"{OUTPUT}{name}" for name in names],
            )
    except Exception as error:  # noqa: BLE001 - whatever an exporter raises of a stranger's network
        allowed = f"a network that torch.onnx can export ({type(error).__name__})"
        raise SettingError("export", one_line(error), allowed) from None
    assert program is not None
    for node in program.model.graph:
        for inner in node.outputs:  # the exporter calls values by their operations: "mean"
            inner.name = f"{inner.name}_inner" if inner.name in names else inner.name
    for name, output in zip(names, program.model.graph.outputs, strict=True):
        output.name = name
    made = program.model_proto
    if not made.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        allowed = "a network for any number of inputs; its graph holds a fixed number"
        raise SettingError("export", "the network", allowed)
    for name, value in facts.items():
        said = value if isinstance(value, str) else json.dumps(value)
        made.metadata_props.add(key=name, value=said)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def with_sets(
    graph: Graph, plain: Graph, by: Thresholds, score: str, rows: Callable[[Tensor], Tensor | None]
) -> Graph:
    """Return a graph that answers with the conformal sets, or the ends of the intervals, too.

    Parameters
    ----------
    graph
        A classification's, or a regression's.
    plain
        The same without a temperature.
    by, score
        What makes the sets, and by which score.
    rows
        Gives the rows of the inputs, as in `Thresholds.sets`.
    """

    def answered(x: Tensor) -> dict[str, Tensor]:
        told = plain(x)
        if "probs" in told:
            return {**graph(x), "set": by.sets(score, told["probs"], rows(x))}
        found = Forecast(told["mean"], told["var"], torch.zeros_like(told["var"]))
        low, high = by.intervals(found, rows(x))
        return {**graph(x), "low": low, "high": high}

    return answered


def of_known_levels(graph: Graph, layout: Layout) -> Graph:
    """Return a graph of a table's rows (N, D) whose answer is NaN for a row of no known level.

    Its conformal set has all classes. Without this an unknown level, all zeros, would get an answer
    like any other.
    """
    parts, place = [], 0
    for _, levels in layout.columns:
        parts += [slice(place, place + len(levels))] if levels else []
        place += max(1, len(levels))

    def answered(x: Tensor) -> dict[str, Tensor]:
        found = dict(graph(x))
        known = torch.ones_like(x[:, 0], dtype=torch.bool)
        for part in (x[:, each] for each in parts):
            is_level = ((part.sum(1) - 1).abs() < 1e-6) & (part >= 0).all(1)
            known = known & (is_level | part.isnan().all(1))
        for name, told in found.items():
            axis = 1 if name == "networks" else 0
            shape = [1] * told.ndim
            shape[axis] = -1
            held = known.view(shape)
            found[name] = told | ~held if told.dtype == torch.bool else told.where(held, torch.nan)
        return found

    return answered if parts else graph


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter's own messages out of the log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
