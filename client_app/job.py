"""What a message asks of a node: the run's task, what all sites agree on, and the node's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from client_app.node import Node, config_of, node_of, round_of
from client_app.together import inference
from fedbary.data.shard import Shard
from fedbary.methods import Local
from fedbary.tasks import Signature, Task, task_of
from strategies.answering import part_asked, share_of
from strategies.asking import COUNTED_KEY

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

    def local(
        self, message: Message, received: Mapping[str, Tensor], model: nn.Module, seed: int
    ) -> Local:
        """Return what the node has in the round of a message, given what it received."""
        node, config, (x, y) = self.node, config_of(message), (self.shard.x, self.shard.y)
        return Local(
            model=model,
            x=x,
            y=y,
            nll=self.task.loss(self.facts),
            inference=inference(node.settings.inference),
            training=node.training(message, len(y)).suited_to(model, len(y)),
            prior=node.prior(received, int(config.get(COUNTED_KEY, 0))),  # type: ignore[arg-type]
            round=round_of(message),
            seed=seed,
            augment=self.task.augments(node.site),
            part=part_asked(config),
            share=share_of(config, len(y)),
        )


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
