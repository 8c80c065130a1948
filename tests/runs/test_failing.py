"""Runs that fail to learn say so while they run, in their files and to who uses their model."""

import itertools
import logging
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from torch import nn

from fedbary.commands.use import predict
from fedbary.figures.document import Document
from fedbary.models import build
from fedbary.models.cnn import LAYERS
from fedbary.report.report import add_cautions
from fedbary.report.results import Results
from fedbary.runs.failing import LASTING, PATIENCE, advised, turn, verdict
from fedbary.runs.location import read_rounds
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.table import read_run
from fedbary.tasks._failing import (
    causes_in_columns,
    causes_in_labels,
    dead_layer,
    no_better,
    numbers_failing,
    with_causes,
)

OLD = {
    "normalise": "none", "initialisation": "papers", "lr": 0.3, "lr_schedule": "constant",
    "max_grad_norm": "none", "log_var_lr": 0.01,
}  # fmt: skip

COUNTS = st.lists(st.integers(1, 500), min_size=2, max_size=6)


@given(st.lists(st.booleans(), max_size=12))
def test_the_log_says_it_once_when_it_lasts_and_once_when_it_ends(failing):
    lines = [{}, *({"failing": "why"} if fails else {} for fails in failing)]
    said = [turn(lines[: end + 1], 12) for end in range(len(lines))]
    spells = [(fails, len(list(run))) for fails, run in itertools.groupby(failing)]
    lasting = [fails and length >= PATIENCE for fails, length in spells]
    assert sum("why" in text for text in said) == sum(lasting)
    assert sum("begun to learn" in text for text in said) == sum(lasting[:-1])
    assert bool(verdict(lines[-1])) == (failing[-1:] == [True])


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_log_says_what_is_behind_a_linear_model_from_half_of_the_rounds_on(behind):
    lines = [{}, *({"behind": "how far"} if each else {} for each in behind)]
    said = [turn(lines[: end + 1], len(behind)) for end in range(len(lines))]
    half = -(-len(behind) // 2)
    late = itertools.groupby(behind[half - 1 :])
    lasting = [each for each, run in late if each and len(list(run)) >= LASTING]
    assert not any(said[:half])
    assert sum("how far" in text for text in said) == len(lasting)
    assert bool(verdict(lines[-1])) == behind[-1]


def test_what_has_learned_nothing_is_not_also_called_behind():
    line = {"failing": "nothing", "behind": "how far"}
    assert verdict(line) == "The model has not learned: nothing"


@given(COUNTS, st.data())
def test_an_answer_without_inputs_is_no_better_and_any_better_score_is(counts, data):
    shares = np.array(counts) / sum(counts)
    weights = st.lists(st.floats(0.01, 1), min_size=len(counts), max_size=len(counts))
    told = np.array(data.draw(weights))
    told /= told.sum()
    scores = {"accuracy": shares[told.argmax()], "nll": -(shares * np.log(told)).sum()}
    assert no_better(scores, counts)
    chance = np.sqrt(shares.max() * (1 - shares.max()) / sum(counts))
    assert not no_better({**scores, "accuracy": shares.max() + 1.001 * chance}, counts)
    assert not no_better({**scores, "nll": 0.9 * -(shares * np.log(shares)).sum()}, counts)


@given(st.integers(2, 400), st.integers(2, 20))
def test_one_right_answer_more_is_no_sign_that_a_model_has_learned(positives, ratio):
    counts = [positives, ratio * positives]
    scores = {"accuracy": (counts[1] + 1) / sum(counts), "nll": 1.0}
    assert "by more than a standard error" in no_better(scores, counts)


NLLS = st.lists(st.floats(0.01, 3), min_size=1, max_size=12)


def told_of(nlls, **changes):
    """Return the lines of a run with these NLLs, whose model is always behind a linear one."""
    settings, lines = resolve({"task": "tables", **changes}), [{"round": 0, "nll": 9.0}]
    for number, nll in enumerate(nlls, 1):
        line = {"round": number, "nll": nll, "behind": "how far"}
        lines.append(advised(line, settings, lines))
    return lines


@given(NLLS)
def test_more_rounds_are_no_remedy_once_an_earlier_round_was_better(nlls):
    for line in told_of(nlls)[1:]:
        before = [math.inf, *nlls[: line["round"] - 1]]
        assert ("rounds=20" in line["behind"]) == (min(before) >= line["nll"])
        assert ("rising" in line) == (line["nll"] > max(1.1 * min(before), min(before) + 0.01))
        if "rising" in line:
            best = before.index(min(before))
            assert f"of round {best}. Try keep_best=nll, or rounds={best}, or" in line["rising"]
            assert "rounds=20" not in verdict(line) and line["rising"] in verdict(line)


def test_the_log_says_that_an_nll_rises_in_the_third_such_round():
    """These are NLLs of sites under Böhning's bound that moved all the way, two classes each."""
    lines = told_of([0.2148, 0.2210, 0.2219, 0.2002, 0.3256, 0.4062, 0.8457, 3.0827], clients=5)
    said = [turn(lines[: end + 1], 40) for end in range(len(lines))]
    assert [k for k, text in enumerate(said) if "The model was better before" in text] == [7]
    assert "its NLL of 0.8457 is above the 0.2002 of round 4" in said[7]


def test_who_keeps_the_round_of_the_least_nll_is_not_told_that_it_rises():
    assert "rising" not in told_of([0.1, 0.5], keep_best="nll")[-1]
    assert "keep_best" not in told_of([0.1, 0.5], conformal=0.9)[-1]["rising"]


@pytest.mark.slow
def test_a_table_of_few_positives_is_led_back_to_its_best_round(tmp_path, caplog):
    """The NLL rises from round 2 on: no line sends to more rounds, and the advice helps."""
    x, y = make_classification(
        1800, 12, n_informative=3, n_clusters_per_class=1, weights=[0.96], flip_y=0.03,
        class_sep=0.7, random_state=0,
    )  # fmt: skip
    table = pd.DataFrame(x, columns=[f"x{k}" for k in range(12)])
    table.assign(died=np.where(y, "yes", "no")).to_csv(tmp_path / "rare.csv", index=False)
    given = {"task": "tables", "target": "died", "clients": 3, "partition": "iid", "rounds": 10}
    lines = run(tmp_path / "rare.csv", tmp_path / "run", **given, samples=20)
    nlls = [line["nll"] for line in lines[1:]]
    assert nlls[-1] > 1.1 * min(nlls)
    assert "keep_best=nll" in lines[-1]["rising"] and "its NLL of" in lines[-1]["behind"]
    assert "rounds=20" not in caplog.text and not any("failing" in line for line in lines[2:])
    kept = run(tmp_path / "rare.csv", tmp_path / "kept", **given, samples=20, keep_best="nll")
    assert kept[kept[-1]["best_round"]]["nll"] < nlls[-1] - 0.01


def test_nothing_is_said_where_nothing_is_known():
    assert not no_better({"accuracy": 1.0, "nll": 0.1}, [7])
    assert not no_better({"accuracy": float("nan"), "nll": float("nan")}, [7, 7])
    assert not no_better({"accuracy": 0.0, "nll": 9.0}, [])


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), st.floats(-3, 3))
def test_a_regression_is_held_against_the_mean(targets, exponent):
    y = torch.tensor(targets).double() * 10**exponent
    spread = float(y.std(correction=0))
    assert bool(numbers_failing(spread, y)) == (len(set(targets)) > 1)
    assert not numbers_failing(0.9 * spread, y)


