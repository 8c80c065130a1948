"""Runs without rounds on a virtual clock: the same bits at any speed, resume, refusals, faults."""

import json
import math
import shutil

import pytest
import torch
from flwr.app import ArrayRecord
from hostile_site import cut_off, run_with
from nodes import Grid
from refusals import refused
from runs_of import lines, posterior, same, timeless_lines

from fedbary import client_app
from fedbary.commands import start
from fedbary.errors import RunError, SettingError
from fedbary.runs.journal import journal_of, require_repeated
from fedbary.runs.resume import lengthen
from fedbary.server_app import run
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.settings.modes import require_real_time
from fedbary.strategies.gate import LEAST

BASE = {
    "task": "tables", "engine": "inline", "device": "cpu", "pictures": False, "clients": 4,
    "rounds": 7, "local_epochs": 1, "samples": 2, "evaluate_clients": 0, "speeds": "uniform",
}  # fmt: skip
ASYNC = {**BASE, "mode": "async"}
SITES = {"method": "PVI", "kl_weight": 1.0, "undamped_start": True}


def made(folder, **changes):
    run_inline(resolve({**ASYNC, **changes}), folder)
    return folder


def traced(folder, seconds):
    """The file of a trace, by which partition k takes so many seconds an example."""
    rows = [f"partition {k},{seconds(k)},0" for k in range(4)]
    (folder / "trace.csv").write_text("\n".join(["site,seconds_per_example,latency", *rows]) + "\n")
    return folder / "trace.csv"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made(tmp_path_factory.mktemp("async") / "run")


def test_a_replay_has_the_same_bits_and_neither_it_nor_a_run_of_two_schedules_goes_further(
    whole, tmp_path
):
    metrics = {"speeds": str(whole / "metrics.jsonl")}
    again = made(tmp_path / "again", **metrics)
    assert same(posterior(whole), posterior(again))
    require_repeated(whole, again)
    assert timeless_lines(whole) == timeless_lines(made(tmp_path / "afresh"))
    for other in ({"rounds": 8}, {"buffer": 2}, {"concurrency": 1}):
        (name,) = other
        with pytest.raises(SettingError, match=rf"^{name}: .*the run that it repeats"):
            made(tmp_path / "other", **metrics, **other)
        assert not (tmp_path / "other").exists()
    with pytest.raises(SettingError, match="rounds: 8; expected 7, as in the run that it repeats"):
        lengthen(again, resolve({**ASYNC, **metrics, "rounds": 8, "resume": "last"}))
    longer = shutil.copytree(whole, tmp_path / "longer")
    more = {**ASYNC, "rounds": 8, "output": str(longer)}
    lengthen(longer, resolve({**more, "resume": "last"}))
    with pytest.raises(SettingError, match="one schedule. Rounds 1 to 7 had rates from 0.02 to"):
        journal_of(
            resolve({**more, "speeds": str(longer / "metrics.jsonl"), "lr_schedule": "cosine"})
        )


def test_the_clock_goes_on_and_late_replies_are_told(whole):
    found = lines(whole)
    times = [line["virtual_seconds"] for line in found]
    assert times[0] == 0 and times == sorted(times) and times[-1] > 0
    late = [late for line in found[1:] for late in line["lateness"]]
    assert len(late) == LEAST + 6 and late[0] == 0 and 0 < max(late) < 7
    assert [line["admitted"] for line in found[1:]] == [LEAST, *6 * [1]]


@pytest.mark.parametrize("changes", [SITES, {"buffer": 2, "concurrency": 3, "remember": True}])
def test_a_run_cut_off_at_any_moment_goes_on_to_the_same_bits(changes, tmp_path):
    whole = made(tmp_path / "whole", **changes)
    for messages in (2, 7):
        folder = tmp_path / f"cut{messages}"
        chosen = resolve({**ASYNC, **changes, "output": str(folder)})
        cut_off(chosen, folder, messages)
        run_inline(chosen.model_copy(update={"resume": "last"}), folder)
        assert same(posterior(whole), posterior(folder))
        assert timeless_lines(whole) == timeless_lines(folder)


@pytest.mark.parametrize("changes", [{}, SITES])
def test_who_waits_for_all_makes_rounds_in_the_time_of_rounds(changes, tmp_path):
    """With concurrency = buffer = all clients, up to the order of sums."""
    made(tmp_path / "async", rounds=2, buffer=4, **changes)
    run_inline(resolve({**BASE, "rounds": 2, **changes}), tmp_path / "rounds")
    one, other = lines(tmp_path / "async"), lines(tmp_path / "rounds")
    assert [a["virtual_seconds"] for a in one] == pytest.approx(
        [b["virtual_seconds"] for b in other]
    )
    found, expected = posterior(tmp_path / "async"), posterior(tmp_path / "rounds")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_clock_changes_nothing_in_rounds_and_those_that_go_on_keep_their_time(tmp_path):
    run_inline(resolve({**BASE, "rounds": 2}), tmp_path / "clock")
    run_inline(resolve({**BASE, "rounds": 2, "speeds": "none"}), tmp_path / "none")
    assert same(posterior(tmp_path / "clock"), posterior(tmp_path / "none"))
    assert "virtual_seconds" not in lines(tmp_path / "none")[1]
    folder = tmp_path / "cut"
    chosen = resolve({**BASE, "rounds": 2, "output": str(folder)})
    cut_off(chosen, folder, 5)
    run_inline(chosen.model_copy(update={"resume": "last"}), folder)
    assert timeless_lines(folder) == timeless_lines(tmp_path / "clock")


