"""A question that is out: the message to a client, and the time of its reply."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedbary.aggregation.prefixes import under

from .arrays import array_from_tensor, tensor_from_array
from .asking import question

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
    held = under(_ERRANDS, state)
    found = {}
    for quoted in sorted({key.partition("/")[0] for key in held}):
        own = under(f"{quoted}/", held)
        arrays = {k: array_from_tensor(t) for k, t in under("arrays/", own).items()}
        config = ConfigRecord(json.loads(bytes(own["config"].tolist())))
        content = RecordDict({arrays_key: ArrayRecord(arrays), config_key: config})
        client, number = unquote(quoted), int(own["round"])
        message = Message(content, 0, MessageType.TRAIN)
        asked, arrives = float(own["asked"]), float(own["arrives"])
        found[client] = Errand(client, number, asked, message, arrives=arrives)
    return found
