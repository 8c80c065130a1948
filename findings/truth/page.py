"""Distances from the true posterior's predictive: what docs/results/truth.md shows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.results import Metric
from findings import maker
from findings.maker import BLUE, GREEN, GREY, ORANGE, RED, SKY

KL = Metric("kl", "KL from the truth, nats", decimals=4)
TV = Metric("tv", "total variation")
NLL = Metric("nll", "NLL by the labels")

KILOBYTES = (1.6, 8, 28, 180)
"""What a client may send in all, in the table of bytes."""

LINES = {
    "FedAvg": (RED, "-"),
    "SCAFFOLD": (ORANGE, "-"),
    "RKLB, the prior by share": (BLUE, "-"),
    "PVI": (SKY, "-"),
    "PVI, full sites": (GREEN, "-"),
    "PVI, Kronecker sites": (GREEN, "--"),
    "PVI, diagonal sites": (GREEN, ":"),
}
"""Sides of the picture, each with colour and style."""

OF_TRUTH = {
    "mode": "the truth's mode",
    "laplace": "the truth's Laplace",
    "draws": "200 draws of the truth",
}


def name_of(side: str) -> str:
    """Return what the page calls a side."""
    own: dict[str, Any] = json.loads(side)
    method = own.get("method", own.get("rule"))
    if own.get("inference") == "laplace":
        return f"PVI, {own['covariance']} sites".replace("kron", "Kron")
    if method == "PVI":
        name = "PVI, undamped start" if "undamped_start" in own else "PVI"
        return name + (", natural gradients" if "inference" in own else "")
    if "rho" in own or method == "BayesADMM":
        return f"BayesADMM, ρ = {own.get('rho', 1):g}, γ = {own['damping']:g}"
    if method == "FedEP":
        step, momentum = own.get("server_lr", 0.5), own.get("server_momentum", 0.9)
        return f"FedEP, s = {step:g}, β = {momentum:g}"
    if method not in ("RKLB", "WB"):
        return str(method)
    kl = own["kl_weight"]
    return f"{method}, " + ("the prior by share" if kl == "share" else f"`kl_weight={kl}`")


def read(results: Path) -> pd.DataFrame:
    """Return every row, with the side's name and split, and whether it is of the last round."""
    table = pd.read_csv(results / "scores.csv.xz")
    table["alpha"] = [json.loads(side).get("alpha", 0.1) for side in table["side"]]
    table["key"], table["side"] = table["side"], table["side"].map(name_of)
    last = table.groupby("key")["round"].transform("max")
    return table.assign(last=table["round"] == last)


def tables(results: Path) -> Iterator[str]:
    """Yield the distances by method, the tests, how sure the truth is, and the choice."""
    yield from more_tables(results)
    one = read(results).drop_duplicates("seed")
    sure = one["r_hat"].max(), one["size"].min(), one["between"].max()
    head = ["largest split R̂ of a weight", "least effective size", "largest KL between two runs"]
    told = (form.format(value) for form, value in zip(("{:.4f}", "{:,.0f}", "{:.5f}"), sure,
                                                      strict=True))  # fmt: skip
    yield maker.cells((), head, [((), [*told])])
    end = read(results / "choice")
    sides = maker.by(end[end["last"]], "side")
    kl = "`lr` (/ `log_var_lr`): KL at two other seeds", _tried
    yield maker.table("side", sides, [kl])


def _tried(own: pd.DataFrame) -> str:
    """Return the distance at each step size of a side."""
    found = []
    for key, seeds in own.groupby("key"):
        words = json.loads(key)
        rates = (f"{words[name]:g}" for name in ("lr", "log_var_lr") if name in words)
        found.append(f"{' / '.join(rates)}: {seeds['kl'].mean():.4f}")
    return ", ".join(found)


def more_tables(results: Path) -> Iterator[str]:
    """Yield the distances by method at one split, by round and by bytes, and the tests."""
    rows = read(results)
    split, sides = f"Dirichlet {rows['alpha'].iloc[0]:g}", maker.by(rows, "side")
    body = {}
    for side, own in sides.items():
        end = own[own["last"]]
        last = KL.show(end["kl"]), f"{end['round'].iloc[0]}", f"{end['kilobytes'].mean():.3g}"
        by_round = (_shown(own[own["round"] == number]) for number in (1, 5, 20))
        body[side] = [*by_round, *last, TV.show(end["tv"]), NLL.show(end["nll"])]
    one = rows.drop_duplicates("seed")
    for column, name in OF_TRUTH.items():
        far, tv = KL.show(one[f"{column}_kl"]), TV.show(one[f"{column}_tv"])
        body[f"*{name}*"] = ["–", "–", "–", far, "–", "–", tv, "–"]
    head = ["KL, round 1", "KL, round 5", "KL, round 20", "KL, last round", "last round"]
    yield maker.cells(split, [*head, "KB up a client", TV.label, NLL.label], body)
    body = {}
    for side, own in sides.items():
        sent = own.groupby("round")["kilobytes"].mean()
        within = (sent[sent <= most].index.max() for most in KILOBYTES)
        by_sent = (_shown(own[own["round"] == number]) for number in within)
        body[side] = [f"{sent.iloc[0] / sent.index[0]:.3g}", *by_sent]
    head = ["KB up a round", *(f"within {most:g} KB" for most in KILOBYTES)]
    yield maker.cells(f"KL, {split}", head, body)
    pairs = maker.pairs(rows[rows["last"]], [(s, "FedAvg") for s in sides if s != "FedAvg"], KL)
    yield maker.tests_table(f"pair, {split}", KL, pairs)


def _shown(own: pd.DataFrame) -> str:
    return KL.show(own["kl"]) if len(own) else "–"


def picture(results: Path) -> maker.Figure:
    """Return the distance against rounds and against bytes, at Dirichlet 0.1."""
    rows = read(results)
    figure, panels = maker.panels(9.0, 3.8, 1, 2, sharey=True)
    sent = rows.groupby(["side", "round"])["kilobytes"].transform("mean")
    for axes, x in zip(panels, (rows["round"], sent), strict=True):
        for side, (color, style) in LINES.items():
            own = rows["side"] == side
            look = {"color": color, "fmt": f"o{style}", "label": side}
            maker.course(axes, x[own], rows.loc[own, "kl"], **look)
        for column, style in (("mode", "--"), ("draws", ":")):
            far = rows[f"{column}_kl"].mean()
            axes.axhline(far, color=GREY, linestyle=style, label=OF_TRUTH[column])
        axes.set(xscale="log", yscale="log")
    panels[0].set(ylabel=KL.label, xlabel="rounds")
    panels[1].set_xlabel("KB that a client sends in all")
    maker.legend_below(figure, 5)
    return figure
