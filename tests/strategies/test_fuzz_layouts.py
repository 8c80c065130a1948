"""Random hostile replies in every method's own layout, through the strategy, recorder and journal.

FEDBARY_FUZZ_SEED repeats a failure; FEDBARY_EVERY_METHOD=1 tries every method, not one a kind.
"""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from every_method import NIGHT, OF_CLASSES, of_tables
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hostile_replies import EXTREMES, NUMBERS, TEXTS
from strategies_replies import NO_GRID, metadata
from test_fuzz import SEED

from fedbary.methods import METHODS, arguments_of
from fedbary.methods._sums import SumsMethod, head_names
from fedbary.parts.parameters import declared
from fedbary.runs.run_folder import RunFolder
from fedbary.server_app.clocked import bench_of
from fedbary.server_app.recorder import Recorder, means_of
from fedbary.strategies import Federation, strategy_for
from fedbary.strategies.arrays import PACKING

KINDS = {
    (m.deterministic, m.personalises, m.shows, m.needs_bench, m.reply_like.__module__): name
    for name, m in METHODS.items()
    if name in OF_CLASSES
}
TRIED = sorted(OF_CLASSES if NIGHT else KINDS.values())
HONEST, HOSTILE, ROUNDS = 3, 2, 3
FACTS = {"mean": torch.zeros(30), "std": torch.full((30,), 100.0), "class_rows": torch.ones(2)}
"""What the sites have told of breast cancer's columns, roughly."""

pytestmark = pytest.mark.slow


def settings_of(name):
    least = {"server_steps": 3, "server_epochs": 2, "distil_epochs": 1}
    return of_tables(name, **{k: least[k] for k in least.keys() & declared(METHODS[name]).keys()})


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)


def sound(tensor, rng):
    """A number of a reply's near the one that was sent."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.from_numpy(np.asarray(rng.standard_normal(tuple(tensor.shape)))).to(tensor)
    return tensor + 0.05 * noise.abs()


def sound_reply(method, model, rng, examples):
    """A sound reply: near what was sent, or, of a method of sums, those of some examples."""
    like = method.reply_like(model)
    if not isinstance(method, SumsMethod):
        return {key: sound(tensor, rng) for key, tensor in like.items()}
    outputs, width = model[head_names(model)[0]].shape
    x = torch.from_numpy(rng.standard_normal((examples, width)))
    y = torch.from_numpy(rng.integers(0, outputs, examples))
    return {key: (t / examples).to(like[key]) for key, t in method.products(x, y, outputs).items()}


def hostile(reply, rng):
    """A reply with numbers to the ends of the dtype, and words that nobody asked for."""
    names = sorted(name for name, tensor in reply.items() if tensor.is_floating_point())
    for name in rng.permutation(names)[: rng.integers(0, len(names) + 1)].tolist():
        value = float(rng.choice([*EXTREMES, 1e4, 1e25, np.nan, np.inf])) * rng.choice([-1, 1])
        shape, share = tuple(reply[name].shape), rng.choice([0.01, 1.0])
        flat = torch.full(shape, value, dtype=torch.float64).to(reply[name].dtype)
        part = torch.from_numpy(np.asarray(rng.random(shape) < share))
        reply[name] = torch.where(part, flat, reply[name])
    words = [text for text in TEXTS if rng.random() < 0.3]
    metrics = {word: rng.choice([n for n in NUMBERS if abs(n) < 2**63]) for word in words if word}
    metrics = {key: float(value) for key, value in metrics.items() if key != "num-examples"}
    packing = {text: "[" * int(rng.integers(1, 10**5)) for text in [*words, "packing"][-2:]}
    return metrics, {PACKING: ConfigRecord(packing)} if rng.random() < 0.5 else {}


def message(node, reply, metrics=None, more=None):
    told = MetricRecord({"num-examples": 10 + node, "train-nll": 1.0, **(metrics or {})})
    content = {"arrays": ArrayRecord(reply), "metrics": told, **(more or {})}
    return Message(RecordDict(content), metadata=metadata(node))


@pytest.mark.parametrize("name", TRIED)
def test_no_reply_in_a_method_s_own_layout_ends_a_run(name, tmp_path, quiet):
    """No honest client is refused, each round is in the journal, each number kept is finite."""
    rng = np.random.default_rng([SEED, sorted(METHODS).index(name)])
    settings = settings_of(name)
    nodes = range(1, 1 + HONEST + HOSTILE)
    members = [
        SimpleNamespace(
            node_id=node, name=f"site {node}", partition=node, label_counts=[], shared={"estimate"}
        )
        for node in nodes
    ]
    roster = SimpleNamespace(members=members, name=lambda node: f"site {node}", called=str)
    results = RunFolder(tmp_path, settings, {})
    recorder = Recorder(settings, results, roster, FACTS, {})
    means = means_of(recorder.known_metrics)
    bench = bench_of(settings, FACTS) if METHODS[name].needs_bench else None
    strategy = recorder.strategy = strategy_for(name)(
        **arguments_of(settings), bench=bench, train_metrics_aggr_fn=means, max_skipped=None,
        federation=Federation(
            trainers=lambda _: [], known_metrics=recorder.known_metrics, listener=recorder
        ),
    )  # fmt: skip
    arrays = ArrayRecord(recorder.model.state_dict())
    recorder.take(arrays.to_torch_state_dict())
    recorder.record(0, {})
    for server_round in range(1, ROUNDS + 1):
        try:
            strategy.configure_train(server_round, arrays, ConfigRecord(), NO_GRID)
            model = arrays.to_torch_state_dict()
            replies = []
            for node in nodes:
                reply = sound_reply(strategy.method, model, rng, 10 + node)
                extra = hostile(reply, rng) if node > HONEST else ()
                replies.append(message(node, reply, *extra))
            arrays = strategy.aggregate_train(server_round, replies)[0] or arrays
            recorder.take(arrays.to_torch_state_dict())
            recorder.record(server_round, {})
        except Exception as error:
            error.add_note(f"FEDBARY_FUZZ_SEED={SEED}")
            raise
    refused = {refusal.node_id: refusal.reason for refusal in strategy.refusals}
    assert refused.keys() <= set(nodes[HONEST:]), f"FEDBARY_FUZZ_SEED={SEED}, {refused}"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    held = [*arrays.to_torch_state_dict().values(), *strategy.state_dict().values()]
    assert all(tensor.isfinite().all() for tensor in held)
    assert all(tensor.isfinite().all() for tensor in recorder.predictive.posterior.log_var.values())
