"""The run folder: settings, metrics round by round, the final posterior, pictures."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save
from torch import Tensor

from fedbary import Posterior, __version__
from fedbary.checkpoints import (
    Checkpoint,
    drop_checkpoints_after,
    has_checkpoint,
    load_checkpoint,
    write_whole,
)
from fedbary.config import BOOKKEEPING, ROOT, Settings, read_yaml
from fedbary.errors import SettingError
from fedbary.federation import torch_device
from fedbary.figures.run import (
    coverage_curve,
    learning_curves,
    partition_heatmap,
    reliability_diagram,
)
from fedbary.figures.sheet import DPI
from fedbary.metrics import reliability
from fedbary.regression.forecast import Forecast
from fedbary.regression.scores import coverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLONE_VARIABLE = "FEDBARY_CLONE"
"""Environment variable by which the command tells the server app which clone it runs."""

POSTERIOR = "posterior.safetensors"
METRICS = "metrics.jsonl"
SETTINGS = "settings.yaml"

PACKAGES = ("flwr", "torch", "torchvision", "numpy", "ray")


def run_folder(settings: Settings, base: Path) -> Path:
    """Return the run's folder, absolute: `output`, or for auto a new name under base/runs."""
    if settings.output == "auto" and settings.resume != "none":
        raise SettingError("output", "auto", f"the run's folder, where resume={settings.resume}")
    if settings.output != "auto":
        return (base / Path(settings.output).expanduser()).resolve()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    data = Path(settings.dataset).stem
    name = f"{stamp}-{data}-{settings.rule}-n{settings.bayesian_layers}-seed{settings.seed}"
    return (base / "runs" / name).resolve()


def require_new(folder: Path) -> None:
    """Raise a SettingError if the folder exists: a run never writes over another."""
    if folder.exists():
        raise SettingError("output", str(folder), "a folder that does not exist yet")


