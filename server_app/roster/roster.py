"""The nodes that take part: their identity, their presence, and each round's trainers."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedbary.errors import RunError
from fedbary.runs.commit import APP_KEY, app_digest
from fedbary.runs.location import SITE_KEYS
from fedbary.runs.sites import SiteKey
from fedbary.seeds import derive_seed
from fedbary.server_app.roster.member import Claims, Member, Owner, member_from
from fedbary.settings.config import Settings
from fedbary.strategies.internals import log
from fedbary.strategies.wire import numbers_of
from fedbary.tasks import Signature
from fedbary.texts import cause

NAMED = 10
"""Most nodes of a kind that the log names."""


def expected(clients: int, members: Iterable[Member]) -> int:
    """Return the number of nodes that most members, and the setting `clients`, name.

    A tie goes to the largest, so that one member cannot shorten the wait.
    """
    said = Counter([clients, *(member.partitions or clients for member in members)])
    return max(said, key=lambda number: (said[number], number))


def drawn(nodes: Sequence[int], count: int, seed: int) -> list[int]:
    """Return `count` of the nodes, at least one if there is any, in their order."""
    if not nodes:
        return []
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(nodes), size=max(1, count), replace=False))
    return [nodes[index] for index in chosen]


def answered(members: int, total: int, groups: Mapping[str, Sequence[str]], away: int) -> str:
    """Describe the answers: the members' number, each group's nodes, and that of absent ones."""
    said = [f"{group}: {', '.join(names[:NAMED])}" for group, names in groups.items() if names]
    if away > 0:
        said.append(f"not connected: {away}")
    head = f"{members} of {total} nodes can take part"
    return f"{head} ({'; '.join(said)})" if said else head


END_SECONDS = 15.0
"""Seconds that a simulation whose server has failed may take to end by itself."""


def hindrance() -> str:
    """Return the obstacle that keeps a simulation's clients from answering, and where to look.

    Without Ray it returns nothing.
    """
    ray = sys.modules.get("ray")
    if ray is None:
        return ""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    logs = os.path.join(folder, "ray", "session_latest", "logs")
    if ray.is_initialized():
        free, total = (
            found().get("CPU", 0) for found in (ray.available_resources, ray.cluster_resources)
        )
        return (
            f"Ray runs, but no worker has answered for a minute: {free:g} of its {total:g} CPUs "
            "are free; a worker takes minutes to start on a busy machine; Ray waits without end "
            f"for CPUs that other programs hold; the workers' logs are in {logs}"
        )
    address = os.environ.get("RAY_ADDRESS", "")
    if address == "local":
        return f"Ray has not started yet; its logs are in {logs}"
    named = f"the cluster that RAY_ADDRESS={address} names" if address else "the last cluster used"
    return f"Ray has not joined {named}; with RAY_ADDRESS=local it starts one of its own"


def end_simulation() -> None:
    """End the simulation's process soon, even while it waits for Ray.

    Flower's main thread waits as long as Ray lets it, whatever happened to the server. Call it only
    in a process of Flower's simulation engine: any other is not ours to end.
    """

    def end() -> None:
        time.sleep(END_SECONDS)
        os._exit(1)

    if "ray" in sys.modules:
        threading.Thread(target=end, daemon=True).start()


GRACE_SECONDS = 120.0
"""Seconds to wait for further nodes when all present ones cannot take part.

A node may be silent for a minute if the server was killed while it sent that node a message: the
node hears nothing else until Flower has missed two of the server's heartbeats.
"""

LOG_SECONDS, SOON_SECONDS = 30.0, 3.0
"""Seconds between lines on the awaited nodes; and to the first if two nodes have one name."""

PATIENCE = 55.0
"""Seconds without a further answer after which the log names a simulation's possible obstacle."""


