"""A run goes on with its own data alone, and what it was trained on is not taken for new."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hostile_site import cut_off
from refusals import refused
from runs_of import SHORT

from fedbary.commands.start import resume
from fedbary.commands.use import evaluate, predict
from fedbary.errors import SettingError
from fedbary.server_app.beginning import dealt_digest
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.trained import load

QUICK = {**SHORT, "clients": 2, "rounds": 2}


def tables(folder):
    """Write a table and its settings, for classes and for numbers."""
    chance = np.random.default_rng(0)
    table = pd.DataFrame(chance.normal(size=(80, 3)).round(4), columns=["a", "b", "c"])
    table.to_csv(folder / "numbers.csv", index=False)
    table.assign(c=np.where(table["a"] > 0, "ill", "well")).to_csv(folder / "t.csv", index=False)
    of_tables = {"task": "tables", "bayesian_layers": 1, "model": "linear"}
    yield {**of_tables, "target": "c", "dataset": str(folder / "t.csv")}
    yield {"task": "regression", "target": "c", "dataset": str(folder / "numbers.csv")}


def reread(file, change):
    """Change a table."""
    change(pd.read_csv(file)).to_csv(file, index=False)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table[::-1], "another order of rows"),
        (lambda table: table[:73], "other rows, 73 in place of 80"),
    ],
)
def test_a_run_does_not_go_on_with_another_table(number, change, said, tmp_path):
    changes = list(tables(tmp_path))[number]
    chosen = resolve({**QUICK, **changes})
    cut_off(chosen, tmp_path / "run", chosen.clients)
    reread(chosen.dataset, change)
    again = chosen.model_copy(update={"resume": "last"})
    refused(f"run was started with: {said}", run_inline, again, tmp_path / "run")
    list(tables(tmp_path))
    reread(chosen.dataset, lambda table: table)
    run_inline(again, tmp_path / "run")


@pytest.mark.parametrize("number", [0, 1])
def test_a_whole_run_stays_whole_where_its_data_do_not_let_it_have_more_rounds(number, tmp_path):
    chosen = resolve({**QUICK, **list(tables(tmp_path))[number]})
    run_inline(chosen, tmp_path / "run")
    reread(chosen.dataset, lambda table: table[::-1])
    refused("another order of rows", resume, tmp_path / "run", "last", ["rounds=3"])
    Path(chosen.dataset).unlink()
    refused("expected .* the path", resume, tmp_path / "run", "last", ["rounds=3"])
    assert load(tmp_path / "run").settings.rounds == 2


def test_rows_that_were_trained_on_are_not_taken_for_held_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    chosen = resolve({**QUICK, **next(tables(tmp_path))})
    run_inline(chosen, Path("run"))
    predict(Path("run"), Path("t.csv"), error_rate=0.5)
    assert "trained on" not in capsys.readouterr().err
    table = pd.read_csv("t.csv")
    evaluate(Path("run"), Path("t.csv"))
    found = re.search(r"t.csv: (\d+) of 80 examples are equal to ones", capsys.readouterr().err)
    trained = int(found[1])
    assert 50 < trained < 75
    predict(Path("run"), Path("t.csv"), error_rate=0.5, held_out=Path("t.csv"), force=True)
    said = capsys.readouterr()
    assert f"t.csv: {trained} of 80 examples are equal to ones trained on" in said.err
    assert f"of {80 - trained} held-out" in said.out or "no threshold" in said.out
    new = table.assign(a=table["a"] + 1)
    new.to_csv("new.csv", index=False)
    reread("t.csv", lambda table: pd.concat([table[40:], table[:40]]))
    with pytest.raises(SettingError, match="other test data, of which some may have been trained"):
        predict(Path("run"), Path("new.csv"), error_rate=0.5, force=True)
    predict(Path("run"), Path("new.csv"), error_rate=0.5, held_out=Path("new.csv"), force=True)
    (Path("run") / "data-rows.safetensors").unlink()
    predict(Path("run"), Path("t.csv"), error_rate=0.5, held_out=Path("t.csv"), force=True)
    assert "trained on" not in capsys.readouterr().err


def test_test_rows_that_equal_training_rows_are_counted(tmp_path):
    words = {**QUICK, **next(tables(tmp_path)), "holdout": 0.0}
    once = task_of(resolve(words))
    assert not once.repeated(once.digest(2)) and not once.repeated(once.digest())
    reread(words["dataset"], lambda table: pd.concat([table] * 3))
    thrice = task_of(resolve(words))
    (line,) = thrice.repeated(thrice.digest(2))
    assert re.match(r"2\d of 24 test examples equal training examples", line)


def test_pictures_that_were_trained_on_are_known(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    y = np.arange(60) % 2
    np.savez("d.npz", x_train=x[:50], y_train=y[:50], x_test=x[50:], y_test=y[50:])
    run_inline(resolve({**QUICK, "dataset": "d.npz", "holdout": 0.0}), Path("run"))
    np.savez("new.npz", x=x[40:], y=y[40:])
    evaluate(Path("run"), Path("new.npz"))
    assert "new.npz: 10 of 20 examples are equal to ones trained on" in capsys.readouterr().err


@pytest.mark.parametrize(("told", "dealt"), [(3, True), (0, False), (10**9, False), (50, False)])
def test_what_nodes_say_of_partitions_ends_no_run(told, dealt, tmp_path):
    chosen = resolve({**QUICK, **next(tables(tmp_path)), "clients": 50 if told == 50 else 3})
    roster = SimpleNamespace(members=[SimpleNamespace(partitions=told)])
    assert bool(dealt_digest(task_of(chosen), roster).trained.any()) == dealt
