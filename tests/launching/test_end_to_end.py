"""The real thing: Flower's SuperLink and Ray, from the command line."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from processes import dead_ray, marked, servers_of
from safetensors.torch import load_file

from fedbary.launching import launch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
QUICK = ["protocol=short", "clients=3", "rounds=2", "local_epochs=1", "samples=3"]


def simulate(*words, cwd, **variables):
    return subprocess.run(
        [str(BIN / "fedbary"), "simulate", *words],
        cwd=cwd, env={**marked(cwd), **variables},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_ray_and_inline_give_the_same_global_model_and_leave_nothing_behind(tmp_path):
    """A client attacks, and in both it sees what the two honest ones send."""
    attacked = ["attack=inner_product", "hostile_fraction=0.4"]
    for engine in ("ray", "inline"):
        done = simulate(*QUICK, *attacked, f"engine={engine}", f"output={engine}", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.strip().endswith(str(tmp_path / engine))
    ray, inline = (load_file(tmp_path / e / "posterior.safetensors") for e in ("ray", "inline"))
    assert ray.keys() == inline.keys()
    assert all(torch.equal(ray[name], inline[name]) for name in ray)
    rounds = [
        [json.loads(line) for line in (tmp_path / e / "metrics.jsonl").read_text().splitlines()]
        for e in ("ray", "inline")
    ]
    for one, other in zip(*rounds, strict=True):
        assert one["accuracy"] == other["accuracy"]
    assert servers_of(tmp_path) == []


def test_the_trace_of_a_dead_cluster_is_not_followed(tmp_path, monkeypatch):
    with dead_ray() as trace:
        done = simulate(*QUICK, "rounds=1", "output=run", cwd=tmp_path, **trace)
        assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert launch.flower_environment(tmp_path)["RAY_ADDRESS"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert launch.flower_environment(tmp_path)["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_a_run_that_fails_exits_with_an_error(tmp_path):
    done = simulate(*QUICK, "cpus_per_client=2", "round_timeout=0.01", "output=run", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("fedbary: the run ended")
    assert servers_of(tmp_path) == []


def test_plain_flwr_run_takes_the_federation_as_it_is_and_run_config_over_the_file(tmp_path):
    environment = launch.flower_environment(tmp_path)
    output = tmp_path / "run"
    config = f'settings="rule=WB rounds=1 local_epochs=1 samples=2 output={output}"'
    command = [str(BIN / "flwr"), "run", str(ROOT), "local", "--stream", "--run-config", config]
    with launch.superlink(environment, tmp_path) as wait:
        wait()
        subprocess.run(command, cwd=ROOT, env=environment, timeout=240, check=True)
    settings = yaml.safe_load((output / "settings.yaml").read_text())["settings"]
    assert (settings["rule"], settings["rounds"]) == ("WB", 1)
    last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["admitted"] == 2  # Flower's own default for a simulated federation
    assert yaml.safe_load((output / "settings.yaml").read_text())["nodes"] == 2


def test_a_ray_that_never_answers_ends_the_run_with_its_cause(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        words = [*QUICK, "round_timeout=5", "output=run"]
        done = simulate(*words, cwd=tmp_path, RAY_ADDRESS=address)
    assert done.returncode == 1
    cause = "within 5 seconds; Ray has not joined the cluster that RAY_ADDRESS="
    assert cause + address in done.stdout + done.stderr
    assert servers_of(tmp_path) == []
    assert not (tmp_path / "run").exists()
