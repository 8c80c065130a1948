"""Runs beside each other: what differs, their scores, pairs of seeds; a report of one run."""

import shutil

import pytest

from fedbary.errors import SettingError
from fedbary.launching.grids import compare, report
from fedbary.report import compared
from fedbary.settings.config import resolve
from server_app.inline import run_inline

QUICK = {
    "task": "tables", "engine": "inline", "clients": 2, "rounds": 1, "local_epochs": 1,
    "pictures": False, "samples": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for rule in ("RKLB", "WB"):
        for seed in (0, 1):
            run_inline(resolve({**QUICK, "rule": rule, "seed": seed}), folder / f"{rule}{seed}")
    return folder


def test_what_differs_is_named_and_seeds_are_paired(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folders = sorted(runs.iterdir())
    table = compared.with_arms(compared.read_runs(folders))
    assert list(table["arm"].unique()) == ["rule=RKLB", "rule=WB"]
    header, rows = compared.settings_table(table)
    assert header == ["setting", *(folder.name for folder in folders)]
    assert [row[0] for row in rows] == ["rule", "seed"]
    last = table.groupby("run").tail(1).set_index("run")["nll"]
    (nll,) = (row for row in compared.pairs_table(table)[1] if "likelihood" in row[2])
    difference = (last["RKLB0"] - last["WB0"] + last["RKLB1"] - last["WB1"]) / 2
    assert float(nll[3].split()[0]) == pytest.approx(difference, abs=1e-4) and nll[4] == "2"
    compare(folders)
    assert capsys.readouterr().out.count("| rule ") == 1
    made = {file.name for file in (tmp_path / "comparison").iterdir()}
    assert made == {"comparison.md", "courses.png"}
    with pytest.raises(SettingError, match="--force"):
        compare(folders)


def test_a_single_run_has_a_report(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "WB0", run)
    report(run)
    assert "WB" in (run / "report.md").read_text(encoding="utf-8")
    (run / "posterior.safetensors").unlink()
    with pytest.raises(SettingError, match="has ended"):
        report(run)
    with pytest.raises(SettingError, match="two or more"):
        compared.read_runs([runs / "WB0", runs / "WB0"])
    with pytest.raises(SettingError, match="has ended"):
        compared.read_runs([runs / "WB0", tmp_path / "none"])
