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

from fedbary.report.document import bold
from fedbary.report.results import ACCURACY, NLL, Metric, differences
from fedbary.scores.stats import corrected
from fedbary.settings.config import read_yaml
from findings import maker
from findings.budgets.measure import best, name_of, settings_in
from findings.budgets.sides import LOG_VARS, RANGES
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
        for kind in HEADS:
            own = maker.where(found[name], kind=kind)
            look = {"color": maker.COLOURS[kind], "label": kind, "fmt": "o-"}
            maker.course(axes, own["rounds"], own["nll"], "std", **look)
        axes.set_title(title, fontsize=9)
        maker.log_ticks(axes, (1, 2, 5, 20))
        axes.set(xlabel="rounds", ylabel="NLL at T")
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


def at_ends(own: dict[str, Any], near: float = 0.1) -> list[str]:
    """Return the settings that lie at an end of what was tried; below little dropout there is 0.

    `near` is the part of a range, by logarithm, that counts as its end.
    """
    low, high = LOG_VARS
    places = {"init_log_var": (own.get("init_log_var", -7.0) - low) / (high - low)}
    for name, (low, high) in RANGES.items():
        if isinstance(value := own.get(name), float) and value:
            places[name] = math.log(value / low) / math.log(high / low)
    ends = {name: "low" if at < near else "high" for name, at in places.items()
            if not near <= at <= 1 - near}  # fmt: skip
    return [f"`{name}` {end}" for name, end in ends.items() if (name, end) != ("dropout", "low")]


def budgets_tables(results: Path) -> Iterator[str]:
    """Yield what each side found, the fresh seeds' scores, and the tests."""
    plan, body, sample = read_yaml(results / "plan.yaml"), {}, {}
    first, choice = (pd.read_csv(results / f"{name}.csv.xz") for name in ("first", "choice"))
    early, late = first.set_index("side")["nll"], choice.groupby("side")["nll"].mean()
    for block in plan["grid"]:
        settings = settings_in(block)
        keys = [json.dumps(own) for own in settings]
        sample |= dict.fromkeys(keys, block["sample"])
        ran = keys[0] in early.index
        least = [f"{early[keys[:n]].min():.3f}" if ran and n <= len(keys) else "–"
                 for n in (8, 16, 32, 64)]  # fmt: skip
        own = best(choice, settings)[0]
        told = ", ".join(f"`{key}={own[key]}`" for key in own
                         if key not in ("rule", "method", "bayesian_layers"))  # fmt: skip
        nll = f"{late[json.dumps(own)]:.3f}"
        body[block["sample"]] = [*least, nll, told, ", ".join(at_ends(own)) or "–"]
    heads = [f"{n} tried, after {plan['first']['rounds']} rounds" for n in (8, 16, 32, 64)]
    heads += ["the best, all rounds", "its setting", "at an end"]
    yield maker.cells("side", heads, body)
    rows = _scores(results)
    rows["side"] = rows["side"].map(sample)
    yield maker.table("fresh seeds", maker.by(rows, "side"), (*SCORES, PLAIN))
    ranked = best(choice, map(json.loads, sample))[::-1]
    of = {name_of(own): sample[json.dumps(own)] for own in ranked}
    pairs = [(of["RKLB"], of["FedAvg"]), (of["RKLB"], of["SCAFFOLD"])]
    pairs += [(of["FedAvg"], of["SCAFFOLD"])]
    for metric in (AT_T, PLAIN):
        found = maker.pairs(rows, pairs, metric)
        yield maker.tests_table("best of each", metric, found, BOUND)
