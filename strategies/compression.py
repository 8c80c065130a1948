"""Messages in a fraction of their bytes: a client mod, and the grid that is its counterpart."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .arrays import PACKING, bytes_of
from .conventions import Convention, convention_named
from .internals import ClientAppCallable, NodeInfo, Run, with_content
from .packing import Packing, packing_from


def compression(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Unpack the messages of a `CompressedGrid`, and pack the reply's arrays in the same way.

    A Flower client mod, ``ClientApp(mods=[compression])``; other messages pass unchanged. Name it
    before `chart`: ``mods=[compression, chart("RKLB")]``.

    Raises
    ------
    ValueError
        If the message's arrays cannot be unpacked.
    """
    told = message.content.config_records.get(PACKING)
    if told is None:
        return call_next(message, context)
    (name, arrays), *_ = message.content.array_records.items()
    packing, how = packing_from(str(told["packing"]))
    sent = packing.unpack(arrays, how, None)
    message.content[name] = sent
    del message.content[PACKING]
    reply = call_next(message, context)
    if reply.has_content() and len(reply.content.array_records) == 1:
        (name, arrays), *_ = reply.content.array_records.items()
        reply.content[name], reply.content[PACKING] = packing.pack(arrays, sent)
    return reply


class CompressedGrid(Grid):
    """A Flower grid whose training and evaluation messages have packed arrays, both ways.

    ``strategy.start(grid=CompressedGrid(grid), …)`` with any strategy, and `compression` at the
    clients. The strategy sees unpacked arrays. A reply that cannot be unpacked stays packed, and is
    refused for its arrays. Other messages pass unchanged.

    Parameters
    ----------
    grid : Grid
        Carrier of the messages.
    what : str
        "log_var": log-variances in 8 bits, which leaves five eighths of the bytes. "all": means and
        deterministic weights in 16 bits too, rounded at random.
    convention : str or Convention
        Rule that tells Gaussian arrays: a name in `CONVENTIONS`, or your own.

    Attributes
    ----------
    traffic : dict of str to float
        Mean bytes of the arrays of the last training messages, "down" to a client and "up".

    Raises
    ------
    SettingError
        If `what` or the convention is unknown.
    """

    def __init__(
        self, grid: Grid, what: str = "all", convention: str | Convention = "fedbary"
    ) -> None:
        self._grid = grid
        self._packing = Packing(what, convention_named(convention))
        self._sent: dict[int, ArrayRecord] = {}
        self.traffic: dict[str, float] = {}

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack messages and push them."""
        return self._grid.push_messages(self._packed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and unpack them."""
        return self._unpacked(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send packed messages, and return the replies unpacked."""
        replies = self._grid.send_and_receive(self._packed(messages), timeout=timeout)
        return self._unpacked(replies)

    def _packed(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages of packed arrays; a record that several have is packed once."""
        found: dict[int, tuple[ArrayRecord, ConfigRecord, ArrayRecord]] = {}
        packed = []
        for message in messages:
            records = message.content.array_records
            if _phase(message) is None or len(records) != 1:
                packed.append(message)
                continue
            (name, arrays), *_ = records.items()
            if id(arrays) not in found:
                small, told = self._packing.pack(arrays, None)
                _, how = packing_from(str(told["packing"]))
                found[id(arrays)] = small, told, self._packing.unpack(small, how, None)
            small, told, whole = found[id(arrays)]
            self._sent[message.metadata.dst_node_id] = whole
            content = RecordDict({**message.content, name: small, PACKING: told})
            packed.append(with_content(message, content))
        if training := [m.content for m in packed if _phase(m) == MessageType.TRAIN]:
            self.traffic["down"] = mean(map(bytes_of, training))
        return packed

    def _unpacked(self, replies: Iterable[Message]) -> list[Message]:
        replies = list(replies)
        training = [
            r.content for r in replies if _phase(r) == MessageType.TRAIN and r.has_content()
        ]
        if training:
            self.traffic["up"] = mean(map(bytes_of, training))
        return [self._whole(reply) for reply in replies]

    def _whole(self, reply: Message) -> Message:
        told = reply.content.config_records.get(PACKING) if reply.has_content() else None
        sent = self._sent.get(reply.metadata.src_node_id)
        if told is None or sent is None or len(reply.content.array_records) != 1:
            return reply
        (name, arrays), *_ = reply.content.array_records.items()
        try:
            packing, how = packing_from(str(told.get("packing")))
            if packing != self._packing:
                return reply
            plain = packing.unpack(arrays, how, sent)
        except ValueError:
            return reply
        rest = {key: record for key, record in reply.content.items() if key != PACKING}
        return with_content(reply, RecordDict({**rest, name: plain}))


def _phase(message: Message) -> str | None:
    """Return a message's phase, training or evaluation; None for others."""
    phase = message.metadata.message_type.partition(".")[0]
    return phase if phase in (MessageType.TRAIN, MessageType.EVALUATE) else None
