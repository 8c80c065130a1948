"""A run that starts from another goes on: sums add up, sites stay, classes keep their rows."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from runs_of import SHORT, lines, posterior, same, tensors
from runs_of_sums import chosen, run_of
from safetensors.torch import load_file

from fedbary.commands.use import forget
from fedbary.errors import RunError, SettingError
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import completed

QUICK = {
    **SHORT, "clients": 2, "model": "linear", "bayesian_layers": 1, "evaluate_clients": 0,
    "train_fraction": 0.3,
}  # fmt: skip


def settings(**changes):
    return completed(
        {**QUICK, **{k: str(v) if k == "start_from" else v for k, v in changes.items()}}
    )


def sums(folder):
    held = load_checkpoint(folder, "last").strategy
    return {name: tensor for name, tensor in held.items() if name.startswith("method.")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of LDA of one site, and one that starts from it, of two others."""
    place = tmp_path_factory.mktemp("stream")
    run_of(chosen("pixels"), (0,), place / "a")
    run_of(chosen("pixels", start_from=str(place / "a")), (1, 2), place / "b")
    return place


def test_new_data_are_added_to_the_run_of_all(made, tmp_path):
    run_inline(chosen("pixels"), tmp_path / "whole")
    assert same(posterior(made / "b"), posterior(tmp_path / "whole"))
    assert lines(made / "b")[0]["nll"] == lines(made / "a")[1]["nll"]


@pytest.mark.parametrize("name", ["LDA", "Ridge"])
def test_training_begins_at_the_predictions_of_a_head_by_sums_at_its_temperature(name, tmp_path):
    """Other sums begin at the sums, which know no temperature."""
    head = chosen("pixels", method=name, calibrate="temperature")
    run_inline(head, tmp_path / "head")
    told = lines(tmp_path / "head")[1]
    assert told["temperature"] != 1
    by = {"start_from": str(tmp_path / "head"), "rounds": 1}
    run_inline(chosen("pixels", method="SCAFFOLD", **by), tmp_path / "trained")
    began = lines(tmp_path / "trained")[0]
    assert began["nll"] == pytest.approx(told["nll"], rel=1e-5)
    run_of(chosen("pixels", method=name, **by), (0,), tmp_path / "sums")
    assert lines(tmp_path / "sums")[0]["nll"] == pytest.approx(told["untempered"]["nll"])


@pytest.mark.parametrize("damage", ["x", None, 0, -1.0, float("inf"), [2]])
def test_a_damaged_temperature_is_refused_by_name(damage, made, tmp_path):
    run = shutil.copytree(made / "a", tmp_path / "run")
    written = [*lines(run)]
    written[-1]["temperature"] = damage
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    with pytest.raises(SettingError, match="temperature: .*; expected a number above 0 in"):
        run_of(chosen("pixels", start_from=str(run)), (1,), tmp_path / "new")


def test_a_site_that_withdraws_is_subtracted_from_every_run_that_counted_it(made, tmp_path):
    forget(made / "b", "partition 0", tmp_path / "left")
    run_of(chosen("pixels"), (1, 2), tmp_path / "others")
    assert same(posterior(tmp_path / "left"), posterior(tmp_path / "others"))
    (note,) = yaml.safe_load((tmp_path / "left" / "settings.yaml").read_text())["forgotten"]
    assert note["examples"] == lines(made / "a")[1]["clients"][0]["num-examples"]
    run_of(chosen("pixels", start_from=str(tmp_path / "left")), (0, 1), tmp_path / "later")
    assert [c["site"] for c in lines(tmp_path / "later")[1]["clients"]] == ["partition 1"]


