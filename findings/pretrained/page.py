"""Heads on a pretrained network's features: what docs/results/pretrained.md shows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedbary.report.results import ACCURACY, ECE_15, NLL, Metric, p_value
from fedbary.scores.stats import corrected
from fedbary.study.table import read_table
from findings import maker

NAMES = {
    "LDA": "LDA by sums",
    "Ridge": "Ridge by sums",
    "sites": "PVI, Kronecker sites",
    "full": "PVI, full sites",
    "diagonal": "PVI, diagonal sites",
    "FedAvg": "FedAvg",
    "SCAFFOLD": "SCAFFOLD",
    "FedLPA": "FedLPA",
    "one place": "all examples in one place",
}
"""Each kind of head, and what the page calls it."""

SIDES = ["LDA", "Ridge", "FedLPA", "sites 2"]
SIDES += [f"{rival} {rounds}" for rival in ("FedAvg", "SCAFFOLD") for rounds in (1, 5, 10, 20)]
SIDES += ["one place"]
"""The sides of the table in its order; a number is that of rounds."""

FRONT = ["LDA", "sites 2", "FedAvg 5", "FedAvg 20", "SCAFFOLD 20", "one place"]
"""The sides of the README's table."""

CHOSEN_BY = "held_out.tempered_nll"
"""The score by which settings are chosen."""

SHOWN = (ACCURACY, NLL, ECE_15, Metric("untempered.nll", "NLL at T = 1"))

PAIRS = [("LDA", side) for side in ("FedAvg 5", "FedAvg 20", "SCAFFOLD 20", "one place")]
PAIRS += [("sites 2", side) for side in ("FedAvg 20", "SCAFFOLD 20", "one place")]
"""What is tested, by NLL."""

CONDITIONS: dict[str, dict[str, object]] = {
    "Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "two classes a client": {"partition": "classes", "classes_per_client": 2},
    "one class a client": {"partition": "classes", "classes_per_client": 1},
    "100 clients, a fifth a round": {"clients": 100},
    "200 labels in all": {"train_fraction": 0.004},
    "50 labels in all": {"train_fraction": 0.001},
}
"""What differs from the first table, by its name on the page."""

OTHERS: dict[str, dict[str, object]] = {
    "Fashion-MNIST": {"dataset": "fashionmnist"},
    "CIFAR-10 through EfficientNet-Lite2": {"dataset": "cifar10"},
}
HEADS = {
    "LDA": "LDA, 1 round",
    "sites": "Kronecker sites, 2",
    "FedAvg": "FedAvg, 20",
    "SCAFFOLD": "SCAFFOLD, 20",
    "one place": "one place",
}
"""The sides in other conditions, and what the page calls them."""

BESIDE = [("LDA", "FedAvg"), ("LDA", "SCAFFOLD")]
BESIDE += [("sites", "FedAvg"), ("sites", "SCAFFOLD"), ("sites", "one place")]

TABLES = {"breast_cancer": "breast cancer", "wine-quality-red": "grade of red wine"}
OF_TABLES = {"LDA": "LDA, 1 round", "sites": "full sites, 2", "FedAvg": "FedAvg, 20"}
OF_TABLES |= {"SCAFFOLD": "SCAFFOLD, 20", "one place": "all rows in one place"}


class Bar(NamedTuple):
    """A pair of sides, and how much worse the first may be, if that is said.

    Nats of NLL, points of accuracy; 0: it must be ahead.
    """

    first: str
    second: str
    nll: float | None
    accuracy: float | None = None


BARS = [
    Bar("LDA", "one place", None, 1.5),
    Bar("LDA", "FedAvg 5", 0.0),
    Bar("LDA", "FedAvg 20", 0.01),
    Bar("sites 2", "one place", 0.01, 0.5),
    Bar("sites 2", "FedAvg 20", 0.0),
    Bar("sites 2", "SCAFFOLD 20", 0.01),
]
COMPONENTS = [
    Bar("full 2", "one place", 0.01, 0.5),
    Bar("full 3", "one place", 0.005, 0.2),
    Bar("diagonal 5", "one place", 0.02, 0.5),
    Bar("full 2", "FedAvg 50", 0.0),
]


def read(results: Path) -> pd.DataFrame:
    """Return the result of every run, with its kind of head and its side.

    A client's mode in the first round of sites is that of a client alone.
    """
    rows = maker.last(results)
    kind = rows["method"].replace({"barycentre": "FedAvg", "PVI": "sites"})
    kind = kind.mask((kind == "sites") & (rows["rounds"] == 1), "alone")
    kind = kind.where(rows["clients"] > 1, "one place")
    told = kind.isin(["sites", "FedAvg", "SCAFFOLD"])
    side = kind.where(~told, kind + " " + rows["rounds"].astype(str))
    return rows.assign(kind=kind, side=side, kilobytes=rows["bytes.up"] * rows["rounds"] / 1000)


