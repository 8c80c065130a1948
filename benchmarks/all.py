"""Find what became dearer by a tenth: calls of functions, counted, which no other program disturbs.

Each row is a piece of work that the other benchmarks time. Its count is that of all calls, Python's
and C's, PyTorch's operations among them, or that of the modules that a command imports. The same
versions give the same counts, up to some in ten thousand. Times are the other scripts' part.

    python -m benchmarks.all            # compare with benchmarks/counts.json; exit code 1: dearer
    python -m benchmarks.all --keep     # write the counts of now
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.aggregation import client, ours, step
from benchmarks.local_step import BATCH, CLASSES, SHAPE
from benchmarks.local_step import ours as epoch
from fedbary import predict
from fedbary.models import build
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.strategies import RKLB, Median, TrimmedMean

KEPT = Path(__file__).parent / "counts.json"

DEARER = 1.1
"""Ratio of counts from which a row is dearer."""


def calls(work: Callable[[], object]) -> int:
    """Return the number of calls that a piece of work makes, in all threads, the second time."""
    work()
    found = 0

    def count(frame: FrameType, event: str, what: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def modules(program: str) -> int:
    """Return the number of modules that a program imports in a fresh process."""
    counted = f"{program}\nimport sys\nprint(len(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", counted], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1])


def run(rounds: int) -> None:
    """Run a federation of three clients in this process."""
    words = {"engine": "inline", "clients": 3, "rounds": rounds, "local_epochs": 1}
    settings = resolve({**words, "samples": 2, "pictures": False, "device": "cpu"})
    with tempfile.TemporaryDirectory() as scratch:
        run_inline(settings, Path(scratch) / "run")


def counts() -> dict[str, int]:
    """Return each row's count."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20 * BATCH, *SHAPE), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    model = build("cnn", SHAPE, CLASSES, 0, 3, -5.0)
    replies = [client(k, 100_000) for k in range(10)]
    one, three = (calls(partial(run, rounds)) for rounds in (1, 3))
    return {
        "20 training steps, n = 3": calls(epoch(3, x, y)),
        "20 training steps, n = 0": calls(epoch(0, x, y)),
        "10 samples of 1,280 images": calls(lambda: predict(model, x, 10)),
        "RKLB of 10 clients": calls(lambda: ours(replies)),
        "RKLB, a strategy's step": calls(lambda: step(RKLB, replies)),
        "Median, a strategy's step": calls(lambda: step(Median, replies)),
        "TrimmedMean, a strategy's step": calls(lambda: step(TrimmedMean, replies)),
        "a run of one round": one,
        "two more rounds": three - one,
        "modules of the command": modules("import fedbary.commands.command"),
        "modules of the client app": modules("import client_app"),
        "modules of its answers": modules("import client_app.answers"),
        "modules of the server's run": modules("import server_app.experiment"),
    }


def main() -> None:
    """Count, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="write the counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = counts()
    if args.keep:
        KEPT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    dearer = {name for name, count in found.items() if count > DEARER * kept.get(name, 0)}
    for name, count in found.items():
        ratio = count / kept[name] if name in kept else float("inf")
        said = "dearer" if name in dearer else ""
        print(f"{name:32}{count:10,} of {kept.get(name, 0):10,}  {ratio:6.3f}  {said}")
    sys.exit(bool(dearer))


if __name__ == "__main__":
    main()
