"""Real servers on loopback, started by the lines of the documentation."""

import json

import pytest
import torch
from every_method import NIGHT
from runs_of import lines
from safetensors.torch import load_file
from walkthroughs import FILES, FOLDERS, blocks_of, run_script

from fedbary import client_app
from fedbary.runs.location import read_settings
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow

STRANGERS = """
ssh-keygen -q -t ecdsa -b 384 -N "" -f keys/stranger
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=another" \
  -keyout keys/other.key -out keys/other.crt
AS="flower-supernode --superlink $SERVER:9092 --auth-supernode-private-key"
FLWR_HOME=$PWD/stranger $AS keys/stranger --root-certificates keys/ca.crt --port 9104 &
FLWR_HOME=$PWD/deceived $AS keys/north --root-certificates keys/other.crt --port 9105 &
"""
"""A SuperNode whose key nobody registered, and one to which another authority is shown."""

KILLED = """
sed 's/^rounds.*/rounds=500/; s/^output.*/output=again/' run.toml > again.toml
TRAINED=$(grep -c "ROUND train" ../../output)
flwr run .. ours --run-config again.toml
until [ $(grep -c "ROUND train" ../../output) -ge $((TRAINED + 3)) ]; do sleep 0.2; done
kill -KILL $(jobs -p | head -1)
"""
"""By night, a second run, whose server is killed once all three sites are at work."""


def test_the_walkthrough_gives_the_global_model_of_the_simulation(tmp_path):
    blocks = blocks_of("deploy.md", "walkthrough.py")
    assert len(blocks) == 6
    *blocks, started, end = [block.replace("rounds=2", "rounds=1") for block in blocks]
    status = "flwr list ours --format json > status.json\n"
    parts = ["set -e\n", *blocks, STRANGERS, started, status, KILLED * NIGHT, "set +e\n", end]
    said, clone = run_script(parts, tmp_path)
    assert "Failed to activate SuperNode" in said and "Attempted to register SuperNode" in said
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert {path.name for path in clone.iterdir()} == {*FOLDERS, *FILES, "federation"}
    folder = clone / "federation"
    assert json.loads((folder / "status.json").read_text())["runs"][0]["status"] == (
        "finished:completed"
    )
    results = folder / "results-of-three-sites"
    last = lines(results)[-1]
    assert [client["site"] for client in last["clients"]] == ["north", "south", "west"]
    assert last["accuracy"] > 0.3

    made = read_settings(results)
    nodes = [
        {"data-path": str(folder / "sites" / file), "name": name}
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
