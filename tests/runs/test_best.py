"""The best round by validation data is the run's result; a run stops when no better one comes."""

from pkgutil import resolve_name

import pytest
import torch
from every_method import NIGHT
from hostile_site import cut_off
from refusals import refused
from runs_of import INLINE, same, tensors
from runs_of import timeless_lines as lines

import fedbary
from fedbary.errors import SettingError
from fedbary.report import compared
from fedbary.report.report import write_report
from fedbary.report.results import Results
from fedbary.runs.checkpoints import Checkpoint, load_checkpoint, load_round, save_checkpoint
from fedbary.runs.schema import BEST_ROUND, best_round, is_stale, result_line
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import completed, resolve
from fedbary.study.table import read_run, read_table, result_rows, write_table

QUICK = {
    "task": "tables", **INLINE, "clients": 2, "rounds": 20, "local_epochs": 1,
    "samples": 5, "lr": 0.3, "server_momentum": 0.5, "keep_best": "nll", "patience": 2,
}  # fmt: skip
NUMBERS = {
    "task": "regression", "server_momentum": None, "lr": 0.1, "samples": 10, "keep_best": "rmse",
    "evaluate_on": "validation", "lr_schedule": "constant",
}  # fmt: skip


def settings(**changes):
    return completed({**QUICK, **changes})


def same_model(one, other):
    names = [name for name in ("posterior", "networks") if (one / f"{name}.safetensors").exists()]
    return all(same(tensors(one, name), tensors(other, name)) for name in names)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that stopped early: its best round is neither the last nor the one before."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run_inline(settings(), folder)
    assert len(lines(folder)) <= QUICK["rounds"]
    return folder


def given(scores, skipped=()):
    """The lines of a run with these scores of the rounds 1, 2, …."""
    made = []
    for number, score in enumerate([0.0, *scores]):
        line = {"round": number, "skipped": number in skipped, "held_out": {"nll": score}}
        made.append({**line, BEST_ROUND: best_round(settings(), [*made, line])})
    return made


@pytest.mark.parametrize(
    ("scores", "skipped", "best", "ends"),
    [
        ([3.0, 2.0, 2.0, 2.5], (), 2, True),  # the first of equals
        ([3.0, 2.0, 2.0], (), 2, False),
        ([3.0, 2.0, 2.5, 1.9], (), 4, False),
        ([3.0, None, float("nan")], (), 1, False),  # of what nobody has scored nothing is known
        ([3.0, None, 3.5, 4.0], (), 1, True),
        ([3.0, 2.0, 1.0, 2.5], (3,), 2, False),  # a skipped round has no model of its own
        ([3.0, 2.0, 1.0, 2.5, 2.5], (3,), 2, True),
        ([None, float("inf"), None], (), None, False),
    ],
)
def test_the_best_round_is_the_first_of_the_least_and_patience_counts_from_there(
    scores, skipped, best, ends
):
    found = given(scores, skipped)
    assert found[0][BEST_ROUND] is None and found[-1][BEST_ROUND] == best
    assert is_stale(settings(), found) == ends
    assert not is_stale(settings(patience=0), found)
    assert result_line(found) is found[len(scores) if best is None else best]


def test_accuracy_is_best_where_it_is_highest():
    found = [
        {"round": n, "skipped": False, "accuracy": value} for n, value in enumerate((0.9, 0.5, 0.7))
    ]
    assert best_round(settings(keep_best="accuracy", evaluate_on="validation"), found) == 2


@pytest.mark.parametrize("changes", [{}, {"method": "PVI", "server_momentum": None}, NUMBERS])
def test_what_is_left_is_the_model_of_a_run_of_just_so_many_rounds(changes, stopped, tmp_path):
    chosen = {key: value for key, value in {**QUICK, **changes}.items() if value is not None}
    kept = tmp_path / "kept" if changes else stopped
    if changes:
        run_inline(resolve(chosen), kept)
    measured = lines(kept)
    best, score = result_line(measured)["round"], chosen["keep_best"]
    scores = [line.get("held_out", line).get(score) for line in measured[1:]]
    assert scores[best - 1] == min(scores)
    assert len(scores) == min(best + chosen["patience"], chosen["rounds"])
    plain = {**chosen, "keep_best": "none", "patience": 0, "rounds": best}
    run_inline(resolve(plain), tmp_path / "plain")
    assert same_model(kept, tmp_path / "plain")
    ends = [line[score] for line in lines(tmp_path / "plain")]
    assert ends == [line[score] for line in measured[: best + 1]]


def test_the_loaded_model_is_the_best_round_s(stopped):
    trained, measured = fedbary.load(stopped), lines(stopped)
    assert (
        trained.line["round"] == measured[-1][BEST_ROUND] == len(measured) - 1 - QUICK["patience"]
    )
    examples = trained.task.evaluation_examples()
    seed = trained.task.seed("predict-global", trained.line["round"])
    prediction = trained.task.predict(trained._outcome, examples.x, trained.facts, seed)
    judged = trained.task.judged(prediction, examples.y)
    assert judged["nll"] == pytest.approx(trained.line["nll"], abs=1e-6)
    assert trained.line["rejection"].keys() == measured[-1]["rejection"].keys()
    by_chance = trained.line["by_chance"]
    assert 0 < by_chance["ece_15"] < by_chance["ece_100"] < 1


