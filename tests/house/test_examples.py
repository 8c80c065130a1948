"""The examples are whole Flower projects: they run as they stand and tell their rival beside."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from every_method import night
from flwr.app import Context, RecordDict

from fedbary.server_app.engine.inline import InlineGrid

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROJECTS = sorted(file.parent.name for file in EXAMPLES.glob("*/app.py"))
NUMBERS = re.compile(r"\d+(?:\.\d+)?")


def project(name):
    return tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def lines_of(printed):
    """The line of each rival."""
    return {line.split()[0]: line for line in printed.splitlines() if " nats" in line}


def run(name, capsys, clients=3, few=None, **changes):
    """Run a project's own apps in this process, on `few` rows; return the line of each rival."""
    app = runpy.run_path(str(EXAMPLES / name / "app.py"))
    if few is not None:
        held = app["main"].__globals__["digits"]
        app["main"].__globals__["digits"] = lambda rows: tuple(part[:few] for part in held(rows))
    config = {**project(name)["config"], **changes}
    grid = InlineGrid(app["client"], clients, config)
    capsys.readouterr()
    app["server"](grid, Context(1, 1, {}, RecordDict(), config))
    return lines_of(capsys.readouterr().out)


def rivals(name):
    """The names that begin the lines which a project prints."""
    return {"LDA", "FedAvg"} if name == "one-round" else {"RKLB", "FedAvg"}


def number(line, form):
    return float(re.search(form, line)[1])


@pytest.mark.parametrize("name", PROJECTS)
def test_it_is_a_flower_app_with_a_readme_that_shows_what_it_prints(name, tmp_path):
    build = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(EXAMPLES / name)]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(list(tmp_path.glob("*.fab"))) == 1, done.stdout + done.stderr
    assert project(name)["components"] == {"serverapp": "app:server", "clientapp": "app:client"}
    assert len((EXAMPLES / name / "app.py").read_text().splitlines()) <= 80
    readme = (EXAMPLES / name / "README.md").read_text()
    assert "flwr run ." in readme and lines_of(readme).keys() == rivals(name)


def test_a_cnn_of_one_s_own_is_unsure_where_it_is_wrong(capsys):
    for line in run("own-cnn", capsys, rounds=3).values():
        assert number(line, r"([\d.]+)% right of the surest") > number(line, r"([\d.]+)% right,")
        assert number(line, r"([\d.]+)% right,") > 80


@night  # by day tests/strategies aggregates such layers
def test_the_layers_of_bayesian_torch_train_under_both_rules(capsys):
    lines = run("bayesian-torch", capsys, rounds=2)
    assert all(number(line, r"([\d.]+)% right") > 80 for line in lines.values())
    assert NUMBERS.findall(lines["RKLB"]) != NUMBERS.findall(lines["FedAvg"])


def test_hospitals_leave_to_a_person_what_the_wanted_error_rate_asks_for(capsys):
    strict = run("hospitals", capsys, rounds=5)
    loose = run("hospitals", capsys, rounds=5, **{"error-rate": 0.5})
    for rule, line in strict.items():
        left = number(line, r"(\d+) cases to a person")
        assert left > number(loose[rule], r"(\d+) cases to a person")
        wrong, kept = number(line, r"(\d+) of the other"), number(line, r"other (\d+) wrong")
        assert wrong <= number(line, r"(\d+) of \d+ wrong;") and left + kept == 150


def test_one_round_of_sums_is_ahead_of_one_of_averages(capsys):
    app = runpy.run_path(str(EXAMPLES / "one-round" / "app.py"))
    app["main"].__globals__["ROUNDS"] = (1,)
    config = project("one-round")["config"]
    capsys.readouterr()
    app["server"](InlineGrid(app["client"], 3, config), Context(1, 1, {}, RecordDict(), config))
    lines = lines_of(capsys.readouterr().out)
    nll = {name: number(line, r"NLL ([\d.]+)") for name, line in lines.items()}
    assert nll["LDA"] < nll["FedAvg"]


def test_a_resnet_has_a_gaussian_last_layer_and_nothing_else():
    app = runpy.run_path(str(EXAMPLES / "resnet-last-layer" / "app.py"))
    held = app["network"](1).state_dict()
    assert [name for name in held if name.endswith("_log_var")] == ["fc.weight_log_var"]


def test_a_resnet_s_rounds_run(capsys):
    lines = run("resnet-last-layer", capsys, clients=2, few=60, rounds=1)
    assert lines.keys() == {"RKLB", "FedAvg"}
