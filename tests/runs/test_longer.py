"""A run goes on to more rounds than it was started with."""

import pytest
import yaml
from hostile_site import killed_at
from refusals import refused
from runs_of import posterior, same

from fedbary.commands.start import resume
from fedbary.launching.sweep import SweepFolder
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.location import is_whole, read_rounds
from fedbary.runs.resume import earlier_rates, lengthen, resumable
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.grid import read_experiment

QUICK = {
    "engine": "inline", "clients": 3, "local_epochs": 1, "samples": 2, "pictures": False,
    "model": "mlp", "bayesian_layers": 1, "train_fraction": 0.2, "server_momentum": 0.5,
    "participation": 0.67, "prior": "global", "device": "cpu", "lr_schedule": "constant",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("in_this_process")


def settings(**changes):
    return resolve({**QUICK, **changes})


def content(folder):
    return yaml.safe_load((folder / "settings.yaml").read_text())


@pytest.fixture
def two(tmp_path):
    """A whole run of two rounds."""
    run_inline(settings(rounds=2), tmp_path / "run")
    return tmp_path / "run"


def test_two_rounds_and_two_more_are_four(two, tmp_path):
    resume(two, "last", ["rounds=3"])
    resume(two, "last", ["rounds=4"])
    run_inline(settings(rounds=4), tmp_path / "four")
    assert same(posterior(two), posterior(tmp_path / "four"))
    assert [line["round"] for line in read_rounds(two)] == [0, 1, 2, 3, 4]
    assert content(two)["settings"]["rounds"] == 4
    made = [{"rounds": 2, "round": 2}, {"rounds": 3, "round": 3}]
    assert content(two)["rounds_before"] == made
    assert earlier_rates(two, settings(rounds=4)) == []


@pytest.mark.parametrize(
    "word, allowed",
    [("rounds=2", "more than 2"), ("rounds=1", "more than 2"), ("rule=WB", "one of rounds, "),
     ("rounds=many", "whole number")],
)  # fmt: skip
def test_what_is_no_more_rounds_is_refused_and_the_run_stays_whole(word, allowed, two):
    before = (two / "settings.yaml").read_bytes()
    refused(allowed, resume, two, "last", [word])
    assert is_whole(two) and (two / "settings.yaml").read_bytes() == before


def test_a_run_whose_checkpoint_is_damaged_stays_whole(two):
    for file in two.glob("checkpoint-*"):
        file.write_bytes(b"damaged")
    refused("checkpoint", resume, two, "last", ["rounds=3"])
    assert is_whole(two)


def test_killed_while_it_is_lengthened_a_run_goes_on_with_its_old_rounds(two):
    before = posterior(two)
    with killed_at("fedbary.runs.resume.write_settings"):
        lengthen(two, settings(rounds=3, resume="last"))
    assert not is_whole(two)
    resume(two, "last")
    assert is_whole(two) and same(before, posterior(two))


def test_under_a_schedule_the_log_says_which_rates_the_earlier_rounds_had(tmp_path, caplog):
    run_inline(settings(rounds=2, lr_schedule="cosine", lr=0.1), tmp_path / "run")
    resume(tmp_path / "run", "last", ["rounds=4"])
    said = "Rounds 1 to 2 had rates from 0.1 to 0.05, of a schedule of 2 rounds; the next has 0.05"
    assert said in caplog.text


def test_a_sweep_takes_no_lengthened_run_for_its_own(tmp_path):
    grid = {"title": "T", "about": "A.", "settings": QUICK, "grid": [{"rounds": 3}]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    experiment = read_experiment(tmp_path / "grid.yaml", {}, {})
    ((name, chosen),) = experiment.runs.items()
    folder = tmp_path / "results" / "runs" / name
    run_inline(chosen.model_copy(update={"rounds": 2}), folder)
    resume(folder, "last", ["rounds=3"])
    assert is_whole(folder) and load_checkpoint(folder, "last").round == 3
    results = SweepFolder.open(tmp_path / "results", experiment)
    assert name not in results.done
    (folder / "posterior.safetensors").unlink()
    assert resumable(folder, chosen.model_copy(update={"output": str(folder)})) is None
