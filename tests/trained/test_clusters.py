"""`fedbary clusters` tells kinds of clients apart by the models that they keep."""

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from fedbary.commands.cli import app
from fedbary.errors import SettingError
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.settings.config import resolve
from fedbary.trained.kept import kept_models
from server_app.engine.inline import run_inline

QUICK = {
    "engine": "inline", "device": "cpu", "rounds": 3, "local_epochs": 6, "samples": 2,
    "pictures": False,
    "model": "linear", "bayesian_layers": 1, "evaluate_clients": 3, "kl_weight": 0.01,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of six clients, each of which holds the examples of one of two classes."""
    folder, rng = tmp_path_factory.mktemp("clusters"), np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = rng.integers(0, 100, (400, 8, 8), dtype=np.uint8)
    x[np.arange(400), 4 * y] += 120
    np.savez(folder / "two.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    chosen = {
        **QUICK, "dataset": str(folder / "two.npz"), "clients": 6, "partition": "classes",
        "classes_per_client": 1, "projection": "WB", "output": str(folder / "run"),
    }  # fmt: skip
    run_inline(resolve(chosen), folder / "run")
    return folder / "run"


def kinds(run):
    """Return of each client the class that it holds."""
    counts = yaml.safe_load((run / "settings.yaml").read_text())["label_counts"]
    return [int(np.argmax(row)) for row in counts]


def grouped(run, *words):
    """Return what the command says, and of each client the cluster."""
    done = CliRunner().invoke(app, ["clusters", str(run), *words], catch_exceptions=False)
    rows = [line.split() for line in done.output.splitlines()[1:-1]]
    by_site = {int(partition): int(cluster) for cluster, _, partition, _ in rows}
    return done.output.splitlines(), [by_site[k] for k in sorted(by_site)]


@pytest.mark.parametrize("rule", ["WB", "RKLB"])
def test_two_planted_groups_are_found(run, rule):
    lines, found = grouped(run, "--rule", rule)
    pairs = set(zip(found, kinds(run), strict=True))
    assert len(kinds(run)) == len(found) == 6 and len(pairs) == 2
    assert {cluster for cluster, _ in pairs} == {1, 2}
    assert float(lines[-1].split()[-6]) > 50
    (_, one), (_, all_alone) = (grouped(run, "--count", n, "--rule", rule) for n in ("1", "6"))
    assert set(one) == {1} and len(set(all_alone)) == 6


def test_a_wrong_number_or_rule_is_refused(run):
    for words, named in ((["--count", "7"], "from 1 to 6"), (["--rule", "EAA"], "FKLB, RKLB, WB")):
        with pytest.raises(SettingError, match=named):
            grouped(run, *words)


def test_a_run_whose_clients_keep_nothing_says_what_would(run, tmp_path):
    folder = tmp_path / "run"
    run_inline(resolve({**QUICK, "clients": 2, "rounds": 1, "output": str(folder)}), folder)
    with pytest.raises(SettingError, match="projection=WB"):
        grouped(folder)
    with pytest.raises(SettingError, match="the folder of a run"):
        grouped(tmp_path)


def test_what_a_client_kept_of_a_later_reply_than_the_last_admitted_is_passed_over(run):
    arrays = load_checkpoint(run, "last").arrays
    before = kept_models(run, arrays)
    (place,) = (run / "clients" / "0").iterdir()
    later = place / "kept-000004.safetensors"
    later.write_bytes((place / "kept-000001.safetensors").read_bytes())
    after = kept_models(run, arrays)
    later.unlink()
    assert all(after["partition 0"][n].equal(t) for n, t in before["partition 0"].items())
