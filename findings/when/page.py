"""When posteriors pay: the tables and the picture of docs/results/when-it-pays.md.

Its parts are of the folders `arms` (noise in training, draws in prediction, variances by factors),
`passes` (five forward passes spent in several ways) and `budgets` (equal numbers of settings).
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.figures.document import bold
from fedbary.report.results import ACCURACY, NLL, Metric, differences
from fedbary.scores.stats import corrected
from fedbary.settings.config import read_yaml
from findings import maker
from findings.maker import AT_T, of_pair
from findings.pretrained.page import CONDITIONS, read

BOUND = 0.01
"""Nats of NLL within which two sides count as equal; named before the runs."""

PANELS = {
    "Dirichlet 0.5": "Dirichlet 0.5",
    "Dirichlet 0.1": "Dirichlet 0.1",
    "one class a client": "one class a client",
    "100 clients, a fifth a round": "100 images a client, 100 clients",
    "200 labels in all": "20 images a client",
    "50 labels in all": "5 images a client",
}
"""Conditions of the picture, and their titles: by skew, then by examples a client."""

HEADS = {
    "sites": "two rounds of sites",
    "LDA": "five rounds of LDA",
    "FedAvg": "twenty rounds of FedAvg",
    "SCAFFOLD": "twenty rounds of SCAFFOLD",
}
ASKED = [
    ("Dirichlet 0.1", "sites", "FedAvg"),
    ("Dirichlet 0.1", "sites", "SCAFFOLD"),
    ("Dirichlet 0.5", "sites", "FedAvg"),
    ("200 labels in all", "sites", "FedAvg"),
    ("100 clients, a fifth a round", "LDA", "SCAFFOLD"),
]
"""Conditions and heads on pretrained features that are compared."""

SMALL = {
    "twenty rounds": {"clients": 10, "rounds": 20, "alpha": 0.5},
    "five rounds": {"rounds": 5},
    "label skew, Dirichlet 0.1": {"alpha": 0.1},
    "fifty small clients": {"clients": 50, "lr": 0.1},
    "fifty, step size of ten": {"clients": 50, "lr": 0.05},
    "all data in one place": {"clients": 1},
}
"""Conditions of a small network from scratch."""

ECE = Metric("ece", "ECE %, 15 bins", 100, 2)
TEMPERATURE, PLAIN = Metric("temperature", "T", decimals=2), Metric("plain_nll", "NLL at T = 1")
SCORES = (AT_T, ACCURACY, ECE, TEMPERATURE)


def groups(results: Path) -> dict[str, pd.DataFrame]:
    """Return the last rounds of each condition on pretrained features."""
    folder = results.parent / "pretrained"
    first, rows = read(folder), read(folder / "conditions")
    ten = first[first["alpha"].eq(0.1) & ~first["kind"].isin(["alone", "one place"])]
    found = {"Dirichlet 0.1": ten[ten["covariance"].fillna("kronecker") == "kronecker"]}
    return found | {name: maker.where(rows, **own) for name, own in CONDITIONS.items()}


def compared(results: Path) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Yield what is asked, both sides, and their difference in NLL at T."""
    found = groups(results)
    for name, one, other in ASKED:
        own = found[name].assign(side=found[name]["kind"])
        own = own[~own["kind"].isin(["FedAvg", "SCAFFOLD"]) | (own["rounds"] == 20)]
        yield (name, HEADS[one], HEADS[other]), of_pair(own, (one, other), NLL)
    rows, passes = _scores(results.parent / "arms"), _scores(results.parent / "passes")
    passes["side"] = passes["way"]
    for of_it, asked, *pair in (
        (arms(rows), "noise in training", "noise, mean", "no noise, mean"),
        (arms(rows), "draws in prediction", "noise, draws", "noise, mean"),
        (factors(rows), "rule, best factors", best_factor(rows, "RKLB"), best_factor(rows, "WB")),
        (passes, "five networks", "five FedAvg", "one FedAvg"),
        (passes, "five networks", "five RKLB", "five FedAvg"),
    ):
        yield (asked, *pair), of_pair(of_it, pair, AT_T)


def verdict(pair: Any) -> str:
    """Return which side has the smaller NLL by the 95 % interval, or that none is known to."""
    if pair.high < 0 or pair.low > 0:
        small = max(abs(pair.low), abs(pair.high)) < BOUND
        return ("the first" if pair.high < 0 else "the second") + (", by a little" if small else "")
    return "level" if max(-pair.low, pair.high) < BOUND else "not decided"


