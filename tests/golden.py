"""Small runs that are pinned: a redesign changes none of them unsaid.

`python tests/golden.py [NAME ...]` makes runs anew and writes golden.json; a change of it goes into
the changelog with its reason. A run has a digest of its bits, and some of its numbers. Bits depend
on the processor and on PyTorch, which the file names. Elsewhere the numbers are compared.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from every_method import KINDS, OF_NUMBERS, OF_TERMS, few
from safetensors.torch import load_file
from torch import Tensor

from fedbary.aggregation import RULES
from fedbary.attacks import ATTACKS
from fedbary.methods import METHODS

FILE = Path(__file__).with_suffix(".json")

Words = dict[str, Any]

EVERY: Words = {
    "engine": "inline", "device": "cpu", "pictures": False, "clients": 3, "rounds": 2,
    "min_examples": 8, "samples": 2, "local_epochs": 1, "holdout": 0.2, "alpha": 1.0,
}  # fmt: skip
"""What every run has, as far as its parts use it."""

TABLE = {**EVERY, "task": "tables", "dataset": "golden_data:classes", "hidden_units": 3}
NUMBERS = {**TABLE, "task": "regression", "dataset": "golden_data:numbers", "holdout": 0.0}
TERMS = {**TABLE, "task": "glm", "family": "multinomial", "terms": "a b", "intercepts": "common",
         "holdout": 0.0}  # fmt: skip
IMAGES = {**EVERY, "dataset": "golden_data:images", "model": "mlp"}
FEATURES = {**EVERY, "dataset": "own_data:bars", "backbone": "own_backbones:tiny", "lr": 0.1}
POINTS = {"bayesian_layers": 0, "rule": "FedAvg"}
LAPLACE = {"method": "PVI", "inference": "laplace", "model": "linear"}

STRUCTURES = ("diagonal", "kronecker", "shared", "full")
DRAWN = "strategy.run"
"""The key of a checkpoint that tells a run from all others, which the operating system draws."""

ASYNCHRONOUS = {"mode": "async", "speeds": "uniform", "rounds": 4, "buffer": 2}


def _of_method(name: str) -> Words:
    method = METHODS[name]
    of_task = TERMS if name in OF_TERMS else NUMBERS if name in OF_NUMBERS else TABLE
    words = {**of_task, "method": name, **few(name)}
    if "particles" in words:
        words["lr"] = 0.003
    if method.needs_bench:
        words["server_fraction"] = 0.2
    if method.deterministic:
        words["bayesian_layers"] = 0
    if name in ("LDA", "Ridge", "ConjugateGaussian"):
        words["model"] = "linear"
    if name == "ConjugateGaussian":
        words["noise"] = "learned"
    if name in ("FedPA", "SWAG"):
        words["local_epochs"] = 2
    return words


RUNS: dict[str, Words] = {
    **{f"method/{name}": _of_method(name) for name in METHODS},
    **{f"rule/{name}": {**TABLE, "rule": name} for name in RULES},
    **{f"attack/{name}": {**TABLE, "attack": name} for name in ATTACKS},
    **{
        f"inference/{name}": {**TABLE, "inference": name}
        for name in ("variational", "natural_gradient", "ivon", "clamped_sgd")
    },
    "inference/curvature": {**TABLE, "inference": "curvature", "samples": 0},
    "inference/curvature-drawn": {
        **NUMBERS,
        "inference": "curvature",
        "method": "barycentre",
        "bayesian_layers": 2,
        "model": "mlp",
        "noise": "learned",
    },
    "inference/curvature-SCAFFOLD": {
        **TABLE,
        "inference": "curvature",
        "method": "SCAFFOLD",
        "bayesian_layers": 2,
        "model": "mlp",
        "samples": 0,
    },
    **{f"sites/{name}": {**TABLE, **LAPLACE, "covariance": name} for name in STRUCTURES},
    **{
        f"last-layer/{name}": {**_of_method("LastLayerLaplace"), "structure": name}
        for name in STRUCTURES
    },
    # Tasks
    "task/images": IMAGES,
    "task/cnn": {**EVERY, "dataset": "own_data:bars", "train_fraction": 0.3, "augment": True},
    "task/resnet20": {
        **EVERY,
        **POINTS,
        "dataset": "own_data:bars",
        "train_fraction": 0.1,
        "model": "resnet20",
    },
    "task/regression": NUMBERS,
    "task/regression-linear": {**NUMBERS, "model": "linear", "predictive": "closed", "rounds": 1},
    "task/regression-barycentre": {
        **NUMBERS,
        "protocol": "regression-vi",
        "rule": "WB",
        "clients": 3,
        "rounds": 2,
    },
    "task/tables-linear": {**TABLE, "model": "linear", "class_weights": "balanced"},
    # Predictions
    "predictive/montecarlo": {**IMAGES, "predictive": "montecarlo"},
    "predictive/mean": {**IMAGES, "samples": 1},
    **{
        f"predictive/{kind}-{name}": {**_of_method(name), "predictive": kind}
        for kind, name in (("members", "FedAG"), ("members", "SGHMC"), ("product", "SGHMC"))
    },
    "predictive/dropout": {
        **EVERY,
        **POINTS,
        "dataset": "own_data:bars",
        "model": "own_models:normed",
        "predictive": "dropout",
    },
    "predictive/temperature": {**IMAGES, "calibrate": "temperature"},
    **{
        f"conformal/{name}": {**IMAGES, "conformal": 0.8, "conformal_score": name}
        for name in ("lac", "aps", "raps")
    },
    "conformal/classes": {**IMAGES, "conformal": 0.8, "conformal_by": "class"},
    "conformal/numbers": {**NUMBERS, "conformal": 0.8, "holdout": 0.3},
    "predictive/projection": {**IMAGES, "projection": "RKLB"},
    "predictive/best": {**IMAGES, "keep_best": "nll", "rounds": 3},
    "predictive/ood": {**IMAGES, "ood_dataset": "golden_data:images"},
    # Heads on a backbone
    "head/sgd": {**FEATURES, **POINTS},
    "head/gaussian": FEATURES,
    "head/LDA": {**FEATURES, "method": "LDA"},
    "head/Ridge": {**FEATURES, "method": "Ridge"},
    **{f"head/{name}": {**FEATURES, **LAPLACE, "covariance": name} for name in STRUCTURES},
    "head/components": {**FEATURES, "method": "LDA", "features": 4},
    "head/whitened": {**FEATURES, "method": "LDA", "features": 4, "whiten": True},
    "head/adapters": {**FEATURES, **POINTS, "adapters": "lora", "rank": 2},
    # Federations
    **{
        f"partition/{name}": {**TABLE, "partition": name} for name in ("iid", "classes", "quantity")
    },
    "federation/participation": {**TABLE, "participation": 0.67, "rounds": 3},
    "federation/bound": {**TABLE, "max_precision_ratio": 1.5, "attack": "variance_collapse"},
    "federation/clipping": {**TABLE, "clipping": True, "mixing": True, "clients": 5},
    "federation/momentum": {**TABLE, "server_momentum": 0.5, "rule": "WB", "rounds": 3},
    "federation/weights": {**TABLE, "max_weight_ratio": 1.0},
    "federation/compress": {**TABLE, "compress": "all"},
    "federation/groups": {**_of_method("Hierarchy"), "groups": 2, "clients": 4},
    "federation/validation": {**TABLE, "evaluate_on": "validation"},
    "federation/prior": {**TABLE, "prior": "global", "kl_weight": 0.1},
    "federation/earlier": {**_of_method("barycentre"), "lr_schedule": "cosine", "prior_std": 0.1},
    # Without rounds
    **{
        f"async/{name}": {**_of_method(name), **ASYNCHRONOUS}
        for name in ("barycentre", "PVI", "FedEP", "BayesADMM", "LDA", "FedAG")
    },
    "async/sites": {**TABLE, **LAPLACE, "covariance": "full", **ASYNCHRONOUS},
    "async/points": {**TABLE, **POINTS, **ASYNCHRONOUS},
    "async/remember": {**TABLE, "remember": True, **ASYNCHRONOUS},
    "async/even": {**TABLE, "staleness": "even", **ASYNCHRONOUS},
}
"""The words of each run by its name."""

GOES_ON = {f"resumed/{name}": name for name in sorted(KINDS)}
"""Runs of one of each kind of method that are cut off in their second round and go on. They end as
those that are not cut off, so nothing is pinned of them."""

BEGINS = {f"started/{name}": name for name in ("barycentre", "PVI", "LDA", "ConjugateGaussian")}
"""Runs that begin with what another one left."""


FOLDERS = (
    "method/barycentre", "method/LDA", "method/PVI", "method/FedAG", "method/pFedVem",
    "method/SGHMC", "task/images", "task/tables-linear", "conformal/lac",
    "async/sites", "head/adapters", "own-sites",
)  # fmt: skip
"""Runs whose folders are pinned: one of each kind."""


def names() -> tuple[str, ...]:
    """Return every run's name."""
    return (*RUNS, *GOES_ON, *BEGINS, "own-sites")


