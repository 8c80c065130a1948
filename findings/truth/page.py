"""Distances from the true posterior's predictive: what docs/results/truth.md shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, GREY, ORANGE, RED, SKY, open_frame, sheet
from fedbary.report.cells import Metric
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair, tests_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KL = Metric("kl", "KL from the truth, nats", decimals=4)
TV = Metric("tv", "total variation")
NLL = Metric("nll", "NLL by the labels")
SHOWN = (1, 5, 20)
"""Rounds of the table, beside the last."""

KILOBYTES = (1.6, 8, 28, 180)
"""What a client may send in all, in the table of bytes."""

MEAN_FIELD = "PVI"

LINES = {
    "FedAvg": (RED, "-"),
    "SCAFFOLD": (ORANGE, "-"),
    "RKLB, the prior by share": (BLUE, "-"),
    MEAN_FIELD: (SKY, "-"),
    "PVI, full sites": (GREEN, "-"),
    "PVI, Kronecker sites": (GREEN, "--"),
    "PVI, diagonal sites": (GREEN, ":"),
}
"""Sides of the picture, each with colour and style."""


def name_of(side: str) -> str:
    """Return what the page calls a side."""
    own: dict[str, Any] = json.loads(side)
    method = own.get("method", own.get("rule"))
    if own.get("inference") == "laplace":
        return f"PVI, {own['covariance']} sites".replace("kron", "Kron")
    if method == "PVI":
        name = "PVI, undamped start" if "undamped_start" in own else MEAN_FIELD
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


def tables(results: Path) -> str:
    """Return the distances by method and split, the tests, how sure the truth is, the choice."""
    rows = read(results)
    return "\n\n".join([by_split(rows), _truth(rows), _choice(results / "choice")])


def by_split(rows: pd.DataFrame) -> str:
    """Return the distances by method at one split, and the tests."""
    return "\n\n".join([_distances(rows), _bytes(rows), _tests(rows)])


def _distances(rows: pd.DataFrame) -> str:
    alpha, body = rows["alpha"].iloc[0], []
    for side, own in rows.groupby("side", sort=False):
        cells = [KL.show(own[own["round"] == number]["kl"]) if number in set(own["round"]) else "–"
                 for number in SHOWN]  # fmt: skip
        end = own[own["last"]]
        told = [f"{end['round'].iloc[0]}", f"{end['kilobytes'].mean():.3g}"]
        body.append(
            [side, *cells, KL.show(end["kl"]), *told, TV.show(end["tv"]), NLL.show(end["nll"])]
        )
    one = rows.drop_duplicates("seed")
    for name, column in (("the truth's mode", "mode"), ("the truth's Laplace", "laplace"),
                         ("200 draws of the truth", "draws")):  # fmt: skip
        far = [KL.show(one[f"{column}_kl"]), "–", "–", TV.show(one[f"{column}_tv"])]
        body.append([f"*{name}*", "–", "–", "–", *far, "–"])
    head = [f"Dirichlet {alpha:g}", *(f"KL, round {number}" for number in SHOWN), "KL, last round"]
    head += ["last round", "KB up a client", TV.label, NLL.label]
    return markdown_table(head, body)


def _bytes(rows: pd.DataFrame) -> str:
    """Return the distance after the last scored round in which a client has sent so much."""
    body = []
    for side, own in rows.groupby("side", sort=False):
        sent = own.groupby("round")["kilobytes"].mean()
        cells = []
        for most in KILOBYTES:
            within = sent[sent <= most]
            last = own[own["round"] == within.index.max()] if len(within) else own[:0]
            cells.append(KL.show(last["kl"]) if len(within) else "–")
        body.append([side, f"{sent.iloc[0] / sent.index[0]:.3g}", *cells])
    head = [f"KL, Dirichlet {rows['alpha'].iloc[0]:g}", "KB up a round"]
    head += [f"within {most:g} KB" for most in KILOBYTES]
    return markdown_table(head, body)


def pairs(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return what is tested: each method beside FedAvg."""
    return [(side, "FedAvg") for side in rows["side"].unique() if side != "FedAvg"]


def _tests(rows: pd.DataFrame) -> str:
    end, alpha = rows[rows["last"]], rows["alpha"].iloc[0]
    named = {f"{pair[0]} − {pair[1]}": of_pair(end, pair, KL) for pair in pairs(rows)}
    return tests_table(f"pair, Dirichlet {alpha:g}", KL, named)


def _truth(rows: pd.DataFrame) -> str:
    one = rows.drop_duplicates("seed")
    body = [[
        f"{one['r_hat'].max():.4f}", f"{one['size'].min():,.0f}", f"{one['between'].max():.5f}",
    ]]  # fmt: skip
    head = ["largest split R̂ of a weight", "least effective size", "largest KL between two runs"]
    return markdown_table(head, body)


def _choice(results: Path) -> str:
    rows = read(results)
    end = rows[rows["last"]]
    body = []
    for side, own in end.groupby("side", sort=False):
        tried = {}
        for key, seeds in own.groupby("key"):
            words = json.loads(key)
            rates = [words["lr"], *([words["log_var_lr"]] if "log_var_lr" in words else [])]
            tried[" / ".join(f"{rate:g}" for rate in rates)] = seeds["kl"].mean()
        body.append([str(side), ", ".join(f"{rate}: {kl:.4f}" for rate, kl in tried.items())])
    return markdown_table(["side", "`lr` (/ `log_var_lr`): KL at two other seeds"], body)


def picture(results: Path) -> Figure:
    """Return the distance against rounds and against bytes, at Dirichlet 0.1."""
    rows = read(results)
    figure = sheet(9.0, 3.8)
    for axes, column in zip(
        figure.subplots(1, 2, sharey=True), ("round", "kilobytes"), strict=True
    ):
        for side, (color, style) in LINES.items():
            mean = rows[rows["side"] == side].groupby("round")[["kl", "kilobytes"]].mean()
            x = mean.index if column == "round" else mean["kilobytes"]
            axes.plot(x, mean["kl"], f"o{style}", color=color, markersize=4, label=side)
        axes.axhline(rows["mode_kl"].mean(), color=GREY, linestyle="--", label="the truth's mode")
        axes.axhline(
            rows["draws_kl"].mean(), color=GREY, linestyle=":", label="200 draws of the truth"
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rounds" if column == "round" else "KB that a client sends in all")
        open_frame(axes)
    figure.axes[0].set_ylabel(KL.label)
    named = figure.axes[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    return figure
