"""Gaussians of one tensor, and the rules' formulas in float64, for the aggregation tests."""

import numpy as np
import torch
from scipy import stats

from fedbary.aggregation import RULES, CoordinateRule
from fedbary.gaussian import Posterior


def gaussian(mean, log_var, dtype=torch.float32) -> Posterior:
    return Posterior(
        {"w": torch.as_tensor(mean, dtype=dtype)}, {"w": torch.as_tensor(log_var, dtype=dtype)}
    )


def moments(p: Posterior) -> tuple[np.ndarray, np.ndarray]:
    return p.mean["w"].double().numpy(), p.log_var["w"].double().numpy()


def trimmed(values: np.ndarray) -> np.ndarray:
    """The mean over the clients without a fifth of them at either end."""
    return stats.trim_mean(values, 0.2, axis=0)


def krum(m: np.ndarray, lv: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multi-Krum of the points (m, √v), by its definition, with a fifth of the clients left out."""
    points = np.concatenate([m, np.exp(lv / 2)], axis=1)
    clients, hostile = len(m), len(m) // 5
    scores = [
        sum(sorted(((p - q) ** 2).sum() for q in points)[: clients - hostile - 1]) for p in points
    ]
    kept = points[np.argsort(scores, kind="stable")[: clients - hostile]].mean(0)
    return kept[: m.shape[1]], 2 * np.log(kept[m.shape[1] :])


def hellinger(m: np.ndarray, v: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments of (Σ w √p)², each pair a Gaussian by the Bhattacharyya coefficient of the two."""
    far, sums = np.square(m[:, None] - m), v[:, None] + v
    products = v[:, None] * v
    logs = np.log(w[:, None] * w) + np.log(4 * products / sums**2) / 4 - far / sums / 4
    share = np.exp(logs - logs.max((0, 1)))
    share /= share.sum((0, 1))
    mean = (share * (m[:, None] * v + m * v[:, None]) / sums).sum((0, 1))
    gap = ((m[:, None] - mean) * v + (m - mean) * v[:, None]) / sums
    return mean, np.log((share * (2 * products / sums + gap**2)).sum((0, 1)))


ROBUST = {
    "Median": lambda m, lv: (np.median(m, axis=0), np.median(lv, axis=0)),
    "TrimmedMean": lambda m, lv: (trimmed(m), trimmed(lv)),
    "MultiKrum": krum,
}


def reference(rule: str, m: np.ndarray, lv: np.ndarray, w: np.ndarray):
    """The formulas of the papers, in float64, on arrays [clients, weights]: mean and log-var.

    A rule without a formula here is held to its own functions, in float64.
    """
    kind = RULES[rule]
    if rule in ROBUST:
        return ROBUST[rule](m, lv)
    if isinstance(kind, CoordinateRule):
        stacks, hostile = (torch.from_numpy(m), torch.from_numpy(lv)), kind.num_hostile(len(m))
        return tuple(kind.across(stack, hostile).numpy() for stack in stacks)
    w = (w / w.sum())[:, None]
    v = np.exp(lv)
    if rule == "HB":
        return hellinger(m, v, w)
    mean = (w * m).sum(0)
    if rule == "RKLB":
        precision = (w / v).sum(0)
        return (w * m / v).sum(0) / precision, -np.log(precision)
    if rule == "Conflation":
        return (m / v).sum(0) / (1 / v).sum(0), -np.log((1 / v).sum(0))
    if rule == "WeightedConflation":
        precision = (w / v).sum(0)
        return (w * m / v).sum(0) / precision, np.log(w.max() / precision)
    if rule == "FKLB":
        return mean, np.log((w * v).sum(0) + (w * (m - mean) ** 2).sum(0))
    log_var = {
        "EAA": lambda: np.log((w * v).sum(0)),
        "GAA": lambda: np.log((w**2 * v).sum(0)),
        "AALV": lambda: (w * lv).sum(0),
        "FedAvg": lambda: (w * lv).sum(0),
        "WB": lambda: 2 * np.log((w * np.sqrt(v)).sum(0)),
    }
    if rule not in log_var:
        coordinates = kind.forward(torch.from_numpy(m), torch.from_numpy(lv))
        pairs = zip(coordinates, kind.powers, strict=True)
        sums = [(torch.from_numpy(w) ** power * x).sum(0) for x, power in pairs]
        return tuple(x.numpy() for x in kind.found(sums, w.max()))
    return mean, log_var[rule]()