def pinned() -> tuple[str, ...]:
    """Return the names of the runs that the file has."""
    return tuple(name for name in names() if name not in GOES_ON)


def machine() -> dict[str, str]:
    """Return what bits depend on."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines()[:10] if cpus.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = "/".join(said.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "instructions": instructions, "cpu": model}


def made(name: str, folder: Path) -> dict[str, Any]:
    """Make a run in a folder that does not exist yet; return its digest and its numbers."""
    if name == "own-sites":
        _own_sites(folder)
    elif name in GOES_ON:
        from hostile_site import cut_off

        from fedbary.settings.config import completed

        chosen = completed({**_of_method(GOES_ON[name]), "output": str(folder)})
        cut_off(chosen, folder, chosen.clients + 1)
        _run(_of_method(GOES_ON[name]) | {"resume": "last"}, folder)
    elif name in BEGINS:
        first = folder.with_name("earlier")
        _run(_of_method(BEGINS[name]), first)
        _run(_of_method(BEGINS[name]) | {"start_from": str(first), "seed": 1}, folder)
    else:
        _run(RUNS[name], folder)
    found = described(folder)
    return found | {"folder": content(folder)} if name in FOLDERS else found


def content(folder: Path) -> dict[str, Any]:
    """Return the files of a run's folder, with their keys: of arrays with their shapes."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*")):
        name = file.relative_to(folder).as_posix()
        if file.suffix == ".safetensors":
            found[name] = {key: list(t.shape) for key, t in sorted(load_file(file).items())}
        elif file.suffix == ".jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found[name] = sorted({key for line in lines for key in line})
        elif file.suffix == ".json":
            found[name] = sorted(json.loads(file.read_text()))
        elif file.suffix == ".yaml":
            found[name] = sorted(yaml.safe_load(file.read_text()))
        elif file.is_file():
            found[name] = []
    return found


