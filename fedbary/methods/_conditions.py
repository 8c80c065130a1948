"""Conditions of methods on a run: each function yields settings that do not fit.

A method's class names those that it adds in `conditions`. Each is given the method and the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedbary.errors import SettingError
from fedbary.parts.parameters import declared
from fedbary.settings.owners import models, task_kind, unused_by

if TYPE_CHECKING:
    from fedbary.methods._method import Method
    from fedbary.settings.config import Settings

Unfit = Iterator[tuple[str, str]]
"""Settings that do not fit, each with what is allowed."""

Conditions = Callable[..., Unfit]
"""From a method and a run's settings."""


def of_every_method(method: Method, run: Settings) -> Unfit:
    """Refuse weights of the other kind, and settings in which clients' own models have no part.

    With `mode=async` also a method that needs a round's replies.
    """
    kind, named = type(method), f"method={method.name}"
    if method.deterministic not in (None, run.bayesian_layers == 0):
        yield "bayesian_layers", f"{'0' if run.bayesian_layers else '1 or more'} for {named}"
    own = {*unused_by(kind), *declared(kind)}
    if run.inference == "laplace" and not own & {"covariance", "inference"}:
        yield "inference", f"another value for {named}: laplace is for method=PVI"
    if run.local.kl_weight == "share" and "prior" in own:
        why = "share spreads the run's prior over the clients, and the method has its own"
        yield "kl_weight", f"a number for {named}: {why}"
    if run.projection != "none" and method.personalises:
        yield "projection", f"none for {named}, whose clients have models of their own"
    elif run.projection != "none" and method.remembers:
        yield "projection", f"none for {named}: what its clients keep is no model"
    if run.mode == "async":
        try:
            method.check_arrivals()
        except SettingError as error:
            yield error.setting, error.allowed
    for shared in sorted(declared(kind).keys() & models().get(run.model, {}).keys()):
        yield "model", f"another network for {named}: {shared} is a parameter of both"


def one_class(method: Method, run: Settings) -> Unfit:
    """Refuse tasks whose answers are no logits of one softmax."""
    if not task_kind(run.task).one_class:
        yield "method", f"another for task={run.task}: it needs one class an example"
