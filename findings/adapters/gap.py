"""How far the product of the means is from the mean of the products, where both factors train.

`python -m findings.adapters.gap DATA_DIR` makes gap.csv: a row a round, ‖Σ w BA − B̄Ā‖/‖Σ w BA‖.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from flwr.app import Message, MessageType
from torch import Tensor

from client_app import app
from fedbary.settings.config import resolve
from server_app import run
from server_app.engine.inline import InlineGrid

HERE = Path(__file__).parent
SEEDS = (2,)
UP, DOWN = ".lora_B.", ".lora_A."


class Gaps(InlineGrid):
    """A federation in this process that measures every round's replies."""

    rounds: list[float]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer messages at once; measure what trained."""
        messages = list(messages)
        ids = list(super().push_messages(messages))
        if messages and messages[0].metadata.message_type.startswith(MessageType.TRAIN):
            self.rounds.append(gap([self._replies[i] for i in ids]))
        return ids


def gap(replies: Sequence[Message]) -> float:
    """Return the relative gap of all layers' products together."""
    counts = [_metrics(reply)["num-examples"] for reply in replies]
    parts = [count / sum(counts) for count in counts]
    states = [
        next(iter(reply.content.array_records.values())).to_torch_state_dict() for reply in replies
    ]
    apart = whole = 0.0
    for name in (name for name in states[0] if UP in name):
        up, down = (
            [state[each].flatten(1) for state in states] for each in (name, name.replace(UP, DOWN))
        )
        mean = _mean(parts, [b @ a for b, a in zip(up, down, strict=True)])
        apart += float((mean - _mean(parts, up) @ _mean(parts, down)).square().sum())
        whole += float(mean.square().sum())
    return (apart / whole) ** 0.5


def _mean(parts: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([part * tensor for part, tensor in zip(parts, tensors, strict=True)]).sum(0)


def _metrics(reply: Message) -> Mapping[str, Any]:
    return next(iter(reply.content.metric_records.values()))


def main(data_dir: str) -> None:
    """Make the file."""
    grid = yaml.safe_load((HERE / "grid.yaml").read_text(encoding="utf-8"))
    chosen = next(block for block in grid["grid"] if "adapters" in block)
    rows = []
    for seed in SEEDS:
        own = {"factor": "both", "seed": seed, "data_dir": data_dir}
        settings = resolve({**grid["settings"], **chosen, **own})
        federation = Gaps(app, settings.clients, settings.model_dump())
        federation.rounds = []
        with tempfile.TemporaryDirectory() as folder:
            run(federation, settings, Path(folder) / "run")
        rows += [
            [seed, number, f"{found:.4f}"] for number, found in enumerate(federation.rounds, 1)
        ]
    with (HERE / "gap.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["seed", "round", "gap"], *rows])


if __name__ == "__main__":
    main(sys.argv[1])
