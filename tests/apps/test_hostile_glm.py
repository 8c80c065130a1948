"""A site of coefficients that claims what no rows can have is left out by name; others stay."""

import logging

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array
from hostile_site import run_with_a_hostile_site
from runs_of import INLINE, lines
from scipy.special import expit

import fedbary
from fedbary.settings.config import resolve

ROWS, SKEWED = 800, {"partition": "dirichlet", "alpha": 0.1, "min_examples": 5}


def spoiler(lie, moments=None):
    """Return what changes a site's arrays in training, if it lies."""

    def spoil(action, reply):
        for told in reply.content.metric_records.values() if moments else ():
            if "moments" in told:
                told["moments"] = [moments * each for each in told["moments"]]
        for record in reply.content.array_records.values() if action == "train" and lie else ():
            for key, array in record.items():
                record[key] = Array(lie(key, array.numpy()))

    return spoil


def fitted(folder, table, lie=None, clients=4, moments=None, **words):
    """Fit with a site that lies: its admitted replies by round, and the table."""

    text = [",".join(map(str, row)) + "\n" for row in table]
    names = ",".join([*"uvwxyz"[: len(table[0]) - 1], "out"])
    (folder / "rows.csv").write_text(names + "\n" + "".join(text))
    own = {"task": "glm", "target": "out", "dataset": f"{folder}/rows.csv", "clients": clients}
    chosen = resolve({**INLINE, **own, **{"rounds": 7, **words}})
    output = folder / f"run {len([*folder.glob('run *')])}"
    run_with_a_hostile_site(chosen, output, spoiler(lie, moments), 1)
    found = fedbary.load(output).coefficients(anyway=True).table
    return [line["admitted"] for line in lines(output)[1:]], found


