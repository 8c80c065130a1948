"""Runs on rows that belong together: what they promise of new groups holds, and is said."""

import numpy as np
import pandas as pd
import pytest
from runs_of import INLINE

from fedbary import client_app
from fedbary.commands.use import evaluate, predict
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.trained import load
from fedbary.trained.judgement import set_scores

COLUMNS = [f"c{i}" for i in range(80)]
SETS = {
    **INLINE, "task": "tables", "method": "LDA", "rounds": 1, "clients": 3, "partition": "iid",
    "conformal": 0.9, "holdout": 0.4, "evaluate_clients": 0, "min_examples": 4,
}  # fmt: skip


def patients(path, count, of_each, seed):
    """Write rows of patients whose labels are random: equal rows, each several times."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(np.repeat(np.arange(count), of_each))
    x, y = rng.normal(size=(count, len(COLUMNS))).round(3), rng.integers(0, 2, count)
    table = pd.DataFrame(x[place], columns=COLUMNS)
    table["y"], table["patient"] = np.where(y, "ill", "well")[place], place + 1000 * seed
    table.to_csv(path, index=False)
    return path


def covered(folder, new):
    """Return the part of new rows whose set holds the class."""
    trained = load(folder)
    examples = trained.read(new)
    return float(set_scores(trained, examples, trained.thresholds())[1].double().mean())


def test_sets_cover_new_groups_at_their_level_if_whole_groups_are_held_out(
    tmp_path, caplog, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    new = patients(tmp_path / "new.csv", 300, 1, 99)
    found = {"none": [], "patient": []}
    for seed in range(4):
        data = patients(tmp_path / f"t{seed}.csv", 90, 4, seed)
        for group, rates in found.items():
            folder = tmp_path / f"{group}{seed}"
            own = {"group": group, "leave_out": "patient" if group == "none" else "none"}
            run_inline(resolve({**SETS, **own, "dataset": str(data), "seed": seed}), folder)
            rates.append(covered(folder, new))
    assert np.mean(found["patient"]) > 0.85 > 0.8 > np.mean(found["none"])
    worse = [text for text in caplog.messages if "scores on new examples may be worse" in text]
    assert len(worse) == 4 and all("held-out examples equal training" in text for text in worse)
    honest = [text for text in caplog.messages if "At honest sites" in text]
    assert len(honest) == 4  # those of runs with groups alone
    capsys.readouterr()
    for group, promised in (("none", False), ("patient", True)):
        for confidence in (None, 0.5):
            how = {"error_rate": 0.6, "confidence": confidence, "force": True}
            predict(tmp_path / f"{group}0", new, **how)
        judged = new if promised else tmp_path / "t0.csv"
        evaluate(tmp_path / f"{group}0", judged, force=True)
        said = capsys.readouterr()
        assert ("confidence" in said.out) == promised
        assert ("[" in said.out) == promised  # the ends of intervals
        assert ("held-out examples equal training examples" in said.err) != promised
    again = pd.read_csv(tmp_path / "t0.csv")
    again["c0"] += 1  # new visits of patients that were trained on
    again.to_csv("again.csv", index=False)
    evaluate(tmp_path / "patient0", tmp_path / "again.csv", force=True)
    said = capsys.readouterr()
    assert "of 360 examples are equal to ones trained on or of their groups" in said.err
    assert "coverage_low" not in said.out


def test_sites_hold_out_their_own_groups_and_one_without_the_column_is_left_out(tmp_path, caplog):
    server = patients(tmp_path / "server.csv", 30, 2, 5)
    paths = [patients(tmp_path / f"{name}.csv", 30, 3, k) for k, name in enumerate("ab")]
    bare = pd.read_csv(paths[0]).drop(columns="patient")
    bare.to_csv(tmp_path / "c.csv", index=False)
    nodes = [{"data-path": str(p), "name": p.stem} for p in (*paths, tmp_path / "c.csv")]
    chosen = resolve({**SETS, "dataset": str(server), "group": "patient"})
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    trained = load(tmp_path / "run")
    assert {name: site.examples for name, site in trained.sites.items()} == {"a": 12, "b": 12}
    (at_server,) = [text for text in caplog.messages if "is left out" in text]
    assert "a table without the column of groups" in at_server and "c0" not in at_server
    assert trained.evaluation_examples().groups is not None
    assert any("30 groups" in text for text in caplog.messages)


def test_an_id_that_repeats_is_the_group_and_said_so(tmp_path, caplog):
    data = patients(tmp_path / "t.csv", 60, 3, 0)
    for number, words in enumerate(({"id": "patient"}, {"group": "patient"})):
        run_inline(resolve({**SETS, **words, "dataset": str(data)}), tmp_path / str(number))
    (line,) = [text for text in caplog.messages if "names. Rows" in text]
    assert "180 rows have 60 names" in line
    one, other = ((tmp_path / k / "conformal.json").read_text() for k in "01")
    assert one == other


def test_noise_that_protects_a_row_is_refused_for_groups():
    own = {"epsilon": 1.0, "max_norm": 1.0, "normalise": "none", "group": "folder"}
    with pytest.raises(SettingError, match="group: 'folder'; expected none with epsilon"):
        resolve({**INLINE, "method": "LDA", "rounds": 1, **own})
