"""Hostile clients, for experiments: what they send in place of the reply that they fitted.

An attack is a module of this package, found by its name, with a frozen dataclass `Parameters` of
the settings that it owns, one of `Hostile` at least, and a function

    sent(received, fitted, parameters)

of the tensors that a client received and of those that it would reply with. With m a received
tensor, 0 where the client received none of that name (a method whose clients send changes), and m_k
the fitted one, it moves m_k along m_k − m.

An omniscient attack also sees what the honest clients of the round reply, and how many clients are
hostile; its function is

    sent_by_all(received, fitted, honest, hostile, parameters)

and all hostile clients send the same means. Their log-variances stay those that each has fitted:
the attacks are published for point weights, and what gives a posterior away is left as honest
clients have it.

Tensors that are not floating are sent as fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedbary.attacks._hostile import Hostile
from fedbary.errors import SettingError
from fedbary.parts.parameters import told
from fedbary.parts.registry import modules
from fedbary.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

    NamedTensors = Mapping[str, Tensor]

__all__ = [
    "ATTACKS",
    "OMNISCIENT",
    "Hostile",
    "attack_of_all",
    "attack_of_one",
    "hostile_clients",
    "hostile_count",
    "require_simulation",
]

ATTACKS = modules("attacks", "sent")
"""Names of the attacks of a client alone."""

OMNISCIENT = modules("attacks", "sent_by_all")
"""Names of the attacks that see the honest replies."""


class OfOne(Protocol):
    """An attack of a client alone, with its parameters."""

    def __call__(self, received: NamedTensors, fitted: NamedTensors) -> dict[str, Tensor]:
        """Return what the client sends."""


class OfAll(Protocol):
    """An omniscient attack, with its parameters."""

    def __call__(
        self,
        received: NamedTensors,
        fitted: NamedTensors,
        honest: Sequence[NamedTensors],
        hostile: int,
    ) -> dict[str, Tensor]:
        """Return what a client sends, given the honest replies and how many are hostile."""


def attack_of_one(name: str, values: object = None) -> OfOne:
    """Return one of `ATTACKS`, with the values that an object, a run's settings, has of its own."""
    module = import_module(f"{__name__}.{name}")
    return partial(module.sent, parameters=told(module.Parameters, values))


def attack_of_all(name: str, values: object = None) -> OfAll:
    """Return one of `OMNISCIENT`, with the values that an object has of its own."""
    module = import_module(f"{__name__}.{name}")
    return partial(module.sent_by_all, parameters=told(module.Parameters, values))


def require_simulation(attack: str) -> None:
    """Raise a SettingError if an attack needs what only the server of a simulation sees."""
    if attack in OMNISCIENT:
        allowed = f"none, {', '.join(ATTACKS)}: on a deployment no client sees honest replies"
        raise SettingError("attack", attack, allowed)


def hostile_count(fraction: float, clients: int) -> int:
    """Return how many of so many clients are hostile: ``round(fraction · clients)``."""
    return round(fraction * clients)


def hostile_clients(fraction: float, clients: int, seed: int) -> frozenset[int]:
    """Return which of so many clients are hostile, `hostile_count` by the seed."""
    rng = np.random.default_rng(derive_seed(seed, "hostile"))
    return frozenset(rng.permutation(clients)[: hostile_count(fraction, clients)].tolist())
