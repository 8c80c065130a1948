"""Questions that are out, and clocks that say which reply arrives next."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any
from urllib.parse import quote, unquote

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import RunError, SettingError
from fedbary.runs.journal import FAILED, LOST, REPLIED, checked

from .arrays import array_from_tensor, tensor_from_array
from .federation import question
from .internals import ErrorCode

_ERRANDS = "errand/"


@dataclass(frozen=True, eq=False)
class Errand:
    """A question that is out.

    Parameters
    ----------
    client : str
        The name of its site.
    round : int
        The aggregate that the server was to make when it asked.
    asked : float
        Time of the question, in seconds on its clock.
    message : Message
        The message.
    message_id : str
        Id to pull the reply by; empty before it is sent, and if the SuperLink does not take it.
    arrives : float
        Time of the reply; inf if unknown.
    """

    client: str
    round: int
    asked: float
    message: Message
    message_id: str = ""
    arrives: float = math.inf

    @property
    def is_sent(self) -> bool:
        """Whether a reply can come."""
        return bool(self.message_id)

    def to(self, node: int) -> Errand:
        """Return the errand with its question to another node, as after a restart."""
        group_id = question(MessageType.TRAIN, self.round)
        message = Message(self.message.content, node, MessageType.TRAIN, group_id=group_id)
        return replace(self, message=message)

    def pushed(self, message_id: str) -> Errand:
        """Return the errand once it is sent."""
        return replace(self, message_id=message_id)


def pushed(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Push messages, and return the id of each; empty for one that the SuperLink does not take.

    It takes none to a node that has just left, and none of messages that are too large together.
    """
    ids = [message_id or "" for message_id in grid.push_messages(messages)]
    return ids if len(ids) == len(messages) else [""] * len(messages)


def written(errand: Errand) -> dict[str, Tensor]:
    """Return the tensors that `errands` reads."""
    prefix = f"{_ERRANDS}{quote(errand.client, safe='')}/"
    (arrays,) = errand.message.content.array_records.values()
    (config,) = errand.message.content.config_records.values()
    said = json.dumps(dict(config)).encode()
    return {
        f"{prefix}round": torch.tensor(errand.round),
        f"{prefix}asked": torch.tensor(errand.asked, dtype=torch.float64),
        f"{prefix}arrives": torch.tensor(errand.arrives, dtype=torch.float64),
        f"{prefix}config": torch.tensor(list(said), dtype=torch.uint8),
        **{f"{prefix}arrays/{key}": tensor_from_array(a).clone() for key, a in arrays.items()},
    }


def errands(state: Mapping[str, Tensor], arrays_key: str, config_key: str) -> dict[str, Errand]:
    """Return the errands in a state by client, to be sent to the nodes of now.

    Parameters
    ----------
    state
        Tensors from `written`, perhaps among others.
    arrays_key, config_key
        The names of a message's records.
    """
    held = select_prefix(_ERRANDS, state)
    found = {}
    for quoted in sorted({key.partition("/")[0] for key in held}):
        own = select_prefix(f"{quoted}/", held)
        arrays = {k: array_from_tensor(t) for k, t in select_prefix("arrays/", own).items()}
        config = ConfigRecord(json.loads(bytes(own["config"].tolist())))
        content = RecordDict({arrays_key: ArrayRecord(arrays), config_key: config})
        client, number = unquote(quoted), int(own["round"])
        message = Message(content, 0, MessageType.TRAIN)
        asked, arrives = float(own["asked"]), float(own["arrives"])
        found[client] = Errand(client, number, asked, message, arrives=arrives)
    return found


POLL_SECONDS = 0.1


class ReplyClock(ABC):
    """A clock that chooses the clients to ask, and the reply that arrives next."""

    def chosen(
        self, server_round: int, now: float, drawn: Collection[str], free: Collection[str]
    ) -> Collection[str]:
        """Return the clients that the server asks now: those drawn from the free ones."""
        return drawn

    def begin(self, now: float) -> None:  # noqa: B027 - a virtual clock needs no beginning
        """Let time go on from here."""

    @abstractmethod
    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time at which the reply to a question arrives; inf if it is not known."""

    @abstractmethod
    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Return the next question to end, its time, and its reply; None if that is lost."""


class VirtualClock(ReplyClock):
    """Replies arrive in the order of this clock, at any real speed.

    Parameters
    ----------
    seconds : callable
        Takes a node's id and the virtual time, and returns the seconds until the reply to a
        question asked then.
    """

    def __init__(self, seconds: Callable[[int, float], float]) -> None:
        self._seconds = seconds

    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time of the question and the seconds that the node takes."""
        seconds = self._seconds(node, errand.asked)
        if not isinstance(seconds, Real) or not 0 <= seconds < math.inf:  # NumPy's numbers too
            raise SettingError(f"seconds of node {node}", seconds, "0 or more, and finite")
        return errand.asked + float(seconds)

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Wait for the reply that is the next on this clock, whatever real time it takes."""
        errand = min(at_work, key=lambda e: (e.arrives, e.client))
        return errand, errand.arrives, pulled(grid, errand, timeout)


