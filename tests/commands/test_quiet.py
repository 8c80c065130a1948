"""A user reads what the run does: soon, and without what Flower and Ray say of every run."""

import sys
import time

import pytest

from fedbary.commands import start
from fedbary.launching.programs import run_program
from fedbary.settings.config import resolve

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
