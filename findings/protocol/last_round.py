"""Do rules part? The last round of a run again, and what every rule makes of its posteriors.

The run's clients train once more from the checkpoint before the last. What they send is aggregated
by each chart rule, of which the run's own must give the run's posterior, and scored with the same
draws. It writes `last-round.csv`, a row a rule.

    python -m findings.protocol.last_round findings/protocol/runs/RUN findings/protocol data_dir=DIR
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

import client_app
from fedbary.aggregation import RULES, Rule, aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.report.cells import ACCURACY, ECE_15, ECE_100, NLL
from fedbary.report.markup import markdown_table
from fedbary.runs.location import read_settings
from fedbary.runs.run_folder import POSTERIOR
from fedbary.runs.whole import write_whole
from fedbary.settings.config import Settings, parse_overrides, validated
from fedbary.trained.loading import load
from fedbary.trained.run import Trained
from findings._scores import scores
from findings.protocol import normalised_gaa
from findings.rules import rklb_mean, rklb_variance
from server_app import run
from server_app.engine.inline import InlineGrid

TABLE = "last-round.csv"
METRICS = (ACCURACY, NLL, ECE_15, ECE_100)
OF_FINDINGS = (normalised_gaa.RULE, rklb_mean.RULE, rklb_variance.RULE)
CHARTS = {rule.name: rule for rule in (*RULES.values(), *OF_FINDINGS) if isinstance(rule, Rule)}
"""Rules that are means in a chart, the library's and those of findings."""

SHIFT, LOG_VAR = "mean_shift", "log_var_shift"


class Kept(InlineGrid):
    """A federation in this process that keeps what clients send in training, by node."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(client_app.app, settings.clients, settings.model_dump())
        self.sent: dict[int, RecordDict] = {}

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        is_training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if is_training and not reply.has_error():
            self.sent[message.metadata.dst_node_id] = reply.content
        return reply


def last_round(folder: Path, **place: str) -> tuple[list[Posterior], list[float]]:
    """Return the clients' posteriors in a run's last round, and their weights.

    `place` is where the data are now, as the setting `data_dir`, if not where they were.
    """
    changes = {"resume": "previous", "pictures": False, "tracker": "none"}
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / folder.name
        shutil.copytree(folder, again)
        (again / f"{POSTERIOR}.safetensors").unlink()
        settings = validated({**read_settings(folder), **changes, "output": str(again), **place})
        grid = Kept(settings)
        run(grid, settings, again)
    sent = [content for _, content in sorted(grid.sent.items())]
    states = [content.array_records["arrays"].to_torch_state_dict() for content in sent]
    weights = [float(str(content.metric_records["metrics"]["num-examples"])) for content in sent]
    return [Posterior.from_state_dict(state) for state in states], weights


def under_every_rule(
    trained: Trained, clients: Sequence[Posterior], weights: Sequence[float]
) -> pd.DataFrame:
    """Return a row a rule: its scores, and how far it is from the run's own rule.

    `mean_shift` is the root mean square of a Gaussian weight's shift, in its standard deviations;
    `log_var_shift` the mean distance of the log-variances, in nats.

    Raises
    ------
    SettingError
        If the run's own rule does not give the run's posterior, or it has no Gaussian weights.
    """
    settings = trained.settings
    own = aggregate(settings.rule, clients, weights)
    if not own.log_var or not _are_close(own, trained.posterior):
        allowed = "a run with Gaussian weights whose posterior is, on this machine, its rule's of "
        allowed += "what its clients send in the last round: no other method, bound or kept round"
        raise SettingError("run", settings.output, allowed)
    rows = []
    for name, rule in CHARTS.items():
        found = aggregate(rule, clients, weights)
        trained.network.load_state_dict(found.state_dict())
        scored = scores(trained, found)
        shift = torch.cat(
            [_in_stds(found.mean[n] - own.mean[n], own.log_var[n]) for n in own.log_var]
        )
        log_var = torch.cat([(found.log_var[n] - own.log_var[n]).flatten() for n in own.log_var])
        far = {SHIFT: float(shift.square().mean().sqrt()), LOG_VAR: float(log_var.abs().mean())}
        rows.append({"rule": name, **{m.column: scored[m.column] for m in METRICS}, **far})
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
    return markdown_table(head, body)


def _in_stds(shift: Tensor, log_var: Tensor) -> Tensor:
    return (shift / log_var.mul(0.5).exp()).flatten()


def _are_close(one: Posterior, other: Posterior) -> bool:
    """Whether two posteriors are the same but for rounding."""
    a, b = one.state_dict(), other.state_dict()
    return all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-5) for name in b)


def main() -> None:
    """Write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("results", type=Path, help="where the table goes")
    parser.add_argument("place", nargs="*", metavar="data_dir=DIR", help="where the data are now")
    words = parser.parse_args()
    place = parse_overrides(words.place)
    trained = load(words.run)
    trained = replace(trained, settings=trained.settings.model_copy(update=place))
    found = under_every_rule(trained, *last_round(words.run, **place))
    write_whole(words.results / TABLE, found.to_csv(index=False, float_format="%.6g").encode())
    print(tables(words.results))


if __name__ == "__main__":
    main()