class RealClock(ReplyClock):
    """Replies arrive as they come; time is that of this process."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Let time go on from here."""
        self._goes_on = time.monotonic()
        self._began, self._last = self._goes_on - now, now
        self._heard: dict[str, Message] = {}

    def arrival(self, node: int, errand: Errand) -> float:
        """Return inf: the time is not known."""
        return math.inf

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Wait for the first reply, or until the oldest question is `timeout` seconds old."""
        in_turn = sorted(at_work, key=lambda e: (e.asked, e.client))
        while True:
            now = time.monotonic()  # before the look: what came while the server was busy counts
            ids = {errand.message_id for errand in in_turn if errand.is_sent}
            # Flower hands a reply out once: who asks again gets an error in its place.
            for reply in grid.pull_messages(sorted(ids - self._heard.keys())):
                self._heard[reply.metadata.reply_to_message_id] = reply
            for errand in in_turn:
                if not errand.is_sent:
                    return errand, self._time(), None
                if errand.message_id in self._heard:
                    return errand, self._time(), self._heard.pop(errand.message_id)
                if now - max(self._goes_on, self._began + errand.asked) > timeout:
                    return errand, self._time(), None
            time.sleep(POLL_SECONDS)

    def _time(self) -> float:
        """Return the seconds since the run began, no two alike."""
        elapsed = time.monotonic() - self._began
        self._last = max(elapsed, math.nextafter(self._last, math.inf))
        return self._last


class JournalClock(ReplyClock):
    """Questions and replies in the order of an earlier run, so that it is repeated.

    Parameters
    ----------
    journal : iterable of mappings
        The run's `journal`: `site`, `round`, `asked`, `arrived`, `end`, in the order of the ends.
    """

    def __init__(self, journal: Iterable[Mapping[str, Any]]) -> None:
        rows = checked(journal)
        self._ends = {(row["site"], row["round"], row["asked"]): row for row in rows}
        self._places = {question: place for place, question in enumerate(self._ends)}
        self._place: int | None = None

    def chosen(
        self, server_round: int, now: float, drawn: Collection[str], free: Collection[str]
    ) -> Collection[str]:
        """Return the sites that the run asked at this time."""
        return [site for site in free if (site, server_round, now) in self._ends]

    def arrival(self, node: int, errand: Errand) -> float:
        """Return the time of the reply."""
        arrived: float = self._end(errand)["arrived"]
        return arrived

    def next(
        self, grid: Grid, at_work: Collection[Errand], timeout: float
    ) -> tuple[Errand, float, Message | None]:
        """Return the question that ended next in that run, with its reply of now."""
        errand = min(at_work, key=lambda e: (e.arrives, e.client))
        place = self._places[errand.client, errand.round, errand.asked]
        if self._place not in (None, place):
            asked = f"the question to {errand.client} of aggregate {errand.round}"
            what = "the journal was edited, or another version made the run"
            raise RunError(f"{asked} ends in another order than in the original run: {what}")
        self._place = place + 1
        end, reply = self._end(errand)["end"], pulled(grid, errand, timeout)
        if end == LOST:
            return errand, errand.arrives, None
        if end == FAILED:
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed in the run before")
            return errand, errand.arrives, Message(failure, reply_to=errand.message)
        if reply is None or reply.has_error():
            raise RunError(f"{errand.client} replied in the original run, but not in the replay")
        return errand, errand.arrives, reply

    def _end(self, errand: Errand) -> Mapping[str, Any]:
        return self._ends[errand.client, errand.round, errand.asked]


def pulled(grid: Grid, errand: Errand, timeout: float) -> Message | None:
    """Return the reply to a question, which may take real time; None after `timeout` seconds.

    Once there is one, nobody may ask for it again: Flower hands a reply out once.
    """
    deadline = time.monotonic() + (timeout if errand.is_sent else 0)
    while True:
        for reply in grid.pull_messages([errand.message_id] if errand.is_sent else []):
            return reply
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)


def ended(errand: Errand, arrived: float, reply: Message | None) -> dict[str, Any]:
    """Return a question's line of the journal."""
    end = LOST if reply is None else FAILED if reply.has_error() else REPLIED
    when = {"round": errand.round, "asked": errand.asked, "arrived": arrived}
    return {"site": errand.client, **when, "end": end}


def clock_of(
    seconds: Callable[[int, float], float] | None, journal: Iterable[Mapping[str, Any]] | None
) -> ReplyClock:
    """Return the clock of a journal, of virtual seconds, or of this process."""
    if journal is not None:
        return JournalClock(journal)
    return RealClock() if seconds is None else VirtualClock(seconds)