def tables(results: Path) -> str:
    """Return at most ten comparisons, and who is ahead."""
    nll = maker.effect("NLL at T, first − second")
    columns = [nll, maker.seen(), maker.SEEDS, ("ahead", verdict)]
    return maker.table(("where", "first", "second"), compared(results), columns)


def picture(results: Path) -> maker.Figure:
    """Return the NLL against rounds, a panel for each skew and number of examples a client."""
    found = groups(results)
    figure, panels = maker.panels(9.0, 5.2, 2, 3)
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        own = found[name]
        maker.courses(axes, own, "kind", dict(zip(HEADS, HEADS, strict=True)), "rounds", AT_T,
                      "std", fmt="o-")  # fmt: skip
        axes.set_title(title, fontsize=9)
        maker.log_ticks(axes, (1, 2, 5, 20))
        axes.set_xlabel("rounds")
    panels[1].legend(frameon=False, fontsize=8)
    return figure


def small_tables(results: Path) -> str:
    """Return RKLB's NLL less FedAvg's, from either initialisation, on a network from scratch."""
    rows = pd.concat([maker.last(each) for each in (results, results / "start")])
    rivals = {"FedAvg": "FedAvg", "FedAvg from RKLB's initialisation": "WB"}
    body = [
        ((name, rival), pair)
        for rival, rule in rivals.items()
        for name, own in SMALL.items()
        for pair in maker.pairs(maker.where(rows, **own), [("RKLB", rule)], NLL, "rule").values()
    ]
    nll = maker.effect("NLL at T, RKLB less it")
    return maker.table(("from scratch", "rival"), body, [nll, *maker.P_AND_HOLM[:1], maker.seen(),
                                                         maker.SEEDS])  # fmt: skip


def _scores(results: Path) -> pd.DataFrame:
    return pd.read_csv(results / "scores.csv.xz")


def arms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the four arms, with a column `side`."""
    here = rows[(rows["rule"] == "RKLB") & rows["factor"].isin([0.0, 1.0])]
    noise = here["noise"].map({True: "noise", False: "no noise"})
    return here.assign(side=noise + ", " + here["factor"].map({0.0: "mean", 1.0: "draws"}))


def factors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of posteriors by rule and factor, with a column `side`."""
    here = rows[rows["noise"]]
    return here.assign(side=here["rule"] + " × " + here["factor"].map("{:g}".format))


def best_factor(rows: pd.DataFrame, rule: str) -> str:
    """Return the side of the least mean NLL at T of a rule's posteriors."""
    own = maker.where(factors(rows), rule=rule)
    return str(own.groupby("side")["nll"].mean().idxmin())


def arms_tables(results: Path) -> Iterator[str]:
    """Yield scores of the arms and of the factors, and the tests."""
    rows = _scores(results)
    yield maker.table("arm, `kl_weight=0.001`", maker.by(arms(rows), "side"), SCORES)
    rules = {"RKLB": "RKLB", "WB": "WB", "WB last": "WB of RKLB's last round"}
    by_factor = ((f"{at:g}", own) for at, own in factors(rows).groupby("factor"))
    columns = [maker.of(name, AT_T, rule=rule) for rule, name in rules.items()]
    yield maker.table("variances ×, `kl_weight=0.001`", by_factor, columns)
    pairs = [
        ("noise, draws", "no noise, mean"),
        ("noise, mean", "no noise, mean"),
        ("noise, draws", "noise, mean"),
        ("no noise, draws", "no noise, mean"),
        ("RKLB × 1", "WB × 1"),
        ("RKLB × 1", "WB last × 1"),
        (best_factor(rows, "RKLB"), best_factor(rows, "WB")),
    ]
    found = maker.pairs(pd.concat([arms(rows), factors(rows)]), pairs, AT_T)
    named = {f"`0.001`: {name}": pair for name, pair in found.items()}
    yield maker.tests_table("pair", AT_T, named, BOUND)


OF_PASSES = (
    ACCURACY,
    Metric("auroc_entropy", "AUROC %, entropy", 100, 2),
    Metric("auroc_epistemic", "AUROC %, mutual information", 100, 2),
    Metric("kept_accuracy", "Accuracy %, a fifth referred", 100, 2),
    Metric("set_size", "classes in a 90 % set", decimals=2),
)
"""Scores that are compared beside the NLL at T; Holm corrects their tests for all."""

