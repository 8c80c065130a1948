"""Which methods are tried: one of each kind by day, every one with FEDBARY_EVERY_METHOD=1.

What is the same for all methods of a kind is proven of one of them. Every method meets the laws on
small layers in tests/methods and tests/strategies at any time.
"""

import os

import pytest
import runs_of
from runs_of import posterior

from fedbary.methods import METHODS
from fedbary.parts.parameters import declared
from fedbary.settings.config import completed


def _taken_by(task):
    """The methods that a task takes."""
    settings = completed({"task": task})
    return [name for name, m in METHODS.items() if "method" not in dict(m().unfit(settings))]


OF_CLASSES = _taken_by("classification")
"""The methods that predict classes, as the laws' networks do."""

OF_NUMBERS = [name for name in _taken_by("regression") if name not in OF_CLASSES]
"""The methods that regressions take, and no classification."""

OF_TERMS = [name for name in METHODS if name not in OF_CLASSES + OF_NUMBERS]
"""The methods of generalised linear models alone."""


def task_words(name):
    """The words of a task that a method needs beside its own."""
    if name in OF_TERMS:
        return {"task": "glm"}
    return {"task": "regression", "noise": "learned"} if name in OF_NUMBERS else {}


NIGHT = bool(os.environ.get("FEDBARY_EVERY_METHOD"))
night = pytest.mark.skipif(not NIGHT, reason="by night: FEDBARY_EVERY_METHOD=1")
"""A mark of tests whose truth is shown by day in another way, and that take a minute."""

KINDS = {
    (m.deterministic, m.remembers, m.personalises, m.shows, m.needs_bench): name
    for name, m in METHODS.items()
    if name in OF_CLASSES
}.values()
"""A method of each kind of message and memory."""

EACH = list(OF_CLASSES if NIGHT else KINDS)
EVEN, ODD = (EACH, EACH) if NIGHT else (EACH[::2], EACH[1::2])
"""Two tests that show the same kind of truth have half of the kinds each by day."""

ON_SERVERS = OF_CLASSES if NIGHT else ["pFedVem"]
"""Methods that are tried on Ray and on real servers: one whose clients remember and keep models.

The barycentre is tried there in tests/launching. What travels between processes is tried of each
kind without them.
"""

QUICK = {"clients": 3, "rounds": 3, "local_epochs": 2, "samples": 2, "evaluate_clients": 0}
FEW = {"particles": 2, "server_steps": 10, "thinning": 1}
"""Parameters, where methods have them, for few networks, few steps and few rounds.

Particles' steps have the size of `lr` in each weight, so theirs is a tenth of SGD's.
"""


def few(name):
    """The parameters in `FEW` that a method has."""
    return {key: FEW[key] for key in FEW.keys() & declared(METHODS[name]).keys()}


def settings(name, **changes):
    """Settings of a short run under a method, in one process."""
    if METHODS[name].needs_bench:
        changes = {"server_fraction": 0.1, **changes}
    changes = few(name) | changes
    if "particles" in changes:
        changes = {"lr": 0.003, **changes}
    return completed(
        {**QUICK, "engine": "inline", "pictures": False, "device": "cpu", "method": name, **changes}
    )


def gaussian_layers(name, wanted=1):
    """The number of Gaussian layers of a network that a method takes."""
    return 0 if METHODS[name].deterministic else wanted


def of_tables(name, **changes):
    """Settings of a network that is quick to train."""
    return settings(name, task="tables", bayesian_layers=gaussian_layers(name), **changes)


def same(one, other):
    """Whether two runs ended with the same global model."""
    return runs_of.same(posterior(one), posterior(other))
