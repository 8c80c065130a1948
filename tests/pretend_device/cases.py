"""What runs on both devices: settings by name. Networks, data and rounds are tiny."""

from itertools import chain

from every_method import OF_CLASSES, few, gaussian_layers

from fedbary.inference import INFERENCE
from fedbary.methods import METHODS
from fedbary.parts.registry import rules

TINY = {
    "dataset": "digits", "clients": 3, "rounds": 2, "local_epochs": 1, "samples": 2,
    "train_fraction": 0.2, "evaluate_clients": 1, "holdout": 0.3, "pictures": False,
    "engine": "inline",
}  # fmt: skip
MLP = {**TINY, "model": "mlp", "bayesian_layers": 1}
LINEAR = {**TINY, "model": "linear", "bayesian_layers": 0}
TABLE = {k: v for k, v in MLP.items() if k != "train_fraction"} | {"task": "tables"}
TABLE["dataset"] = "breast_cancer"
LORA = {
    **TINY, "train_fraction": 0.1, "backbone": "own_backbones:tiny", "adapters": "lora", "rank": 4,
    "bayesian_layers": 0,
}  # fmt: skip


ONCE = {name: {"model": "linear", "rounds": 1} for name in ("LDA", "Ridge")}
ONCE |= {name: {"local_epochs": 3} for name in ("FedPA", "SWAG")}
"""What some methods ask for."""


def of_method(name, base=TABLE, **changes):
    """Settings under a method: what it needs, and few of what it counts."""
    own = {"server_fraction": 0.1} if METHODS[name].needs_bench else {}
    own |= {"lr": 0.003} if "particles" in few(name) else {}
    own |= {"method": name, "bayesian_layers": gaussian_layers(name)}
    return {**base, **own, **few(name), **ONCE.get(name, {}), **changes}


def inference():
    """Each local inference on each network."""
    for name in INFERENCE:
        if name != "laplace":
            for model in ("cnn", "mlp", "linear"):
                yield f"{name} {model}", {**MLP, "inference": name, "model": model}
    for covariance in ("diagonal", "kronecker", "full", "shared"):
        own = {"method": "PVI", "inference": "laplace", "covariance": covariance}
        yield f"laplace {covariance}", {**LINEAR, **own}


def methods():
    """Each method, and forms of those that have several."""
    for name in OF_CLASSES:
        yield name, of_method(name)
    yield "FedBE dirichlet", of_method("FedBE", ensemble="dirichlet")
    yield "Laplace ggn", of_method("Laplace", curvature="ggn")
    yield "pFedBayes exact", of_method("pFedBayes", global_step="exact")
    yield "FedBN norms", of_method("FedBN", TINY, model="own_models:normed")
    for structure in ("full", "kronecker", "shared", "diagonal"):
        yield f"LastLayerLaplace {structure}", of_method("LastLayerLaplace", structure=structure)


def models():
    """Networks: fedbary's, one's own, on a backbone, with adapters."""
    yield "cnn plain", {**TINY, "bayesian_layers": 0}
    yield "cnn papers", {**TINY, "initialisation": "papers", "normalise": "none"}
    yield "cnn augment", {**TINY, "augment": True, "pixels": "signed"}
    yield "cnn dropout", {**TINY, "dropout": 0.2, "predictive": "dropout"}
    yield "resnet20", {**TINY, "model": "resnet20", "augment": True, "train_fraction": 0.05}
    for own in ("normed", "lazy", "pretrained"):
        yield own, {**TINY, "model": f"own_models:{own}", "bayesian_layers": 1}
    plain = {k: v for k, v in LORA.items() if k not in ("adapters", "rank")}
    yield "backbone", plain
    yield "backbone components", {**plain, "features": 5, "whiten": True}
    yield "lora", {**LORA, "rule": "FedAvg"}
    yield "lora gaussian", {**LORA, "bayesian_layers": 2}
    yield "lora FedLPA", {**LORA, "method": "FedLPA"}


def texts(folder):
    """Texts, whose table and small model lie in a folder."""
    own = {
        **{key: TINY[key] for key in ("clients", "rounds", "samples", "pictures", "engine")},
        "task": "text", "dataset": str(folder / "texts.csv"), "backbone": f"hf:{folder / 'model'}",
        "text": "body", "target": "label", "min_examples": 5, "holdout": 0.2,
    }  # fmt: skip
    yield "text", own
    yield "text mlp", {**own, "model": "mlp"}
    yield "text lora", {**own, "adapters": "lora", "rank": 2}


def tasks():
    """Each other task, the two of the examples too."""
    yield "tables", {**TABLE, "pictures": True}
    yield "own task", {**TABLE, "task": "own_tasks:Grades"}
    yield "tables balanced", {**TABLE, "class_weights": "balanced", "calibrate": "temperature"}
    yield "regression", {"task": "regression", "engine": "inline", "clients": 3, "rounds": 1}
    own = {k: TINY[k] for k in ("clients", "rounds", "local_epochs", "samples", "engine")}
    own |= {"train_fraction": 0.1, "pictures": True}
    yield "multilabel", {**own, "task": "multilabel:MultiLabel"}
    yield "segmentation", {**own, "task": "segmentation:Segmentation"}


def predictions():
    """Each kind of prediction, and what is made of predictions."""
    for kind in ("members", "product", "montecarlo"):
        yield f"FedAG {kind}", of_method("FedAG", predictive=kind)
    yield "pFedVem members", of_method("pFedVem", predictive="members")
    for score in ("lac", "aps"):
        yield f"sets {score}", {**MLP, "conformal": 0.9, "conformal_score": score, "pictures": True}
    by_class = {"conformal_score": "raps", "conformal_by": "class"}
    yield "sets raps", {**TABLE, "conformal": 0.9, **by_class}
    for name in ("FedAG", "PredBayes", "FedHBMixture", "LDA"):
        yield f"sets {name}", of_method(name, conformal=0.9)
    for rule in ("WB", "RKLB", "FKLB"):
        yield f"projection {rule}", {**TABLE, "projection": rule}
    best = {"keep_best": "nll", "rounds": 3}
    yield "best of the server", {**TABLE, **best, "evaluate_on": "validation", "patience": 1}
    yield "best of clients", {**TABLE, **best, "ece_bins": 7, "remember": True}
    yield "unfamiliar", {**MLP, "ood_dataset": "own_data:bars", "corruptions": True}
    yield "asynchronous", {**TABLE, "mode": "async", "speeds": "uniform", "rounds": 4, "buffer": 2}
    yield "cosine", {**TABLE, "prior": "global", "lr_schedule": "cosine", "max_grad_norm": 1.0}
    for rule in rules():
        yield f"rule {rule}", {**TABLE, "rule": rule, "clients": 4, "rounds": 1}


def cases(folder):
    """The settings of each case by its name; texts lie in a folder."""
    groups = models(), texts(folder), tasks(), predictions(), inference(), methods()
    return dict(chain(*groups))
