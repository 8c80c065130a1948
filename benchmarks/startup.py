"""Time from message to reply where every message starts a process, as on a SuperNode.

A fresh process imports what Flower's `flwr-clientapp` does and our client app, answers one message
over a site's small file and ends: a question what it holds, and an evaluation of the global model;
neither trains. Beside it the least that a client with PyTorch can be: it imports torch and replies.
Without the transport; the server polls for replies every 3 s. The sides alternate within one run.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PREAMBLE = """
import sys
from flwr.supernode.runtime.run_clientapp import run_clientapp
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from fedbary.server_app.engine.inline import InlineGrid
"""

BARE = """
import torch
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
(reply,) = InlineGrid(app, 1, {}).send_and_receive([Message(RecordDict(), 2, MessageType.QUERY)])
assert reply.has_content()
"""

OURS = """
from fedbary.client_app import app
from fedbary.settings.config import resolve
from fedbary.data.image_layout import ImageLayout
own = {"dataset": "none", "classes": "10", "input_shape": "1x28x28", "clients": 1}
settings, task = resolve(own), ImageLayout((1, 28, 28), tuple("0123456789"))
grid = InlineGrid(app, [{"data-path": sys.argv[1]}], settings.model_dump())
config = {"config": ConfigRecord({**task.config(), "server-round": 1})}
"""

QUERY = """
message = Message(RecordDict(config), 2, MessageType.QUERY)
(reply,) = grid.send_and_receive([message])
assert reply.has_content(), reply.error
"""

EVALUATE = """
from fedbary.tasks import task_of
arrays = ArrayRecord(task_of(settings).make_model(task).state_dict())
message = Message(RecordDict({**config, "arrays": arrays}), 2, MessageType.EVALUATE)
(reply,) = grid.send_and_receive([message])
assert reply.has_content(), reply.error
"""

SIDES = {
    "a bare client with PyTorch": PREAMBLE + BARE,
    "what do you hold?": PREAMBLE + OURS + QUERY,
    "evaluate": PREAMBLE + OURS + EVALUATE,
}


def seconds(program: str, data: Path) -> float:
    """Seconds from the start to the end of a fresh process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, str(data)], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="alternations")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "site.npz"
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (500, 28, 28), dtype=np.uint8)
        np.savez(data, x=images, y=rng.integers(0, 10, 500))
        rows = [
            [seconds(program, data) for program in SIDES.values()] for _ in range(args.repeats + 1)
        ][1:]
    for name, column in zip(SIDES, zip(*rows, strict=True), strict=True):
        ratio = statistics.median(own / row[0] for own, row in zip(column, rows, strict=True))
        print(f"{name}: median {statistics.median(column):.2f} s, {ratio:.2f} of the bare client's")


if __name__ == "__main__":
    main()
