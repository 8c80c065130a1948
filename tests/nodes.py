"""Inline federations whose nodes come and go, with registered keys or without."""

from flwr.proto.node_pb2 import NodeInfo

from fedbary import client_app
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.roster.roster import Roster
from fedbary.settings.config import resolve
from fedbary.tasks._images import layout_of

SMALL = {"engine": "inline", "pictures": False, "clients": 3, "min_examples": 5, "round_timeout": 5}


def settings(**changes):
    """The settings of a small federation."""
    return resolve({**SMALL, **changes})


class Grid(InlineGrid):
    """An inline federation of which only the nodes in `online` are there, and some are mute."""

    def __init__(self, app, chosen, nodes=None):
        super().__init__(app, nodes or chosen.clients, chosen.model_dump())
        self.online = list(super().get_node_ids())
        self.mute = set()

    def get_node_ids(self):
        return list(self.online)

    def _answer(self, message):
        self.last = message.metadata.dst_node_id
        return super()._answer(message)

    def push_messages(self, messages):
        messages = list(messages)
        spoken = [m for m in messages if m.metadata.dst_node_id not in self.mute]
        ids = iter(super().push_messages(spoken))
        return [next(ids) if m in spoken else self._never() for m in messages]

    def _never(self):
        """The id of a message that stays open."""
        self._open.add(message_id := f"never {len(self._open)}")
        return message_id


class KeyedGrid(Grid):
    """A federation whose nodes' keys are registered under names, as on real servers."""

    def __init__(self, app, chosen, nodes, registered, keys=None):
        super().__init__(app, chosen, nodes)
        keys = keys or [b"%d" % node for node in self.online]
        self.infos = {
            node: NodeInfo(node_id=node, public_key=key, name=name)
            for node, key, name in zip(self.online, keys, registered, strict=True)
        }

    def get_nodes(self):
        return [self.infos[node] for node in self.online]


def roster_of(chosen, app=client_app.app):
    """An inline federation and its roster."""
    grid = Grid(app, chosen)
    return grid, Roster(grid, chosen, layout_of(chosen))
