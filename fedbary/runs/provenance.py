"""Provenance of a run: versions, commit and device, on which its bits depend."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from fedbary import __version__
from fedbary.runs.commit import git_commit
from fedbary.runs.location import SETTINGS
from fedbary.runs.whole import write_whole
from fedbary.settings.config import ROOT, Settings, read_yaml
from fedbary.settings.device import torch_device

PACKAGES = (
    "flwr", "torch", "torchvision", "numpy", "pandas", "scipy", "scikit-learn", "ray", "timm",
    "transformers",
)  # fmt: skip


_FAST = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""PyYAML's dumper in C, where it is built; it writes the same."""


def write_settings(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a run's settings.yaml at once; the label counts come last, a site a line."""
    rest = {key: value for key, value in content.items() if key != "label_counts"}
    text = yaml.safe_dump(rest, sort_keys=False)
    counts = {"label_counts": content.get("label_counts", [])}
    text += yaml.dump(counts, Dumper=_FAST, default_flow_style=None)
    write_whole(folder / SETTINGS, text.encode())


def made_with(settings: Settings) -> dict[str, Any]:
    """Return the provenance of a run made here."""
    device = str(torch_device(settings))
    return {"device": device, "versions": versions(), "commit": git_commit(ROOT)}


def versions() -> dict[str, str]:
    """Return the versions of fedbary, Python and the packages on which a run's bits depend."""
    here = {"fedbary": __version__, "python": platform.python_version()}
    return here | {package: _version(package) for package in PACKAGES}


def is_made_alike(content: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether all rounds of a run were made by this code, with these versions, as here."""
    now = made_with(settings)
    commits = [note.get("commit") for note in content.get("resumed", [])]
    return all(content.get(key) == value for key, value in now.items()) and all(
        commit == now["commit"] for commit in commits
    )


def changed_bits(folder: Path, settings: Settings) -> list[str]:
    """Return the changes since a run's earlier rounds that can change the rounding of sums."""
    made = read_yaml(folder / SETTINGS)
    pairs = {
        "cpus_per_client": (made["settings"].get("cpus_per_client"), settings.cpus_per_client),
        "device": (made.get("device"), str(torch_device(settings))),
    }
    return [f"{key} was {old} and is {new}" for key, (old, new) in pairs.items() if old != new]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
