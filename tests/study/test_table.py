"""What a table says of a run's rounds beside what is measured of its model."""

import shutil

import pandas as pd
import pytest

from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.table import FORMAT, read_run, read_table, write_table

UNMOVED = {
    "dataset": "digits",
    "rule": "FedAvg",
    "bayesian_layers": 0,
    "holdout": 0.0,
    "lr": 1e-12,
    "rounds": 1,
    "local_epochs": 1,
    "engine": "inline",
    "pictures": False,
}


def test_the_training_nll_is_the_mean_over_all_examples_whoever_holds_them(tmp_path):
    found = []
    for clients in (1, 4):
        folder = tmp_path / str(clients)
        run_inline(resolve({**UNMOVED, "clients": clients, "alpha": 0.1}), folder)
        table = read_run("run", folder).set_index("round")
        assert table["train_nll"].isna()[0]
        found.append(table["train_nll"][1])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_inline(resolve({**UNMOVED, "train_fraction": 0.1, "clients": 2}), folder)
    return folder


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("metrics.jsonl", lambda text: ""),
        ("metrics.jsonl", lambda text: text[:-20]),
        ("metrics.jsonl", lambda text: text.splitlines(keepends=True)[0]),
        ("metrics.jsonl", lambda text: "[1, 2]\n" + text),
        ("metrics.jsonl", lambda text: text + text.splitlines(keepends=True)[-1]),
        ("metrics.jsonl", lambda text: "".join(text.splitlines(keepends=True)[1:])),
        ("settings.yaml", lambda text: "settings: {a: ["),
        ("settings.yaml", lambda text: "text"),
        ("settings.yaml", lambda text: text.replace("commit:", "other:")),
        ("settings.yaml", lambda text: "settings: 5\n" + text.replace("settings:", "other:")),
    ],
)
def test_a_damaged_run_is_one_line_that_names_it(whole, tmp_path, file, damage):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / file).write_text(damage((whole / file).read_text()))
    with pytest.raises(SettingError, match=str(folder / file)):
        read_run("run", folder)


def test_a_table_is_read_from_a_path_given_as_text(whole, tmp_path):
    write_table(tmp_path, [read_run("run", whole)])
    assert read_table(str(tmp_path)).equals(read_table(tmp_path))


def test_a_table_with_many_columns_is_read_as_it_was(tmp_path):
    """Two hundred are the same in all runs: pandas warns of so many if they come one by one."""
    parts = {"dataset": "digits", "method": "PVI"}
    same = {**parts, "format": FORMAT, **{f"setting {i}": i for i in range(200)}}
    rows = pd.DataFrame({"run": ["a", "b"], **same, "seed": [0, 1], "round": 0, "rounds": 0})
    write_table(tmp_path, [rows])
    assert read_table(tmp_path)[[*rows]].equals(rows)
