"""A user reads what the run does: soon, and without what Flower and Ray say of every run."""

import sys
import time
import warnings

import pytest

from fedbary.commands import start
from fedbary.launching.launch import validate_run
from fedbary.launching.programs import run_program
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

SAYS = """
import sys
print("Using SuperLink: local")
print("")
print("round 1/2  Übung")
print("(raylet) low on memory", file=sys.stderr)
print("a cause", file=sys.stderr)
sys.exit(3)
"""


def test_a_program_s_lines_are_passed_on_but_for_flower_s(capsys):
    code = run_program([sys.executable, "-X", "utf8", "-c", SAYS], None, None)
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (3, "round 1/2  Übung\n", "a cause\n")


def test_what_goes_on_is_said_at_once_or_after_a_moment_or_not_before_an_error(capsys, monkeypatch):
    line = "10 clients train 20 rounds of RKLB on digits"
    chosen = resolve({"engine": "inline"})
    with start._announced(chosen, ""):
        assert capsys.readouterr().out == ""
    assert capsys.readouterr().out == f"{line}\n"
    with pytest.raises(ValueError), start._announced(chosen, ""):
        raise ValueError
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(start, "PATIENCE", 0.01)
    with start._announced(chosen, ""):
        time.sleep(0.3)
    assert capsys.readouterr().out == f"{line}\n"


def test_what_is_odd_about_data_is_said_by_the_run_and_not_before_it_too(tmp_path):
    rows = "".join(f"{i % 7} kg,{'ab'[i % 2]}\n" for i in range(60))
    tried, run = tmp_path / "tried.csv", tmp_path / "run.csv"
    for file in (tried, run):
        file.write_text(f"mass,y\n{rows}")
    words = {"task": "tables", "engine": "inline", "clients": 2, "device": "cpu"}
    with warnings.catch_warnings(action="error"):
        validate_run(resolve({**words, "dataset": str(tried)}), tmp_path / "run")
    with pytest.warns(UserWarning, match="numbers with 'kg'"):
        task_of(resolve({**words, "dataset": str(run)})).check(own_data=False)
