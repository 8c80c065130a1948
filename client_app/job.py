"""What a message asks of a node: the run's task, what all sites agree on, and the node's data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import Context, Message
from torch import Tensor

from client_app.node import Node, config_of, node_of
from fedbary.data.shard import Shard
from fedbary.tasks import Signature, Task, task_of

_FACT = "fact."


@dataclass(frozen=True, eq=False)
class Job:
    """A node at work on a message.

    Parameters
    ----------
    node, task
        The node, and the task of its run.
    signature, facts
        What the server says of the data, and what it has learnt by asking; at first nothing.
    shard
        The node's data: in their own units until there are facts, then as the model takes them.
    """

    node: Node
    task: Task
    signature: Signature
    facts: dict[str, Tensor]
    shard: Shard


def job_of(message: Message, context: Context) -> Job:
    """Return what a message asks of the node of a context.

    Raises
    ------
    SettingError
        If the node's data do not fit.
    """
    node, config = node_of(context), config_of(message)
    task = task_of(node.settings)
    signature = task.signature_from(config)
    facts = {
        key.removeprefix(_FACT): torch.tensor(value, dtype=torch.float64)
        for key, value in config.items()
        if key.startswith(_FACT)
    }
    shard = task.shard(node.site, signature)
    return Job(node, task, signature, facts, task.prepared(shard, facts) if facts else shard)
