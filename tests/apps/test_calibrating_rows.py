"""Thresholds by group and by site: runs on tables of numbers, and on classes."""

import csv
import json

import numpy as np
import pytest
import torch
from every_method import OF_CLASSES, night, of_tables
from hostile_site import run_with_a_hostile_site

import fedbary
from fedbary.commands.use import evaluate, predict
from fedbary.errors import SettingError
from fedbary.predictive.conformal import Thresholds
from fedbary.settings.config import resolve
from fedbary.tasks import row_names, task_of
from server_app.engine.inline import run_inline

QUICK = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": 3, "rounds": 1,
    "holdout": 0.3, "conformal": 0.9,
}  # fmt: skip


def settings(**changes):
    return resolve({**QUICK, **changes})


def kept(folder):
    return json.loads((folder / "conformal.json").read_text())


def rows(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def wards(folder, rows=240):
    """A table whose noise differs by ward, one of which is small."""
    rng = np.random.default_rng(0)
    ward = np.where(
        np.arange(rows) % 8 == 0, "small", np.where(np.arange(rows) % 2, "calm", "loud")
    )
    a = rng.normal(size=rows)
    y = a + rng.normal(size=rows) * np.where(ward == "loud", 3.0, 0.3)
    lines = [f"{x:.4f},{w},{t:.4f}" for x, w, t in zip(a, ward, y, strict=True)]
    (folder / "wards.csv").write_text("\n".join(["a,ward,y", *lines]))
    return folder / "wards.csv"


def test_numbers_have_intervals_by_group_and_by_site(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = {
        "method": "ConjugateGaussian", "model": "linear", "task": "regression", "noise": "learned",
        "dataset": str(wards(tmp_path)), "conformal_by": "ward", "conformal": 0.8, "pictures": True,
    }  # fmt: skip
    run_inline(settings(**numbers), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    held = kept(tmp_path / "run")
    assert held["thresholds"]["loud"] > 2 * held["thresholds"]["calm"]
    assert {"all", "ward=calm", "ward=loud", "ward=small"} == held["test"].keys()
    for told in held["sites"].values():
        low, high = (told[f"covered_by_others_{end}"] for end in ("low", "high"))
        assert low <= told["covered_by_others"] <= high
    known = trained.read(tmp_path / "wards.csv")
    low, high = trained.intervals(known)
    forecast = trained.scored_by_sites(known)
    q = torch.tensor([held["thresholds"][ward] for ward in known.columns["ward"]])
    torch.testing.assert_close((high - low) / 2, q.double() * forecast.var.double().sqrt())
    predict(tmp_path / "run", tmp_path / "wards.csv")
    row = rows("predictions.csv")[0]
    assert float(row["low"]) == pytest.approx(float(low[0]), rel=1e-4)
    evaluate(tmp_path / "run", tmp_path / "wards.csv", by="ward")
    scored = {row["group"]: row for row in rows("evaluation/sets.csv")}
    here = known.columns["ward"] == "loud"
    hits = ((low <= known.y) & (known.y <= high)).numpy()[here]
    assert float(scored["ward=loud"]["coverage"]) == pytest.approx(hits.mean(), abs=1e-5)
    assert float(scored["ward=loud"]["width"]) > 2 * float(scored["ward=calm"]["width"])
    capsys.readouterr()
    predict(tmp_path / "run", tmp_path / "wards.csv", site="partition 1", level=0.9, force=True)
    said = capsys.readouterr()
    assert "partition 1 holds out too few examples for thresholds of its own: small" in (
        said.err + said.out
    )
    own = trained.thresholds(0.9, "partition 1").bins
    alone = Thresholds(0.9, trained.sites["partition 1"].scores).bins
    names = row_names(trained.settings, trained.signature)
    assert own[names.index("loud")] == alone[names.index("loud")]
    assert own[names.index("small")] == trained.thresholds(0.9).bins[names.index("small")]
    with pytest.raises(SettingError, match="site: 'nobody'; expected partition 0, partition 1"):
        trained.intervals(known, site="nobody")


def test_sets_for_a_site_weigh_classes_as_it_has_them(tmp_path):
    own = {"method": "LDA", "model": "linear", "alpha": 0.3, "conformal_by": "class"}
    run_inline(settings(**own), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    x = trained.evaluation_examples()
    own = trained.sites["partition 2"].scores
    expected = Thresholds(0.9, trained.thresholds().counts, own.sum(1))
    found = trained.sets(x, site="partition 2")
    assert torch.equal(found, expected.sets("lac", trained.scored_by_sites(x).probs))
    assert not torch.equal(found, trained.sets(x))


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ({"conformal_by": "sex"}, "all or class for task=classification"),
        ({"task": "regression", "bayesian_layers": 0, "conformal_by": "class"},
         "all or a column of levels for task=regression"),
        ({"task": "regression", "bayesian_layers": 0, "conformal": "none"},
         "0 for regression without conformal"),
    ],
)  # fmt: skip
def test_rows_that_a_task_has_not_are_refused(words, allowed):
    with pytest.raises(SettingError, match=allowed):
        settings(**words)


def test_a_column_without_levels_is_refused_before_the_first_round():
    numbers = {"task": "tables", "conformal_by": "mean radius"}
    with pytest.raises(SettingError, match="conformal_by: 'mean radius'; expected all, class"):
        task_of(settings(**numbers)).check(own_data=False)


def test_a_site_sends_whole_numbers_alone(tmp_path):
    """The server has no example: a reply has four lists of counts, and no array."""
    sent = []

    def heard(action, reply):
        if action == "ask" and "cells" in reply.content.metric_records["metrics"]:
            sent.append(reply.content)

    own = {"method": "LDA", "model": "linear", "conformal_by": "class"}
    run_with_a_hostile_site(settings(**own), tmp_path / "run", heard, 1)
    (content,) = sent
    assert [*content] == ["metrics"]
    metrics = dict(content.metric_records["metrics"])
    assert metrics.keys() == {"cells", "counts", "risk-cells", "risk-counts"}
    assert {type(number) for numbers in metrics.values() for number in numbers} == {int}
    assert sum(metrics["counts"]) == fedbary.load(tmp_path / "run").sites["partition 1"].examples


@night
@pytest.mark.parametrize("name", OF_CLASSES)
def test_after_any_method_every_site_has_part_in_the_sets(name, tmp_path):
    run_inline(of_tables(name, holdout=0.3, conformal=0.9), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    assert trained.sites.keys() == {f"partition {k}" for k in range(3)}
    known = trained.evaluation_examples()
    hits = trained.sets(known).gather(1, known.y[:, None])
    assert float(hits.double().mean()) > 0.75
