"""Values that tasks and the apps hand each other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from fedbary.predictive import Predictive
from fedbary.settings.config import Settings

Condition = tuple[str, bool, str]
"""A setting, whether it fits the others, and what is allowed."""

Conditions = Callable[[Settings], Iterator[Condition]]

Unused = tuple[str, tuple[str, str]]
"""A setting, the part that does not use it, and what that uses."""

Loss = Callable[[Tensor, Tensor], Tensor]

Graph = Callable[[Tensor], Mapping[str, Tensor]]
"""Takes a batch of inputs in their own units, and returns its predictions, tensors by name."""

Facts = Mapping[str, Tensor]
"""Facts that the server learnt by asking before the first round; sent with every message."""

ClientMetrics = Mapping[str, Any]
"""One client's metrics, under ``site`` its name."""


LEAST = "min-cell"
"""The entry of a question, set at the site, with the fewest rows of a cell that it tells."""

SHOWN = "least-shown"
"""Such an entry with the fewest rows that its answers may show alone."""


class Signature(Protocol):
    """The layout that all sites must share, hashable; the server sends it with every message."""

    def __hash__(self) -> int: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of each class, in the order of the labels; none for a regression."""

    def config(self) -> Mapping[str, Any]:
        """Return what a ConfigRecord holds of it."""


class Tested(NamedTuple):
    """Examples on which a client scores a model; with weights (N,) each counts for as much."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """A question of the server to several sites; each answers with metrics, by `Task.answer`.

    Parameters
    ----------
    name : str
        The site's task knows the question by it.
    read : callable
        Takes an answer and the number of examples that the site trains on, and returns the answer's
        content. Sites are not trusted: any error leaves the site out.
    config : mapping
        Numbers and texts sent with it, beside signature and facts. The server adds ``place``, the
        index of the site among those asked.
    tensors : mapping of str to Tensor
        Tensors sent with it.
    own : mapping of str to mapping
        Entries for one site beside `config`, by its name.
    beside : callable
        Takes the content of the answers by the sites' names, and yields lines on sites that differ
        from the others.
    """

    name: str
    read: Callable[[Mapping[str, Any], int], Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    beside: Callable[[Mapping[str, Any]], Iterable[str]] = lambda answers: ()


_Found = TypeVar("_Found")

Dialogue = Generator[Question, list[Any], _Found]
"""Questions in sequence: the generator is sent each answer's content, and returns the finding.

The order of the answers depends on their content alone. A site that does not answer is not asked
again.
"""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The global model after a round.

    Parameters
    ----------
    round : int
        The number of the round; 0 is before the first.
    model : nn.Module
        The network that holds it.
    predictive : Predictive
        What predicts.
    told : mapping
        Findings from asking after the round.
    held_out : sequence of mapping
        The clients' metrics on the examples that they hold out.
    label_counts : sequence of int
        Number of examples of each class over all sites; empty if unknown.
    """

    round: int
    model: nn.Module
    predictive: Predictive
    told: Mapping[str, Any]
    held_out: Sequence[ClientMetrics]
    label_counts: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of a global model.

    Parameters
    ----------
    scores : mapping of str to float
        The scores by name; NaN for a score that cannot be computed.
    line : mapping
        Further entries of the round's line in `metrics.jsonl`.
    prediction : object
        The predictions that were scored, for pictures; None if there are none.
    """

    scores: Mapping[str, float]
    line: Mapping[str, Any] = field(default_factory=dict)
    prediction: Any = None
