"""One call answers every message under every method, in a Flower project without our apps."""

from types import SimpleNamespace

import pytest
import torch
from every_method import EACH
from flwr.app import ArrayRecord, ConfigRecord
from small_apps import answering
from torch import nn

from fedbary.errors import RunError, SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.inference import Training
from fedbary.methods import METHODS, Bench
from fedbary.scores.metrics import evaluate
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Client, FedAvgM, strategy_for
from fedbary.variational import frozen_config, keep_frozen, variational

CLIENTS, ROUNDS = 3, 2
TRAINING = Training(epochs=3, batch_size=8)
FEW = {"DSVGD": {"particles": 3, "server_steps": 5}}
"""Parameters by which methods take few steps at the server."""


def network(name):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return plain if METHODS[name].deterministic else variational(plain, last=1)


def data(k):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(24, 3, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


def client_app(name, training=TRAINING, keep_in=None, **words):
    def client(k):
        given = {"held_out": data(10 + k), "keep_in": keep_in and keep_in / str(k), **words}
        return Client(network(name), *data(k), training, **given)

    return answering(client)


def run(name, chosen=None, **words):
    """Return the strategy and the result of a federation; plain Flower would pass no more."""
    if chosen is None:
        bench = Bench(network(name), *data(20), nn.functional.cross_entropy)
        own = {"bench": bench} if METHODS[name].needs_bench else {}
        chosen = strategy_for(name)(**own, **FEW.get(name, {}))
    grid = InlineGrid(client_app(name, **words), CLIENTS, {})
    arrays = ArrayRecord(network(name).state_dict())
    return chosen, chosen.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)


@pytest.mark.parametrize("name", EACH)
def test_it_trains_and_evaluates_and_the_strategy_predicts(name):
    strategy, result = run(name)
    assert strategy.refusals == [] and strategy.admission.num_admitted == CLIENTS
    scores = {"accuracy", "nll", "ece", "brier"}
    own = {f"personal-{score}" for score in scores if METHODS[name].personalises}
    assert result.evaluate_metrics_clientapp[ROUNDS].keys() == scores | own
    x, y = data(30)
    prediction = strategy.predict(network(name), result.arrays, x)
    assert prediction.probs.shape == (len(x), 2)
    assert evaluate(prediction.probs, y)["nll"] < 2


def test_a_rule_with_groups_is_the_hierarchy_and_its_clients_score_both_levels():
    ours, found = run("Hierarchy", strategy_for("RKLB")(groups=3))
    theirs, expected = run("Hierarchy", strategy_for("Hierarchy")(groups=3))
    one, other = (result.arrays.to_torch_state_dict() for result in (found, expected))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert ours.groups == theirs.groups and sorted(ours.groups.values()) == ["1", "2", "3"]
    scores = found.evaluate_metrics_clientapp[ROUNDS]
    assert scores["nll"] != scores["personal-nll"]


@pytest.mark.parametrize("name", [name for name in EACH if METHODS[name].remembers])
def test_what_clients_keep_in_their_node_s_state_is_what_they_keep_in_a_folder(name, tmp_path):
    _, in_state = run(name)
    _, in_folder = run(name, keep_in=tmp_path)
    ours, theirs = (r.arrays.to_torch_state_dict() for r in (in_state, in_folder))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    found, expected = (dict(r.evaluate_metrics_clientapp[ROUNDS]) for r in (in_state, in_folder))
    assert found == pytest.approx(expected)
    assert len(list(tmp_path.glob("*"))) == CLIENTS


def test_clients_draw_apart_and_runs_repeat():
    """Of one seed: two clients with the same data send two networks; a second run does too."""
    sent = []

    def seen(message, context, call_next):
        reply = call_next(message, context)
        sent.append(reply.content["arrays"].to_torch_state_dict()["2.weight_mean"])
        return reply

    app = answering(lambda k: Client(network("barycentre"), *data(0), TRAINING), mods=[seen])
    for _ in range(2):
        strategy_for("RKLB")(fraction_evaluate=0.0).start(
            grid=InlineGrid(app, 2, {}),
            initial_arrays=ArrayRecord(network("barycentre").state_dict()),
            num_rounds=1,
        )
    first, again = [sent[:2], sent[2:]]
    assert not torch.equal(*first)
    assert any(torch.equal(first[0], other) for other in again)