def checkpoint_to_resume(folder: Path, settings: Settings) -> Checkpoint | None:
    """Return the checkpoint that a run in the folder goes on from; None for one that begins.

    `resume=last` begins where no checkpoint is yet, so that a run killed at any moment can be
    started again by the same words.

    Raises
    ------
    SettingError
        If the run may not begin, as the folder exists, or not go on: it is whole, was made with
        other settings, or its checkpoint is not there or damaged.
    """
    if settings.resume == "none":
        require_new(folder)
        return None
    if is_whole(folder):
        raise SettingError("output", str(folder), "a run that was cut off; this one is whole")
    if settings.resume == "last" and not has_checkpoint(folder):
        metrics = folder / METRICS
        if metrics.exists() and len(metrics.read_bytes().splitlines()) > 1:
            raise SettingError("output", str(folder), "a run that kept checkpoints; this has none")
        return None
    made = read_settings(folder)
    for key, value in settings.model_dump().items():
        if key not in BOOKKEEPING and made.get(key) != value:
            allowed = f"{made.get(key)!r}, with which the run in {folder} was started"
            raise SettingError(key, value, allowed)
    return load_checkpoint(folder, settings.resume)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that the run in a folder was started with.

    Raises
    ------
    SettingError
        If the folder holds no run.
    """
    file = folder / SETTINGS
    made = read_yaml(file).get("settings") if file.exists() else None
    if not isinstance(made, dict):
        raise SettingError("output", str(folder), f"the folder of a run, with its {SETTINGS}")
    return made


def is_whole(folder: Path) -> bool:
    """Whether the folder holds a run that came to its end."""
    return (folder / POSTERIOR).exists()


class RunFolder:
    """Writes a run's results as they come; what is written stays, however the run ends.

    - `settings.yaml`: every resolved setting, who holds what, device, versions and git commit;
    - `metrics.jsonl`: one line per round, flushed;
    - `checkpoint-<round>.safetensors`: what the next round starts from; the last two are kept;
    - `partition.png`, `learning-curves.png`, `reliability.png` (where the server has test data);
      of a regression `learning-curves.png` and `coverage.png`;
    - of a regression `standardiser.safetensors`, `mean` and `std` of the features and, last, the
      target; of FedAG `networks.safetensors`, the clients' of the last round, stacked;
    - `posterior.safetensors`: the final posterior, `<name>_mean` and `<name>_log_var`. It is
      written last and at once: where it stands, the run is whole.

    Parameters
    ----------
    folder
        The folder to make.
    settings
        The run's settings.
    label_counts
        For each site, by its name, the number of its examples of each class; of a regression none.
    """

    def __init__(
        self, folder: Path, settings: Settings, label_counts: dict[str, list[int]]
    ) -> None:
        if settings.resume == "none":
            require_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METRICS).unlink(missing_ok=True)
        self.path = folder
        self.task = settings.task
        self.rounds: list[dict[str, Any]] = []
        provenance = {"fedbary": __version__, "python": platform.python_version()}
        provenance |= {package: _version(package) for package in PACKAGES}
        content = {
            "settings": settings.model_dump(),
            "nodes": len(label_counts),
            "device": str(torch_device(settings)),
            "versions": provenance,
            "commit": git_commit(ROOT),
            "started": _now(),
            "sites": list(label_counts),
        }
        text = yaml.safe_dump(content, sort_keys=False)
        counts = list(label_counts.values())
        text += yaml.safe_dump({"label_counts": counts}, default_flow_style=None)
        write_whole(folder / SETTINGS, text.encode())
        if all(counts):
            dealt = all(name == f"partition {part}" for part, name in enumerate(label_counts))
            sites = [] if dealt else list(label_counts)
            self._save(partition_heatmap(np.array(counts), sites), "partition")

    @classmethod
    def reopened(cls, folder: Path, settings: Settings, completed: int) -> RunFolder:
        """Return a run's folder as it was after `completed` rounds, to go on from there.

        Later lines of `metrics.jsonl`, one cut off, and later checkpoints are dropped;
        `settings.yaml` notes when and from which round the run went on.
        """
        results = cls.__new__(cls)
        results.path, results.task = folder, settings.task
        written = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        kept = written[: completed + 1]
        try:
            results.rounds = [json.loads(line) for line in kept]
        except ValueError:
            kept = []
        if len(kept) <= completed:
            allowed = f"a file with a whole line for each of the rounds 0 to {completed}"
            raise SettingError("resume", str(folder / METRICS), allowed)
        write_whole(folder / METRICS, "".join(f"{line}\n" for line in kept).encode())
        note = {"resumed": [{"round": completed, "commit": git_commit(ROOT), "started": _now()}]}
        content = yaml.safe_load((folder / SETTINGS).read_text(encoding="utf-8"))
        note["resumed"] = [*content.pop("resumed", []), *note["resumed"]]
        counts = {"label_counts": content.pop("label_counts")}
        text = yaml.safe_dump({**content, **note}, sort_keys=False)
        text += yaml.safe_dump(counts, default_flow_style=None)
        write_whole(folder / SETTINGS, text.encode())
        drop_checkpoints_after(folder, completed)
        return results

    def add_round(self, metrics: dict[str, Any]) -> None:
        """Append one round's metrics to metrics.jsonl; values that are not finite become null."""
        self.rounds.append(metrics)
        with open(self.path / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(metrics), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def draw_reliability(self, probs: Tensor, labels: Tensor, bins: int) -> None:
        """Draw the reliability diagram of predictions (N, C) for labels (N,)."""
        diagram = reliability(probs, labels, bins)
        self._save(reliability_diagram(diagram, "Final global model"), "reliability")

    def draw_coverage(self, forecast: Forecast, y: Tensor) -> None:
        """Draw how many of the targets (N,) lie in the central intervals of forecasts of them."""
        levels = np.linspace(0.01, 0.99, 99)
        covered = coverage(forecast, y, torch.from_numpy(levels)).numpy()
        self._save(coverage_curve(levels, covered, "Final global model"), "coverage")

    def finish(self, posterior: Posterior) -> None:
        """Draw the learning curves and write the final posterior."""
        self._save(learning_curves(self.rounds, self.task), "learning-curves")
        self.write_tensors("posterior", posterior.state_dict())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write ``<name>.safetensors`` at once."""
        held = {key: tensor.contiguous() for key, tensor in tensors.items()}
        write_whole(self.path / f"{name}.safetensors", save(held))

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read ``<name>.safetensors``."""
        return load_file(self.path / f"{name}.safetensors")

    def _save(self, figure: Figure, name: str) -> None:
        figure.savefig(self.path / f"{name}.png", dpi=DPI)


def git_commit(root: Path) -> str:
    """Return the commit of the code in `root`, with -dirty if it was changed.

    A Flower app's bundle has no history: there it is the commit of the clone that
    `fedbary simulate` bundled, or, from a bare `flwr run`, unknown and the bundle's name.
    """
    launched_from = os.environ.get(CLONE_VARIABLE)
    return _described(Path(launched_from) if launched_from else root)


@functools.cache
def _described(clone: Path) -> str:
    """Return the commit at the first call, of the code that this process has imported."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=clone, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return f"unknown, {clone.name}"
    return done.stdout.strip()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
