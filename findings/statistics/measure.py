"""Measure coefficients of six public tables by round: python -m findings.statistics.measure.

Needs statsmodels and lifelines, whose wheels hold the tables. Cells that are in cells.jsonl already
are left as they are.
"""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_lung, load_rossi

import fedbary
from fedbary import client_app
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

CELLS = Path(__file__).with_name("cells.jsonl")
OPEN = {"min-rows": 0, "min-cell": 0, "max-columns": 1e9, "budget": 0}
"""Limits of nodes that tell as much as they are asked: the measurement is of the mathematics."""

ROUNDS = 1, 2, 3, 20


def tables():
    """Yield name, family, table with `y` (and `event`), and what sites may be split by."""
    fair = sm.datasets.fair.load_pandas().data
    yield "fair", "binomial", fair.assign(y=fair.pop("affairs") > 0), "age", 6
    rand = sm.datasets.randhie.load_pandas().data.rename(columns={"mdvis": "y"})
    yield "randhie", "poisson", rand, "lpi", 6
    held = sm.datasets.anes96.load_pandas()
    yield "anes96", "multinomial", held.exog.assign(y=held.endog.astype(int)), "age", 6
    names = {"week": "y", "arrest": "event"}
    yield "rossi", "cox", load_rossi().rename(columns=names), "age", 5
    gbsg = load_gbsg2().rename(columns={"time": "y", "cens": "event"})
    yield "gbsg2", "cox", pd.get_dummies(gbsg, drop_first=True, dtype=float), "age", 5
    lung = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna()
    yield "lung", "cox", lung.rename(columns={"time": "y", "status": "event"}), "inst", 0


def splits(table, column, sites):
    """Yield the name of a split, and each row's site."""
    if not sites:
        yield "institutions", table[column].astype(int).to_numpy()
        return
    yield "random", np.random.default_rng(0).permutation(len(table)) % sites
    rank = table[column].rank(method="first").to_numpy()
    yield f"by {column}", ((rank - 1) * sites // len(table)).astype(int)


def pooled(family, table, site):
    """Return the estimates and standard errors of all rows in one place, each (outcomes, terms)."""
    if family == "cox":
        fit = CoxPHFitter().fit(table.assign(site=site), "y", "event", strata=["site"],
                                fit_options={"precision": 1e-14})  # fmt: skip
        return fit.params_.to_numpy()[None], fit.standard_errors_.to_numpy()[None]
    x = table.drop(columns="y").assign(intercept=1.0).astype(float)
    if family == "multinomial":
        fit = sm.MNLogit(table.y, x).fit(method="newton", maxiter=100, tol=1e-12, disp=0)
        return fit.params.to_numpy().T, fit.bse.to_numpy().T
    law = sm.families.Binomial() if family == "binomial" else sm.families.Poisson()
    fit = sm.GLM(table.y.astype(float), x, law).fit(tol=1e-12)
    return fit.params.to_numpy()[None], fit.bse.to_numpy()[None]


def newton(family, table, estimate, std):
    """Return how many of Newton's steps by sums, from 0, reach 0.001 and 1e-6 std."""
    x = table.drop(columns="y").assign(intercept=1.0).to_numpy(float)
    y, width = table.y.to_numpy(), x.shape[1]
    scale = np.append(x[:, :-1].std(0), 1)
    z, wanted, outputs = x / scale, estimate * scale, len(estimate)
    one = (y[:, None] == np.arange(1, outputs + 1)) if family == "multinomial" else y[:, None]
    at, found = np.zeros_like(wanted), {}

    def law(at):
        f = z @ at.T
        if family == "poisson":
            return np.exp(f), (np.exp(f) - one * f).sum()
        top = np.maximum(f.max(1, keepdims=True), 0)
        total = np.exp(-top) + np.exp(f - top).sum(1, keepdims=True)
        return np.exp(f - top) / total, (
            top + np.log(total) - (one * f).sum(1, keepdims=True)
        ).sum()

    for step in range(1, 40):
        mean, value = law(at)
        bent = np.einsum("nk,kl->nkl", mean, np.eye(outputs))
        bent = bent if family == "poisson" else bent - mean[:, :, None] * mean[:, None]
        curved = np.einsum("nkl,ni,nj->kilj", bent, z, z, optimize=True)
        side = outputs * width
        way = np.linalg.solve(curved.reshape(side, side), ((mean - one).T @ z).ravel())
        size = 1.0
        while not law(at - size * way.reshape(at.shape))[1] <= value + 1e-9 * abs(value):
            size /= 2
        at = at - size * way.reshape(at.shape)
        error = (np.abs(at - wanted) / (std * scale)).max()
        for near in (1e-3, 1e-6):
            if error <= near:
                found.setdefault(near, step)
        if len(found) == 2:
            break
    return found


def words_of(family):
    """Return the settings of a family's task."""
    if family == "cox":
        return {"task": "survival", "family": family, "target": "y", "event": "event"}
    return {"task": "glm", "family": family, "target": "y", "intercepts": "common"}


def measure(name, family, table, split, site, oracle, prior_std=1000.0, each_rounds=ROUNDS):
    """Yield a cell for each number of rounds."""
    estimate, std = oracle
    with TemporaryDirectory() as folder:
        table.to_csv(f"{folder}/all.csv", index=False)
        nodes = []
        for each in np.unique(site):
            table[site == each].to_csv(f"{folder}/{each}.csv", index=False)
            nodes.append({"data-path": f"{folder}/{each}.csv", "name": f"site {each}", **OPEN})
        words = {**words_of(family), "dataset": f"{folder}/all.csv", "clients": len(nodes)}
        words |= {"prior_std": prior_std, "engine": "inline", "device": "cpu", "pictures": False}
        for rounds in each_rounds:
            chosen = resolve({**words, "rounds": rounds})
            start, output = time.process_time(), Path(folder) / f"run {rounds}"
            run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, output)
            seconds = time.process_time() - start
            held = fedbary.load(output).coefficients(anyway=True).factors
            found, own = (
                np.asarray(v).reshape(estimate.shape) for v in (held.estimates, held.stds)
            )
            taken = len((output / "metrics.jsonl").read_text().splitlines()) - 1
            yield {
                "data": name, "family": family, "split": split, "sites": len(nodes),
                "rows": len(table), "rounds": rounds, "taken": taken,
                "error": float((np.abs(found - estimate) / std).max()),
                "std_error": float(np.abs(own / std - 1).max()), "seconds": seconds,
            }  # fmt: skip


def main():
    """Measure what is not in the file yet."""
    held = [json.loads(line) for line in CELLS.read_text().splitlines()] if CELLS.exists() else []
    known = {(cell["data"], cell["split"]) for cell in held}
    for name, family, table, column, sites in tables():
        for split, site in splits(table, column, sites):
            if (name, split) in known:
                continue
            own = table.drop(columns="inst") if name == "lung" else table
            oracle = pooled(family, own, site)
            steps = {} if family == "cox" else newton(family, own, *oracle)
            cells = list(measure(name, family, own, split, site, oracle))
            for cell in cells:
                cell |= {"newton": steps.get(1e-3), "newton_exact": steps.get(1e-6)}
            with CELLS.open("a") as file:
                file.writelines(json.dumps(cell) + "\n" for cell in cells)


if __name__ == "__main__":
    main()