WAYS = [
    ("five FedAvg", "one FedAvg"),
    ("five RKLB", "five FedAvg"),
    ("one RKLB", "one FedAvg"),
    ("five RKLB", "one RKLB"),
    ("FedBE", "five FedAvg"),
]
"""What is tested, by NLL at T; named before the runs."""


def passes_tables(results: Path) -> Iterator[str]:
    """Yield the scores of each way, and the tests; of the other scores bold ones stand by Holm."""
    rows = _scores(results)
    yield maker.table("five passes", maker.by(rows, "way"), (AT_T, *OF_PASSES))
    yield maker.tests_table("ways", AT_T, maker.pairs(rows, WAYS, AT_T, "way"), BOUND)
    found = differences(rows.assign(side=rows["way"]), WAYS, OF_PASSES, maker.SEED)
    cells = {}
    for row, p in zip(found.itertuples(), corrected(found["t_test"].tolist()), strict=True):
        text = row.metric.difference(row)
        cells[f"{row.first} − {row.second}", row.metric] = bold(text) if p < 0.05 else text
    names = [f"{one} − {other}" for one, other in WAYS]
    body = {name: [cells.get((name, metric), "–") for metric in OF_PASSES] for name in names}
    yield maker.cells("ways [95 %]", [metric.label for metric in OF_PASSES], body)


def passes_facts(results: Path) -> list[float]:
    """Return by how many points mutual information detects worse than the entropy, by way."""
    means = _scores(results).groupby("way")[["auroc_entropy", "auroc_epistemic"]].mean()
    return list(100 * (means["auroc_entropy"] - means["auroc_epistemic"]).dropna())


ENDS = {
    "init_log_var": (math.exp(-12), math.exp(-3)),
    "lr": (0.01, 1.0),
    "dropout": (0.05, 0.5),
    "weight_decay": (1e-5, 0.1),
    "kl_weight": (1e-5, 1.0),
    "log_var_lr": (0.001, 0.1),
    "prior_std": (0.03, 1.0),
}
"""The ends of what was tried, by logarithm; of a log-variance those of the variance."""


def at_ends(own: dict[str, Any], near: float = 0.1) -> list[str]:
    """Return the settings that lie at an end of what was tried; below little dropout there is 0.

    `near` is the part of a range, by logarithm, that counts as its end.
    """
    found = []
    for name, (low, high) in ENDS.items():
        value = math.exp(own.get(name, -7.0)) if name == "init_log_var" else own.get(name)
        if isinstance(value, float) and value:
            place = math.log(value / low) / math.log(high / low)
            end = "low" if place < near else "high" if place > 1 - near else ""
            if end and (name, end) != ("dropout", "low"):
                found.append(f"`{name}` {end}")
    return found


def budgets_tables(results: Path) -> Iterator[str]:
    """Yield what each side found, the fresh seeds' scores, and the tests.

    A block of the plan is a `sample` of settings; a `side` is one of them.
    """
    plan, body = read_yaml(results / "plan.yaml"), {}
    first, choice = (pd.read_csv(results / f"{name}.csv.xz") for name in ("first", "choice"))
    means = choice.groupby(["sample", "side"])["nll"].mean()
    for sample in (block["sample"] for block in plan["grid"]):
        early, late = first.loc[first["sample"] == sample, "nll"], means[sample]
        least = [f"{early[:n].min():.3f}" if n <= len(early) else "–" for n in (8, 16, 32, 64)]
        own = json.loads(late.idxmin())
        told = ", ".join(f"`{key}={own[key]}`" for key in own
                         if key not in ("rule", "method", "bayesian_layers"))  # fmt: skip
        body[sample] = [*least, f"{late.min():.3f}", told, ", ".join(at_ends(own)) or "–"]
    heads = [f"{n} tried, after {plan['first']['rounds']} rounds" for n in (8, 16, 32, 64)]
    heads += ["the best, all rounds", "its setting", "at an end"]
    yield maker.cells("side", heads, body)
    rows = _scores(results)
    rows["side"] = rows["sample"]
    yield maker.table("fresh seeds", maker.by(rows, "side"), (*SCORES, PLAIN))
    ranked = means.sort_values(ascending=False).index.get_level_values("sample")
    of = {sample.partition(",")[0]: sample for sample in ranked}
    pairs = [(of["RKLB"], of["FedAvg"]), (of["RKLB"], of["SCAFFOLD"])]
    pairs += [(of["FedAvg"], of["SCAFFOLD"])]
    for metric in (AT_T, PLAIN):
        found = maker.pairs(rows, pairs, metric)
        yield maker.tests_table("best of each", metric, found, BOUND)
