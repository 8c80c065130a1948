"""The example of a registry: its commands run; its tables are those of the rows in one place."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from runs_of import INLINE

import fedbary
from fedbary import client_app
from fedbary.commands.cli import main
from fedbary.launching.deploy import site_configs
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import parse_overrides, resolve

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "registry"
SITES = "--site north.csv --site south.csv --site west.csv "


def deployed(words):
    """Run in this process what `fedbary deploy` runs on servers."""
    assert words.startswith(SITES)
    given = parse_overrides(shlex.split(words.removeprefix(SITES)))
    nodes = site_configs([Path(path) for path in SITES.split()[1::2]])
    nodes = [{**node, "state-path": f"{given['output']}-{node['name']}"} for node in nodes]
    chosen = resolve({**INLINE, **given, "clients": 3})
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, Path(given["output"]))


def test_the_commands_run_and_find_what_the_rows_in_one_place_tell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE / "tables.py"), run_name="__main__")
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^fedbary (\w+) (.*)$", text, re.MULTILINE)
    assert [command for command, _ in commands] == [
        "look", *["deploy", "coefficients"] * 2, "predict"
    ]  # fmt: skip
    for command, words in commands:
        if command == "deploy":
            deployed(words)
            continue
        monkeypatch.setattr("sys.argv", ["fedbary", command, *shlex.split(words)])
        try:
            main()
        except SystemExit as ended:
            assert not ended.code
    said = capsys.readouterr().out
    (shown,) = re.findall(r"```\n(.*?)```", text.partition("table says:")[2], re.DOTALL)
    assert shown in said
    rows = pd.concat([pd.read_csv(f"{n}.csv").assign(site=n) for n in ("north", "south", "west")])
    rows["y"] = (rows.complication == "yes").astype(int)
    fit = smf.logit("y ~ age + C(sex) + C(stage) + C(site)", rows).fit(disp=0, tol=1e-12)
    held = fedbary.load("complication").coefficients().factors
    names = ["age", "C(sex)[T.male]", "C(stage)[T.II]", "C(stage)[T.III]"]
    assert held.contrasts.terms == ("age", "sex=male", "stage=II", "stage=III")
    assert np.abs((held.estimates - fit.params[names]) / fit.bse[names]).max() < 1e-2
    assert {"risk at 365", "lower risk at 365"} < {*pd.read_csv("predictions.csv")}
