"""A federation that stays, on real servers, with a site that goes away and one that lies."""

import json
import re
import sys
from pathlib import Path

import pytest
from every_method import night
from runs_of import lines
from walkthroughs import run_script, staying

pytestmark = [pytest.mark.slow, night]

LIAR = """
import json, os, sys

if any("flwr-clientapp" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp

    answer = ClientApp.__call__

    def lying(app, message, context):
        reply = answer(app, message, context)
        with open(os.environ["LIE"]) as file:
            lie = json.load(file).get(message.metadata.message_type, {})
        if reply.has_content():
            for key, value in lie.items():
                part = "config_records" if key == "name" else "metric_records"
                records = getattr(reply.content, part)
                records["site" if key == "name" else "metrics"][key] = value
        return reply

    ClientApp.__call__ = lying
"""
"""What a lying site's Python does first: every answer has what the file says of its kind."""

NODE = """
node() {
  FLWR_HOME=$PWD/$1 flower-supernode --superlink $SERVER:9092 --root-certificates keys/ca.crt \\
    --port $2 --auth-supernode-private-key keys/$1 \\
    --node-config "data-path='$PWD/sites/$3' name='$1'"
}
look() { echo "LOOK $1"; echo "$2" > lie.json; fedbary stay ours runs stays.yaml round_timeout=60; }
new() { python ../examples/deployment/cut_sites.py sites $1; }
"""

LYING = f"""
set -- $(jobs -p)
NORTH=$2
kill -- -$4
LIE=$PWD/lie.json PATH={Path(sys.executable).parent}:$PATH PYTHONPATH=$PWD/../../liar \\
  node west 9104 west &
"""
"""West's SuperNode ends, and one that lies has its key."""

LIES = {
    "many": {"query": {"num-examples": 10**9, "label-counts": []}},
    "honest": {},
    "name": {"query": {"name": "north"}},
    "heavy": {"train": {"num-examples": 10**9}},
}
"""What west says instead of the truth, look by look."""

MANY, HONEST, NAME, HEAVY = (f"look {k} '{json.dumps(lie)}'\n" for k, lie in LIES.items())

AWAY, BACK = "kill -- -$NORTH\nnew 2\n", "node north 9105 north.npz &\nnew 3\n"
"""North goes away when all have new data, and comes back when all have newer ones."""


def test_no_lie_starts_a_run_and_a_site_that_is_away_keeps_its_name(tmp_path):
    (tmp_path / "liar").mkdir()
    (tmp_path / "liar" / "sitecustomize.py").write_text(LIAR)
    start, _, end = staying()
    parts = [*start, NODE, LYING, MANY, AWAY, HONEST, NAME, BACK, HEAVY, end]
    said, clone = run_script(parts, tmp_path)
    _, *looks = re.split("^LOOK ", said, flags=re.MULTILINE)
    looks = {text.split(maxsplit=1)[0]: text for text in looks}
    assert [name for name, text in looks.items() if "Results: " in text] == ["honest", "heavy"], (
        said
    )
    assert "take part: west; left out: " in looks["many"]
    assert "2 of 3 nodes take part" in looks["honest"]
    assert "it claims to be north, which is tied to the key" in looks["name"]
    assert "weight bounded: west" in looks["heavy"]

    runs = clone / "federation" / "runs"
    taught = [lines(runs / f"000{number}")[1]["clients"] for number in (1, 2, 3)]
    everyone = ["north", "south", "west"]
    assert [[c["site"] for c in each] for each in taught] == [everyone, ["south", "west"], everyone]
    assert [c["num-examples"] for c in taught[2]] == [180, 211, 149]
    for number in (1, 2, 3):
        keys = json.loads((runs / f"000{number}" / "site-keys.json").read_text())
        assert {name: key["registered"] for name, key in keys.items()} == {n: n for n in everyone}
