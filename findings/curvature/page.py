"""Means by curvature: the tables and the pictures of docs/results/curvature.md."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.results import Metric, difference
from fedbary.scores.stats import corrected
from findings import maker
from findings.curvature.cells import SETTING, USUAL, read

PAIRS = (
    ("curvature", "FedAvg"), ("curvature", "FedAvg + a pass"), ("curvature", "SCAFFOLD"),
    ("curvature", "FedAdam"),
    ("curvature", "by size"), ("by size", "FedAvg"), ("IVON", "FedAvg"),
)  # fmt: skip
SCORES = maker.AT_T, Metric("accuracy", "Accuracy %", 100, 2)
BYTES = Metric("bytes.up", "KB up a client and round", 0.001, 1), *SCORES
GRID = 0.02, 0.05, 0.1, 0.2
"""The step sizes of the grid."""
EQUAL = (("at equal local epochs", "FedAvg", 0), ("at equal passes", "FedAvg + a pass", 1))
"""Comparisons at each number of local epochs: the rival, and how many it has more."""
ESTIMATES = "drawn labels", "exact", "Hutchinson", "free"
"""Sides with curvature's setting and another estimate of it."""
SETTING_OF = dict.fromkeys(("by size", *ESTIMATES), "curvature")
"""Sides with the setting of another."""
APART = "FedAvg", "curvature", "IVON by size", "IVON"
"""Plain steps and steps by precision, each with means by size and by precision."""
BOUND = 0.01
"""The bound of equivalence, in nats."""
LOOKS = {
    "tuned, equal rounds": ("FedAvg", {}),
    "tuned, equal passes": ("FedAvg + a pass", {}),
    "one local epoch each": ("FedAvg", {"curvature": 1, "FedAvg": 1}),
    "one local epoch, FedAvg two": ("FedAvg", {"curvature": 1, "FedAvg": 2}),
    "five local epochs each": ("FedAvg", {"curvature": 5, "FedAvg": 5}),
}
"""Comparisons at each place: the rival, and each side's number of local epochs if it is given."""
OTHERS = "FedAdam", "SCAFFOLD", "FedProx", "IVON", "variational", "last layer"
"""Other rivals at the places; `last layer` has means by curvature there alone."""
BOTH = "SCAFFOLD by curvature"
EITHER = "FedAvg", "FedAvg + a pass", "SCAFFOLD", "curvature"
"""Steps of SCAFFOLD with means by curvature, and the sides that it is compared with."""
NUMBERS = {"FedAvg": "1", "SCAFFOLD": "2", "curvature": "2", BOTH: "3"}
"""Numbers that a side's client sends for each weight."""
FRONT = (
    "5 rounds, Dirichlet 0.1", "10 rounds, Dirichlet 0.1", "20 rounds, Dirichlet 0.1",
    "10 rounds, Dirichlet 0.5", "convolutions, Dirichlet 0.5",
)  # fmt: skip
"""Places that the README has."""
BESIDE = {"tuned": None, "one local epoch each": 1}
"""Comparisons with them: each side's number of local epochs if it is given."""
REACH = -0.4, 0.2
"""NLLs of the picture of places; the widest intervals pass them."""
COLOURS = {"Dirichlet 0.1": maker.BLUE, "Dirichlet 0.5": maker.ORANGE, "even": maker.GREY}
"""Each condition's, in the order of the page."""


