"""Translation of earlier versions' settings into today's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

WRITTEN_OUT = {"predictive": ("bootstrap", "montecarlo")}
"""Values of earlier versions that are auto today."""

ADDED: Mapping[str, Any] = MappingProxyType(
    {
        "mode": "rounds",
        "start_from": "none",
        "new_examples": 0,
    }
)
"""Settings that earlier versions did not write, each with the value that their runs had."""

OF_EVERY_RUN: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "participation": ("clients", 1.0),
        "speeds": ("mode", "none"),
        "classes": ("dataset", "auto"),
        "input_shape": ("dataset", "auto"),
        "target": ("dataset", "y"),
        "columns": ("dataset", "all"),
        "leave_out": ("dataset", "none"),
        "id": ("dataset", "none"),
        "missing": ("dataset", "refuse"),
        "split": ("dataset", 0),
        "test_dataset": ("dataset", "none"),
        "alpha": ("partition", 0.5),
        "classes_per_client": ("partition", 2),
        "backbone": ("server_fraction", "none"),
        "backbone_weights": ("server_fraction", "auto"),
        "backbone_size": ("server_fraction", "auto"),
        "features": ("server_fraction", "all"),
        "whiten": ("server_fraction", False),
        "resize": ("server_fraction", "none"),
        "normalise": ("server_fraction", "channels"),
        "pixels": ("server_fraction", "unit"),
        "initialisation": ("server_fraction", "he"),
        "augment": ("server_fraction", "auto"),
        "hidden_units": ("model", 50),
        "noise": ("model", "none"),
        "class_weights": ("model", "none"),
        "init_log_var": ("bayesian_layers", -7.0),
        "prior": ("inference", "normal"),
        "prior_std": ("inference", 1.0),
        "kl_weight": ("inference", 0.001),
        "local_epochs": ("inference", 5),
        "batch_size": ("inference", 16),
        "lr": ("inference", 0.02),
        "lr_schedule": ("inference", "cosine"),
        "momentum": ("inference", 0.9),
        "weight_decay": ("inference", 0.00001),
        "max_grad_norm": ("inference", 5.0),
        "log_var_lr": ("inference", 0.003),
        "rule": ("method", "RKLB"),
        "server_momentum": ("method", 0.0),
        "trim_fraction": ("method", 0.2),
        "clipping": ("method", False),
        "mixing": ("method", False),
        "max_precision_ratio": ("method", "none"),
        "compress": ("max_weight_ratio", "none"),
        "ood_dataset": ("evaluate_on", "none"),
        "corruptions": ("evaluate_on", False),
        "calibrate": ("predictive", "none"),
        "conformal": ("predictive", "none"),
        "conformal_score": ("predictive", "lac"),
        "conformal_by": ("predictive", "all"),
        "ece_bins": ("samples", 15),
        "specificity": ("samples", 0.95),
        "hostile_fraction": ("attack", 0.2),
    }
)
"""Settings of parts that every run had, used or not, each with the one before it and its default.

Files and grids may name them if no part owns them; the names of a sweep's runs hold them.
"""

_OF_CYCLES = ("cycles", "noisy_epochs", "rate_factor")
"""Rates of the clients' posterior samplers, from before the data set them."""

_OF_NORM = {"width", "channels"}
"""Parameters that stand beside the groups of a group norm."""


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in today's form; those in today's form stay unchanged.

    In earlier versions FedAG was a value of `rule`, and its parameters had no names. Predictions by
    the members' networks were called a bootstrap. Samplers had cycles, and networks `groups` of
    their group norm; a run's written settings have all their parameters.
    """
    today = dict(values)
    if today.get("rule") == "FedAG":
        today |= {"method": "FedAG", "rule": "RKLB", "estimator": "sample"}
    if today.keys() >= set(_OF_CYCLES) and today.get("method") in ("SGHMC", "SGLD", "PredBayes"):
        today = {name: value for name, value in today.items() if name not in _OF_CYCLES}
    if "groups" in today and today.keys() & _OF_NORM and today.get("method") != "Hierarchy":
        today = {"norm_groups" if n == "groups" else n: value for n, value in today.items()}
    if today.get("predictive") == "bootstrap":
        today["predictive"] = "members"
    return today


def with_every(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings in the order of earlier versions, with the settings of all parts.

    A setting that no part of the run owns has its given value, or its default.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in OF_EVERY_RUN:
            continue
        found[key] = value
        for name, (before, default) in OF_EVERY_RUN.items():
            if before == key:
                found[name] = values.get(name, given.get(name, default))
    return found
