"""One client of several sends what ends its neighbours' training: it is refused, the run goes on.

Clients fit nothing: each moves the numbers that it was sent a little towards its own, and fails, as
training that diverges does, where one is far larger than any honest client would have it.
"""

import copy

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_replies import raw
from torch import nn

from fedbary.errors import RunError
from fedbary.methods import METHODS, Method
from server_app.engine.inline import InlineGrid
from strategies import strategy_for

CLIENTS, HOSTILE = 4, 3  # node 5
ALIKE = (1.0,) * CLIENTS
BREAKS = 1.2
LAYER = nn.Linear(3, 2)
GAUSSIAN = {
    f"{name}_{part}": torch.full_like(tensor, value)
    for name, tensor in LAYER.state_dict().items()
    for part, value in (("mean", 0.1), ("log_var", -4.0))
}


def model(name):
    kind = METHODS.get(name)
    if kind is None or kind.deterministic is not True:
        return GAUSSIAN
    return {key: torch.full_like(tensor, 0.1) for key, tensor in LAYER.state_dict().items()}


def client_app(name, attack, steps, hostile):
    """Clients, of which hostile ones send `attack(round)` in place of means and point weights."""
    app = ClientApp()
    method = METHODS[name]() if name in METHODS else Method()

    @app.train()
    def train(message, context):
        k = int(context.node_config["partition-id"])
        server_round = message.content["config"]["server-round"]
        held = message.content["arrays"].to_torch_state_dict()
        poison = attack(server_round) if k in hostile else None
        points = [key for key in model(name) if not key.endswith("log_var")]
        if poison is None and any(held[key].abs().max() > BREAKS for key in points):
            raise ValueError("training diverged")
        reply = {}
        layout = method.reply_like({key: held[key] for key in model(name)})
        for key, tensor in layout.items():
            if key not in points:
                reply[key] = tensor
            elif poison is not None:
                reply[key] = torch.full_like(tensor, poison)
            else:
                moved = 0.1 * steps[k] * (torch.sin(torch.tensor(k + 1.0)) - tensor)
                reply[key] = tensor + moved
        content = {"arrays": ArrayRecord(reply), "metrics": MetricRecord({"num-examples": 10 + k})}
        return Message(RecordDict(content), reply_to=message)

    return app


def strategy(name, **changes):
    return strategy_for(name)(fraction_evaluate=0.0, **changes)


def run(
    name, attack=lambda _: None, rounds=6, chosen=None, start=None, steps=ALIKE,
    hostile=(HOSTILE,), **told,
):  # fmt: skip
    chosen = chosen or strategy(name)
    grid = InlineGrid(client_app(name, attack, steps, hostile), len(steps), {})
    arrays = start or ArrayRecord(model(name))
    return chosen, chosen.start(grid, arrays, num_rounds=rounds, **told).arrays


def alone(name, rounds):
    """The arrays of the honest clients alone."""
    nodes = [node for node in range(2, 2 + CLIENTS) if node != 2 + HOSTILE]
    chosen = strategy(name, choose_nodes=lambda _: nodes)
    return run(name, rounds=rounds, chosen=chosen)[1]


def close(one, other):
    a, b = one.to_torch_state_dict(), other.to_torch_state_dict()
    return all(torch.allclose(a[key].double(), b[key].double(), rtol=1e-5) for key in a)


KINDS = ["RKLB", "WB", "FedAvg", "PVI", "FedProx", "FedAdam", "FedHB", "FOLA", "pFedBayes"]


@pytest.mark.parametrize("name", KINDS)
def test_a_reply_of_ten_thousand_in_every_weight_is_refused_by_name(name):
    chosen, arrays = run(name, lambda _: 1e4, rounds=3)
    assert [(refusal.round, refusal.node_id) for refusal in chosen.refusals] == [
        (server_round, 2 + HOSTILE) for server_round in (1, 2, 3)
    ]
    assert "times as far from the sent arrays as usual" in chosen.refusals[0].reason
    assert close(arrays, alone(name, 3))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "FedAdam"])
def test_a_round_after_which_nobody_can_train_is_undone_and_its_client_refused(name, caplog):
    """6 is no hundred times an honest step: it is admitted, and ends everybody's training."""
    chosen, arrays = run(name, lambda _: 6.0)
    undone = [refusal for refusal in chosen.refusals if "could train" in refusal.reason]
    assert {refusal.node_id for refusal in undone} == {2 + HOSTILE}
    assert [refusal.round for refusal in undone] == [2, 3, 4, 5, 6]
    assert "so round 1 is undone; its outliers: 5 (" in caplog.text
    assert "4 of 6 rounds counted" in caplog.text
    assert close(arrays, alone(name, 4))


@given(
    attacks=st.lists(st.sampled_from([None, 6.0, 1e4]), min_size=6, max_size=6),
    cut=st.integers(1, 5),
    name=st.sampled_from(["RKLB", "PVI", "FedAdam"]),
)
@settings(max_examples=15, deadline=None)
def test_a_run_that_is_cut_and_goes_on_undoes_what_the_uninterrupted_one_does(attacks, cut, name):
    def attack(server_round):
        return attacks[server_round - 1]

    kept = []

    def keep(_, arrays):
        kept.append((arrays, copy.deepcopy(whole.state_dict())))

    whole = strategy(name)
    run(name, attack, chosen=whole, evaluate_fn=keep)
    again = strategy(name)
    again.load_state_dict(kept[cut][1], cut)
    resumed = run(name, attack, rounds=6 - cut, chosen=again, start=kept[cut][0])[1]
    assert raw(resumed) == raw(kept[6][0])
    one, other = whole.state_dict(), again.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@given(st.lists(st.floats(-4, 1.9), min_size=CLIENTS, max_size=CLIENTS))
@settings(max_examples=15, deadline=None)
def test_honest_clients_whose_steps_differ_by_a_million_are_all_admitted(powers):
    chosen, _ = run("RKLB", rounds=1, steps=[10**power for power in powers])
    assert chosen.refusals == []


def test_clients_that_all_diverge_end_the_run_and_none_is_blamed():
    with pytest.raises(RunError, match="3 rounds in a row were skipped; round 4: 0 replies"):
        run("RKLB", steps=[-600.0] * CLIENTS)


def test_clients_that_a_robust_rule_withstands_are_left_to_it():
    chosen, arrays = run("Median", lambda _: 1e4)
    assert chosen.refusals == []
    assert abs(arrays["weight_mean"].numpy()).max() < BREAKS


@pytest.mark.parametrize("rule", ["TrimmedMean", "MultiKrum", "mixing"])
def test_more_hostile_clients_than_a_rule_was_told_do_not_end_the_run(rule):
    """Two of seven where one is reckoned with: what passes and ends training is undone."""
    chosen = strategy("RKLB", mixing=True) if rule == "mixing" else strategy(rule)
    steps, hostile = (1.0,) * 7, (5, 6)
    _, arrays = run("RKLB", lambda _: 1e4, chosen=chosen, steps=steps, hostile=hostile)
    assert {refusal.node_id for refusal in chosen.refusals if "could" in refusal.reason} <= {7, 8}
    assert abs(arrays["weight_mean"].numpy()).max() < BREAKS
    assert chosen.contributors


def test_a_round_that_is_undone_is_one_skipped_round_of_those_that_may_follow_each_other():
    chosen = strategy("RKLB", max_skipped=2)
    run("RKLB", lambda _: 6.0, chosen=chosen)
    with pytest.raises(RunError, match="1 rounds in a row were skipped; round 2: no client could"):
        run("RKLB", lambda _: 6.0, chosen=strategy("RKLB", max_skipped=1))