@pytest.mark.slow
def test_a_client_that_is_hostile_and_300_times_as_fast_costs_its_replies_alone(tmp_path):
    """tests/strategies/test_bad_arrivals has every way and mode; this run has names of sites."""
    trace = traced(tmp_path, lambda k: 3e-6 if k == 2 else 1e-3 * (1 + 0.1 * k))

    def train(message, context):
        reply = client_app.train(message, context)
        if context.node_config["partition-id"] == 2:
            held = reply.content["arrays"].to_torch_state_dict()
            held |= {n: t + 1e9 for n, t in held.items() if not n.endswith("log_var")}
            reply.content["arrays"] = ArrayRecord(held)
        return reply

    own = {**SITES, "buffer": 2, "max_skipped": 1, "output": str(tmp_path / "run")}
    chosen = resolve({**ASYNC, "speeds": str(trace), **own})
    run_with(chosen, tmp_path / "run", train=train)
    found = lines(tmp_path / "run")
    refused = [reason for line in found[1:] for reason in line["refused"]]
    assert len(refused) > 3 and all("partition 2" in reason for reason in refused)
    assert not any(line["skipped"] or line.get("unanswered") for line in found)
    clients = {client["site"] for line in found[1:] for client in line["clients"]}
    assert clients == {"partition 0", "partition 1", "partition 3"}
    assert found[-1]["auroc"] > 0.9
    cut = chosen.model_copy(update={"output": str(tmp_path / "again")})
    run_with(cut, tmp_path / "again", train=train)
    assert same(posterior(tmp_path / "run"), posterior(tmp_path / "again"))


def edited(run, folder, change):
    """A copy of a run whose journal's first row was changed."""
    shutil.copytree(run, folder)
    found = lines(folder)
    found[1]["journal"][0] = change(found[1]["journal"][0])
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in found))
    return folder


@pytest.mark.usefixtures("in_this_process")
def test_a_journal_that_was_edited_is_refused_or_its_replay_ends_with_an_error(whole, tmp_path):
    """By the digest in the checkpoint; without one by its rows, their order, or the posterior."""

    def failed(row):
        return {**row, "end": "failed"}

    for place, change in enumerate((failed, lambda row: {**row, "arrived": 1e6})):
        with pytest.raises(SettingError, match=r"^speeds: .*the file as this run wrote it"):
            start.replay(edited(whole, tmp_path / f"{place}", change), tmp_path / "replayed")
    assert not (tmp_path / "replayed").exists()

    def unmarked(name, change):
        copy = edited(whole, tmp_path / name, change)
        for file in copy.glob("checkpoint-*"):
            file.unlink()
        return copy

    for name, change in (("a", lambda row: {**row, "arrived": "x"}), ("b", lambda row: 5)):
        with pytest.raises(SettingError, match=r"^journal: .*; expected rows with site"):
            start.replay(unmarked(name, change), tmp_path / "replayed")
    late = unmarked("late", lambda row: {**row, "arrived": 1e6})
    with pytest.raises(RunError, match="ends in another order than in the original run"):
        made(tmp_path / "other", speeds=str(late / "metrics.jsonl"))
    with pytest.raises(RunError, match=r"has not the posterior of .*failed: numbers of .* differ"):
        start.replay(unmarked("failed", failed), tmp_path / "replayed")


def test_a_replay_is_compared_with_its_run(whole, tmp_path):
    with pytest.raises(RunError, match="has not the posterior"):
        require_repeated(whole, made(tmp_path / "other", seed=1))