def test_units_are_those_of_the_first_run_and_a_site_is_subtracted_from_them(tmp_path):
    name = "numbers"
    run_of(chosen(name), (0, 1), tmp_path / "first")
    run_of(chosen(name, start_from=str(tmp_path / "first")), (2,), tmp_path / "second")
    units = [tensors(tmp_path / run, "standardiser") for run in ("first", "second")]
    assert all(torch.equal(units[0][key], units[1][key]) for key in ("mean", "std"))
    forget(tmp_path / "second", "partition 1", tmp_path / "left")
    run_of(chosen(name), (0,), tmp_path / "one")
    run_of(chosen(name, start_from=str(tmp_path / "one")), (2,), tmp_path / "two")
    mine, theirs = (lines(tmp_path / run)[1]["nll"] for run in ("left", "two"))
    assert mine == pytest.approx(theirs, rel=1e-3)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of RKLB, and one that goes on from it under its posterior."""
    place = tmp_path_factory.mktemp("posterior")
    run_inline(settings(), place / "a")
    by = {"start_from": place / "a", "prior": "earlier", "rounds": 2}
    run_inline(settings(**by, kl_weight=1), place / "b")
    return place


def test_a_heavy_prior_holds_the_model_to_the_earlier_posterior_and_not_to_zero(first, tmp_path):
    start, name = posterior(first / "a"), "output.weight_mean"
    run_inline(settings(start_from=first / "a", prior="earlier", kl_weight=1e4), tmp_path / "held")
    moved = (posterior(tmp_path / "held")[name] - start[name]).norm()
    assert moved < 0.1 * start[name].norm()
    gaussian = {key: tensor for key, tensor in start.items() if key != "output.bias"}
    assert same(load_file(tmp_path / "held" / "prior.safetensors"), gaussian)
    note = yaml.safe_load((tmp_path / "held" / "settings.yaml").read_text())["started_from"]
    assert (note["run"], note["round"]) == ("a", 1)


def test_the_earlier_posterior_may_be_the_prior_of_a_new_network(first, tmp_path):
    """Round 0 is that of a run without the earlier one, and a heavy prior draws it there."""
    held = settings(start_from=first / "a", prior="earlier_only", kl_weight=100)
    run_inline(held, tmp_path / "held")
    run_inline(settings(kl_weight=100), tmp_path / "new")
    assert lines(tmp_path / "held")[0]["nll"] == lines(tmp_path / "new")[0]["nll"]
    priors = [load_file(run / "prior.safetensors") for run in (tmp_path / "held", first / "b")]
    assert same(*priors)
    goal, name = posterior(first / "a"), "output.weight_mean"
    away = [(posterior(tmp_path / run)[name] - goal[name]).norm() for run in ("held", "new")]
    assert away[0] < 0.5 * away[1]


def test_it_resumes_to_the_same_bits_when_the_earlier_run_is_gone(first, tmp_path):
    shutil.copytree(first / "b", tmp_path / "b")
    held = settings(
        start_from=first / "a", prior="earlier", rounds=2, kl_weight=1, resume="previous"
    )
    (tmp_path / "b" / "posterior.safetensors").unlink()
    (first / "a").rename(first / "gone")
    try:
        run_inline(held, tmp_path / "b")
    finally:
        (first / "gone").rename(first / "a")
    assert same(posterior(tmp_path / "b"), posterior(first / "b"))


def test_a_run_of_sums_that_is_cut_off_before_its_first_round_keeps_what_it_began_with(
    made, tmp_path
):
    shutil.copytree(made / "b", tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").unlink()
    held = chosen("pixels", start_from=str(made / "a"), resume="previous")
    run_of(held, (1, 2), tmp_path / "run")
    assert same(posterior(tmp_path / "run"), posterior(made / "b"))


def npz(folder, name, classes, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(60) % classes
    x = rng.integers(0, 60, (60, 1, 8, 8), dtype=np.uint8)
    x[np.arange(60), 0, y] += 150
    file = folder / f"{name}.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(file)


@pytest.mark.parametrize("method", ["barycentre", "PVI", "PVI of modes", "LDA", "FOLA"])
def test_new_classes_come_to_the_head_and_old_ones_keep_their_rows(method, tmp_path):
    deterministic = method in ("PVI of modes", "LDA", "FOLA")
    method, of_modes = method.split()[0], " " in method
    by = {
        "method": method, "train_fraction": 1.0, "min_examples": 5, "normalise": "none",
        "bayesian_layers": 0 if deterministic else 1, "partition": "iid",
    }  # fmt: skip
    two, three = (npz(tmp_path, str(k), k, k) for k in (2, 3))
    by |= {"kl_weight": 1} if method in ("barycentre", "PVI") else {}
    by |= {"inference": "laplace", "covariance": "kronecker"} if of_modes else {}
    run_inline(settings(dataset=two, **by), tmp_path / "a")
    prior = {"prior": "earlier"} if method == "barycentre" else {}
    run_inline(settings(dataset=three, start_from=tmp_path / "a", **by, **prior), tmp_path / "b")
    began = load_checkpoint(tmp_path / "b", "previous").arrays
    for name, tensor in load_checkpoint(tmp_path / "a", "last").arrays.items():
        assert len(began[name]) == 3
        if method != "LDA":
            assert torch.equal(began[name][:2], tensor)
        if of_modes:
            assert not began[name][2].any()
    if method == "LDA":
        held = sums(tmp_path / "b")
        shares = [t for n, t in held.items() if "%0A" in n and n.endswith("shares")]
        assert all(float(one[2]) == 0 and float(one.sum()) == pytest.approx(1) for one in shares)
    if prior:
        new = load_file(tmp_path / "b" / "prior.safetensors")
        assert torch.equal(new["output.weight_mean"][2], torch.zeros(64))
        assert torch.equal(new["output.weight_log_var"][2], torch.zeros(64))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"start_from": "nowhere"}, "start_from"),
        ({"start_from": "a", "model": "mlp"}, "hidden"),
        ({"start_from": "a", "normalise": "none"}, "normalise"),
        ({"start_from": "a", "method": "LDA", "bayesian_layers": 0}, "sums"),
        ({"prior": "earlier"}, "prior"),
        ({"start_from": "points", "prior": "earlier"}, "points"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, named, first, tmp_path):
    if changes.get("start_from") == "points":
        run_inline(settings(rule="FedAvg", bayesian_layers=0), first / "points")
    changes = {k: first / v if k == "start_from" else v for k, v in changes.items()}
    with pytest.raises(SettingError, match=named):
        run_inline(settings(**changes), tmp_path / "run")


def damages(written):
    """A layout with each of its entries left out or replaced, and what is no layout."""
    yield from ([], 5, "x", None, [[1, 2]])
    for key in written:
        yield {name: value for name, value in written.items() if name != key}
        yield from ({**written, key: wrong} for wrong in (None, 5, "x", [None], {"a": 1}))


def test_a_damaged_layout_ends_start_and_forget_in_one_line_that_names_its_file(made, tmp_path):
    run = shutil.copytree(made / "a", tmp_path / "run")
    written = json.loads((run / "signature.json").read_text())
    refused = 0
    for number, damaged in enumerate(damages(written)):
        (run / "signature.json").write_text(json.dumps(damaged))
        for use in (
            lambda to: run_of(chosen("pixels", start_from=str(run)), (1, 2), to),
            lambda to: forget(run, "partition 0", to),
        ):
            try:
                use(tmp_path / str(number))
            except (SettingError, RunError) as error:
                assert len(str(error).splitlines()) == 1
                refused += "signature.json" in str(error)
            shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    assert refused > 10
