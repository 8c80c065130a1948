"""Do rules part? The last round of a run again, and what every rule makes of its posteriors.

The run's clients train once more from the checkpoint before the last; the rule of the run gives the
run's posterior to the bit on the machine that made it. What they send is then aggregated by each
rule of one chart, and scored with the same draws. It writes `last-round.csv`, a row a rule.

    python -m benchmarks.last_round results/table1/runs/RUN results/table1
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from flwr.app import Message, MessageType
from torch import Tensor

import client_app
from benchmarks._pairs import table
from fedbary.aggregation import RULES, Rule, aggregate
from fedbary.gaussian import Posterior
from fedbary.report.cells import ACCURACY, ECE_15, ECE_100, NLL
from fedbary.runs.location import read_settings
from fedbary.runs.run_folder import POSTERIOR
from fedbary.runs.whole import write_whole
from fedbary.settings.config import Settings, validated
from fedbary.tasks import Outcome, task_of
from fedbary.trained import load
from server_app import run
from server_app.inline import InlineGrid

TABLE = "last-round.csv"
METRICS = (ACCURACY, NLL, ECE_15, ECE_100)
SHIFT, LOG_VAR = "mean_shift", "log_var_shift"


class Kept(InlineGrid):
    """A federation in this process that keeps what clients send in training, by node."""

    sent: dict[int, Message]

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
            self.sent[message.metadata.dst_node_id] = reply
        return reply


def last_round(folder: Path) -> tuple[Settings, list[Posterior], list[float], bool]:
    """Return the settings of a run, its clients' posteriors in the last round, and their weights.

    Last, whether the posterior that the run ended with came out again, to the bit.
    """
    settings = validated({**read_settings(folder), "resume": "previous", "pictures": False})
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / folder.name
        shutil.copytree(folder, again)
        (again / f"{POSTERIOR}.safetensors").unlink()
        settings = settings.model_copy(update={"output": str(again)})
        grid = Kept(client_app.app, settings.clients, settings.model_dump())
        grid.sent = {}
        run(grid, settings, again)
        is_same = _equal(load(again).posterior.state_dict(), load(folder).posterior.state_dict())
    replies = [reply.content for _, reply in sorted(grid.sent.items())]
    states = [reply.array_records["arrays"].to_torch_state_dict() for reply in replies]
    metrics = [reply.metric_records["metrics"] for reply in replies]
    weights = [float(str(of_one["num-examples"])) for of_one in metrics]
    return settings, [Posterior.from_state_dict(state) for state in states], weights, is_same


def under_every_rule(
    settings: Settings, clients: list[Posterior], weights: list[float]
) -> pd.DataFrame:
    """Return a row a rule: its scores, and how far it is from the run's own rule.

    `mean_shift` is the root mean square of a Gaussian weight's shift, in its standard deviations;
    `log_var_shift` the mean distance of the log-variances, in nats.
    """
    task = task_of(settings)
    model = task.make_model(task.signature())
    own = aggregate(settings.rule, clients, weights)
    rows = []
    for name in [name for name, rule in RULES.items() if isinstance(rule, Rule)]:
        found = aggregate(name, clients, weights)
        model.load_state_dict(found.state_dict())
        outcome = Outcome(settings.rounds, model, found, {}, {}, [])
        scored = task.scores(outcome, {})
        scores = {**scored.scores, **scored.line}
        shift = torch.cat(
            [_in_stds(found.mean[name] - own.mean[name], own.log_var[name]) for name in own.log_var]
        )
        log_var = torch.cat(
            [(found.log_var[name] - own.log_var[name]).flatten() for name in own.log_var]
        )
        row = {"rule": name, **{metric.column: scores[metric.column] for metric in METRICS}}
        far = {SHIFT: float(shift.square().mean().sqrt()), LOG_VAR: float(log_var.abs().mean())}
        rows.append({**row, **far})
    return pd.DataFrame(rows)


def tables(results: Path) -> str:
    """Return the rules' table in Markdown."""
    rows = pd.read_csv(results / TABLE)
    head = [
        "",
        *(metric.label for metric in METRICS),
        "means shifted, in std",
        "log-variances, nats",
    ]
    body = [
        [
            row["rule"],
            *(metric.show([row[metric.column]]) for metric in METRICS),
            f"{row[SHIFT]:.1e}",
            f"{row[LOG_VAR]:.1e}",
        ]
        for _, row in rows.iterrows()
    ]
    return table(head, body)


def _in_stds(shift: Tensor, log_var: Tensor) -> Tensor:
    return (shift / log_var.mul(0.5).exp()).flatten()


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


def main() -> None:
    """Write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("results", type=Path, help="where the table goes")
    words = parser.parse_args()
    settings, clients, weights, is_same = last_round(words.run)
    found = under_every_rule(settings, clients, weights)
    write_whole(words.results / TABLE, found.to_csv(index=False, float_format="%.6g").encode())
    print("the run's posterior again" if is_same else "not the run's posterior: another machine?")
    print(tables(words.results))


if __name__ == "__main__":
    main()
