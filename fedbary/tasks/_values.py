"""What tasks and the apps hand each other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor, nn

from fedbary.gaussian import Posterior

if TYPE_CHECKING:
    pass

Loss = Callable[[Tensor, Tensor], Tensor]

Facts = Mapping[str, Tensor]
"""What the server learnt by asking before the first round; sent with every message."""

Client = Mapping[str, Any]
"""One client's metrics, under ``site`` its name."""


class Signature(Protocol):
    """What all sites must agree on, hashable; the server sends it with every message."""

    def __hash__(self) -> int: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of each class, in the order of the labels; of a regression none."""

    def config(self) -> Mapping[str, Any]:
        """Return what a ConfigRecord holds of it."""


@dataclass(frozen=True, eq=False)
class Question:
    """What the server asks several sites; each answers with metrics, by `Task.answer`.

    Parameters
    ----------
    name : str
        By which the site's task knows it.
    read : callable
        Of an answer and the number of examples that the site trains on, what the answer says. Sites
        are not trusted: whatever it raises leaves the site out.
    config : mapping
        What goes with it beside signature and facts. The server adds ``place``, the number of the
        site among those that are asked.
    tensors : mapping of str to Tensor
        Likewise.
    """

    name: str
    read: Callable[[Mapping[str, Any], int], Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


_Found = TypeVar("_Found")

Dialogue = Generator[Question, list[Any], _Found]
"""Questions one after the other; each is sent what was read, and the end is what was found.

The answers come in an order that their content alone sets. Who does not answer is asked nothing
more.
"""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The global model after a round.

    Parameters
    ----------
    round : int
        Which; 0 is before the first.
    model : nn.Module
        The network that holds it.
    posterior : Posterior
        The global posterior.
    members : mapping of str to Tensor
        The networks, or posteriors, that predict together, stacked: (K, *shape), where the method
        keeps some; else none.
    told : mapping
        What was found by asking after the round.
    held_out : sequence of mapping
        The clients' metrics on the examples that they hold out.
    """

    round: int
    model: nn.Module
    posterior: Posterior
    members: Mapping[str, Tensor]
    told: Mapping[str, Any]
    held_out: Sequence[Client]


@dataclass(frozen=True, eq=False)
class Scored:
    """How good a global model is.

    Parameters
    ----------
    scores : mapping of str to float
        By name; NaN where there is none.
    line : mapping
        What else belongs into the round's line of `metrics.jsonl`.
    prediction : object
        That the scores are of, for pictures; None if there is none.
    """

    scores: Mapping[str, float]
    line: Mapping[str, Any] = field(default_factory=dict)
    prediction: Any = None
