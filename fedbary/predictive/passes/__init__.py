"""Predictors of one network, which passes several times: the values of `predictive=` with a file.

A predictor is a module of this package. `answering(model, samples, generator)` returns a function
that takes a batch, and returns logits (samples, batch, classes). If the module has a dataclass
`Parameters`, these are settings, and `answering` takes them as `parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from torch import Generator, nn

from fedbary.parts.parameters import told
from fedbary.parts.registry import modules
from fedbary.predictive.networks import Answers

PASSES = modules("predictive/passes")

Answering = Callable[[nn.Module, int, Generator], Answers]
"""From a network, a number of passes and a generator to the answers to a batch."""


def chosen(name: str, values: object) -> str | Answering:
    """Return a predictor with its parameters from `values`; a name that is none here as it is."""
    if name not in PASSES:
        return name
    module = import_module(f"fedbary.predictive.passes.{name}")
    if hasattr(module, "Parameters"):
        return partial(module.answering, parameters=told(module.Parameters, values))
    found: Answering = module.answering
    return found
