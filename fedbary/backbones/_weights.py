"""Weights from a file or an installed package, put into a body."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedbary.data.paths import user_path
from fedbary.errors import SettingError

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
"""Endings of files of weights."""

HEADS = ("classifier", "fc", "head", "heads", "head_dist")
"""Names of the layer that answers with classes: it is no part of a body."""


def file_of(weights: str) -> Path:
    """Return the file of weights that a path or an installed package names.

    Raises
    ------
    SettingError
        If there is none, or a package holds several.
    """
    path = user_path(weights)
    if path.is_file():
        return path
    spec = find_spec(weights) if weights.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        allowed = f"auto, a file of weights ({', '.join(ENDINGS)}) or an installed package that "
        raise SettingError("backbone_weights", weights, f"{allowed}holds one; there is none")
    found = [
        file
        for place in spec.submodule_search_locations
        for file in sorted(Path(place).rglob("*"))
        if file.suffix in ENDINGS
    ]
    if len(found) != 1:
        allowed = f"a package with one file of weights, not {len(found)}"
        raise SettingError("backbone_weights", weights, allowed)
    return found[0]


def fill(body: nn.Module, weights: str) -> None:
    """Put the weights of a file or a package into a body.

    Tensors are found by their names. If all names differ, they are taken in order, provided that
    number, shapes and last parts of the names agree. A layer that answers with classes, see
    `HEADS`, is ignored.

    Raises
    ------
    SettingError
        If the file cannot be read, or does not fit.
    """
    file = file_of(weights)
    held, wanted = _read(file), body.state_dict()
    found = {name: held[name] for name in wanted if name in held}
    if not found:
        found = _in_order(_without_head(held), wanted)
    allowed = "weights of the network that backbone names"
    if missing := [name for name in wanted if name not in found]:
        raise SettingError("backbone_weights", str(file), f"{allowed}; it has no {missing[0]}")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise SettingError("backbone_weights", str(file), f"{allowed}; {name} is {shapes}")
    body.load_state_dict(found)


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a stranger's file is damaged in many ways
        allowed = f"a file of tensors by name; reading it ended with {type(error).__name__}"
        raise SettingError("backbone_weights", str(file), allowed) from None
    held = held.get("state_dict", held) if isinstance(held, dict) else {}
    if not held or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise SettingError("backbone_weights", str(file), "a file of tensors by name")
    return dict(held)


def _without_head(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in held.items() if n.split(".")[0].strip("_") not in HEADS}


def _in_order(held: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of other names under the wanted ones, or none if they do not fit."""
    pairs = list(zip(held.items(), wanted.items(), strict=False))
    fits = len(held) == len(wanted) and all(
        given.shape == tensor.shape and its.split(".")[-1] == name.split(".")[-1]
        for (its, given), (name, tensor) in pairs
    )
    return {name: given for (_, given), (name, _) in pairs} if fits else {}
