"""What runs are made of, and what they leave in their folders."""

import csv
import json

import torch
from safetensors.torch import load_file
from torch import nn

from fedbary.settings.config import Settings
from fedbary.tasks import task_of
from fedbary.variational.adapters import adapter_names, merged

INLINE = {"engine": "inline", "device": "cpu", "pictures": False}
SHORT = {**INLINE, "rounds": 1, "local_epochs": 1, "samples": 2}
"""Settings of runs in one process; what a test is about is set beside."""


def network(settings: Settings) -> nn.Module:
    """Return the network of a run on the server's own data."""
    task = task_of(settings)
    return task.make_model(task.signature())


def low_rank(network):
    """ΔW = s B A of each layer with an adapter, by its name."""
    plain = merged(network)
    return {
        name: (plain.get_submodule(name).weight - network.get_submodule(name).base_layer.weight)
        for name in adapter_names(network)
    }


def lines(folder):
    """What each round of a run measured."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless_lines(folder):
    """What each round measured, without the time it took."""
    measured = lines(folder)
    for line in measured:
        line.pop("seconds")
        for client in line.get("clients", []):
            client.pop("train-seconds")
    return measured


def rows(file="predictions.csv"):
    """The rows of a table that a command wrote, by the names of its columns."""
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def tensors(folder, name="posterior"):
    """The tensors of a file of a run."""
    return load_file(folder / f"{name}.safetensors")


def posterior(folder):
    """The final posterior."""
    return tensors(folder)


def same(one, other):
    """Whether two maps hold the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
