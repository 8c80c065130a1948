"""Runs that fail to learn say so while they run, in their files and to who uses their model."""

import itertools
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbary.commands.use import predict
from fedbary.models import build
from fedbary.models.cnn import LAYERS
from fedbary.report.cautions import add_cautions
from fedbary.report.document import Document
from fedbary.report.results import Results
from fedbary.runs.failing import LASTING, PATIENCE, turn, verdict
from fedbary.runs.metrics_file import read_rounds
from fedbary.settings.config import resolve
from fedbary.study.table import read_run
from fedbary.tasks._failing import dead_layer, no_better, numbers_failing
from server_app.engine.inline import run_inline

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
    assert not no_better({**scores, "accuracy": shares.max() + 0.01}, counts)
    assert not no_better({**scores, "nll": 0.9 * -(shares * np.log(shares)).sum()}, counts)


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