def rows():
    """Rows of a logistic model."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3))
    y = draw.random(ROWS) < expit(x @ [0.8, -0.5, 0.3])
    return [[*each, "ny"[int(ill)]] for each, ill in zip(x.tolist(), y, strict=True)]


LIES = {
    "a curvature of 1e12": lambda key, held: held if "slope" in key else held * 1e12,
    "one too large by 100": lambda key, held: held if "slope" in key else held * 100,
    "one below 0": lambda key, held: held if "slope" in key else -held,
    "a slope beyond": lambda key, held: held * 0 + 1e3 if "slope" in key else held,
    "all 0 but the slope": lambda key, held: held * 0 + 3e3 * ("slope" in key),
}


@pytest.mark.parametrize("clients", [2, 4])
@pytest.mark.parametrize("lie", LIES)
def test_what_no_rows_can_have_is_left_out_by_name(lie, clients, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    admitted, found = fitted(tmp_path, rows(), LIES[lie], clients)
    assert {*admitted} == {clients - 1}
    refused = [text for text in caplog.messages if "reply refused" in text]
    assert refused and all("partition 1 " in text for text in refused)
    assert found.estimate.abs().max() < 1.5


def test_second_moments_beyond_all_rows_are_left_out_by_name(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    found = {}
    for lie in (None, 1e270):
        found[lie] = fitted(tmp_path, rows(), moments=lie)[1]
    assert any("partition 1" in text and "second moments above" in text for text in caplog.messages)
    assert ((found[None].estimate - found[1e270].estimate).abs() < 0.02 * found[None]["std"]).all()


def test_a_lie_within_the_bounds_moves_no_more_than_rows_could(tmp_path):
    _, honest = fitted(tmp_path, rows())
    admitted, found = fitted(tmp_path, rows(), lambda k, a: a * 0 + 30 if "slope" in k else a)
    assert {*admitted} == {4}
    assert ((found.estimate - honest.estimate).abs() / found["std"]).max() < (0.9 * ROWS / 4) ** 0.5


@pytest.mark.parametrize(("intercepts", "classes"), [("site", 2), ("common", 3)])
def test_no_honest_site_is_doubted(intercepts, classes, tmp_path):
    """Of heavy tails, levels far apart, classes that a column separates, and a class alone."""
    draw = np.random.default_rng(classes)
    x = draw.standard_t(1.5, size=(300, 3))
    x[:, 1] += 30 * draw.integers(3, size=300)
    y = np.digitize(x[:, 0] + 0.1 * draw.normal(size=300), np.linspace(-1, 1, classes - 1))
    table = [[*each, f"c{k}"] for each, k in zip(x.tolist(), y, strict=True)]
    family = "binomial" if classes == 2 else "multinomial"
    admitted, _ = fitted(tmp_path, table, family=family, intercepts=intercepts, rounds=3, **SKEWED)
    assert {*admitted} == {4}


FAMILIES = {
    "poisson": {"task": "glm", "family": "poisson", "target": "count", "exposure": "years"},
    "gaussian": {"task": "glm", "family": "gaussian", "target": "number"},
    "cox": {"task": "survival", "family": "cox", "target": "years"},
    "hazard": {"task": "survival", "family": "hazard", "target": "years"},
}


def of_family(folder, family, lie=None, heavy=False, spoil=None, **words):
    """Fit a family, with a site that lies or none: admitted by round, and the table."""
    draw = np.random.default_rng(3)
    x = draw.standard_t(1.5, size=(400, 2)) if heavy else draw.normal(size=(400, 2))
    near, years = x[:, 0].clip(-3, 3), np.exp(draw.normal(0, 1 + heavy, 400))
    held = {"u": x[:, 0], "v": x[:, 1] + 30 * heavy * draw.integers(4, size=400), "years": years}
    held |= {"count": draw.poisson(years * np.exp(0.6 * near - 1))}
    held |= {"number": near + draw.normal(size=400), "event": draw.integers(2, size=400)}
    pd.DataFrame(held).to_csv(folder / "rows.csv", index=False)
    own = {"dataset": f"{folder}/rows.csv", "terms": "u v", "clients": 4, **FAMILIES[family]}
    chosen = resolve({**INLINE, **own, "rounds": 7, **words})
    run_with_a_hostile_site(chosen, folder / "run", spoil or spoiler(lie), 1)
    found = fedbary.load(folder / "run").coefficients(anyway=True).table
    return [line["admitted"] for line in lines(folder / "run")[1:]], found


BEYOND = {
    "a curvature of 1e12": lambda key, held: held if "slope" in key else held * 1e12,
    "one below 0": lambda key, held: held if "slope" in key else -held,
    "a slope beyond": lambda key, held: held * 0 + 1e12 if "slope" in key else held,
}


@pytest.mark.parametrize("lie", BEYOND)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_rows_of_a_family_can_have_is_left_out_by_name(lie, family, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    admitted, found = of_family(tmp_path, family, BEYOND[lie])
    assert {*admitted} == {3}
    refused = [text for text in caplog.messages if "reply refused" in text]
    assert refused and all("partition 1 " in text for text in refused)
    assert found.estimate[found.term.isin(["u", "v"])].abs().max() < 1.5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hessian_that_the_value_at_its_point_forbids_is_left_out_by_name(family, tmp_path):
    """Newton's points are no modes: a site's own value bounds its rates."""

    def lie(key, held):
        return 1e12 * held if "hessian" in key else held

    admitted, found = of_family(tmp_path, family, lie, method="Newton")
    assert {*admitted} == {3}
    assert found.estimate[found.term.isin(["u", "v"])].abs().max() < 1.5


@pytest.mark.parametrize("family", ["poisson", "gaussian", "hazard"])
def test_products_of_scores_that_no_rows_of_a_family_have_are_left_out(family, tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    def spoil(action, reply):
        if action == "ask" and "products" in (held := reply.content["metrics"]):
            held["products"] = [1e12 * each for each in held["products"]]

    _, found = of_family(tmp_path, family, spoil=spoil, errors="robust")
    assert any("partition 1 (node 3) sent no scores" in text for text in caplog.messages)
    assert found["std"][found.term.isin(["u", "v"])].max() < 1  # the model's, by anyway=True


@pytest.mark.parametrize(
    ("intercepts", "method"), [("site", "PVI"), ("common", "PVI"), ("common", "Newton")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_honest_site_of_a_family_is_doubted(family, intercepts, method, tmp_path):
    """Of heavy tails, exposures of all sizes, and sites of most rows and of few."""
    words = {"intercepts": intercepts} if family != "cox" else {}
    words |= {"method": method, "rounds": 12}
    skewed = {"partition": "quantity", "alpha": 0.1, "min_examples": 5}
    admitted, _ = of_family(tmp_path, family, heavy=True, **words, **skewed)
    assert {*admitted} == {4}
