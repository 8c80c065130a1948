"""What a tracker was told is read back by its own library; its failure never stops a run."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from every_method import night
from refusals import refused
from safetensors.numpy import load_file

from fedbary.parts.registry import modules
from fedbary.runs.tracking import Tracking, tracker_class
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import Settings, resolve

QUICK = {
    "engine": "inline", "device": "cpu", "clients": 2, "rounds": 2, "local_epochs": 1,
    "samples": 2, "model": "mlp", "bayesian_layers": 1, "train_fraction": 0.2,
}  # fmt: skip


def run(tracker: str, folder: Path) -> list[dict]:
    """Make a run; return the lines of its rounds."""
    run_inline(resolve({**QUICK, "tracker": tracker}), folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def pictures_of(folder):
    return {picture.stem for picture in folder.glob("*.png")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_numbers_pictures_settings_and_the_posterior(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = run("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    tags = events.Tags()
    found = [(event.step, event.value) for event in events.Scalars("nll")]
    assert found == [(line["round"], pytest.approx(line["nll"])) for line in lines]
    assert "uncertainty/epistemic" in tags["scalars"]
    assert set(tags["images"]) == pictures_of(tmp_path / "run")
    posterior = load_file(tmp_path / "run" / "posterior.safetensors")
    assert set(tags["histograms"]) == {f"posterior/{name}" for name in posterior}
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "bayesian_layers: 1" in text


def wandb_records(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a .wandb file by their kinds.

    After 7 bytes of its own it is LevelDB's log: in blocks of 32 KiB parts of records, each led by
    its check sum, its length and whether it is whole (1), a first (2), a middle (3) or a last (4).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, held = file.read_bytes(), 7, b""
    while at < len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):
            record, held = Record.FromString(held), b""
            kind = record.WhichOneof("record_type")
            yield kind, getattr(record, kind)


@night  # by day TensorBoard and MLflow read the same events
def test_wandb_offline_reads_numbers_settings_pictures_and_the_posterior(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for place in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{place}_DIR", str(tmp_path / "home"))
    lines = run("wandb", tmp_path / "run")
    wandb.teardown()
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    told = list(wandb_records(file))
    (made,) = (record for kind, record in told if kind == "run")
    assert (made.project, made.display_name) == ("fedbary", "run")
    config = {item.key: json.loads(item.value_json) for item in made.config.update}
    assert {name: config[name] for name in QUICK} == QUICK and config["rule"] == "RKLB"
    rounds = [
        {"/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
        for kind, record in told
        if kind == "history"
    ]
    found = [(values["_step"], values["nll"]) for values in rounds]
    assert found == [(line["round"], line["nll"]) for line in lines]
    assert "uncertainty/epistemic" in rounds[0]
    assert {name.partition("/")[0] for name in rounds[-1]} >= pictures_of(tmp_path / "run")
    (artefact,) = (record for kind, record in told if kind == "artifact")
    (posterior,) = artefact.manifest.contents
    assert Path(posterior.local_path) == tmp_path / "run" / "posterior.safetensors"
    assert "exit" in dict(told)


def settings_with(tracker: str) -> Settings:
    return resolve(QUICK).model_copy(update={"tracker": tracker})


def test_a_tracker_that_fails_is_warned_of_once_and_told_nothing_more(tmp_path, monkeypatch):
    class Failing:
        def __init__(self, folder, settings):
            pass

        def scalars(self, values, step):
            raise ConnectionError("the store\nis gone")

    monkeypatch.setattr("fedbary.runs.tracking.tracker_class", lambda name: Failing)
    said = []
    tracking = Tracking(settings_with("failing"), tmp_path, said.append)
    for server_round in range(3):
        tracking.add_round({"round": server_round, "nll": 0.5})
    tracking.finish(lambda place: None)
    assert said == ["tracker=failing is told nothing more: the store is gone"]


def test_a_tracker_without_its_library_is_refused_by_the_extra_that_it_lacks():
    refused(r"none.*fedbary\[absent\]", tracker_class, "absent")
    refused(", ".join(("none", *modules("tracking"))), resolve, {"tracker": "absent"})
