"""Faults of real servers: strangers, a server and a site that are killed."""

import json
import re
import sys
import threading

import forked
import numpy as np
import pytest
from every_method import night
from own_sites import cut
from processes import MARK, servers_of, wait_until
from runs_of import lines

from fedbary.launching.deploy import lab, site_configs
from fedbary.launching.launch import validate_run
from fedbary.launching.superlink import write_certificates, write_site_key
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow

OWN = {
    "dataset": "none", "classes": 10, "input_shape": "1x8x8", "clients": 3, "min_replies": 1,
    "rounds": 3, "local_epochs": 10, "evaluate_clients": 0, "device": "cpu",
}  # fmt: skip


def at_work(folder, program, home=""):
    """Processes of one of Flower's programs, of a test, in a home."""
    return [
        process
        for process in servers_of(folder)
        if any(word.endswith(program) for word in process.info["cmdline"])
        and home in process.info["environ"].get("FLWR_HOME", "")
    ]


def asked(federation, site):
    """How often a site has begun to train in the second round; what the site has logged stays."""
    return len(re.findall(r"round 2\]\n.*Receiving: train", federation.log(site)))


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Two sites' own files, and a third's that do not fit."""
    folder = tmp_path_factory.mktemp("sites")
    np.savez(folder / "d.npz", x=np.zeros((50, 16, 8), np.uint8), y=np.arange(50) % 10)
    one, _, images = cut(folder)
    return [one, images, folder / "d.npz"]


@night  # by day the walkthrough refuses strangers; tests/runs/test_kills kills a run and resumes it
def test_strangers_are_refused_and_a_killed_server_and_a_killed_site_do_not_end_the_federation(
    sites, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "executable", f"{forked.tools()}/python")
    monkeypatch.setenv(MARK, str(tmp_path))
    folder, output = tmp_path / "lab", tmp_path / "run"
    folder.mkdir()
    chosen = validate_run(resolve(OWN), output, own_data=True)
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
        wait_until(lambda: all(asked(federation, site) for site in ("site0", "site1")))
        for process in at_work(tmp_path, "flwr-serverapp"):
            process.kill()
        again = chosen.model_copy(update={"resume": "last", "round_timeout": 30.0})
        status = []
        second = threading.Thread(target=lambda: status.append(federation.run(again)))
        second.start()
        wait_until(lambda: asked(federation, "site1") == 2)
        for program in ("flower-supernode", "flower-superexec", "flwr-clientapp"):
            for process in at_work(tmp_path, program, str(folder / "site1")):
                process.kill()
        second.join()
        assert status == ["finished:completed"]

        assert "Failed to activate SuperNode" in federation.log("stranger")
        assert "Attempted to register SuperNode" in federation.log("superlink")
        assert "CERTIFICATE_VERIFY_FAILED" in federation.log("deceived")
    first.join()  # Flower sees only after a minute that its server is gone, or here
    wait_until(lambda: servers_of(tmp_path) == [])

    keys = json.loads((output / "site-keys.json").read_text())
    assert {name: key["registered"] for name, key in keys.items()} == {n: n for n in keys}
    assert {"a", "c"} <= keys.keys()
    rounds = lines(output)
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    trained = [[client["site"] for client in line["clients"]] for line in rounds[1:]]
    assert trained == [["a", "c"], ["a"], ["a"]]
    assert rounds[2]["unanswered"] == ["c"]
    assert rounds[3]["unanswered"] == []
    assert rounds[3]["seconds"] < rounds[2]["seconds"]
    assert not any(line["skipped"] for line in rounds)