def scores(rows: pd.DataFrame, sides: Sequence[str]) -> str:
    """Return each side's rounds, bytes and scores."""
    runs = (rows[rows["side"] == side] for side in sides)
    named = [(NAMES[own["kind"].iloc[0]], own) for own in runs if len(own)]

    def told(own: pd.DataFrame, number: float) -> str:
        return "–" if own["side"].iloc[0] == "one place" else f"{number:,.0f}"

    rounds = "rounds", lambda own: told(own, own["rounds"].iloc[0])
    sent = "KB up a client", lambda own: told(own, own["kilobytes"].mean())
    return maker.table("head", named, [rounds, sent, *SHOWN])


def tables(results: Path) -> Iterator[str]:
    """Yield the scores, the tests, and what was chosen: by steps, FedLPA, and in one place.

    It is the NLL at the clients' temperature on what they hold out.
    """
    rows = read(results)
    yield scores(rows, SIDES)
    yield maker.table("pair", maker.pairs(rows, PAIRS, NLL), [maker.effect(NLL), *maker.P_AND_HOLM])
    choice = results / "choice"
    held = pd.concat([maker.last(choice), maker.last(choice / "decay")], ignore_index=True)
    held["side"] = held["method"].replace({"barycentre": "FedAvg", "PVI": "one place"})
    for sides, keys, varied in (
        (["FedAvg", "SCAFFOLD"], ["rounds", "batch_size", "lr_schedule", "weight_decay"], "lr"),
        (["FedLPA"], ["local_epochs", "weight_decay"], "lr"),
        (["one place"], [], "prior_std"),
    ):
        yield tuned(held[held["side"].isin(sides)], keys, varied, CHOSEN_BY)


def tuned(rows: pd.DataFrame, keys: Sequence[str], varied: str, score: str) -> str:
    """Return the scores of each value of a setting, by side and some other settings."""
    groups = rows.groupby(["side", *keys])
    named = [(tuple(map(_said, values)), own) for values, own in groups]
    nll = f"`{varied}`: NLL", lambda own: maker.tried(own, varied, score)
    return maker.table(("side", *(f"`{key}`" for key in keys)), named, [nll])


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def facts(results: Path) -> list[float]:
    """Return the accuracy of a client alone in per cent: of the mean client, and of the worst."""
    return of_alone(read(results))


def of_alone(rows: pd.DataFrame) -> list[float]:
    """Return the accuracies that `facts` does, of the side `alone`."""
    alone = maker.where(rows, side="alone")
    names = "weighted_accuracy", "worst10_accuracy"
    return [float(100 * alone[f"local_models.{name}"].mean()) for name in names]


