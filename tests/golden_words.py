"""Lists of words whose settings are pinned: of what is refused, the setting that is named.

`python tests/golden_words.py` writes golden_words.json anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedbary.aggregation import RULES
from fedbary.attacks import ATTACKS
from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.settings.config import parse_overrides, resolve

FILE = Path(__file__).with_suffix(".json")

TASKS = ("tables", "text text=body", "regression")
LOCAL = ("variational", "natural_gradient", "ivon", "clamped_sgd", "laplace", "curvature")
PREDICTIVE = ("montecarlo", "members", "product", "dropout", "closed", "wrong")
STRUCTURES = ("none", "diagonal", "kronecker", "shared", "full", "wrong")
PARTITIONS = ("iid", "classes", "quantity", "dirichlet alpha=0.1", "wrong")
BACKBONE = "backbone=torchvision:resnet18"

ALONE = """
rule=FedAvg
rule=FedAvg bayesian_layers=0
rule=wrong
method=FedAvg
method=pvi
lr=0.01 lr_schedule=cosine
lr=0
lr=-1
lr=fast
lr=1e-3
epochs=3
batch_size=0
batch_size=1.5
rounds=0
rounds=3 rounds=4
clients=0
clients=1000
clients=ten
participation=0.5
participation=0
min_replies=11
max_weight_ratio=0.5
max_weight_ratio=2
max_precision_ratio=2
holdout=0.99
holdout=1
holdout=0 calibrate=temperature
holdout=0 conformal=0.9
conformal=0.9 holdout=0.3
conformal=1.5
conformal=0.9 conformal_by=class
conformal_score=aps
keep_best=nll
keep_best=auroc
keep_best=nll patience=3
patience=3
evaluate_on=validation keep_best=accuracy
seed=-1
seed=9223372036854775807
seed=9223372036854775808
mode=async
mode=async speeds=uniform
mode=async speeds=uniform buffer=3 concurrency=4
mode=async speeds=uniform remember=true
mode=async speeds=uniform staleness=wrong
mode=rounds buffer=2
remember=true
remember=yes
clipping=true mixing=true trim_fraction=0.3
trim_fraction=0.5
trim_fraction=0.2
attack=sign_flip hostile_fraction=1
hostile_fraction=0.2
samples=0
samples=100
model=linear
model=linear bayesian_layers=2
model=mlp hidden_units=0
model=mlp hidden_units=7
model=resnet20
model=own_models:normed
model=nowhere
hidden_units=9
dataset=none
dataset=none classes=3
dataset=none classes=3 input_shape=1x8x8
dataset=missing.csv
dataset=fashionmnist augment=true
dataset=cifar10 pixels=signed
pixels=wrong
normalise=none
normalise=wrong
prior=global
prior=earlier
prior_std=0
kl_weight=0
kl_weight=share
init_log_var=-9
init_log_var=200
log_var_lr=0
max_grad_norm=none
max_grad_norm=0
weight_decay=0.1
momentum=1
compress=all
compress=wrong
deadline=5
wait_for=0.5
start_from=nowhere
new_examples=5
resume=last
protocol=quick
protocol=ba-bfl
protocol=wrong
tracker=wrong
engine=wrong
device=tpu
cpus_per_client=0
gpus_per_client=0.5
ood_dataset=fashionmnist
corruptions=true
projection=RKLB
projection=wrong
server_fraction=0.1
train_fraction=0
min_examples=0
output=here
pictures=maybe
adapters=lora
backbone=wrong
backbone_size=64
features=16
whiten=true
epsilon=1
damping=0.5
covariance=full
target=y
text=body
task=wrong
""".strip().splitlines()


def lists() -> Iterator[str]:
    """Yield the words of each run, as on the command line."""
    yield ""
    yield from ALONE
    for name in METHODS:
        yield f"method={name}"
        yield f"method={name} bayesian_layers=0"
        yield f"method={name} rule=WB"
        yield f"method={name} {BACKBONE}"
    yield from (f"rule={name}" for name in RULES)
    yield from (f"attack={name}" for name in ATTACKS)
    for task in TASKS:
        for more in ("", " model=linear", " method=LDA", " conformal=0.9 holdout=0.3", " rule=WB"):
            yield f"task={task}{more}"
    yield from (f"inference={name}" for name in LOCAL)
    yield from (f"method=PVI inference={name}" for name in LOCAL)
    yield from (f"predictive={name}" for name in PREDICTIVE)
    yield from (f"method=SGHMC predictive={name}" for name in PREDICTIVE)
    yield from (f"method=PVI inference=laplace covariance={name}" for name in STRUCTURES)
    yield from (f"method=LastLayerLaplace structure={name}" for name in STRUCTURES)
    yield from (f"partition={name}" for name in PARTITIONS)
    for more in ("", " features=32", " features=32 whiten=true", " adapters=lora", " rank=2"):
        yield f"{BACKBONE}{more}"
        yield f"{BACKBONE} method=LDA{more}"


def outcome(words: str) -> str:
    """Return a digest of the settings that words make, or the setting for which they are refused.

    A word that no setting has is refused as itself.
    """
    try:
        settings = resolve(parse_overrides(words.split()))
    except SettingError as error:
        return f"refused: {error.setting}"
    said: dict[str, Any] = settings.model_dump()
    told = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


if __name__ == "__main__":
    pinned = {words: outcome(words) for words in lists()}
    FILE.write_text(json.dumps(pinned, indent=0) + "\n", encoding="utf-8")