@pytest.mark.parametrize("layer", LAYERS[:-1])
@pytest.mark.parametrize("bayesian_layers", [0, 5])
def test_a_dead_layer_is_named(layer, bayesian_layers):
    network, x = build("cnn", (3, 8, 8), 2, 0, bayesian_layers), torch.rand(5, 3, 8, 8)
    assert dead_layer(network, x) == ""
    nn.init.constant_(network.get_submodule(layer).bias, -1e3)
    assert dead_layer(network, x) == layer


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """60 red and 60 blue pictures, a fifth of which is tested."""
    draw, y = np.random.default_rng(0), np.arange(120) % 2
    x = draw.integers(0, 60, (120, 3, 8, 8)).astype(np.uint8)
    x[np.arange(120), 2 * y] = draw.integers(180, 256, (120, 1, 1))
    file = tmp_path_factory.mktemp("colours") / "colours.npz"
    np.savez(file, x_train=x[24:], y_train=y[24:], x_test=x[:24], y_test=y[:24], x=x)
    return file


def run(file, folder, **changes):
    given = {"dataset": str(file), "clients": 4, "rounds": 4, "engine": "inline", "device": "cpu"}
    run_inline(resolve({**given, "pictures": False, "samples": 2, **changes}), folder)
    return read_rounds(folder)


def test_two_colours_are_learned_by_the_defaults_without_a_word(colours, tmp_path, caplog):
    lines = run(colours, tmp_path / "run")
    assert lines[-1]["accuracy"] == 1
    assert not any("failing" in line for line in lines[2:])
    assert not [said for said in caplog.messages if "not learned" in said or "Nothing" in said]


def test_a_run_that_learns_nothing_says_so_and_what_to_try(colours, tmp_path, caplog, capsys):
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "run"
    why = run(colours, folder, **OLD, rounds=6)[-1]["failing"]
    assert "is dead" in why and "commonest class alone, 50.00 %" in why
    for mend in ("lr=0.1", "normalise=channels", "initialisation=he", "partition=iid"):
        assert mend in why
    assert f": Nothing learned in {PATIENCE} rounds: layer " in caplog.text
    assert f"The model has not learned: {why}" in caplog.text
    predict(folder, colours, output=tmp_path / "out.csv")
    assert why in capsys.readouterr().err
    assert "**`red-and-blue`**: The model has not learned: layer" in reported(
        "red-and-blue", folder
    )


