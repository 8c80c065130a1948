"""What a site writes, however long or forged: files and lines of the log stay short and true."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord
from hostile_site import run_with_a_hostile_site

from fedbary.settings.config import resolve
from fedbary.texts import LONGEST, cause

FORGED = "ok\n\x1b[2K\rround 1/1  accuracy 100.00 %  NLL 0.0000"
QUICK = {
    "engine": "inline", "clients": 3, "rounds": 1, "local_epochs": 1, "samples": 2,
    "pictures": False, "bayesian_layers": 1, "batch_size": 512, "round_timeout": 1,
    "normalise": "none",  # clients of these tests' own answer no question
}  # fmt: skip


SCORED = ("train", "evaluate")
METRICS = {
    "a weight as a list": (SCORED, {"num-examples": [1] * 10**6}),
    "partitions as a list": (SCORED, {"partition-id": [1] * 10**6}),
    "a long key": (SCORED, {"x" * 5 * 10**6: 1}),
    "many keys": (SCORED, {f"metric {k}": k for k in range(10**5)}),
    "a forged key": (SCORED, {FORGED: 1}),
    "label counts": (("query",), {"label-counts": [1] * 10**6}),
}


def metrics(way):
    actions, own = METRICS[way]

    def spoil(action, reply):
        if action in actions:
            for key, value in own.items():
                reply.content["metrics"][key] = value

    return spoil


def forged_array(action, reply):
    if action == "train":
        reply.content["arrays"][FORGED * 10**5] = Array(np.zeros(1))


def forged_serialisation(action, reply):
    if action == "train":
        arrays = reply.content["arrays"]
        arrays[next(iter(arrays))] = Array("float32", (1,), FORGED * 10**5, b"")


def error(action, reply):
    if action != "query":
        raise RuntimeError(FORGED * 10**5)


def error_when_asked(action, reply):
    raise RuntimeError(FORGED * 10**5)


def name(action, reply):
    if action == "query":
        reply.content["site"] = ConfigRecord({"name": FORGED * 10**5})


OTHERS = [forged_array, forged_serialisation, error, error_when_asked, name]


@pytest.mark.parametrize("spoil", [*map(metrics, METRICS), *OTHERS])
def test_whatever_a_site_writes_files_and_log_lines_stay_short_and_none_is_forged(
    spoil, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        run_with_a_hostile_site(resolve(QUICK), tmp_path / "run", spoil)
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size < 20_000
    assert (tmp_path / "run" / "settings.yaml").stat().st_size < 20_000
    said = [record.getMessage() for record in caplog.records]
    assert max(map(len, said)) < 500
    assert all(line.isprintable() for line in said)
    assert not any(line.startswith("round 1/1  accuracy 100.00 %") for line in said)
    assert sum(line.startswith("round 1/1 ") for line in said) == 1


def test_a_worker_that_ray_killed_is_said_to_have_had_too_little_memory():
    for said in (
        "ActorUnavailableError: The actor 1f is unavailable: The actor was restarted. " + "x" * 500,
        "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing'>",
    ):
        assert "out of memory" in cause(said) and len(cause(said)) <= LONGEST
    assert "memory" not in cause("<class 'builtins.ValueError'>:<'an actor'>")