class Waiting:
    """A wait for nodes that begins now.

    Parameters
    ----------
    timeout : float
        Most seconds that it lasts.
    """

    def __init__(self, timeout: float) -> None:
        now = time.monotonic()
        self._deadline, self._latest, self._due = now + timeout, now, now + LOG_SECONDS
        self._began = now
        self._warned = False

    def is_over(self, has_news: bool, in_vain: bool) -> bool:
        """Return whether the wait is over.

        Parameters
        ----------
        has_news : bool
            True: a node has answered since the last call.
        in_vain : bool
            True: none of the nodes that answered can take part.
        """
        now = time.monotonic()
        if has_news:
            self._latest = now
        return now > self._deadline or (in_vain and now > self._latest + GRACE_SECONDS)

    def hasten(self) -> None:
        """Let the first line come soon: a node has said what needs a hand."""
        self._due = min(self._due, self._began + SOON_SECONDS)

    def say(self, awaited: Callable[[], str]) -> None:
        """Log the awaited nodes, if that is due, and once a simulation's possible obstacle."""
        now = time.monotonic()
        if now <= self._due:
            return
        self._due = now + LOG_SECONDS
        log(INFO, "%s", awaited())
        if now > self._latest + PATIENCE and not self._warned and hindrance():
            self._warned = True
            log(WARNING, "%s", hindrance())


AGAIN_SECONDS = 60.0
"""Seconds until a question is asked a second time; a third time after twice as long, and so on.

A question is lost if a node's client process dies, or takes longer to start than Flower allows. The
time grows with each repetition, so that questions to slow nodes do not pile up.
"""

SLOW_START = (
    "; if its log says 401 Unauthorized, its programs take over 30 s to start: "
    "python -m compileall, and fewer other programs, mend that"
)
"""What a site's owner looks for; Flower takes the token of a program that starts later."""


