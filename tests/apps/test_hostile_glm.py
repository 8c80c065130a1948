"""A site of a logistic model that claims what no rows can have is left out by name; others stay."""

import logging

import numpy as np
import pytest
from flwr.app import Array
from hostile_site import run_with_a_hostile_site
from runs_of import INLINE, lines
from scipy.special import expit

import fedbary
from fedbary.settings.config import resolve

ROWS, SKEWED = 800, {"partition": "dirichlet", "alpha": 0.1, "min_examples": 5}


def fitted(folder, table, lie=None, clients=4, moments=None, **words):
    """Fit with a site that lies: its admitted replies by round, and the table."""

    def spoil(action, reply):
        for told in reply.content.metric_records.values() if moments else ():
            if "moments" in told:
                told["moments"] = [moments * each for each in told["moments"]]
        for record in reply.content.array_records.values() if action == "train" and lie else ():
            for key, array in record.items():
                record[key] = Array(lie(key, array.numpy()))

    text = [",".join(map(str, row)) + "\n" for row in table]
    names = ",".join([*"uvwxyz"[: len(table[0]) - 1], "out"])
    (folder / "rows.csv").write_text(names + "\n" + "".join(text))
    own = {"task": "glm", "target": "out", "dataset": f"{folder}/rows.csv", "clients": clients}
    chosen = resolve({**INLINE, **own, **{"rounds": 7, **words}})
    output = folder / f"run {len([*folder.glob('run *')])}"
    run_with_a_hostile_site(chosen, output, spoil, 1)
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
