"""A task of one's own, `task=package.module:Class`, is one of the run's parts like any other."""

import pytest
import yaml
from own_tasks import Grades
from refusals import refused
from runs_of import lines

import fedbary
from fedbary.commands import start
from fedbary.report.report import write_report
from fedbary.runs.resume import require_ended
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve, validated
from fedbary.settings.explain import explained
from fedbary.study.arms import told_apart
from fedbary.tasks import task_of

TASK = {"task": "own_tasks:Grades"}
QUICK = {"engine": "inline", "device": "cpu", "pictures": False, "clients": 2, "local_epochs": 1}


def test_its_settings_are_its_own_and_defaults_are_those_of_its_base_but_for_its_own():
    settings, tables = resolve(TASK), resolve({"task": "tables"})
    changed = {"task", "rounds", "model"}
    assert {k for k, v in tables.model_dump().items() if getattr(settings, k, v) != v} == changed
    assert (settings.power, settings.rounds, settings.model) == (2.0, 2, "linear")
    assert resolve({**TASK, "power": "3", "rounds": 5}).power == 3.0
    assert validated(settings.model_dump()) == settings
    assert isinstance(task_of(settings), Grades)
    assert "power=2.0  Power of the distance" in explained(TASK["task"])
    runs = [{**resolve({**TASK, "power": p}).model_dump(), "rule": "RKLB"} for p in (1, 2)]
    assert told_apart(runs) == 2 * [["power"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({**TASK, "power": -1}, "^power: -1.* above 0 for task=own_tasks:Grades$"),
        ({"task": "tables", "power": 1}, "^unknown setting: 'power'"),
        ({**TASK, "input_shape": "1x8x8"}, "^input_shape: .* no value: task=own_tasks:Grades"),
        ({**TASK, "model": "cnn"}, "^model: 'cnn'; expected mlp, linear"),
        ({**TASK, "keep_best": "f1"}, "^keep_best: 'f1'.* for task=own_tasks:Grades$"),
        ({"task": "absent:Grades"}, "^task: 'absent:Grades'.*No module named 'absent'"),
        ({"task": "own_tasks:Absent"}, "^task: .*has no attribute 'Absent'"),
        ({"task": "own_tasks:function"}, r"a class below fedbary\.tasks\.Task$"),
        ({"task": "own_tasks:Unfinished"}, "^task: .*; expected a task that defines .*held"),
        ({"task": "grades"}, r"^task: 'grades'; expected .*, or package\.module:Class$"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(words, said):
    refused(said, resolve, words)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    run_inline(resolve({**QUICK, **TASK}), folder)
    return folder


@pytest.mark.slow
def test_it_runs_resumes_to_the_same_bits_is_loaded_and_reported(ended, tmp_path, monkeypatch):
    settings = resolve({**QUICK, **TASK})
    run_inline(settings.model_copy(update={"rounds": 1}), tmp_path / "run")
    file = tmp_path / "run" / "settings.yaml"
    assert yaml.safe_load(file.read_text())["settings"]["task"] == TASK["task"]
    monkeypatch.setattr(start, "_simulate", run_inline)
    start.resume(tmp_path / "run", "last", ["rounds=2"], own_code=True)
    assert (tmp_path / "run" / "posterior.safetensors").read_bytes() == (
        ended / "posterior.safetensors"
    ).read_bytes()
    line = lines(ended)[-1]
    trained = fedbary.load(ended, own_code=True)
    held = trained.task.evaluation_examples()
    found = trained.task.judged(trained.predict(held.x), held.y)
    assert 0 < line["rps"] < 0.25 and abs(found["rps"] - line["rps"]) < 0.01
    text = write_report(ended, own_code=True).with_suffix(".md").read_text()
    assert "| Ranked probability score |" in text


@pytest.mark.slow
def test_a_folder_s_task_is_imported_only_if_it_is_asked_for(ended):
    refused("^task: .*expected --own-code", write_report, ended)
    file = ended / "settings.yaml"
    file.write_text(file.read_text().replace("own_tasks", "absent_tasks"))
    for use in (fedbary.load, write_report, lambda run: start.resume(run, "last")):
        refused("^task: .*expected --own-code", use, ended)
    (ended / "posterior.safetensors").unlink()
    refused("this one lacks", require_ended, ended)