def described(folder: Path) -> dict[str, Any]:
    """Return the digest of all that a run left, and numbers of each part of it.

    The parts are the posterior, the last checkpoint's state, the scores and the predictions. Of an
    array the numbers are its norm and its sum.
    """
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    checkpoints = sorted(folder.glob("checkpoint-*.safetensors"))
    parts = {
        "posterior": load_file(folder / "posterior.safetensors"),
        "state": load_file(checkpoints[-1]) if checkpoints else {},
        "predictions": {"probs": _predictions(folder)},
    }
    scores = {name: value for name, value in sorted(last.items()) if _is_score(name, value)}
    found = hashlib.sha256(json.dumps(scores).encode())
    numbers = {"scores": [round(float(value), 6) for value in scores.values()]}
    for part, arrays in parts.items():
        numbers[part] = []
        for name in sorted(arrays.keys() - {DRAWN}):
            array = arrays[name].contiguous()
            found.update(f"{part} {name} {tuple(array.shape)} {array.dtype} ".encode())
            found.update(array.numpy().tobytes())
            wide = array.double()
            numbers[part] += [_rounded(wide.norm()), _rounded(wide.sum())]
    return {"digest": found.hexdigest()[:16], **numbers}


def _is_score(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and name not in ("seconds", "bytes", "rss")


def _rounded(value: Tensor) -> float:
    number = float(value)
    return number if not math.isfinite(number) else float(f"{number:.6g}")


def _predictions(folder: Path) -> Tensor:
    """Return what the trained network says of a few inputs."""
    import fedbary

    trained = fedbary.load(folder, own_code=True)
    if trained.settings.dataset == "none":
        inputs = torch.arange(320).view(5, 1, 8, 8).to(torch.uint8)
    else:
        inputs = trained.evaluation_examples().x[:5]
    found = trained.predict(inputs)
    return (found.mean if hasattr(found, "var") else found.probs).double()


def _run(words: Mapping[str, Any], folder: Path) -> None:
    from fedbary.server_app.engine.inline import run_inline
    from fedbary.settings.config import completed

    run_inline(completed(words), folder)


def _own_sites(folder: Path) -> None:
    from own_sites import cut

    from fedbary import client_app
    from fedbary.server_app import run
    from fedbary.server_app.engine.inline import InlineGrid
    from fedbary.settings.config import completed

    given = {"dataset": "none", "classes": "10", "input_shape": "1x8x8", "normalise": "none"}
    chosen = completed({**EVERY, **given, "model": "mlp"})
    data = folder.with_name("sites")
    data.mkdir()
    # A site's name decides its seeds, so it may not hold the path of a temporary folder.
    nodes = [{"data-path": str(path), "name": path.stem} for path in cut(data)]
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder)


def main() -> None:
    """Write the named runs, or all, into golden.json."""
    torch.set_num_threads(1)
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    held = json.loads(FILE.read_text())["runs"] if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(sys.argv[1:] or pinned()):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            held[name] = made(name, folder / "run")
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(held[n])}" for n in pinned())
    head = json.dumps(machine())
    FILE.write_text(f'{{"machine": {head}, "runs": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
