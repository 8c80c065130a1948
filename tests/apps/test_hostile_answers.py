"""A site that answers questions with anything at all spoils nothing, and nobody else is blamed."""

import logging
import math
import os
import secrets

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from hostile_replies import NUMBERS, TEXTS
from hostile_site import run_with_a_hostile_site
from runs_of import SHORT, lines

from fedbary.settings.config import resolve
from fedbary.texts import SCREEN

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("FEDBARY_FUZZ_SEED") or secrets.randbits(32))
RUNS = {
    "tables": {"task": "tables", "conformal_by": "class"},
    "sums": {"task": "tables", "method": "LDA", "model": "linear"},
    "numbers": {"task": "regression", "bayesian_layers": 0},
    "components": {"backbone": "own_backbones:tiny", "features": 5, "bayesian_layers": 0},
}
LONG = "A" * 10**6


def spoiler(rng):
    """A function that replaces an entry of each answer, or all of it."""

    def pick(options):
        return options[rng.integers(len(options))]

    def spoil(action, reply):
        if action not in ("query", "ask"):
            return
        for name, record in list(reply.content.items()):
            key = pick([*record]) if record else "x"
            if rng.random() < 0.1:
                reply.content[name] = ArrayRecord({"x": Array(np.ones(3))})
            elif rng.random() < 0.1:
                del record[key]
            elif isinstance(record, MetricRecord):
                held = record.get(key, 0)
                many = len(held) if isinstance(held, list) else 1
                value = pick([n for n in NUMBERS if isinstance(n, float) or n < 2**63])
                lengths = [0, 1, many, many, many, many + 1, 10**4]
                record[key] = pick([value, [value] * pick(lengths)])
            else:
                record[key] = pick([*TEXTS, LONG, 3, b"x", ["a"]])

    return spoil


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("case", range(2))
def test_any_answer_leaves_the_others_as_they_are(kind, case, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    own = {"clients": 4, "holdout": 0.3, "conformal": 0.9, "round_timeout": 2}
    own |= {} if kind in ("tables", "sums", "numbers") else {"train_fraction": 0.3}
    spoil = spoiler(np.random.default_rng([SEED, [*RUNS].index(kind), case]))
    short = {**SHORT} if kind != "sums" else {k: v for k, v in SHORT.items() if k != "local_epochs"}
    run_with_a_hostile_site(resolve({**short, **own, **RUNS[kind]}), tmp_path / "run", spoil, 1)
    note = f"FEDBARY_FUZZ_SEED={SEED}"
    assert lines(tmp_path / "run")[-1]["admitted"] >= 3, note
    assert math.isfinite(lines(tmp_path / "run")[-1]["nll"]), note
    for said in caplog.messages:
        assert said.isprintable() and len(said) <= SCREEN + 100, note
        blamed = "left out" in said or "refused" in said
        assert not (blamed and said.startswith(("partition 0", "partition 2", "partition 3"))), note