def picture(results: Path) -> maker.Figure:
    """Return accuracy and NLL against rounds and against bytes, the central model as a line."""
    rows = read(results)
    rows["KB that a client sends in all"] = rows.groupby(["kind", "rounds"])["kilobytes"].transform(
        "mean"
    )
    figure, panels = maker.panels(9.0, 6.4, 2, 2, sharex="col", sharey="row")
    for at, axes in enumerate(panels):
        x = ("rounds", "KB that a client sends in all")[at % 2]
        beside_central(axes, rows, ("LDA", "Ridge", "sites", "FedAvg", "SCAFFOLD"), x,
                       (ACCURACY, NLL)[at // 2])  # fmt: skip
        maker.log_ticks(axes, ((1, 2, 5, 10, 20), (50, 200, 1000, 3000))[at % 2])
    panels[2].legend(frameon=False)
    return figure


def beside_central(
    axes: maker.Axes, rows: pd.DataFrame, kinds: Sequence[str], x: str, metric: Metric
) -> None:
    """Draw the courses of some kinds of heads, the central model as a line."""
    named = {kind: NAMES[kind] for kind in kinds}
    maker.courses(axes, rows, "kind", named, x, metric, "std", fmt="o-")
    central = metric.scale * maker.where(rows, kind="one place")[metric.column].mean()
    axes.axhline(central, color=maker.GREY, linestyle="--", label=NAMES["one place"])
    axes.set_xlabel(x)


def front_tables(results: Path) -> str:
    """Return the table of the README."""
    return scores(read(results), FRONT)


def bars_tables(results: Path) -> str:
    """Return what was to be reached, what was measured, and what is met.

    The bounds were named before the runs, and so was the NLL as the score that decides. A bar is
    met where the first side is not worse by the bound or more: by a one-sided t-test at 5 % after
    Holm's correction over all bars in NLL, and by the 95 % interval in accuracy.
    """
    return bars(read(results), BARS)


def bars(rows: pd.DataFrame, several: Sequence[Bar]) -> str:
    """Return bars, what was measured in rows with a column `side`, and which are met."""
    found = [maker.of_pair(rows, bar[:2], NLL) for bar in several]
    tests = [float("nan") if bar.nll is None else maker.no_worse(pair, bar.nll)
             for bar, pair in zip(several, found, strict=True)]  # fmt: skip
    body = {}
    for bar, nll, p in zip(several, found, corrected(tests), strict=True):
        accuracy = maker.of_pair(rows, bar[:2], ACCURACY)
        met = not p >= 0.05 and (bar.accuracy is None or accuracy.low > -bar.accuracy)
        same = p_value(maker.equivalence(nll, bar.nll)) if bar.nll else "–"
        body[f"{bar.first} − {bar.second}"] = (
            NLL.difference(nll), _bound(bar.nll), p_value(p), same, ACCURACY.difference(accuracy),
            _bound(bar.accuracy), "yes" if met else "**no**",
        )  # fmt: skip
    head = ["NLL [95 %]", "worse by less than", "p, Holm", "p, equivalence"]
    return maker.cells(
        "pair", [*head, "accuracy, points [95 %]", "worse by less than", "met"], body
    )


def _bound(bound: float | None) -> str:
    """Return a bound in words."""
    return "–" if bound is None else f"{bound:g}" if bound else "0: ahead"


def components_tables(results: Path) -> Iterator[str]:
    """Yield scores and bars on 64 components, and FedAvg's NLL on validation data by step size."""
    rows = read(results)
    sites = rows["kind"] == "sites"
    rows["side"] = rows["side"].mask(sites, rows["covariance"] + " " + rows["rounds"].astype(str))
    rows["kind"] = rows["kind"].mask(sites, rows["covariance"])
    yield scores(rows, ["full 2", "full 3", "diagonal 5", "FedAvg 50", "one place"])
    yield bars(rows, COMPONENTS)
    tried = maker.last(results / "choice").sort_values("lr")
    nll = [(f"{lr:g}", own) for lr, own in maker.by(tried, "lr").items()]
    yield maker.table("FedAvg: `lr`", nll, [Metric("nll", "NLL after round 50", decimals=4)])


def conditions_tables(results: Path) -> Iterator[str]:
    """Yield the scores by condition, the differences, the step sizes, and those with 200 labels.

    One place is the first table's, where a condition has its examples.
    """
    rows, central = read(results), maker.where(read(results.parent), kind="one place")
    groups = {}
    for name, settings in CONDITIONS.items():
        groups[name] = runs = maker.where(rows, **settings)
        if "train_fraction" not in settings:
            groups[name] = pd.concat([runs, central[central["seed"].isin(runs["seed"])]])
    yield from compared(groups, HEADS, BESIDE)
    yield chosen(results / "choice", CONDITIONS, "nll")
    labels = maker.last(results / "labels")
    labels["side"] = labels["method"].replace({"barycentre": "FedAvg"})
    yield tuned(labels, ["lr_schedule", "weight_decay"], "lr", "nll")


def conditions_facts(results: Path) -> list[float]:
    """Return the NLL of the sites with 100 clients after each round."""
    runs = maker.where(read_table(results), method="PVI", clients=100)
    return runs.groupby("round")["nll"].mean().tolist()


def others_tables(results: Path) -> Iterator[str]:
    """Yield scores, differences and step sizes on other images and features."""
    rows = read(results)
    groups = {name: maker.where(rows, **settings) for name, settings in OTHERS.items()}
    heads = {"LDA": HEADS["LDA"], "Ridge": "Ridge, 1 round", **HEADS}
    yield from compared(groups, heads, [*BESIDE, ("LDA", "one place")])
    yield chosen(results / "choice", OTHERS, "held_out.nll")


def compared(
    groups: Mapping[str, pd.DataFrame], heads: Mapping[str, str], several: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield the scores of each group of runs by kind, and the differences in NLL."""
    shown = [(name, lambda runs, kind=kind: _short(maker.where(runs, kind=kind)))
             for kind, name in heads.items()]  # fmt: skip
    yield maker.table("accuracy % / NLL", groups, shown)
    names = [f"{one} − {other}" for one, other in several]
    found = {name: maker.pairs(runs, several, NLL, "kind") for name, runs in groups.items()}
    yield maker.cells(
        "condition",
        [f"{name}, NLL [95 %]" for name in names],
        {group: [NLL.difference(own[name]) if name in own else "–" for name in names]
         for group, own in found.items()},
    )  # fmt: skip


def _short(runs: pd.DataFrame) -> str:
    mean = runs[["accuracy", "nll"]].mean()
    return f"{100 * mean['accuracy']:.2f} / {mean['nll']:.3f}" if len(runs) else "–"


def chosen(folder: Path, conditions: Mapping[str, Mapping[str, object]], score: str) -> str:
    """Return a score on validation data after the last round, by condition and step size."""
    table = read_table(folder)
    last = table[table["round"] == table["rounds"]]
    rows = [
        ((name, side), own)
        for name, settings in conditions.items()
        for method, side in (("barycentre", "FedAvg"), ("SCAFFOLD", "SCAFFOLD"))
        if len(own := maker.where(last, method=method, **settings))
    ]
    nll = "`lr`: NLL on validation data", lambda own: maker.tried(own, "lr", score)
    return maker.table(("condition", "side"), rows, [nll])


def rows_tables(results: Path) -> str:
    """Return accuracy and NLL on two tables by side."""
    rows, body = read(results), []
    for dataset, name in TABLES.items():
        own = maker.where(rows, dataset=dataset)
        body += [((name, m.label), [m.show(maker.where(own, kind=kind)[m.column])
                  for kind in OF_TABLES]) for m in (ACCURACY, NLL)]  # fmt: skip
    return maker.cells(("table", "score"), [*OF_TABLES.values()], body)
