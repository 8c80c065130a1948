"""Small runs whose posteriors are pinned by a digest: a redesign changes none of them unsaid.

`python tests/golden.py [NAME ...]` makes runs anew and writes golden.json; a change of it goes into
the changelog with its reason. Bits depend on the processor and on PyTorch, which the file names.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

FILE = Path(__file__).with_suffix(".json")

IMAGES = {
    "clients": 5, "rounds": 2, "local_epochs": 1, "samples": 2, "holdout": 0.2,
    "normalise": "none", "initialisation": "papers", "lr": 0.03, "lr_schedule": "constant",
    "max_grad_norm": "none", "log_var_lr": 0.01,
}  # fmt: skip
REGRESSION = {"task": "regression", "clients": 5, "rounds": 2, "local_epochs": 2, "samples": 5}
POINTS = {**REGRESSION, "lr_schedule": "constant"}
ROBUST = ("Median", "TrimmedMean", "MultiKrum")

RUNS: dict[str, dict[str, object]] = {
    **{f"rule-{rule}": {"rule": rule} for rule in ("RKLB", "WB", "EAA", "GAA", "AALV", "FKLB")},
    **{f"robust-{rule}": {"rule": rule, "attack": "sign_flip"} for rule in ROBUST},
    "FedAvg": {"rule": "FedAvg", "bayesian_layers": 0},
    "all-layers": {"bayesian_layers": 5, "pixels": "signed"},
    "natural_gradient": {"inference": "natural_gradient", "log_var_lr": 0.003, "kl_weight": 0.01},
    "clamped_sgd": {"inference": "clamped_sgd", "init_log_var": -9, "weight_decay": 0.05},
    "prior-global": {"prior": "global", "kl_weight": 1},
    "prior-narrow": {"prior_std": 0.1, "lr_schedule": "cosine"},
    "momentum": {"server_momentum": 0.5, "rule": "WB"},
    "bound": {"max_precision_ratio": 1.5, "attack": "variance_collapse"},
    "participation": {"participation": 0.6, "augment": True},
    "classes": {"partition": "classes"},
    "FedAG": POINTS,
    "FedAG-no-noise": {**POINTS, "noise": "none", "predictive": "montecarlo"},
    "linear": {**REGRESSION, "model": "linear", "predictive": "closed", "rounds": 1},
    "tables": {"task": "tables", "rounds": 2, "class_weights": "balanced", "split": 1},
    "tables-linear": {"task": "tables", "rounds": 2, "model": "linear", "rule": "WB"},
    "regression-vi": {**REGRESSION, "protocol": "regression-vi", "rule": "WB"},
}


def digest(folder: Path) -> str:
    """Return a digest of a run's final posterior: names, shapes and bytes."""
    posterior = load_file(folder / "posterior.safetensors")
    found = hashlib.sha256()
    for name in sorted(posterior):
        found.update(f"{name} {tuple(posterior[name].shape)} ".encode())
        found.update(posterior[name].contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def machine() -> dict[str, str]:
    """Return what bits depend on."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines()[:10] if cpus.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = "/".join(said.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "instructions": instructions, "cpu": model}


def made(name: str, folder: Path) -> str:
    """Make a run in a folder that does not exist yet; return its digest."""
    from fedbary.settings.config import resolve
    from server_app.engine.inline import run_inline

    if name == "own-sites":
        _own_sites(folder)
    else:
        changes = RUNS[name]
        base = {} if "task" in changes else IMAGES
        run_inline(
            resolve({"engine": "inline", "pictures": False, "device": "cpu", **base, **changes}),
            folder,
        )
    return digest(folder)


def names() -> tuple[str, ...]:
    """Return every run's name."""
    return (*RUNS, "own-sites")


def _own_sites(folder: Path) -> None:
    from own_sites import cut

    import client_app
    from fedbary.settings.config import resolve
    from server_app import run
    from server_app.engine.inline import InlineGrid

    given = {"dataset": "none", "classes": "10", "input_shape": "1x8x8", "clients": 3}
    chosen = resolve({"engine": "inline", "pictures": False, "device": "cpu", **IMAGES, **given})
    data = folder.with_name("sites")
    data.mkdir()
    # A site's name decides its seeds, so it may not hold the path of a temporary folder.
    nodes = [{"data-path": str(path), "name": path.stem} for path in cut(data)]
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder)


def main() -> None:
    """Write the named runs' digests, or all, into golden.json."""
    torch.set_num_threads(1)
    pinned = json.loads(FILE.read_text())["posteriors"] if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or names():
            pinned[name] = made(name, Path(scratch) / name)
    FILE.write_text(json.dumps({"machine": machine(), "posteriors": pinned}, indent=2) + "\n")


if __name__ == "__main__":
    main()