def test_a_draw_from_the_strategy_repeats_by_its_seed():
    strategy, result = run("PVI")
    x, _ = data(30)
    one, same, other = (
        strategy.predict(network("PVI"), result.arrays, x, seed=s).probs for s in (0, 0, 1)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_nothing_held_out_and_no_prior_that_acts_are_said():
    grid = InlineGrid(client_app("FedAvgM", held_out=None), CLIENTS, {})
    strategy = FedAvgM()
    arrays = ArrayRecord(network("FedAvgM").state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
    assert "fraction_evaluate" in strategy.refusals[0].reason
    with pytest.raises(RunError):
        run("PVI", strategy := strategy_for("PVI")(), training=Training(kl_weight=0.0))
    assert "kl_weight" in strategy.refusals[0].reason


def test_a_client_whose_last_batch_is_of_one_example_trains_a_batch_norm():
    def model():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    training = Training(batch_size=23)
    app = answering(lambda k: Client(model(), *data(k), training, held_out=data(k)))
    strategy, arrays = FedAvgM(), ArrayRecord(model().state_dict())
    strategy.start(grid=InlineGrid(app, CLIENTS, {}), initial_arrays=arrays, num_rounds=1)
    assert strategy.refusals == []


def half_frozen(bias=0.0):
    """Return a network whose first layer is frozen, its bias as given."""
    torch.manual_seed(0)
    first = nn.Linear(3, 4).requires_grad_(False)
    nn.init.constant_(first.bias, bias)
    norm = nn.BatchNorm1d(4, affine=False)
    return keep_frozen(variational(nn.Sequential(first, norm, nn.Linear(4, 2)), last=1))


def run_half_frozen(told):
    """Return the strategy and the result of a federation of which client 0 has another bias."""

    def client(k):
        return Client(half_frozen(float(k == 0)), *data(k), TRAINING, held_out=data(10 + k))

    strategy, told = strategy_for("RKLB")(), ConfigRecord(told)
    arrays = ArrayRecord(half_frozen().state_dict())
    return strategy, strategy.start(
        grid=InlineGrid(answering(client), CLIENTS, {}), initial_arrays=arrays, num_rounds=1,
        train_config=told, evaluate_config=told,
    )  # fmt: skip


def test_frozen_layers_stay_at_home_and_a_client_with_others_is_left_out():
    strategy, result = run_half_frozen(frozen_config(half_frozen()))
    assert set(result.arrays) == {"2.weight_mean", "2.weight_log_var", "2.bias"}
    assert strategy.admission.num_admitted == CLIENTS - 1
    reasons = [refusal.reason for refusal in strategy.refusals]
    assert all("frozen weights as of the run's model" in reason for reason in reasons) and reasons
    prediction = strategy.predict(half_frozen(), result.arrays, data(30)[0])
    assert prediction.probs.isfinite().all()


def test_a_server_that_says_nothing_of_frozen_layers_is_told_what_to_say():
    with pytest.raises(RunError):
        run_half_frozen({})
    client = Client(half_frozen(), *data(0), TRAINING)
    with pytest.raises(SettingError, match="the digest of the server's frozen weights"):
        client.models(SimpleNamespace(config={}), 0)


def test_a_strategy_starts_from_another_ones_end_and_clients_see_its_posterior_as_the_prior():
    first, result = run("PVI")
    for name, own in (("PVI", {}), ("RKLB", {"prior_arrays": result.arrays})):
        chosen, priors = strategy_for(name)(fraction_evaluate=0.0, **own), []

        def seen(local, priors=priors):
            priors.append(local.prior)
            return {}

        arrays = chosen.start_from(result.arrays, first.state_dict())
        app = client_app("PVI", inference=seen)
        chosen.start(grid=InlineGrid(app, CLIENTS, {}), initial_arrays=arrays, num_rounds=1)
        assert chosen.refusals == [] and len(priors) == CLIENTS
        wanted = Factor.of(Posterior.from_state_dict(result.arrays.to_torch_state_dict()))
        for prior in priors:
            found = prior if name == "PVI" else Factor.of(prior)
            for part in ("shift", "precision"):
                one, other = (getattr(each, part)["2.weight"] for each in (found, wanted))
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)
    with pytest.raises(SettingError, match=r"prior_arrays: .*'2\.weight_log_var' is missing"):
        strategy_for("RKLB")(prior_arrays=ArrayRecord()).start(
            grid=InlineGrid(client_app("barycentre"), CLIENTS, {}),
            initial_arrays=result.arrays,
            num_rounds=1,
        )
