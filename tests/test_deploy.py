"""Real servers on loopback: TLS, keys, sites with their own files, and what happens to them."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from PIL import Image
from processes import MARK, marked, servers_of
from safetensors.torch import load_file

import client_app
from fedbary.config import resolve
from fedbary.credentials import write_certificates, write_site_key
from fedbary.data import load
from fedbary.deploy import lab, site_configs
from fedbary.errors import SettingError
from fedbary.launch import free_port, prepare, stop
from server_app import run
from server_app.inline import InlineGrid

ROOT = Path(__file__).resolve().parents[1]
FEDBARY = Path(sys.executable).parent / "fedbary"
OWN = {
    "dataset": "none", "classes": 10, "input_shape": "1x8x8", "clients": 4, "rounds": 3,
    "local_epochs": 40, "evaluate_clients": 0, "device": "cpu",
}  # fmt: skip


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def commands(process):
    """The command lines of what a process has started, each as one text."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(child.cmdline()))
    return found


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three sites' own files, cut from the digits, and a fourth's that do not fit."""
    folder = tmp_path_factory.mktemp("sites")
    digits = load("digits", folder, False)
    x, y = (digits.x_train[:, 0] * 255).byte().numpy(), digits.y_train.numpy()
    np.savez(folder / "a.npz", x=x[:400], y=y[:400])
    np.savez(folder / "b.npz", x=x[400:900], y=y[400:900])
    for index in range(900, 1200):
        (folder / "c" / str(y[index])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[index]).save(folder / "c" / str(y[index]) / f"{index}.png")
    np.savez(folder / "d.npz", x=np.repeat(x[:50], 2, 1), y=y[:50])
    return [folder / "a.npz", folder / "b.npz", folder / "c", folder / "d.npz"]


def test_strangers_are_refused_and_a_killed_server_and_a_killed_site_do_not_end_the_federation(
    sites, tmp_path, monkeypatch
):
    monkeypatch.setenv(MARK, str(tmp_path))
    folder, output = tmp_path / "lab", tmp_path / "run"
    folder.mkdir()
    chosen = prepare(resolve(OWN), output)
    with lab(folder, site_configs(sites)) as federation:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        write_certificates(foreign)
        write_site_key(folder / "stranger.key")
        config = {"data-path": str(sites[0]), "name": "stranger"}
        federation.start_site("stranger", config, folder / "stranger.key")
        federation.start_site("deceived", config, folder / "site0.key", foreign / "ca.crt")

        first = threading.Thread(target=federation.run, args=[chosen])
        first.start()
        wait_until((output / "checkpoint-0001.safetensors").exists)
        superlink = psutil.Process(federation.processes["superlink"].pid)
        for process in superlink.children(recursive=True):
            if any("flwr-serverapp" in word for word in process.cmdline()):
                process.kill()
        again = chosen.model_copy(update={"resume": "last", "round_timeout": 40.0})
        status = []
        second = threading.Thread(target=lambda: status.append(federation.run(again)))
        second.start()
        site = psutil.Process(federation.processes["site2"].pid)
        wait_until(lambda: "resumed" in (output / "settings.yaml").read_text())
        wait_until(lambda: any("flwr-clientapp" in words for words in commands(site)))
        for process in (site, *site.children(recursive=True)):
            process.kill()
        second.join()
        first.join()
        assert status == ["finished:completed"]

        assert "Failed to activate SuperNode" in federation.log("stranger")
        assert "Attempted to register SuperNode" in federation.log("superlink")
        assert "CERTIFICATE_VERIFY_FAILED" in federation.log("deceived")
    assert servers_of(tmp_path) == []

    rounds = lines(output)
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    trained = [[client["site"] for client in line["clients"]] for line in rounds[1:]]
    assert trained == [["a", "b", "c"], ["a", "b"], ["a", "b"]]
    assert rounds[2]["unanswered"] == ["c"]
    assert rounds[3]["unanswered"] == []
    assert rounds[3]["seconds"] < rounds[2]["seconds"]
    assert not any(line["skipped"] for line in rounds)


def test_the_walkthrough_of_the_readme_gives_the_global_model_of_the_simulation(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- walkthrough -->\n```bash\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 5
    clone = tmp_path / "clone"
    clone.mkdir()
    for part in ("client_app", "examples", "fedbary", "server_app", "strategies"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, clone / part, ignore=ignored)
    for part in ("pyproject.toml", "simulation.yaml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, clone)
    script = "set -e\n" + "".join(blocks) + "flwr list ours --format json > status.json\n"
    script = script.replace("9092", str(free_port()))
    for port in ("9101", "9102", "9103"):
        script = script.replace(port, str(free_port()))
    environment = {**marked(tmp_path), "PATH": f"{FEDBARY.parent}:{os.environ['PATH']}"}
    with open(tmp_path / "output", "w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=clone, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(300)
        finally:
            stop(servers_of(tmp_path))
        assert code == 0, (tmp_path / "output").read_text()
    assert json.loads((clone / "status.json").read_text())["runs"][0]["status"] == (
        "finished:completed"
    )
    results = clone / "results-of-three-sites"
    last = lines(results)[-1]
    assert [client["site"] for client in last["clients"]] == ["north", "south", "west"]
    assert last["accuracy"] > 0.3

    made = yaml.safe_load((results / "settings.yaml").read_text())["settings"]
    nodes = [
        {"data-path": str(clone / "sites" / file), "name": name}
        for name, file in (("north", "north.npz"), ("south", "south.npz"), ("west", "west"))
    ]
    run(InlineGrid(client_app.app, nodes, made), resolve(made), tmp_path / "simulated")
    one, other = (
        load_file(folder / "posterior.safetensors") for folder in (results, tmp_path / "simulated")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    for one, other in zip(lines(results), lines(tmp_path / "simulated"), strict=True):
        assert one["accuracy"] == other["accuracy"]


def test_sites_that_are_not_there_or_twice(sites, tmp_path):
    with pytest.raises(SettingError, match=r"--site: .*none.npz"):
        site_configs([tmp_path / "none.npz"])
    with pytest.raises(SettingError, match="no other site has the same"):
        site_configs([sites[0], sites[0]])


def test_deploy_trains_as_simulate_does_and_when_it_is_stopped_stops_every_server(tmp_path):
    words = ["clients=2", "evaluate_clients=0", "device=cpu"]
    command = [str(FEDBARY), "deploy", *words, "rounds=50", "output=deployed"]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=marked(tmp_path), stdout=output, stderr=output
        )
    wait_until((tmp_path / "deployed" / "checkpoint-0001.safetensors").exists)
    assert servers_of(tmp_path)
    process.terminate()
    assert process.wait(60) == 130
    assert servers_of(tmp_path) == []

    simulate = [str(FEDBARY), "simulate", *words, "engine=inline", "rounds=1", "output=simulated"]
    subprocess.run(simulate, cwd=tmp_path, check=True, timeout=120)
    deployed = load_file(tmp_path / "deployed" / "checkpoint-0001.safetensors")
    simulated = load_file(tmp_path / "simulated" / "posterior.safetensors")
    assert all(torch.equal(deployed[f"arrays.{name}"], simulated[name]) for name in simulated)
