"""The commands on experiments read what earlier versions left."""

import gzip
import lzma
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pandas.testing import assert_frame_equal

from fedbary.report import compared
from fedbary.report.report import write_report
from fedbary.settings.config import resolve
from fedbary.study.files import COMMON, PACKED_BEFORE, ROUNDS, RUNS, TOGETHER, read, write
from fedbary.study.grid import read_experiment
from fedbary.study.sweep import SweepFolder
from fedbary.study.table import read_about, read_table, write_about
from server_app.engine.inline import run_inline

NEW = Path(__file__).resolve().parents[2] / "findings/hostile/how-many"


@pytest.fixture
def old(tmp_path):
    """The same folder as earlier versions wrote it: one table, and the texts beside it."""
    grid = yaml.safe_load((NEW / "grid.yaml").read_text())
    read_table(NEW).to_csv(tmp_path / TOGETHER, index=False)
    write_about(tmp_path, grid["title"], " ".join(grid["about"].split()))
    assert {file.name for file in tmp_path.iterdir()} == {TOGETHER, "about.yaml"}
    return tmp_path


def test_a_report_is_the_same(old, tmp_path):
    new = tmp_path / "new"
    shutil.copytree(NEW, new)
    one, two = (write_report(folder).with_suffix(".md").read_text() for folder in (old, new))
    assert one == two


def test_a_sweep_has_nothing_to_do_and_writes_the_new_form(old):
    experiment = read_experiment(NEW / "grid.yaml", {}, {})
    results = SweepFolder.open(old, experiment)
    assert results.done.keys() == experiment.runs.keys()
    results.write()
    assert {COMMON, RUNS, ROUNDS} < {file.name for file in old.iterdir()}
    assert_frame_equal(read_table(old), read_table(NEW), check_dtype=False)


def test_rounds_packed_as_before_are_read_and_then_packed_anew(tmp_path):
    shutil.copytree(NEW, tmp_path, dirs_exist_ok=True)
    (tmp_path / PACKED_BEFORE).write_bytes(
        gzip.compress(lzma.decompress((tmp_path / ROUNDS).read_bytes()))
    )
    (tmp_path / ROUNDS).unlink()
    old = read(tmp_path)
    assert_frame_equal(old, read(NEW))
    write(tmp_path, old)
    assert (tmp_path / ROUNDS).exists() and not (tmp_path / PACKED_BEFORE).exists()


def test_runs_without_the_settings_of_today_are_compared(tmp_path):
    folders = [tmp_path / rule for rule in ("RKLB", "WB")]
    for folder in folders:
        words = {"task": "tables", "engine": "inline", "clients": 2, "rounds": 1, "samples": 3}
        run_inline(resolve({**words, "pictures": False, "rule": folder.name}), folder)
    file = folders[0] / "settings.yaml"
    content = yaml.safe_load(file.read_text())
    for newer in ("method", "compress", "keep_best"):
        del content["settings"][newer]
    file.write_text(yaml.safe_dump(content))
    table = compared.with_arms(compared.read_runs(folders))
    header, rows = compared.scores_table(table)
    assert header == ["result", "RKLB", "WB"] and "nan" not in str(rows)
    assert ["rule", "RKLB", "WB"] in compared.settings_table(table)[1]


@pytest.mark.parametrize("title", ["What the grid says", "Another"])
def test_what_an_experiment_is_called_is_written_once(title, tmp_path):
    told = {"title": title, "about": "Words\n  of two lines"}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**told, "grid": []}))
    write_about(tmp_path, "What the grid says", "Words of two lines")
    assert (tmp_path / "about.yaml").exists() == (title == "Another")
    assert read_about(tmp_path)["title"] == "What the grid says"


def test_a_table_without_texts_has_none(tmp_path):
    pd.DataFrame().to_csv(tmp_path / TOGETHER)
    assert read_about(tmp_path) == {}