def chosen(cells: pd.DataFrame, local_epochs: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return each side's setting with the least mean NLL on held-out examples, by condition.

    A setting counts that all seeds of its side have. With `local_epochs` those of some sides alone,
    each the best of those that have so many.
    """
    tried = cells[cells["stage"] == "choice"]
    if local_epochs:
        tried = tried[tried["local_epochs"] == tried["side"].map(local_epochs)]
    place = ["condition", "side"]
    found = tried.groupby([*place, *SETTING])["held_out"].agg(["mean", "size"])
    most = found.groupby(place)["size"].transform("max")
    least = found["mean"].where(found["size"] == most).groupby(place).idxmin()
    return pd.DataFrame([*least], columns=[*place, *SETTING])


def best(
    cells: pd.DataFrame, condition: str, side: str, local_epochs: int | None = None
) -> dict[str, Any]:
    """Return the setting of one side in one condition, as `chosen` finds it."""
    own = maker.where(cells, condition=condition, side=side)
    found = chosen(own, {side: local_epochs} if local_epochs else None)
    return found[SETTING].to_dict("records")[0]


def compared(cells: pd.DataFrame, local_epochs: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return the cells of fresh seeds that have their side's chosen setting.

    With `local_epochs` those of some sides alone.
    """
    fresh = cells[cells["stage"] == "fresh"]
    if local_epochs:
        fresh = fresh[fresh["side"].isin(local_epochs)]
    settings = chosen(cells, local_epochs).rename(columns={"side": "by"})
    rows = fresh.assign(by=fresh["side"].replace(SETTING_OF))
    return rows.merge(settings, on=[*settings]).drop(columns="by")


def equal(cells: pd.DataFrame, rival: str, more: int) -> dict[tuple[str, int], Any]:
    """Return curvature's differences to a rival of so many local epochs more.

    They stand by name and curvature's number of local epochs.
    """
    counts = maker.where(cells, side="curvature", stage="choice")["local_epochs"].unique()
    return {
        (name, int(count)): row
        for count in counts
        for name, row in differences(
            compared(cells, {"curvature": count, rival: count + more}), [("curvature", rival)]
        ).items()
    }


def tables(results: Path) -> Iterator[str]:
    """Yield held-out scores by local epochs, test scores and differences, by condition."""
    cells = read(results)
    tried, fresh = maker.where(cells, stage="choice"), compared(cells)
    means = tried.groupby(["condition", "side", *SETTING])["held_out"].mean()
    least = means.groupby(["condition", "side", "local_epochs"]).min()
    epochs = sorted(tried["local_epochs"].unique())
    rows = {
        (condition, side): [
            f"{least[place]:.3f}" if (place := (condition, side, count)) in least else "–"
            for count in epochs
        ]
        for condition in COLOURS
        for side in maker.by(maker.where(tried, condition=condition), "side")
    }
    head = ["best held-out NLL", "side"]
    yield maker.cells(head, [f"{count:g} local epochs" for count in epochs], rows)
    scored = {}
    for condition in COLOURS:
        for side, own in maker.by(maker.where(fresh, condition=condition), "side").items():
            scored[condition, side, _setting(own.iloc[0])] = own
    yield maker.table(["fresh seeds", "side", "setting"], scored, SCORES)
    yield maker.tests_table("pair", maker.AT_T, differences(fresh, PAIRS), BOUND)
    for head, rival, more in EQUAL:
        found = {f"{name}, epochs: {count}": row
                 for (name, count), row in equal(cells, rival, more).items()}  # fmt: skip
        yield maker.tests_table(head, maker.AT_T, found, BOUND)


def _setting_of(side: str) -> Callable[[pd.DataFrame], str]:
    """Return what finds a side's setting in its rows; a dash if there are none."""

    def found(rows: pd.DataFrame) -> str:
        own = maker.where(rows, side=side)
        return _setting(own.iloc[0]) if len(own) else "–"

    return found


def _setting(one: Any) -> str:
    """Return the words of a row's setting."""
    steps = f"lr={one['lr']:g} momentum={one['momentum']:g} {one['lr_schedule']}"
    own = "".join(f" {name}={one[name]:g}" for name, usual in USUAL.items() if one[name] != usual)
    return f"{steps}{own}, {one['local_epochs']:g} epochs"


def differences(rows: pd.DataFrame, several: Any) -> dict[str, Any]:
    """Return the differences of pairs of sides at T, by condition."""
    return {
        f"{condition}: {name}": row
        for condition in COLOURS
        for name, row in maker.pairs(
            maker.where(rows, condition=condition), several, maker.AT_T
        ).items()
    }


def picture(results: Path) -> maker.Figure:
    """Return curvature's lead over FedAvg against local epochs, by skew, with 95 % intervals."""
    cells = read(results)
    figure, panels = maker.panels(6.0, 2.4, 1, 2, sharey=True)
    for axes, (head, rival, more) in zip(panels, EQUAL, strict=True):
        found = equal(cells, rival, more)
        for aside, (condition, color) in enumerate(COLOURS.items()):
            own = {count: row for (name, count), row in found.items() if name.startswith(condition)}
            mean = [row.mean for row in own.values()]
            reach = [row.high - row.mean for row in own.values()]
            x = [count * (0.95 + 0.05 * aside) for count in own]
            axes.errorbar(x, mean, reach, fmt=".-", linewidth=1, color=color, label=condition)
        axes.axhline(0, color="black", linewidth=1)
        axes.set_title(head, fontsize=8)
        axes.set_xlabel("curvature's local epochs a round", fontsize=8)
        axes.tick_params(labelsize=7)
        maker.log_ticks(axes, (1, 2, 5, 10))
    panels[0].set_ylabel("NLL at T, curvature − FedAvg", fontsize=7)
    panels[1].legend(frameon=False, fontsize=7, loc="lower right")
    return figure


def places(results: Path) -> pd.DataFrame:
    """Return the cells of every place, those of the first map in front."""
    first = read(results.parent)
    first["condition"] = "10 rounds, " + first["condition"]
    return pd.concat([first, read(results)], ignore_index=True)


def leads(
    cells: pd.DataFrame, looks: Mapping[str, Any] = LOOKS, side: str = "curvature"
) -> dict[str, dict[str, Any]]:
    """Return a side's differences by look and place, with Holm's p over a look's places."""
    found = {}
    for look, (rival, counts) in looks.items():
        pair = [(side, rival)]
        rows = compared(cells[cells["side"].isin(pair[0])], counts)
        own = {
            place: maker.pairs(here, pair, maker.AT_T).popitem()[1]
            for place, here in maker.by(rows, "condition").items()
            if set(pair[0]) <= set(here["side"])
        }
        holm = corrected([row.t_test for row in own.values()])
        found[look] = {
            place: row._replace(holm=p) for (place, row), p in zip(own.items(), holm, strict=True)
        }
    return found


def beside(
    cells: pd.DataFrame, rivals: Sequence[str], count: int | None, side: str = "curvature"
) -> dict[str, list[str]]:
    """Return the words of a side's differences to rivals, by place where there are any.

    All have so many local epochs, or each its own.
    """
    given = {one: count for one in (side, *rivals) if count}
    found = leads(cells, {rival: (rival, given) for rival in rivals}, side)
    return {
        place: [_marked(found[rival].get(place)) for rival in rivals]
        for place in maker.by(cells, "condition")
        if any(place in named for named in found.values())
    }


def front_tables(results: Path) -> str:
    """Return the table of the README."""
    fresh, rows = compared(places(results)), {}
    for side, numbers in NUMBERS.items():
        own = [maker.where(fresh, condition=place, side=side)["nll"] for place in FRONT]
        rows[side] = [numbers, *map(maker.AT_T.show, own)]
    return maker.cells(["side"], ["numbers a weight", *FRONT], rows)


def both_tables(results: Path) -> str:
    """Return the differences of SCAFFOLD's steps with means by curvature, where there are any."""
    cells = places(results)
    looks = {look: beside(cells, EITHER, count, BOTH) for look, count in BESIDE.items()}
    rows = {
        (place, look): row for look, by_place in looks.items() for place, row in by_place.items()
    }
    head = [f"{BOTH} − another, NLL at T [95 %]", "local epochs"]
    return maker.cells(head, [*EITHER], rows)


def estimates_tables(results: Path) -> str:
    """Return curvature's differences to the same steps with other estimates of it."""
    cells = read(results)
    counts = {**BESIDE, "two local epochs each": 2}
    looks = {look: beside(cells, ESTIMATES, count) for look, count in counts.items()}
    rows = {(place, look): looks[look][place] for place in COLOURS for look in counts}
    head = ["curvature − another estimate, NLL at T [95 %]", "local epochs"]
    return maker.cells(head, [*ESTIMATES], rows)


def places_tables(results: Path) -> Iterator[str]:
    """Yield curvature's lead at every place, over other rivals too, scores and settings."""
    cells = places(results)
    found, fresh = leads(cells), compared(cells)
    rows = {
        place: [*(_marked(found[look].get(place)) for look in LOOKS), f"{tuned.pairs}"]
        for place, tuned in found["tuned, equal rounds"].items()
    }
    yield maker.cells("curvature − FedAvg, NLL at T [95 %]", [*LOOKS, "seeds"], rows)
    for look, count in BESIDE.items():
        others = beside(cells, OTHERS, count)
        own = {place: others[place] for place in rows if place in others}
        head = f"curvature − another, NLL at T [95 %], {look}"
        yield maker.cells(head, [*OTHERS], own)
    sides = "FedAvg", "FedAvg + a pass", "curvature", *OTHERS
    scored = {place: maker.where(fresh, condition=place) for place in rows}
    for metric in SCORES:
        columns = [maker.of(side, metric, side=side) for side in sides]
        yield maker.table(f"{metric.label}, tuned", scored, columns)
    settings = [(side, _setting_of(side)) for side in ("FedAvg", "curvature", "SCAFFOLD")]
    yield maker.table("chosen settings", scored, settings)


def places_facts(results: Path) -> Iterator[float]:
    """Yield the NLLs of steps and means taken apart, and what the grid alone says.

    The grid has one batch size and decay. The least held-out NLL with fifty clients at ten and at
    twenty local epochs; the lead on pretrained features by the settings that the first two seeds
    choose; on digits the lead and FedAvg's NLL after one local epoch. SCAFFOLD's differences to
    FedAvg come first, tuned and with one local epoch each.
    """
    cells = places(results)
    for count in BESIDE.values():
        own = {"FedAvg": ("FedAvg", {"FedAvg": count, "SCAFFOLD": count} if count else {})}
        yield from (row.mean for row in leads(cells, own, "SCAFFOLD")["FedAvg"].values())
    cells = read(results)
    own = maker.where(cells, condition="digits, Dirichlet 0.5")
    own = own[(own["stage"] == "choice") | own["seed"].between(10, 19)]
    for counts in (dict.fromkeys(APART, 1), {}):
        rows = compared(own, counts)
        yield from (maker.where(rows, side=side)["nll"].mean() for side in APART)
    cells = maker.where(cells[cells["lr"].isin(GRID)], **USUAL)
    own = maker.where(cells, condition="50 clients, Dirichlet 0.5")
    for side in ("FedAvg", "curvature"):
        by_epochs = maker.where(own, side=side, seed=100).groupby("local_epochs")["held_out"].min()
        yield from by_epochs[[10, 20]]
    own = maker.where(cells, condition="pretrained, Dirichlet 0.1")
    rows = compared(own[(own["stage"] == "fresh") | own["seed"].isin([100, 101])])
    yield maker.pairs(rows, [("curvature", "FedAvg")], maker.AT_T).popitem()[1].mean
    for condition in ("digits, Dirichlet 0.1", "digits, Dirichlet 0.5"):
        rows = compared(maker.where(cells, condition=condition), {"curvature": 1, "FedAvg": 1})
        yield maker.pairs(rows, [("curvature", "FedAvg")], maker.AT_T).popitem()[1].mean
        yield maker.where(rows, side="FedAvg")["nll"].mean()


def _marked(found: Any) -> str:
    """Return a difference, in bold where it is beyond chance; a dash if there is none."""
    if found is None:
        return "–"
    return f"**{difference(found)}**" if found.holm < 0.05 else difference(found)


def places_picture(results: Path) -> maker.Figure:
    """Return leads over FedAvg with 95 % intervals: SCAFFOLD by curvature's, then curvature's.

    Places stand in the order of curvature's tuned leads.
    """
    cells = places(results)
    shown = {look: LOOKS[look] for look in LOOKS if look != "one local epoch, FedAvg two"}
    found = leads(cells, {BOTH: ("FedAvg", {})}, BOTH) | leads(cells, shown)
    tuned = found["tuned, equal rounds"]
    figure, panels = maker.panels(7.6, 4.6, 1, len(found), sharey=True, sharex=True)
    for axes, (look, rows) in zip(panels, found.items(), strict=True):
        own = {}
        for place in sorted(tuned, key=lambda place: float(tuned[place].mean)):
            row = rows.get(place, tuned[place]._replace(mean=nan, low=nan, high=nan))
            own[f"{place} ({tuned[place].pairs})"] = row._replace(pairs=0)
        maker.draw_differences(axes, maker.AT_T, own)
        axes.set_title(
            look.replace(", ", ",\n").replace(" each", "\neach").replace(" by", "\nby"), fontsize=8
        )
        axes.set_xlabel("NLL at T, difference", fontsize=7)
        axes.set_xlim(*REACH)
        axes.set_xticks([-0.3, 0])
        axes.tick_params(labelsize=7)
    return figure


def bytes_tables(results: Path) -> str:
    """Return scores and bytes of packed messages, with curvature and with point weights."""
    rows = maker.last(results)
    gaussian, controlled = rows["bayesian_layers"] > 0, rows["method"] == "SCAFFOLD"
    rows["side"] = rows["method"].where(controlled, "FedAvg")
    rows.loc[gaussian, "side"] = controlled.map({True: BOTH, False: "curvature"})
    sides = maker.by(rows, "side", "compress")
    return maker.table(["two local epochs", "`compress`"], sides, BYTES)