class Questions:
    """The questions that are open; any answer of a node closes all of its own."""

    def __init__(self) -> None:
        self._node: dict[str, int] = {}
        self._asked: dict[int, dict[str, float]] = {}

    @property
    def ids(self) -> list[str]:
        """The open questions, by the ids of their messages."""
        return list(self._node)

    @property
    def waited_for(self) -> set[int]:
        """The nodes that have not answered."""
        return set(self._asked)

    def due(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes to ask now: for the first time, or again."""
        return sorted(node for node in set(nodes) if self._is_due(node))

    def asked(self, ids: Iterable[str | None], nodes: Iterable[int]) -> None:
        """Note the message to each node; one without an id was not sent."""
        for message_id, node in zip(ids, nodes, strict=True):
            if message_id:
                self._node[message_id] = node
                self._asked.setdefault(node, {})[message_id] = time.monotonic()

    def answered(self, message_id: str) -> int | None:
        """Close a node's questions; return the node, or None if none of its own is open."""
        node = self._node.get(message_id)
        if node is not None:
            for closed in self._asked.pop(node):
                self._node.pop(closed, None)
        return node

    def _is_due(self, node: int) -> bool:
        times = list(self._asked.get(node, {}).values())
        waits = AGAIN_SECONDS * 2 ** (len(times) - 1) if times else 0.0
        return not times or time.monotonic() >= times[-1] + waits


class NothingNew(ValueError):
    """The site is sound, and this run leaves it out."""


class Claimed(ValueError):
    """The node claims a name or a partition that is another's."""

    def __init__(self, claim: str, owner: str) -> None:
        super().__init__(f"it claims to be {claim}, which is {owner}; each needs its own")
        self.claim = claim


class Refusals:
    """Nodes that answered and take no part."""

    def __init__(self) -> None:
        self._why: dict[int, ValueError] = {}

    @property
    def nodes(self) -> set[int]:
        """All of them."""
        return set(self._why)

    @property
    def sites(self) -> int:
        """Number of the federation's sites among them: not those that claim what is another's."""
        return sum(not isinstance(why, Claimed) for why in self._why.values())

    @property
    def claimed(self) -> dict[int, str]:
        """The nodes among them that claim what is another's, with that."""
        return {n: why.claim for n, why in self._why.items() if isinstance(why, Claimed)}

    @property
    def are_faults(self) -> bool:
        """Whether there are some, and each has a fault; a site that has nothing new has none."""
        return bool(self._why) and not any(isinstance(w, NothingNew) for w in self._why.values())

    @property
    def reason(self) -> str:
        """The reason of the first; "" without any."""
        return next(map(str, self._why.values()), "")

    def add(self, node: int, why: ValueError) -> bool:
        """Note a node; return whether the reason is news."""
        said = str(self._why.get(node, ""))
        self._why[node] = why
        return str(why) != said

    def drop(self, node: int) -> None:
        """Forget a node that takes part now."""
        self._why.pop(node, None)


POLL_SECONDS = 0.2


class Roster:
    """The federation's members, as they come, fall silent and come back.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    settings : Settings
        The run's settings.
    signature : Signature
        Layout that every site's data must fit; each node is told.
    keys : mapping of str to SiteKey
        The `keys` of the run that this one resumes.
    simulated : bool
        True for nodes of Flower's simulation engine.
    left_out : callable
        Takes a member, and returns why the run leaves it out; "" if it does not.
    agreed : mapping
        What each node is told; by default the signature's entries.
    content : str
        The hash of the named data set; a node that reads another is left out. "" for no data set.
    kind : str
        Type of the message that asks a node for its data.
    noted : callable
        Takes a node that is left out, and the reason.
    """

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        signature: Signature,
        keys: Mapping[str, SiteKey] = MappingProxyType({}),
        simulated: bool = False,
        left_out: Callable[[Member], str] = lambda member: "",
        agreed: Mapping[str, Any] | None = None,
        content: str = "",
        kind: str = MessageType.QUERY,
        noted: Callable[[int, str], None] = lambda node, why: None,
    ) -> None:
        self._noted = noted
        self._grid = grid
        self._settings = settings
        self._signature = signature
        self._members: dict[int, Member] = {}
        self._claimants: dict[str, int] = {}
        self._refused = Refusals()
        self._silent: set[int] = set()
        self._heard: Counter[int] = Counter()
        self._questions = Questions()
        self._claims = Claims(keys)
        self._simulated = simulated
        self._left_out = left_out
        self._agreed = signature.config() if agreed is None else agreed
        self._content = content
        self._kind = kind
        self._said_once: set[str] = set()

    @property
    def members(self) -> list[Member]:
        """The members by partition, then by name."""
        return sorted(self._members.values(), key=lambda m: (m.partition, m.name))

    @property
    def keys(self) -> dict[str, SiteKey]:
        """Names and partitions with their registered keys."""
        return self._claims.keys

    def name(self, node_id: int) -> str | None:
        """Return the name of a member's site, or else the name that its key is registered under."""
        member = self._members.get(node_id)
        return member.name if member else self._claims.registered(node_id)

    def called(self, node_id: int) -> str:
        """Return what messages call a node: its names, if it has any, and its id."""
        name, registered = self.name(node_id), self._claims.registered(node_id)
        if name is None:
            return f"node {node_id}"
        also = "" if registered in (None, name) else f", registered as {registered}"
        return f"{name} (node {node_id}{also})"

    def trained_on(self, node_id: int) -> int:
        """Return a member's claimed number of training examples; 0 for a node that is no member."""
        member = self._members.get(node_id)
        return member.num_examples if member else 0

    def held_out(self, node_id: int) -> int:
        """Return a member's claimed number of held-out examples; 0 for a node that is no member."""
        member = self._members.get(node_id)
        return member.num_held_out if member else 0

    def heard(self, node_id: int, numbers: int) -> None:
        """Note that a node sends so many numbers, which count in its budget."""
        self._heard[node_id] += numbers

    @property
    def has_budgets(self) -> bool:
        """Whether a member has said how many numbers it may send."""
        return any(member.numbers_left < math.inf for member in self._members.values())

    def answers_left(self, node_id: int, numbers: int) -> float:
        """Return how many more replies of so many numbers a member may send, by its own word."""
        member = self._members.get(node_id)
        if member is None or member.numbers_left == math.inf:
            return math.inf
        return max(0, member.numbers_left - self._heard[node_id]) // numbers

    def gather(self) -> None:
        """Wait for the federation's nodes and ask each for its data.

        It waits for as many nodes as most votes say. A member votes for its number of partitions,
        or for the setting `clients` if it has data of its own. The setting itself is one more vote.
        Flower starts the server before all nodes are registered: without the wait, round 1 would
        train only some of them. Nodes that answer with an error are left out with a warning. Nodes
        that are absent after `round_timeout` are left out until they come.

        Raises
        ------
        RunError
            If fewer than `min_replies` can take part.
        """
        waiting = Waiting(self._settings.round_timeout)
        while not self._is_complete():
            known = len(self._members) + len(self._refused.nodes)
            self._listen()
            self._ask(self._online() - self._members.keys() - self._refused.nodes)
            self._listen()
            has_news = len(self._members) + len(self._refused.nodes) > known
            if waiting.is_over(has_news, in_vain=self._refused.are_faults and not self._members):
                break
            if self._refused.claimed:
                waiting.hasten()
            waiting.say(self._awaited)
            if not self._is_complete():
                time.sleep(POLL_SECONDS)
        if len(self._members) < self._settings.min_replies:
            why = "" if self._refused.nodes else hindrance()
            raise RunError(f"{self._nobody()}; {why}" if why else self._nobody())
        log(INFO, "%d of %d nodes take part", len(self._members), self._expected)

    def participants(self, server_round: int) -> list[int]:
        """Return the ids of the nodes that train in a round, in the order of the members.

        They are chosen by their place among the members and from the seed, so that runs repeat.
        Absent nodes, and those that did not answer when last asked, are passed over. While fewer
        than `min_replies` are left, the server waits for more, up to `round_timeout`.
        """
        deadline = time.monotonic() + self._settings.round_timeout
        there = self._listen()
        self._ask(self._online() - there)
        while len(there) < self._settings.min_replies and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            there = self._listen()
            self._ask(self._online() - self._members.keys() - self._refused.nodes)
        least = min(self._settings.min_replies, len(there))
        part = self._settings.pace.asked(len(there), least)
        return drawn(self._ordered(there), part, self._seed("participants", server_round))

    @property
    def present(self) -> list[int]:
        """Ids of the members that are present and not silent, in their order."""
        return self._ordered(self._listen())

    def evaluators(self, server_round: int) -> list[int]:
        """Return the ids of the members that score the global model after a round.

        They are drawn like `participants`, from members that hold examples out, are present and are
        not silent; after the last round all of these are asked.
        """
        there = [node_id for node_id in self.present if self.held_out(node_id)]
        if server_round == self._settings.rounds:
            return there
        part = round(self._settings.evaluate_fraction * len(there))
        return drawn(there, part, self._seed("evaluators", server_round))

    @property
    def copies(self) -> list[str]:
        """A line on each two or more members whose own data are the same, as far as they tell."""
        held: dict[str, list[str]] = {}
        for member in self._members.values():
            if member.partition < 0 and member.content:
                held.setdefault(member.content, []).append(member.name)
        groups = sorted(sorted(names) for names in held.values() if len(names) > 1)
        return [
            f"{', '.join(names)} hold the same data, which count {len(names)} times; unless you "
            "mean that, start with one of them (resume takes --without)"
            for names in groups
        ]

    def note_silent(self, node_ids: Iterable[int]) -> None:
        """Pass over nodes that did not answer, until they answer a question."""
        for node_id in set(node_ids) - self._silent:
            log(WARNING, "%s did not answer and is passed over", self.called(node_id))
            self._silent.add(node_id)

    def _seed(self, purpose: str, server_round: int) -> int:
        return derive_seed(self._settings.seed, purpose, server_round)

    def _ordered(self, nodes: set[int]) -> list[int]:
        return [member.node_id for member in self.members if member.node_id in nodes]

    @property
    def _expected(self) -> int:
        return expected(self._settings.clients, self._members.values())

    def _is_complete(self) -> bool:
        return len(self._members) + self._refused.sites >= self._expected

    def _online(self) -> set[int]:
        """Return the nodes that are there, and note their keys' registered names."""
        nodes = list(self._grid.get_nodes())
        self._claims.see(nodes)
        return {node.node_id for node in nodes}

    def _listen(self) -> set[int]:
        """Take the answers that have come; return the members that are there and not silent.

        A node that went away is asked for its data again when it is back.
        """
        online = self._online()
        self._silent |= self._members.keys() - online
        if self._questions.ids:
            for reply in self._grid.pull_messages(self._questions.ids):
                node = self._questions.answered(reply.metadata.reply_to_message_id)
                if node is not None:
                    self._admit(node, reply, online)
        return (online & self._members.keys()) - self._silent

    def _ask(self, nodes: set[int]) -> None:
        """Ask nodes for their data, unless they were asked a short while ago."""
        if not (new := self._questions.due(nodes)):
            return
        for name in self._names(self._questions.waited_for.intersection(new), "Node"):
            hint = "" if self._simulated else SLOW_START
            log(INFO, "%s has not answered and is asked again%s", name, hint)
        record = RecordDict({"config": ConfigRecord({**self._agreed, APP_KEY: app_digest()})})
        queries = [Message(record, node, self._kind) for node in new]
        self._questions.asked(self._grid.push_messages(queries), new)

    def _admit(self, node: int, reply: Message, online: set[int]) -> None:
        if reply.has_error():
            self._refuse(node, ValueError(cause(reply.error.reason)))
            return
        try:
            member = member_from(node, reply.content, len(self._signature.classes))
            if member.partition >= 0 and member.content != self._content != "":
                other = f"other rows of {self._settings.dataset} than the server, or another order"
                raise ValueError(f"{member.name} reads {other}: each process must read the same")
            if why := self._left_out(member):
                raise NothingNew(why)
            self._claim(member, online)
        except ValueError as error:
            self._refuse(node, error)
            return
        self._silent.discard(node)
        self._refused.drop(node)
        self._part(node)
        self._members[node] = member
        self._heard[node] = numbers_of(reply.content)
        self._claimants |= dict.fromkeys(member.claims, node)
        for line in self.copies:
            if line not in self._said_once:
                self._said_once.add(line)
                log(WARNING, "%s", line)

    def _claim(self, member: Member, online: set[int]) -> None:
        """Give a node the name and the partition that it claims; Claimed if one is another's."""
        node, claims = member.node_id, member.claims
        for claim in sorted(claims):
            owner = self._claims.owner(claim, node, lambda n: n in online and n in self._members)
            if owner not in (None, self._claims.of(node)):
                raise Claimed(claim, self._said(owner))
        for claim in sorted(claims):
            other = self._claimants.get(claim, node)
            if other == node:
                continue
            if other in online:
                self._refuse(other, Claimed(claim, self.called(node)))
            else:
                log(WARNING, "Node %d is now %s, as node %d is gone", node, claim, other)
                self._part(other)
        self._claims.give(claims, node)

    def _said(self, owner: Owner) -> str:
        """Return the name of a claim's owner in a message."""
        if (node := self._claims.node(owner)) is not None:
            return self.called(node)
        assert isinstance(owner, SiteKey)
        return f"tied to the key that was registered as {owner.registered}, see {SITE_KEYS}"

    def _refuse(self, node: int, why: ValueError) -> None:
        called = self.called(node)
        self._part(node)
        if self._refused.add(node, why):
            log(WARNING, "%s is left out: %s", called, why)
            self._noted(node, str(why))

    def _part(self, node: int) -> None:
        """Drop a member and its claims."""
        member = self._members.pop(node, None)
        for claim in member.claims if member else ():
            del self._claimants[claim]

    def _nobody(self) -> str:
        if self._members or not self._refused.nodes:
            return f"{self._awaited()} within {self._settings.round_timeout:g} seconds"
        why = f"no node can take part: {self._refused.reason}"
        return why if self._is_complete() else f"{why}; {self._awaited()}"

    def _names(self, nodes: Iterable[int], word: str) -> list[str]:
        """Return the nodes' names; numbers that a simulation has drawn are left out."""
        names = [(self.name(node), node) for node in sorted(nodes)]
        return [name or f"{word} {node}" for name, node in names if name or not self._simulated]

    def _awaited(self) -> str:
        """Describe the nodes that answered, those that did not, and the number of absent ones."""
        waited_for = self._questions.waited_for - self._members.keys()
        known = self._members.keys() | self._refused.nodes | waited_for
        claimed = self._refused.claimed
        groups = {
            "take part": [member.name for member in self.members],
            "left out": self._names(self._refused.nodes - claimed.keys(), "node"),
            "left out, for the name is another's": [
                f"{claim} (node {node})" for node, claim in sorted(claimed.items())
            ],
            "not yet": self._names(waited_for, "node"),
        }
        away = self._expected - len(known - claimed.keys())
        return answered(len(self._members), self._expected, groups, away)
