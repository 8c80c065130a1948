"""A run's sites calibrate sets and thresholds together; a hostile one has its share at most."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from every_method import OF_CLASSES, night, of_tables
from hostile_site import killed_at, run_with_a_hostile_site
from own_sites import cut
from refusals import refused
from runs_of import INLINE, rows

import fedbary
from fedbary import client_app
from fedbary.commands.use import evaluate, predict
from fedbary.data.images import load
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.predictive.conformal import Thresholds, bounded, together
from fedbary.runs.conformal_kept import table_of_sites
from fedbary.seeds import seed_of_draws
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.settings.uses import require_used
from fedbary.tasks import held_out, hits_and_sizes, row_names, task_of
from fedbary.trained.judgement import set_scores

FEW = {**INLINE, "clients": 3, "rounds": 1, "holdout": 0.3, "conformal": 0.9}
QUICK = {"local_epochs": 2, "samples": 4, "model": "mlp", "bayesian_layers": 1}
RUNS = {
    "draws": {"conformal_score": "aps"},
    "by class": {"conformal_by": "class", "calibrate": "temperature"},
    "tables": {"task": "tables", "conformal_score": "raps", "class_weights": "balanced"},
    "members": {"method": "FedAG", "bayesian_layers": 0},
    "pool": {"method": "PredBayes", "thinning": 1, "server_fraction": 0.1, "bayesian_layers": 0},
    "gate": {"method": "FedHBMixture", "bayesian_layers": 0},
    "laplace": {"method": "Laplace", "bayesian_layers": 0},
    "numbers of FedAG": {"task": "regression", "bayesian_layers": 0},
    "numbers": {"protocol": "regression-vi"},
    "best": {"rounds": 3, "keep_best": "nll", "evaluate_on": "validation", "lr": 0.3},
}  # fmt: skip
IMAGES = {"dataset": "none", "classes": "10", "input_shape": "1x8x8"}


def rows_of(**changes):
    """Settings of a run of any task."""
    return resolve({**FEW, **changes})


def settings(**changes):
    return rows_of(**QUICK | changes)


def kept(folder):
    return json.loads((folder / "conformal.json").read_text())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "pool" else name for name in RUNS],
)
def test_the_histograms_are_those_of_the_model_that_is_loaded(name, tmp_path):
    """Whatever predicts: the sites score the very networks that `fedbary predict` draws."""
    chosen, folder = settings(**RUNS[name]), tmp_path / "run"
    run_inline(chosen, folder)
    trained = fedbary.load(folder)
    task, classes, expected = trained.task, len(trained.signature.classes), {}
    for partition in range(3):
        site = Site(f"partition {partition}", "", partition, 3)
        shard = task.shard(site, trained.signature)
        prepared = task.prepared(shard, trained.facts) if trained.facts else shard
        seed = seed_of_draws(chosen.seed)
        x = prepared.x_held_out
        predicted = task.predicted(trained.network, x, trained.facts, seed, trained.predictive)
        own = shard.x_held_out, shard.y_held_out
        expected[site.name] = held_out(chosen, trained.signature, predicted, *own)
        _, sizes = hits_and_sizes(chosen, trained.thresholds().bins, predicted, own[1], None)
        told, called = kept(folder)["sites"][site.name], "set_size"
        called = called if classes else "width"
        assert told[called] == pytest.approx(float(sizes.double().mean()))
        assert told[f"{called}_low"] <= told[called] <= told[f"{called}_high"]
    for site, held in bounded(expected, None).items():
        found = trained.sites[site]
        assert torch.equal(found.scores, held.scores) and torch.equal(found.risk, held.risk)
        assert len(held.scores) == len(row_names(chosen, trained.signature))
    assert trained.thresholds().examples == kept(folder)["examples"]
    known = trained.evaluation_examples()
    table, *_ = set_scores(trained, known, trained.thresholds())
    found = {name: column[0] for name, column in table.items() if name != "group"}
    scored = kept(folder)["test"]
    assert found == pytest.approx(scored["all"])
    assert len(scored) == classes + 1


def test_sets_are_of_the_probabilities_that_are_predicted(tmp_path):
    run_inline(settings(pictures=True), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    x = trained.evaluation_examples()
    edge = kept(tmp_path / "run")["thresholds"]["all"]
    score = 1 - trained.predict(x).probs.double()
    sets = trained.sets(x)
    assert sets[score < edge - 1e-6].all() and not sets[score > edge + 1e-6].any()
    assert (trained.sets(x, 0.5) <= sets).all() and (sets <= trained.sets(x, 0.99)).all()
    assert (tmp_path / "run" / "set-sizes.png").stat().st_size > 0


def test_a_run_without_sets_says_so(tmp_path):
    run_inline(settings(conformal="none"), tmp_path / "run")
    trained = fedbary.load(tmp_path / "run")
    assert not (tmp_path / "run" / "conformal.json").exists()
    with pytest.raises(SettingError, match="conformal: 'none'; expected a run with conformal"):
        trained.sets(trained.evaluation_examples())


def test_a_run_that_was_cut_off_calibrates_what_it_would_have(tmp_path):
    run_inline(settings(), tmp_path / "whole")

    with killed_at("fedbary.server_app.recorder.Recorder.finish"):
        run_inline(settings(), tmp_path / "run")
    (tmp_path / "run" / "conformal.json").unlink()
    run_inline(settings(resume="last"), tmp_path / "run")
    one, other = ((tmp_path / f / "conformal.json").read_bytes() for f in ("whole", "run"))
    assert one == other


LIES = [
    lambda held: {name: [2 * count for count in held[name]] for name in ("counts", "risk-counts")},
    lambda held: {"risk-counts": [2 * count for count in held["risk-counts"]]},
    lambda held: {"cells": [10**9, *held["cells"][1:]]},
    lambda held: {"counts": [-count for count in held["counts"]]},
    lambda held: {"counts": [math.nan for _ in held["counts"]]},
    lambda held: {"cells": []},
]
"""What a site sends in the place of its histogram."""


@pytest.mark.parametrize("lie", LIES)
def test_a_site_whose_histogram_is_not_of_what_it_holds_is_left_out_by_name(lie, tmp_path, caplog):
    def spoil(action, reply):
        metrics = reply.content.metric_records["metrics"]
        if action == "ask" and "counts" in metrics and "cells" in metrics:
            for name, value in lie(dict(metrics)).items():
                metrics[name] = value

    run_with_a_hostile_site(settings(), tmp_path / "run", spoil, 1)
    assert kept(tmp_path / "run")["sites"].keys() == {"partition 0", "partition 2"}
    said = [line.getMessage() for line in caplog.records if "left out" in line.getMessage()]
    assert len(said) >= 1 and all("partition 1" in line for line in said)


def test_a_site_that_says_its_rows_repeat_is_named_and_changes_no_threshold(tmp_path, caplog):
    def spoil(action, reply):
        metrics = reply.content.metric_records["metrics"]
        if action == "ask" and "cells" in metrics:
            metrics["repeated"] = sum(metrics["counts"])

    run_with_a_hostile_site(settings(), tmp_path / "run", spoil, 1)
    run_inline(settings(), tmp_path / "honest")
    assert kept(tmp_path / "run")["thresholds"] == kept(tmp_path / "honest")["thresholds"]
    assert "Equal examples are held out by partition 1" in caplog.messages


@pytest.mark.parametrize(
    ("liars", "sites", "ratio", "most"),
    [((1,), 3, "none", 1.0), ((1,), 3, 1.0, 0.5), ((1, 2), 5, "none", 1.0), ((1, 2), 5, 3.0, 2.0)],
)
def test_sites_that_claim_a_million_move_coverage_by_the_stated_bound(
    liars, sites, ratio, most, tmp_path, caplog
):
    """All their scores are the lowest, so sets get as small as they can make them."""
    million = 10**6

    def spoil(action, reply):
        metrics = reply.content.metric_records["metrics"]
        if action == "query":
            metrics["num-held-out"] = million
            metrics["label-counts"] = []
        if action == "ask" and "cells" in metrics:
            metrics["cells"], metrics["risk-cells"] = [0], [0]
            metrics["counts"] = metrics["risk-counts"] = [million]

    chosen = settings(max_weight_ratio=ratio, partition="iid", clients=sites)
    caplog.set_level("INFO")
    run_with_a_hostile_site(chosen, tmp_path / "run", spoil, *liars)
    trained = fedbary.load(tmp_path / "run")
    lying = {f"partition {k}" for k in liars}
    forged = sum(trained.sites[name].examples for name in lying)
    honest = together([site for name, site in trained.sites.items() if name not in lying])
    n = honest.examples
    assert forged == pytest.approx(most * n, rel=0.02)
    covered = trained.thresholds().covered(honest.scores)
    least = 0.9 - 0.1 * forged / (n + 1)
    assert 0.9 > covered / n >= least >= 0.9 - 0.1 * most - 0.002
    for name in lying:
        assert f"{name} holds out {million} examples, which count as" in caplog.text
    said = re.search(r"hold the truth in at least .*", caplog.text)[0]
    assert f"{100 * least:.1f} % if {len(liars)} of {sites} lies" in said


@pytest.mark.parametrize("lie", [math.nan, 11.0])
def test_a_site_that_lies_about_its_sizes_changes_no_other_number(lie, tmp_path, caplog):
    def spoil(action, reply):
        metrics = reply.content.metric_records["metrics"]
        if action == "ask" and "mean" in metrics:
            metrics["mean"] = lie

    run_with_a_hostile_site(settings(), tmp_path / "run", spoil, 1)
    found = table_of_sites(tmp_path / "run")
    assert [math.isnan(size) for size in found["set_size"]] == [False, True, False]
    assert "sent no conformal-sizes" in caplog.text


@pytest.mark.parametrize(
    ("withhold", "by", "told"),
    [("scores", "all", False), ("answers", "all", False), ("label-counts", "class", False),
     ("label-counts", "all", True)],
)  # fmt: skip
def test_a_site_withholds_its_histogram(withhold, by, told, tmp_path):
    files = cut(tmp_path)
    nodes = [{"data-path": str(file), "name": file.stem} for file in files]
    nodes[0]["withhold"] = withhold
    chosen = settings(**IMAGES, conformal_by=by)
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    assert ("a" in kept(tmp_path / "run")["sites"]) == told
    assert kept(tmp_path / "run")["test"] == {}


def test_without_any_histogram_the_run_ends_without_sets(tmp_path):
    nodes = [{"data-path": str(f), "withhold": "scores"} for f in cut(tmp_path)]
    chosen, folder = settings(**IMAGES), tmp_path / "run"
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder)
    assert not fedbary.load(folder).sites and not (folder / "conformal.json").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"holdout": 0.0}, "conformal: 0.9; expected none without holdout"),
        ({"conformal": 1.0}, "conformal: 1.0; expected"),
        ({"conformal": "yes"}, "conformal: 'yes'; expected"),
        ({"keep_best": "nll"}, "keep_best: 'nll'; expected none with conformal"),
    ],
)
def test_sets_need_examples_that_nothing_else_has_used(words, named):
    refused(named, settings, **words)


@pytest.mark.parametrize("name", ["conformal_score", "conformal_by"])
def test_what_makes_sets_is_refused_without_any(name):
    with pytest.raises(SettingError, match="conformal=none does not use it"):
        require_used({name: "lac"}, settings(conformal="none"))


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"sites": {"a": {"cells": [-1]}}}'])
def test_a_damaged_file_is_one_line(content, run_with_sets, tmp_path):
    folder = shutil.copytree(run_with_sets, tmp_path / "run")
    (folder / "conformal.json").write_text(content)
    refused(r"conformal\.json", fedbary.load, folder)


@pytest.fixture(scope="module")
def run_with_sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "run"
    run_inline(settings(rounds=4, local_epochs=5), folder)
    return folder


@pytest.fixture
def scans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = load("digits", tmp_path, False)
    x = (digits.x_test[:, 0] * 255).byte().numpy()
    np.savez(tmp_path / "scans.npz", x=x, y=digits.y_test.numpy())
    return tmp_path / "scans.npz"


def test_the_command_writes_sets_and_how_often_they_hold_the_class(run_with_sets, scans, capsys):
    predict(run_with_sets, scans)
    found = rows()
    for row in found:
        held = row["set"].split(" | ") if row["set"] else []
        assert len(held) == int(row["set size"])
    evaluate(run_with_sets, scans)
    scored = {row["group"]: row for row in rows("evaluation/sets.csv")}
    labels = np.load(scans)["y"]
    hits = [str(y) in row["set"].split(" | ") for row, y in zip(found, labels, strict=True)]
    assert float(scored["all"]["coverage"]) == pytest.approx(np.mean(hits), abs=1e-5)
    three = [hit for hit, y in zip(hits, labels, strict=True) if y == 3]
    assert float(scored["class=3"]["coverage"]) == pytest.approx(np.mean(three), abs=1e-5)
    assert float(scored["all"]["coverage_low"]) <= np.mean(hits)
    by_site = rows("evaluation/sites.csv")
    assert [float(row["set_size"]) for row in by_site] == pytest.approx(
        [site["set_size"] for site in kept(run_with_sets)["sites"].values()], rel=1e-4
    )
    assert (scans.parent / "evaluation" / "set-sizes.png").exists()
    assert "set_size" in capsys.readouterr().out
    predict(run_with_sets, scans, level=0.5, output=scans.parent / "half.csv")
    sizes = [(int(a["set size"]), int(b["set size"])) for a, b in zip(
        rows("half.csv"), found, strict=True)]  # fmt: skip
    assert all(half <= whole for half, whole in sizes) and sum(a < b for a, b in sizes) > 0


def test_the_command_keeps_the_error_that_was_asked_for_or_says_what_it_takes(
    run_with_sets, scans, capsys
):
    predict(run_with_sets, scans, error_rate=0.1, confidence=0.95)
    found = rows()
    labels = np.load(scans)["y"]
    kept = [row["class"] == str(y) for row, y in zip(found, labels, strict=True)
            if row["to a person"] == "False"]  # fmt: skip
    assert len(kept) > 50 and np.mean(kept) > 0.9
    assert "with 95 % confidence" in capsys.readouterr().out
    predict(run_with_sets, scans, error_rate=1e-4, confidence=0.95, force=True)
    assert all(row["to a person"] == "True" for row in rows())
    assert "held-out examples do not show" in capsys.readouterr().out
    predict(run_with_sets, scans, error_rate=0.1, confidence=0.95, held_out=scans, force=True)
    assert f"of {len(labels)} held-out" in capsys.readouterr().out


def test_confidence_needs_a_rate_and_held_out_examples(run_with_sets, scans, tmp_path):
    with pytest.raises(SettingError, match="--confidence: 0.9; expected only together"):
        predict(run_with_sets, scans, confidence=0.9)
    refused("confidence", predict, run_with_sets, scans, error_rate=0.1, confidence=1.5)
    run_inline(settings(conformal="none", local_epochs=1), tmp_path / "plain")
    with pytest.raises(SettingError, match="confidence: 0.9; expected --held-out"):
        predict(tmp_path / "plain", scans, error_rate=0.1, confidence=0.9)
    refused("conformal: 'none'", predict, tmp_path / "plain", scans, level=0.9)


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
    run_inline(rows_of(**numbers), tmp_path / "run")
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
    row = rows()[0]
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
    with pytest.warns(UserWarning, match="66 examples are held out, and a level of 0.99 needs 99"):
        low, high = trained.intervals(known, 0.99)
    assert (high - low).isinf().all()


def test_sets_for_a_site_weigh_classes_as_it_has_them(tmp_path):
    own = {"method": "LDA", "model": "linear", "alpha": 0.3, "conformal_by": "class"}
    run_inline(rows_of(**own), tmp_path / "run")
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
    refused(allowed, rows_of, **words)


def test_a_column_without_levels_is_refused_before_the_first_round():
    numbers = {"task": "tables", "conformal_by": "mean radius"}
    with pytest.raises(SettingError, match="conformal_by: 'mean radius'; expected all, class"):
        task_of(rows_of(**numbers)).check(own_data=False)


def test_a_site_sends_whole_numbers_alone(tmp_path):
    """The server has no example: a reply has four lists of counts, and no array."""
    sent = []

    def heard(action, reply):
        if action == "ask" and "cells" in reply.content.metric_records["metrics"]:
            sent.append(reply.content)

    own = {"method": "LDA", "model": "linear", "conformal_by": "class"}
    run_with_a_hostile_site(rows_of(**own), tmp_path / "run", heard, 1)
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
