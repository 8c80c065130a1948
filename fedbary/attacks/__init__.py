"""Hostile clients, for experiments: what they send in place of the reply that they fitted.

An attack is a class of a module of this package: a frozen dataclass of its settings that inherits
from `Attack` or `OmniscientAttack`. Nothing else registers it. ``SignFlip`` runs as ``sign_flip``,
a class of one's own as ``package.module:Class``.

With m a tensor that a client received, 0 where it received none of that name (a method whose
clients send changes), and m_k the fitted one, an attack moves m_k along m_k − m.

Log-variances mostly stay those that each client has fitted: the attacks are published for point
weights, and what gives a posterior away is left as honest clients have it. Tensors that are not
floating are sent as fitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbary.errors import SettingError
from fedbary.parts.imports import own_function
from fedbary.parts.parameters import Checked, ShareOrZero, declared, parameters_of
from fedbary.parts.registry import attacks, is_factory
from fedbary.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]

ATTACKS = attacks("Attack")
"""The attacks of a client alone, by name."""

OMNISCIENT = attacks("OmniscientAttack")
"""The attacks that see the honest replies, by name."""


@dataclass(frozen=True)
class Hostile(Checked):
    """Number of hostile clients.

    Parameters
    ----------
    hostile_fraction
        Fraction of the clients that attack.
    """

    hostile_fraction: ShareOrZero = 0.2


class Attack(Hostile, ABC):
    """An attack of a client alone."""

    @abstractmethod
    def sent(self, received: Tensors, fitted: Tensors) -> dict[str, Tensor]:
        """Return what the client sends, given what it received and what it would reply."""


class OmniscientAttack(Hostile, ABC):
    """An attack that also sees what the round's honest clients reply. All send the same means."""

    @abstractmethod
    def sent(
        self, received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
    ) -> dict[str, Tensor]:
        """Return what a client sends, given the honest replies and how many are hostile."""


def attack_classes() -> dict[str, type[Hostile]]:
    """Return the class of every attack, by its name."""
    return {
        name: getattr(import_module(f"{__name__}.{module}"), called)
        for name, (module, called) in {**ATTACKS, **OMNISCIENT}.items()
    }


def attack_class(name: str) -> type[Hostile]:
    """Return the class of an attack, or the one that ``package.module:Class`` names.

    Raises
    ------
    SettingError
        If a class of one's own is no attack.
    """
    if not is_factory(name):
        return attack_classes()[name]
    own: Any = own_function("attack", name, "Class")
    if not isinstance(own, type) or not issubclass(own, Attack | OmniscientAttack):
        raise SettingError(
            "attack", name, "a class below Attack or OmniscientAttack of fedbary.attacks"
        )
    declared(own)  # says at once what is wrong with it
    return own


def is_omniscient(name: str) -> bool:
    """Return whether an attack sees the honest replies; ``none`` does not."""
    return name != "none" and issubclass(attack_class(name), OmniscientAttack)


def attack_named(name: str, words: Mapping[str, object] = MappingProxyType({})) -> Hostile:
    """Return an attack with the values that words, such as a run's settings, give it."""
    return parameters_of(attack_class(name), words)


def require_simulation(attack: str) -> None:
    """Raise a SettingError if an attack needs what only the server of a simulation sees."""
    if is_omniscient(attack):
        allowed = f"none, {', '.join(ATTACKS)}: on a deployment no client sees honest replies"
        raise SettingError("attack", attack, allowed)


def hostile_count(fraction: float, clients: int) -> int:
    """Return how many of so many clients are hostile: ``round(fraction · clients)``."""
    return round(fraction * clients)


def hostile_clients(fraction: float, clients: int, seed: int) -> frozenset[int]:
    """Return which of so many clients are hostile, `hostile_count` by the seed."""
    rng = np.random.default_rng(derive_seed(seed, "hostile"))
    return frozenset(rng.permutation(clients)[: hostile_count(fraction, clients)].tolist())
