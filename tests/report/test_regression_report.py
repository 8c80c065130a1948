"""The report of regressions, from real runs on diabetes."""

from every_method import night
from pandas.testing import assert_frame_equal

from fedbary.report.report import write_report
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, write_table
from findings.regression import central
from server_app.engine.inline import run_inline

QUICK = {
    "task": "regression",
    "engine": "inline",
    "pictures": False,
    "clients": 3,
    "rounds": 1,
    "local_epochs": 2,
}
METHODS = [
    {}, {"model": "linear", "predictive": "closed"}, {"protocol": "regression-vi", "rule": "WB"}
]  # fmt: skip


@night  # by day tests/report/test_report_tasks reports numbers beside tables
def test_the_report_holds_every_method_on_every_split(tmp_path, monkeypatch):
    runs = []
    for split in (0, 1):
        for number, method in enumerate(METHODS):
            settings = resolve({**QUICK, **method, "split": split})
            run_inline(settings, tmp_path / f"{split}-{number}")
            runs.append((settings, read_run(f"{split}-{number}", tmp_path / f"{split}-{number}")))
    write_table(tmp_path, [rows for _, rows in runs])
    monkeypatch.delitem(central.METHODS, "VI")
    made = [central.central([settings for settings, _ in runs], tmp_path) for _ in range(2)]
    assert len(made[0]) == 4
    assert_frame_equal(made[0], made[1], rtol=1e-4)
    write_report(tmp_path)
    report = (tmp_path / "report.md").read_text()
    for name in ("BLR", "DE", "FedAG", "FedAG, linear", "FedAG, without noise", "WB"):
        assert f"| diabetes | {name} |   | 2 |" in report


def test_settings_that_differ_are_told_apart(tmp_path):
    runs = []
    for number, lr in enumerate((0.01, 0.003)):
        settings = {**QUICK, "protocol": "regression-vi", "lr": lr, "evaluate_on": "validation"}
        run_inline(resolve(settings), tmp_path / str(number))
        runs.append(read_run(str(number), tmp_path / str(number)))
    write_table(tmp_path, runs)
    write_report(tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "| diabetes | RKLB | lr=0.01 | 1 |" in report
    assert "| diabetes | RKLB | lr=0.003 | 1 |" in report
    assert "kept from all clients (validation)" in report


def test_methods_beside_rules_and_fedag_are_ranked_and_compared_with_plain_averaging(tmp_path):
    methods = [{"rule": "FedAvg", "bayesian_layers": 0}, {"rule": "WB"}, {"method": "PVI"}]
    rows = []
    for number, method in enumerate(methods):
        settings = resolve({**QUICK, "protocol": "regression-vi", **method})
        run_inline(settings, tmp_path / str(number))
        rows.append(read_run(str(number), tmp_path / str(number)))
    write_table(tmp_path, [with_split(run, split) for run in rows for split in (0, 1)])
    text = write_report(tmp_path).with_suffix(".md").read_text()
    assert "| method | n | runs | NLL | RMSE | CRPS |" in text
    assert all(f"| {name} | 2 | 2 |" in text for name in ("PVI", "WB"))
    assert "kB" in text and "Minus FedAvg" in text


def with_split(run, split):
    return run.assign(run=run["run"] + f"-{split}", split=split, nll=run["nll"] + split)
