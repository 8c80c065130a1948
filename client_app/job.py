"""A node's job for a message: the run's task, the common layout, and the node's data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from client_app.node import Node, node_of
from fedbary.data.shard import Shard
from fedbary.data.unchanged import one_state
from fedbary.inference import local_method
from fedbary.tasks import Signature, Task, task_of
from strategies.answering import Request
from strategies.client import Client

_FACT = "fact."


@dataclass(frozen=True, eq=False)
class Job:
    """A node at work on a message.

    Parameters
    ----------
    node, task
        The node, and the task of its run.
    signature, facts
        The server's description of the data, and its facts from asking; at first empty.
    held, shard
        The node's data in their own units, and as the model takes them once there are facts.
    raw
        The inputs that it trains on, before a network makes features of them.
    """

    node: Node
    task: Task
    signature: Signature
    facts: dict[str, Tensor]
    held: Shard
    shard: Shard
    raw: Tensor

    def client(self, request: Request, model: nn.Module) -> Client:
        """Return the client that answers a message with a network."""
        node, (x, y) = self.node, (self.shard.x, self.shard.y)
        return Client(
            model,
            x,
            y,
            node.training(request, len(y)),
            nll=self.task.loss(self.facts),
            inference=local_method(node.settings.inference, node.settings),
            prior=node.prior(request),
            augment=self.task.augments(node.site),
            raw=self.raw,
        )


def job_of(message: Message, context: Context) -> Job:
    """Return the job of a message for the node of a context.

    Raises
    ------
    SettingError
        If the node's data do not fit.
    """
    node, config = node_of(context), message.content.config_records["config"]
    task = task_of(node.settings)
    signature = task.signature_from(config)
    facts = {
        key.removeprefix(_FACT): torch.tensor(value, dtype=torch.float64)
        for key, value in config.items()
        if key.startswith(_FACT)
    }
    with one_state(None if node.site.partition is None else context.run_id):
        held, raw = task.shard(node.site, signature), task.raw(node.site, signature)
    prepared = task.prepared(held, facts) if facts else held
    return Job(node, task, signature, facts, held, prepared, raw)
