"""Do rules part? The last round of a run again, and what every rule makes of its posteriors.

The run's clients train once more from the checkpoint before the last. What they send is aggregated
by each chart rule, of which the run's own must give the run's posterior, and scored with the same
draws. It writes `last-round.csv`, a row a rule.

    python -m findings.protocol.last_round findings/protocol/runs/RUN findings/protocol data_dir=DIR
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from flwr.app import Message, MessageType, RecordDict

import client_app
from fedbary.aggregation import RULES, Rule, aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.runs.location import POSTERIOR, read_settings
from fedbary.settings.config import Settings, parse_overrides, validated
from fedbary.trained.loading import load
from fedbary.trained.run import Trained
from findings.protocol import normalised_gaa, page
from findings.rules import rklb_mean, rklb_variance
from findings.rules.draws import scores
from server_app import run
from server_app.engine.inline import InlineGrid

OF_FINDINGS = (normalised_gaa.RULE, rklb_mean.RULE, rklb_variance.RULE)
CHARTS = {rule.name: rule for rule in (*RULES.values(), *OF_FINDINGS) if isinstance(rule, Rule)}
"""Rules that are means in a chart, the library's and those of findings."""


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
        (again / POSTERIOR).unlink()
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
    own = aggregate(trained.settings.rule, clients, weights)
    a, b = own.state_dict(), trained.posterior.state_dict()
    close = all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-5) for name in b)
    if not own.log_var or not close:
        allowed = "a run with Gaussian weights whose posterior is, on this machine, its rule's of "
        allowed += "what its clients send in the last round: no other method, bound or kept round"
        raise SettingError("run", trained.settings.output, allowed)
    rows = []
    for name, rule in CHARTS.items():
        found = aggregate(rule, clients, weights)
        trained.network.load_state_dict(found.state_dict())
        scored = scores(trained, found)
        shift = [(found.mean[n] - own.mean[n]) / (0.5 * v).exp() for n, v in own.log_var.items()]
        log_var = [found.log_var[n] - v for n, v in own.log_var.items()]
        flat_shift, flat_var = (torch.cat([e.flatten() for e in of]) for of in (shift, log_var))
        far = {
            "mean_shift": float(flat_shift.square().mean().sqrt()),
            "log_var_shift": float(flat_var.abs().mean()),
        }
        shown = {metric.column: scored[metric.column] for metric in page.SCORES}
        rows.append({"rule": name, **shown, **far})
    return pd.DataFrame(rows)


def main(folder: str, results: str, *words: str) -> None:
    """Write and print the table."""
    place, trained = parse_overrides(words), load(folder)
    trained = replace(trained, settings=trained.settings.model_copy(update=place))
    found = under_every_rule(trained, *last_round(Path(folder), **place))
    found.to_csv(Path(results) / page.LAST_ROUND, index=False, float_format="%.6g")
    print(page.last_round(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