def test_a_run_far_behind_a_linear_model_says_so_and_what_to_try(tmp_path, caplog, capsys):
    caplog.set_level(logging.WARNING)
    folder, given = tmp_path / "run", {"task": "regression", "engine": "inline", "device": "cpu"}
    few = {"clients": 2, "rounds": 4, "local_epochs": 1, "lr": 3e-4}
    run_inline(resolve({**given, **few, "samples": 2, "pictures": False}), folder)
    lines = read_rounds(folder)
    why = lines[-1]["behind"]
    assert "behind" not in lines[0] and "its R² of" in why and "398 training examples" in why
    for mend in ("rounds=8", "lr=0.0009", "model=linear"):
        assert mend in why
    assert f"Round 3: Behind a linear model: {lines[3]['behind']}" in caplog.text
    assert f"The model is behind a linear one: {why}" in caplog.text
    rows = tmp_path / "rows.csv"
    rows.write_text("age,sex,bmi,bp,s1,s2,s3,s4,s5,s6\n" + ",".join(["40"] * 10) + "\n")
    predict(folder, rows, output=tmp_path / "out.csv")
    assert why in capsys.readouterr().err
    assert "**`few`**: The model is behind a linear one: its R²" in reported("few", folder)


def reported(name, folder):
    """Return what a report warns of in a run."""
    results = Results.of(pd.DataFrame(read_run(name, folder)), folder)
    document = Document(folder, "Runs")
    add_cautions(results, document)
    document.write()
    return (folder / "report.md").read_text()


def test_a_damping_that_was_given_is_halved_first():
    given = {"task": "classification", "method": "PVI", "inference": "laplace", "damping": 1.0}
    shared = {"covariance": "shared", "model": "linear", "bayesian_layers": 0}
    settings = resolve({**given, **shared})
    earlier = [{"round": 1, "nll": 0.2}]
    told = advised({"round": 2, "nll": 0.4}, settings, earlier)["rising"]
    assert "of round 1. Try damping=0.5, or keep_best=nll, or rounds=1" in told
    alone = settings.model_copy(update={"partition": "iid", "normalise": "channels"})
    assert advised({"round": 2, "nll": 0.4, "failing": "why"}, alone, earlier)["failing"] == "why"


@pytest.mark.parametrize("word", ["failing", "behind"])
@pytest.mark.parametrize("task", ["classification", "tables", "regression"])
def test_the_step_size_is_the_last_advice(word, task):
    told = advised({"round": 1, "nll": 1.0, word: "why"}, resolve({"task": task}))[word]
    tries = told.partition(". Try ")[2].split(", or ")
    steps = [each.startswith("lr=") for each in tries]
    assert any(steps) and not all(steps) and steps == sorted(steps)


def probs_of(answers, classes):
    return torch.eye(classes)[torch.tensor(answers)] * 0.9 + 0.1 / classes


def test_classes_in_another_order_are_told_where_answers_are_below_chance():
    labels = torch.tensor([0, 1] * 20)
    swapped = probs_of((1 - labels).tolist(), 2)
    (said,) = causes_in_labels(swapped, labels, [50, 50], ["cat", "dog"])
    assert "accuracy 0.0 % is below chance, and would be 100.0 %" in said
    assert not [*causes_in_labels(probs_of(labels.tolist(), 2), labels, [50, 50], ["cat", "dog"])]


@given(st.integers(2, 6), st.data())
def test_one_answer_to_all_is_no_sign_of_another_order(classes, data):
    labels = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=1)))
    answer = data.draw(st.integers(0, classes - 1))
    probs = probs_of([answer] * len(labels), classes)
    names = [f"c{k}" for k in range(classes)]
    assert not [*causes_in_labels(probs, labels, [], names)]


def test_one_class_and_few_of_a_class_are_told():
    labels, names = torch.tensor([0, 1, 1, 0]), ["well", "died"]
    probs = probs_of([0] * 4, 2)
    assert [*causes_in_labels(probs, labels, [90, 0], names)] == [
        "all training examples are of class well"
    ]
    assert [*causes_in_labels(probs, labels, [90, 3], names)] == [
        "few training examples: 3 of class died"
    ]
    assert not [*causes_in_labels(probs, labels, [90, 10], names)]


def test_a_column_that_varies_otherwise_than_at_the_sites_is_named():
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    x[:, 1] *= 300  # another unit here
    x[:, 2] /= 90  # another unit at a site
    x[:, 3] = 50.0 * (x[:, 3] > 0)  # a level
    wide, narrow = causes_in_columns(x, ["age", "dose", "creatinine", "ward=A"])
    assert wide.startswith("column dose varies 3") and "column creatinine varies 0.01" in narrow


def test_causes_stand_before_a_fault_and_nowhere_else():
    assert with_causes({"behind": "how far"}, ["one", "two"]) == {"behind": "one; two; how far"}
    assert with_causes({"nll": 1.0}, ["one"]) == {"nll": 1.0}
