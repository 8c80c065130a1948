"""Posteriors that a sweep left are scored as its runs were, and with more draws."""

import shutil

import pandas as pd
import pytest
from every_method import night

from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, write_table
from findings.rules import draws
from findings.rules import page as rules


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two rules' runs and the null, at two seeds; one folder is not there any more."""
    folder = tmp_path_factory.mktemp("kept")
    words = {
        "protocol": "short", "engine": "inline", "device": "cpu", "clients": 3, "rounds": 1,
        "local_epochs": 1, "samples": draws.NUMBERS[0], "pictures": False, "train_fraction": 0.3,
    }  # fmt: skip
    rows = []
    for rule, replicate in (("RKLB", 0), ("WB", 0), ("WB", 1)):
        for seed in range(2):
            run = folder / "runs" / f"{rule}-{replicate}-{seed}"
            run_inline(resolve({**words, "rule": rule, "replicate": replicate, "seed": seed}), run)
            rows.append(read_run(run.name, run))
    write_table(folder, rows)
    shutil.rmtree(folder / "runs" / "RKLB-0-1")
    return folder


@night  # by day a loaded model scores what its run recorded
def test_kept_posteriors_score_as_the_runs_did_with_their_draws_and_otherwise_with_more(
    kept, capsys
):
    assert "draws" not in "".join(rules.tables(kept))
    draws.main(str(kept))
    found = pd.read_csv(kept / rules.DRAWS).set_index(["run", "draws"])
    runs = rules.result_rows(rules.read(kept)).set_index("run")
    assert set(found.index) == {
        (run, number) for run in runs.index if run != "RKLB-0-1" for number in draws.NUMBERS
    }
    columns = [metric.column for metric in draws.METRICS]
    own, more = (found.xs(number, level="draws") for number in draws.NUMBERS)
    assert own["arm"].to_dict() == runs.loc[own.index, "arm"].to_dict()
    expected = runs.loc[own.index, columns].astype(float)
    pd.testing.assert_frame_equal(own[columns], expected, rtol=1e-4, check_names=False)
    assert (more["nll"] != own["nll"]).all()
    made = rules.draws_table(pd.read_csv(kept / rules.DRAWS))
    assert made in capsys.readouterr().out and made in [*rules.tables(kept)]
