"""One client of several sends what would end its neighbours' training; honest ones go far too.

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
from small_apps import moving
from torch import nn

from fedbary.errors import RunError
from fedbary.methods import METHODS, Method
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Federation, strategy_for
from fedbary.strategies.admission import Stalled

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


def client_app(name, attack, steps, hostile, hostile_trains):
    """Clients, of which hostile ones send `attack(round)` in place of means and point weights.

    Those that train send it whatever they were sent; the others fail as honest ones do.
    """
    app = ClientApp()
    method = METHODS[name]() if name in METHODS else Method()

    @app.train()
    def train(message, context):
        k = int(context.node_config["partition-id"])
        server_round = message.content["config"]["server-round"]
        held = message.content["arrays"].to_torch_state_dict()
        poison = attack(server_round) if k in hostile else None
        points = [key for key in model(name) if not key.endswith("log_var")]
        if (poison is None or not hostile_trains) and any(
            held[key].abs().max() > BREAKS for key in points
        ):
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
    hostile=(HOSTILE,), hostile_trains=True, **told,
):  # fmt: skip
    chosen = chosen or strategy(name)
    app = client_app(name, attack, steps, hostile, hostile_trains)
    grid = InlineGrid(app, len(steps), {})
    arrays = start or ArrayRecord(model(name))
    return chosen, chosen.start(grid, arrays, num_rounds=rounds, **told).arrays


def alone(name, rounds):
    """The arrays of the honest clients alone."""
    nodes = [node for node in range(2, 2 + CLIENTS) if node != 2 + HOSTILE]
    chosen = strategy(name, federation=Federation(trainers=lambda _: nodes))
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
def test_a_round_after_which_nobody_can_train_ends_the_run_and_blames_nobody(name):
    """6 is no hundred times an honest step: it is admitted, and ends everybody's training."""
    chosen = strategy(name)
    with pytest.raises(Stalled) as caught:
        run(name, lambda _: 6.0, chosen=chosen, hostile_trains=False)
    said = str(caught.value)
    assert caught.value.round == 1 and "\n" not in said
    assert said.startswith("3 rounds in a row were skipped; round 4: 0 replies admitted, 1 needed")
    assert "no client could train after round 1; in it these replies lay farthest" in said
    assert "usual distance: 5 (" in said
    assert "resume before round 1 with clipping, if the method has it, or without a client" in said
    assert not any("refused from now on" in refusal.reason for refusal in chosen.refusals)


def test_before_that_round_the_run_goes_on_with_clipping_or_without_the_client():
    """The state before the round, as the user of a strategy keeps it, loses nothing."""
    whole, kept = strategy("RKLB"), []

    def attack(server_round):
        return 6.0 if server_round >= 2 else None

    def keep(_, arrays):
        kept.append((arrays, copy.deepcopy(whole.state_dict())))

    with pytest.raises(Stalled) as caught:
        run("RKLB", attack, chosen=whole, evaluate_fn=keep, hostile_trains=False)
    assert caught.value.round == 2
    arrays, state = kept[1]
    honest = [node for node in range(2, 2 + CLIENTS) if node != 2 + HOSTILE]
    for changes in ({"clipping": True}, {"federation": Federation(trainers=lambda _: honest)}):
        again = strategy("RKLB", **changes)
        again.load_state_dict(state, 1)
        ended = run("RKLB", attack, rounds=5, chosen=again, start=arrays, hostile_trains=False)[1]
        assert again.counted == 6
        assert abs(ended["weight_mean"].numpy()).max() < BREAKS


@given(st.lists(st.floats(-4, 1.9), min_size=CLIENTS, max_size=CLIENTS))
@settings(max_examples=15)
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