@pytest.mark.parametrize("messages", [0, 3, 9] if NIGHT else [3])
def test_cut_off_anywhere_a_run_goes_on_to_the_same_model(messages, stopped, tmp_path, caplog):
    cut_off(settings(), tmp_path / "run", messages, ("train", "evaluate"))
    with caplog.at_level("INFO"):
        run_inline(settings(resume="last"), tmp_path / "run")
    best = lines(stopped)[-1][BEST_ROUND]
    assert f"nll on validation data has not improved since round {best}" in caplog.text
    assert f"Round {best} is kept" in caplog.text
    assert same_model(tmp_path / "run", stopped)
    assert lines(tmp_path / "run") == lines(stopped)


@pytest.mark.parametrize(
    "place",
    [
        "fedbary.runs.run_folder.save_checkpoint",  # a round's line is there, its checkpoint not
        "fedbary.server_app.recorder.Recorder.finish",
        "fedbary.runs.run_folder.RunFolder.checkpoint_of",
        "fedbary.runs.run_folder.RunFolder.finish",
    ],
)
def test_killed_between_two_files_the_folder_goes_on(place, stopped, tmp_path, monkeypatch):
    folder, rounds, write = tmp_path / "run", len(lines(stopped)), resolve_name(place)

    def killed(*arguments, **words):
        if len((folder / "metrics.jsonl").read_text().splitlines()) == rounds:
            raise KeyboardInterrupt
        return write(*arguments, **words)

    with monkeypatch.context() as patched:
        patched.setattr(place, killed)
        with pytest.raises(KeyboardInterrupt):
            run_inline(settings(), folder)
    assert not (folder / "posterior.safetensors").exists()
    run_inline(settings(resume="last"), folder)
    assert same_model(folder, stopped)
    assert lines(folder) == lines(stopped)


def test_a_run_that_stopped_early_is_whole(stopped):
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    refused("this one has ended", lambda: run_inline(settings(resume="last"), stopped))
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_the_best_checkpoint_stays_and_is_never_what_a_run_goes_on_from(tmp_path):
    for number, best in enumerate((0, 1, 1, 1, 1)):
        tensors = {"a": torch.full((2,), float(number))}
        save_checkpoint(tmp_path, Checkpoint(number, "a", "b", tensors, {}), [best])
    kept = sorted(int(file.stem.rpartition("-")[2]) for file in tmp_path.iterdir())
    assert kept == [1, 3, 4]
    assert float(load_round(tmp_path, 1).arrays["a"][0]) == 1
    assert load_checkpoint(tmp_path, "previous").round == 3
    (tmp_path / "checkpoint-0004.safetensors").unlink()
    refused("a previous checkpoint; this one holds 1", load_checkpoint, tmp_path, "previous")
    (tmp_path / "checkpoint-0001.safetensors").write_bytes(b"")
    refused(r"checkpoint-0001.*expected an undamaged checkpoint$", load_round, tmp_path, 1)


@pytest.mark.parametrize(
    ("changes", "setting", "words"),
    [
        ({"keep_best": "none"}, "patience", "0 for keep_best=none"),
        ({"keep_best": "loss"}, "keep_best", "nll, accuracy, ece, brier, auroc"),
        ({**NUMBERS, "keep_best": "accuracy"}, "keep_best", "nll, rmse, crps"),
        ({**NUMBERS, "evaluate_on": "test"}, "keep_best", "which evaluate_on=validation gives"),
        ({"holdout": 0}, "keep_best", "evaluate_on=validation, or holdout above 0"),
        ({"evaluate_clients": 2}, "keep_best", "holdout above 0 with evaluate_clients=1"),
        ({"method": "FedBN"}, "keep_best", "models of their own"),
        ({"projection": "WB"}, "keep_best", "models of their own"),
        (
            {"task": "classification", "dataset": "none", "evaluate_on": "validation",
             "classes": "2", "input_shape": "1x8x8", "holdout": 0},
            "keep_best", "which holdout above 0 with evaluate_clients=1 gives",
        ),
    ],
)  # fmt: skip
def test_what_could_not_be_kept_right_is_refused(changes, setting, words):
    with pytest.raises(SettingError, match=words) as caught:
        settings(**changes)
    assert caught.value.setting == setting


@pytest.fixture
def tables(stopped, tmp_path):
    """Two runs of different length, in a table."""
    run_inline(settings(keep_best="none", patience=0, rounds=3), tmp_path / "plain")
    runs = {"stopped": stopped, "plain": tmp_path / "plain"}
    write_table(tmp_path, [read_run(name, folder) for name, folder in runs.items()])
    return tmp_path, runs


def test_runs_of_different_length_share_tables_and_reports(tables):
    folder, runs = tables
    table, measured = read_table(folder), lines(runs["stopped"])
    assert dict(table.groupby("run").size()) == {"stopped": len(measured), "plain": 4}
    best = result_line(measured)
    found = result_rows(table).set_index("run")
    assert dict(found["round"]) == {"stopped": best["round"], "plain": 3}
    assert found.loc["stopped", "nll"] == pytest.approx(best["nll"], rel=1e-5)
    assert sorted(Results.of(table, folder).last["round"]) == sorted(found["round"])
    table = compared.with_arms(compared.read_runs(list(runs.values())))
    header, rows = compared.runs_table(table)
    at = header.index("round")
    assert [(row[0], row[at]) for row in rows] == [("run", str(best["round"])), ("plain", "3")]
    write_report(folder)
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "after the round that is best by nll on validation data or after the last" in report


def test_a_table_that_lacks_rounds_of_a_run_is_still_refused(tables):
    folder, _ = tables
    whole = read_table(folder)
    write_table(folder, [whole[:-1]])
    refused("the rounds of plain are not all there", read_table, folder)
    held = whole[whole["run"] == "stopped"]
    write_table(folder, [held[:-1]])
    refused("the rounds of stopped are not all there", read_table, folder)