def test_a_client_that_vanishes_is_passed_over(tmp_path):
    chosen = resolve({**ASYNC, "rounds": 6, "round_timeout": 1, "output": str(tmp_path / "run")})
    grid = Grid(client_app.app, chosen)
    counted = iter(range(10**6))
    answer = grid._answer

    def vanishing(message):
        if message.metadata.message_type == "train" and next(counted) == 5:
            grid.mute.add(grid.online[2])
        return answer(message)

    grid._answer = vanishing
    run(grid, chosen, tmp_path / "run")
    found = lines(tmp_path / "run")
    assert [line["admitted"] for line in found[1:]] == [LEAST, *5 * [1]]
    assert ["partition 2"] in [line["unanswered"] for line in found[1:]]


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"speeds": "fast"}, "speeds"),
        ({"concurrency": 5}, "concurrency"),
        ({"buffer": 3, "concurrency": 2}, "buffer"),
        ({"min_replies": 2}, "min_replies"),
        ({"participation": 0.5}, "participation"),
        ({"compress": "all"}, "compress"),
        ({"attack": "inner_product", "clients": 5}, "attack"),
        ({"projection": "WB", "holdout": 0.2}, "projection"),
        ({"staleness": "linear"}, "staleness"),
        ({"rule": "Median"}, "rule"),
        ({"mixing": True}, "mixing"),
        ({"method": "FedSEP"}, "mode"),
        ({"task": "glm", "dataset": "none", "method": "Newton"}, "mode"),
        ({"mode": "rounds", "buffer": 2}, "buffer"),
        ({"mode": "rounds", "speeds": "none", "wait_for": 0.8}, "wait_for"),
        ({"mode": "rounds", "speeds": "none", "deadline": 3}, "deadline"),
    ],
)
def test_what_does_not_go_without_rounds_is_refused_by_name(changes, setting):
    with pytest.raises(SettingError) as caught:
        resolve({**ASYNC, **changes})
    assert caught.value.setting == setting


def test_a_simulation_needs_a_virtual_clock(tmp_path):
    refused(r"speeds: 'none'.*needs a clock", made, tmp_path / "run", speeds="none")


def test_real_servers_have_no_virtual_clock():
    refused("none on real servers", lambda: require_real_time(resolve(ASYNC)))


def test_rounds_wait_for_the_fastest_or_until_a_deadline(tmp_path):
    """Site k takes 2ᵏ seconds an example, and sites have about as many examples each."""
    trace = traced(tmp_path, lambda k: 2.0**k)
    rival = {"mode": "rounds", "rounds": 1, "speeds": str(trace), "partition": "iid"}
    made(tmp_path / "all", **rival)
    takes = {c["site"]: c["num-examples"] * 2.0 ** int(c["site"][-1])
             for c in lines(tmp_path / "all")[1]["clients"]}  # fmt: skip
    for changes, sites, seconds in (
        ({"wait_for": 0.5}, 2, takes["partition 1"]),
        ({"deadline": 1.1 * takes["partition 2"]}, 3, 1.1 * takes["partition 2"]),
        ({"deadline": 0.1, "min_replies": 2}, 2, takes["partition 1"]),
    ):
        made(folder := tmp_path / f"{sites}-{seconds}-{len(changes)}", **rival, **changes)
        line = lines(folder)[1]
        assert [c["site"] for c in line["clients"]] == [f"partition {k}" for k in range(sites)]
        assert line["virtual_seconds"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("chosen", "passes"),
    [
        ({"method": "FALD", "local_steps": 7, "batch_size": 16}, lambda n: 7 / math.ceil(n / 16)),
        ({"method": "LDA"}, lambda n: 1),
        ({"local_epochs": 2}, lambda n: 2),
    ],
)
def test_the_clock_counts_the_passes_that_a_method_makes(tmp_path, chosen, passes):
    trace = traced(tmp_path, lambda k: 0.001)
    own = {name: value for name, value in BASE.items() if name not in ("local_epochs", "samples")}
    run = {**own, "bayesian_layers": 0, "rounds": 1, "speeds": str(trace), **chosen}
    run_inline(resolve(run), tmp_path / "run")
    line = lines(tmp_path / "run")[1]
    takes = [1e-3 * n * passes(n) for n in (c["num-examples"] for c in line["clients"])]
    assert line["virtual_seconds"] == pytest.approx(max(takes))


def test_a_trace_that_does_not_do_leaves_no_folder(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = ["site,seconds_per_example,latency", *(f"partition {k},0.001,0" for k in range(4))]
    for content in ("\n".join(rows[:3]), "site;seconds"):
        trace.write_text(content)
        refused(r"^speeds ", made, tmp_path / "run", speeds=str(trace))
        assert not (tmp_path / "run").exists()
    trace.write_text("\ufeff" + "\r\n".join(rows))  # as spreadsheets write it
    made(tmp_path / "run", speeds=str(trace), rounds=2)


@pytest.mark.parametrize(
    "damaged",
    [5, None, {}, [5], [{}], *({name: wrong} for name, wrong in (
        ("arrived", "x"), ("arrived", None), ("asked", []), ("round", "1"), ("site", 3), ("end", 0)
    ))],
)  # fmt: skip
def test_a_damaged_journal_is_refused_in_one_line(damaged, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    written = lines(run)
    first = written[1]["journal"]
    is_part = isinstance(damaged, dict) and damaged
    written[1]["journal"] = [{**first[0], **damaged}, *first[1:]] if is_part else damaged
    text = "".join(json.dumps(line) + "\n" for line in written)
    (run / "metrics.jsonl").write_text(text)
    with pytest.raises(
        SettingError, match="a journal as the run wrote it|its journal|as this run wrote it"
    ):
        journal_of(resolve({**ASYNC, "speeds": str(run / "metrics.jsonl")}))
