"""The run folder: settings, metrics round by round, the final posterior, pictures."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from fedbary import Posterior
from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.parts.imports import said
from fedbary.runs.checkpoints import (
    KEPT,
    Checkpoint,
    drop_checkpoints_after,
    fingerprint,
    load_round,
    save_checkpoint,
)
from fedbary.runs.commit import git_commit
from fedbary.runs.location import (
    METRICS,
    POSTERIOR,
    SETTINGS,
    SIGNATURE,
    UNUSED,
    changed_settings,
)
from fedbary.runs.provenance import made_with, write_settings
from fedbary.runs.resume import lines_until
from fedbary.runs.schema import BEST_ROUND, best_round, counted_rounds, result_line
from fedbary.runs.whole import read_tensors, write_tensors, write_whole
from fedbary.settings.config import ROOT, Settings, read_yaml
from fedbary.settings.owners import owned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

NETWORKS = "networks"
"""Name of the file of the networks that predict together, stacked; most methods have none.

A round's metrics have their number, `members`."""

BACKGROUND = "background"
"""Name of the file of inputs' distance from all classes; few methods have one."""


LAST = "told"
"""Name of the file of what sites told after the last round; few tasks ask."""


class RunFolder:
    """Writes a run's results as they come; they stay, however the run ends.

    - `site-keys.json`, on real servers: the key that owns each name or partition, see `site_keys`;
    - `settings.yaml`: every resolved setting, those of the deal apart where it is not used; who
      holds what, device, versions and git commit;
    - `signature.json`: what all sites agree on, the shape and the classes or the columns;
    - `data.json` and `data-rows.safetensors`: the digest of the server's data, see `data_kept`;
    - `metrics.jsonl`: one line per round, flushed;
    - `record.jsonl`: who, when, and each message in numbers and bytes, see `fedbary.runs.record`;
    - `checkpoint-<round>.safetensors`: the state after a round; the last two are kept,
      the last from which a round counted, and with `keep_best` the best round's;
    - with `conformal`: `conformal.json`, thresholds and each site's histograms, see
      `conformal_kept`, and with `pictures` `set-sizes.png`;
    - with `pictures`: `partition.png`, `learning-curves.png`, `reliability.png` (where the server
      has test data); for a regression `learning-curves.png` and `coverage.png`;
    - a regression: `standardiser.safetensors`, `mean` and `std` of features and, last, target;
    - images with `normalise=channels`: `normaliser.safetensors`;
    - methods whose networks predict together: `networks.safetensors`, those of the kept round;
    - tasks that ask after the last round: `told.safetensors`, the answers' sums;
    - methods that know their features' Gaussians: `background.safetensors`;
    - `posterior.safetensors`: the posterior of that round, the last or the best, `<name>_mean` and
      `<name>_log_var`. It is written at once, after all but the last pictures: where it stands,
      the run is whole.

    Parameters
    ----------
    folder
        The folder to make.
    settings
        The run's settings.
    label_counts
        For each site, by its name, the number of its examples of each class; none for a regression.
    own_data
        True: the sites hold data of their own, which no `partition` dealt.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        label_counts: dict[str, list[int]],
        own_data: bool = False,
    ) -> None:
        (folder / METRICS).unlink(missing_ok=True)
        self.path = folder
        self.settings = settings
        self.own_data = own_data
        self.rounds: list[dict[str, Any]] = []
        self._written = hashlib.sha256()
        made, deal = settings.model_dump(), owned("partition", settings.partition)
        names = ("partition", "min_examples", *deal) if own_data else ()
        unused = {name: made.pop(name) for name in names if name in made}
        content = {
            "settings": made,
            **({UNUSED: unused} if own_data else {}),
            "nodes": len(label_counts),
            **made_with(settings),
            "started": _now(),
            "sites": list(label_counts),
            "label_counts": list(label_counts.values()),
        }
        write_settings(folder, content)

    @classmethod
    def reopened(cls, folder: Path, settings: Settings, checkpoint: Checkpoint) -> RunFolder:
        """Return a run's folder as it was at a checkpoint, to go on from there.

        Later lines of `metrics.jsonl`, one cut off, and later checkpoints are dropped;
        `settings.yaml` notes when and from which round the run went on, and the old values of
        settings that changed.
        """
        results = cls.__new__(cls)
        results.path, results.settings = folder, settings
        kept = lines_until(folder, checkpoint)
        results.rounds = [json.loads(line) for line in kept]
        results._written = hashlib.sha256(b"".join(kept))
        write_whole(folder / METRICS, b"".join(kept))
        note = {"round": checkpoint.round, "commit": git_commit(ROOT), "started": _now()}
        content = read_yaml(folder / SETTINGS)
        if changed := changed_settings(folder, settings):
            note["changed"] = {name: old for name, (old, _) in changed.items()}
            content["settings"] |= {name: new for name, (_, new) in changed.items()}
        results.own_data = UNUSED in content
        content["resumed"] = [*content.pop("resumed", []), note]
        write_settings(folder, content)
        drop_checkpoints_after(folder, checkpoint.round)
        return results

    def add_round(self, metrics: dict[str, Any]) -> None:
        """Append one round's metrics to metrics.jsonl; values that are not finite become null.

        If the best round is kept, they get its number.
        """
        if self.settings.keep_best != "none":
            metrics = {**metrics, BEST_ROUND: best_round(self.settings, [*self.rounds, metrics])}
        self.rounds.append(metrics)
        line = json.dumps(_finite(metrics), allow_nan=False).encode() + b"\n"
        self._written.update(line)
        with open(self.path / METRICS, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def add_checkpoint(self, arrays: Mapping[str, Tensor], strategy: Mapping[str, Tensor]) -> None:
        """Write the state for the next round, tied to the settings and the rounds so far."""
        history = self._written.hexdigest()
        marks = len(self.rounds) - 1, fingerprint(self.settings.model_dump()), history
        kept = [
            line[BEST_ROUND] for line in self.rounds[-KEPT:] if line.get(BEST_ROUND) is not None
        ]
        kept += [number - 1 for number in counted_rounds(self.rounds)[-1:]]
        save_checkpoint(self.path, Checkpoint(*marks, arrays, strategy), kept)

    @property
    def result(self) -> Mapping[str, Any]:
        """The line of the round whose model is the run's."""
        return result_line(self.rounds)

    def checkpoint_of(self, number: int) -> Checkpoint:
        """Read the checkpoint of a round; a SettingError if it is missing or damaged."""
        return load_round(self.path, number)

    def write_signature(self, config: Mapping[str, Any]) -> None:
        """Write the layout that all sites share, as `Signature.config` has it."""
        write_whole(self.path / SIGNATURE, json.dumps({**config}).encode())

    def draw(self, figure: Figure, name: str) -> None:
        """Write a picture as ``<name>.png``."""
        figure.savefig(self.path / f"{name}.png", dpi="figure")

    def finish(self, posterior: Posterior) -> None:
        """Write the final posterior; the run is then whole."""
        self.write_tensors(Path(POSTERIOR).stem, posterior.state_dict())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write ``<name>.safetensors`` at once."""
        write_tensors(self.path / f"{name}.safetensors", tensors)

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read ``<name>.safetensors``; a SettingError if it is missing or damaged."""
        return tensors_of(self.path, name)


def tensors_of(folder: Path, name: str) -> dict[str, Tensor]:
    """Read ``<name>.safetensors`` of a run, in the order of the names, by which a seed draws.

    Raises
    ------
    SettingError
        If it is missing or damaged.
    """
    file = folder / f"{name}.safetensors"
    try:
        return dict(sorted(read_tensors(file)[0].items()))
    except (OSError, ValueError) as error:
        raise SettingError(str(file), error, "the file as the run wrote it") from None


def read_signature(folder: Path) -> dict[str, Any]:
    """Return the layout that a run's sites share, as it is written; see `read_layout`."""
    return read_layout(folder, lambda held: dict(held))


def read_layout(folder: Path, parsed: Callable[[dict[str, Any]], T]) -> T:
    """Return the layout that a run's sites share.

    Parameters
    ----------
    folder
        The run's.
    parsed
        What makes a layout of the file's content: a task's `signature_from`.

    Raises
    ------
    SettingError
        If the file is missing or damaged, or holds another layout.
    """
    file = folder / SIGNATURE
    try:
        return parsed(json.loads(content_of(file)))
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's file may raise any error
        raise SettingError(str(file), said(error), "the file as the run wrote it") from None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
