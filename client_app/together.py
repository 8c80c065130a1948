"""Clients in one process train side by side: one batched model in place of one after another.

Each client's app runs twice, unchanged. The first run ends where it calls its local inference. Once
all clients have called it, `fedbary.inference._side_by_side` computes the results together. The
second run gets its result from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from flwr.app import Message

from fedbary.inference import Fit, Local, local_method
from fedbary.inference._side_by_side import TrainedState, fit, hindrance
from fedbary.inference._stacked import Call
from fedbary.settings.config import Settings

_FIT: ContextVar[Callable[[str, Settings], Fit]] = ContextVar("fit", default=local_method)


def inference(settings: Settings) -> Fit:
    """Return the local method of a run, or its substitute here."""
    return _FIT.get()(settings.inference, settings)


class Together:
    """Answers the training messages of a round, side by side if possible.

    Parameters
    ----------
    answer
        Takes a message, and returns its client's reply.

    Attributes
    ----------
    hindrance : str or None
        Reason why clients train one after another; "" if they do not, None before the first
        training.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self.answer = answer
        self.hindrance: str | None = None

    def answers(self, messages: Sequence[Message]) -> list[Message]:
        """Return the replies, in the order of the messages."""
        replies: dict[int, Message] = {}
        asked: dict[int, _Asked] = {}
        for number, message in enumerate(messages):
            try:
                with _taken_by(_ask):
                    replies[number] = self.answer(message)
            except _Asked as one:
                asked[number] = one
        ready = self._fitted(list(asked.values()))
        for number, fitted in zip(asked, ready, strict=True):
            with _taken_by(_Ready(fitted)):
                replies[number] = self.answer(messages[number])
        return [replies[number] for number in range(len(messages))]

    def _fitted(self, asked: Sequence[_Asked]) -> Sequence[TrainedState | None]:
        """Return each client's fit, None if it must train alone."""
        if not asked:
            return []
        name, calls = asked[0].name, [one.call for one in asked]
        if not self.hindrance:
            self.hindrance = hindrance(name, calls)
        if not self.hindrance:
            try:
                return fit(name, calls)
            except RuntimeError as error:
                self.hindrance = str(error).strip().partition("\n")[0]
        return [None] * len(asked)


class _Asked(BaseException):
    """Ends a client's first run; it is no Exception, so that no handler on the way catches it."""

    def __init__(self, name: str, call: Call) -> None:
        self.name, self.call = name, call


def _ask(name: str, settings: Settings) -> Fit:
    def ask(local: Local) -> dict[str, float]:
        raise _Asked(name, Call(**vars(local), start=local.state()))

    return ask


class _Ready:
    """Gives a client's first call its answer; later ones are for the local method itself."""

    def __init__(self, fitted: TrainedState | None) -> None:
        self.fitted = fitted

    def __call__(self, name: str, settings: Settings) -> Fit:
        def take(local: Local) -> dict[str, float]:
            if self.fitted is None:
                return local_method(name, settings)(local)
            (state, metrics), self.fitted = self.fitted, None
            local.load(state)
            return metrics

        return take


@contextmanager
def _taken_by(fit: Callable[[str, Settings], Fit]) -> Iterator[None]:
    token = _FIT.set(fit)
    try:
        yield
    finally:
        _FIT.reset(token)
