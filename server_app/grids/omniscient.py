"""A grid for simulated hostile clients that see the honest ones' replies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedbary.attacks import OMNISCIENT, OmniscientAttack, attack_named, hostile_clients
from fedbary.settings.config import Settings
from server_app.roster.member import Member
from strategies.internals import with_content


def attacked(grid: Grid, settings: Settings, members: Callable[[], Iterable[Member]]) -> Grid:
    """Return the grid, or, for an omniscient attack, one that replaces hostile replies."""
    if settings.attack not in OMNISCIENT:
        return grid
    attack: OmniscientAttack = attack_named(settings.attack, settings)
    chosen = hostile_clients(attack.hostile_fraction, settings.clients, settings.seed)

    def hostile() -> set[int]:
        return {member.node_id for member in members() if member.partition in chosen}

    return cast(Grid, Omniscient(grid, attack, hostile))


class Omniscient:
    """A grid around another; an attack on all honest replies replaces hostile training replies.

    Metrics and errors stay unchanged. Other messages pass.

    Parameters
    ----------
    grid : Grid
        The other grid.
    attack : OmniscientAttack
        The attack.
    hostile : callable
        Returns the hostile nodes.
    """

    def __init__(
        self, grid: Grid, attack: OmniscientAttack, hostile: Callable[[], Collection[int]]
    ) -> None:
        self._grid, self._attack, self._hostile = grid, attack, hostile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies, those of hostile clients replaced."""
        messages = list(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        if {message.metadata.message_type for message in messages} != {MessageType.TRAIN}:
            return replies
        received = {message.metadata.dst_node_id: _tensors(message) for message in messages}
        nodes = self._hostile()
        fitted = {
            reply.metadata.src_node_id: _tensors(reply) for reply in replies if reply.has_content()
        }
        honest = [tensors for node, tensors in fitted.items() if node not in nodes]
        sent = {
            node: self._attack.sent(received[node], tensors, honest, len(fitted) - len(honest))
            for node, tensors in fitted.items()
            if node in nodes
        }
        return [_with(reply, sent.get(reply.metadata.src_node_id)) for reply in replies]


def _tensors(message: Message) -> dict[str, Tensor]:
    return message.content.array_records["arrays"].to_torch_state_dict()


def _with(reply: Message, tensors: dict[str, Tensor] | None) -> Message:
    """Return a reply with these arrays in place of its own, if there are any."""
    if tensors is None or not reply.has_content():
        return reply
    return with_content(reply, RecordDict({**reply.content, "arrays": ArrayRecord(tensors)}))
