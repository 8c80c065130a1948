"""The example project under RKLB and under FedAvg, on the same Gaussian layers and seeds.

    python -m examples.own_model_rivals [--rounds 10] [--clients 5] [--seeds 0 1 2]

All runs are in this process. FedAvg takes the plain mean of means and of log-variances.
"""

import argparse
import contextlib
import io
import re
import runpy
import statistics
import tomllib
from pathlib import Path

from flwr.app import Context, RecordDict

from server_app.inline import InlineGrid

PROJECT = Path(__file__).parent / "own-model"


def scores(app: dict, rule: str, seed: int, rounds: int, clients: int) -> tuple[float, float]:
    """Accuracy in % and NLL in nats of a run, as the project prints them."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    config |= {"rule": rule, "seed": seed, "rounds": rounds}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        grid = InlineGrid(app["client"], clients, config)
        app["server"](grid, Context(1, 1, {}, RecordDict(), config))
    accuracy = re.search(r"([\d.]+)% right", printed.getvalue())[1]
    return float(accuracy), float(re.search(r"NLL ([\d.]+) nats", printed.getvalue())[1])


def main(words=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(words)
    app = runpy.run_path(str(PROJECT / "app.py"))
    for rule in ("RKLB", "FedAvg"):
        runs = [scores(app, rule, s, options.rounds, options.clients) for s in options.seeds]
        accuracy, nll = zip(*runs, strict=True)
        deviations = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in (accuracy, nll)]
        print(
            f"{rule:6} {statistics.mean(accuracy):.2f} ± {deviations[0]:.2f} % right, "
            f"NLL {statistics.mean(nll):.3f} ± {deviations[1]:.3f}"
        )


if __name__ == "__main__":
    main()
