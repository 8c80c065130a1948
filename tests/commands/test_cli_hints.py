"""What the command line says to who is new to it."""

import re
import subprocess
import sys
import tomllib

import hypothesis.strategies as st
import pytest
import typer
from hypothesis import given
from refusals import refused

from fedbary import __version__
from fedbary.commands.cli import TAKE_SETTINGS, app, main
from fedbary.launching.superlink import to_toml
from fedbary.report.report import write_report
from fedbary.settings.config import resolve

GROUP = typer.main.get_command(app)


def said(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["fedbary", *words])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("name", GROUP.commands)
def test_the_help_of_a_command_says_what_each_argument_and_option_is(name, monkeypatch, capsys):
    code, output = said(monkeypatch, capsys, name, "--help")
    assert code == 0
    command = GROUP.commands[name]
    shown = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╰─╮╯]", " ", output.out).split())
    _, _, text = shown.partition(command.help.split(".")[0])
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words = re.findall(r"[A-Z]{2,}(?:\.yaml|=[A-Z]+)?", parameter.metavar)
            assert words and all(re.search(rf"{re.escape(w)} (is|sets)", text) for w in words)
        else:
            assert parameter.help and " ".join(parameter.help.split()[:2]) in text


def test_the_list_of_commands_waits_for_nothing_that_is_slow_to_import():
    slow = {"numpy", "pydantic", "rich.console", "torch", "yaml"}
    program = f"""
import atexit, sys
from fedbary.commands.command import main
atexit.register(lambda: print("slow:", {slow} & set(sys.modules)))
sys.argv = ["fedbary", "--help"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Commands:" in ended.stdout and ended.stdout.endswith("slow: set()\n"), ended


def test_the_version_is_printed(monkeypatch, capsys):
    code, output = said(monkeypatch, capsys, "--version")
    assert (code, output.out) == (0, f"fedbary {__version__}\n")


@pytest.mark.parametrize("words", [("--rounds", "3"), ("--rounds=3",), ("--log-var-lr", "3")])
@pytest.mark.parametrize("command", TAKE_SETTINGS)
def test_a_setting_with_dashes_gets_the_word_that_was_meant(command, words, monkeypatch, capsys):
    code, output = said(monkeypatch, capsys, command, "rule=WB", *words)
    name = words[0].partition("=")[0].strip("-").replace("-", "_")
    whole = f"argument: {words[0]!r}; expected {name}=3, without dashes"
    assert (code, output.err) == (2, f"fedbary: {whole}\n")


def test_a_misspelt_option_gets_the_nearest(monkeypatch, capsys):
    code, output = said(monkeypatch, capsys, "sweep", "--result", "out")
    assert code == 2 and "--results" in output.err and "dashes" not in output.err


def test_a_table_for_images_is_told_of_the_task():
    refused("dataset: 'mine.csv'; .* needs task=regression", resolve, {"dataset": "mine.csv"})


def test_a_report_on_a_run_that_is_not_whole_says_so(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    refused("the folder of a run that has ended", write_report, tmp_path)


@pytest.mark.parametrize("ignored", [True, False])
def test_a_closed_terminal_stops_the_command_unless_nohup_has_had_that_ignored(ignored):
    program = f"""
import atexit, signal, sys
from fedbary.commands.cli import main
signal.signal(signal.SIGHUP, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
atexit.register(lambda: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN))
sys.argv = ["fedbary", "--version"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.endswith(f"{ignored}\n"), ended


@given(
    st.dictionaries(st.from_regex(r"[a-z-]{1,9}", fullmatch=True), st.text() | st.integers(-9, 9))
)
def test_settings_are_written_as_toml_whatever_their_text(values):
    assert tomllib.loads(to_toml(values)) == values