@pytest.mark.parametrize("rule", ["TrimmedMean", "MultiKrum"])
@pytest.mark.parametrize("key", ["weight_mean", "bias_log_var"])
def test_a_rule_that_trims_nothing_leaves_the_check_of_distances_on(rule, key, caplog):
    """Whether no client may be hostile, or a fraction of all is less than one."""
    for fraction, clients in ((0, 6), (0.2, 4)):
        start = {name: torch.zeros_like(tensor) for name, tensor in GAUSSIAN.items()}

        def train(state, k, _, last=clients - 1):
            poison = (39.0 if key.endswith("log_var") else 1e6) if k == last else 0.0
            return {name: t + 0.1 + poison * (name == key) for name, t in state.items()}

        chosen = strategy(rule, trim_fraction=fraction)
        grid = InlineGrid(moving(train, lambda k: 1), clients, {})
        found = chosen.start(grid, ArrayRecord(start), num_rounds=1).arrays[key].numpy()
        if key.endswith("log_var"):  # as far as log-variances may differ
            assert chosen.refusals == []
            continue
        assert found == pytest.approx(0.1)
        assert [refusal.node_id for refusal in chosen.refusals] == [2 + clients - 1]
        assert ("does not protect" in caplog.text) == (fraction > 0)
        caplog.clear()


LARGE = 3
"""The number of the large honest client of attack S3."""


def large_beside_small(failing, late=()):
    """Clients of attack S3: one takes 33 times the others' steps. Small ones fail, or are late."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        k = int(context.node_config["partition-id"])
        server_round = message.content["config"]["server-round"]
        if (k, server_round) in failing:
            raise OSError("no space left on device")
        sent = message.content["arrays"].to_torch_state_dict()
        state = {name: sent[name] for name in GAUSSIAN}
        steps = 33 if k == LARGE else 1
        for name, tensor in state.items():
            by = 0.35 if name.endswith("log_var") else 0.02
            state[name] = tensor - steps * by / server_round if by == 0.35 else tensor + steps * by
        state = {name: tensor.clamp(-30, 1) for name, tensor in state.items()}
        metrics = MetricRecord({"num-examples": 1317 if k == LARGE else 40})
        content = RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})
        reply = Message(content, reply_to=message)
        if (k, server_round) in late:
            reply.metadata.group_id = "train, round 1"
        return reply

    return app


EVERYONE = {(k, 2) for k in range(CLIENTS)}
SMALL = {(k, 2) for k in range(CLIENTS) if k != LARGE}


@pytest.mark.parametrize(
    "failing, late, counted",
    [(SMALL, (), 5), (SMALL - {(0, 2)}, (), 5), (EVERYONE, (), 4), ((), EVERYONE, 4),
     ({(0, 1)}, EVERYONE - {(3, 2)}, 5)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["RKLB", "FedAvg", "PVI"])
def test_a_large_honest_client_is_never_refused_whoever_fails_or_is_late(
    name, failing, late, counted
):
    chosen = strategy(name)
    grid = InlineGrid(large_beside_small(failing, late), CLIENTS, {})
    chosen.start(grid, ArrayRecord(model(name)), num_rounds=5)
    assert chosen.counted == counted
    assert {(r.node_id - 2, r.round) for r in chosen.refusals} == {*failing} | {*late}
    assert 2 + LARGE in chosen.contributors


def test_late_replies_and_absent_clients_do_not_show_that_nobody_can_train():
    """Rounds without a reply end the run too, but the last round that counted is not named."""
    late = {(k, r) for k in range(CLIENTS) for r in (2, 3, 4)}
    chosen, grid = strategy("RKLB"), InlineGrid(large_beside_small((), late), CLIENTS, {})
    with pytest.raises(RunError, match="3 rounds in a row were skipped; round 4: 0 ") as caught:
        chosen.start(grid, ArrayRecord(model("RKLB")), num_rounds=6)
    assert not isinstance(caught.value, Stalled) and "farthest" not in str(caught.value)


def test_a_run_that_ends_before_it_may_stop_says_that_nobody_could_train(caplog):
    run("RKLB", lambda _: 6.0, rounds=3, hostile_trains=False)
    assert "1 of 3 rounds counted; the last that was skipped: round 3" in caplog.text
    assert "no client could train after round 1; in it these replies lay farthest" in caplog.text
