"""A snapshot ensemble is its rule, at rates that fall again and again, and keeps the ends."""

import math
from dataclasses import replace

import pytest
import torch
from every_method import OF_CLASSES
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.inference import Training, local_method, lr_in
from fedbary.methods import METHODS, Local, Reply, Server, require_method
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.snapshotensemble import SnapshotEnsemble
from fedbary.scores.metrics import evaluate
from fedbary.settings.config import completed, resolve
from fedbary.trained import load
from server_app.engine.inline import run_inline

QUICK = {
    "method": "SnapshotEnsemble", "engine": "inline", "device": "cpu", "pictures": False,
    "train_fraction": 0.3, "local_epochs": 1, "samples": 6, "model": "mlp", "bayesian_layers": 1,
}  # fmt: skip


def model(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w_mean": torch.randn(2, 3, generator=generator),
        "w_log_var": torch.randn(2, 3, generator=generator) - 4,
        "bias": torch.randn(3, generator=generator),
        "bn.running_var": torch.rand(2, generator=generator),
        "steps": torch.tensor(seed),
    }


@given(
    cycle=st.integers(1, 4),
    snapshots=st.integers(1, 3),
    rounds=st.integers(0, 13),
    rule=st.sampled_from(["RKLB", "WB", "FedAvg", "Median"]),
    momentum=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=40, deadline=None)
def test_it_holds_what_its_rule_held_at_the_newest_ends(cycle, snapshots, rounds, rule, momentum):
    plain = Barycentre(rule, server_momentum=momentum)
    method = SnapshotEnsemble(rule, server_momentum=momentum, cycle=cycle, snapshots=snapshots)
    ours = theirs = model(0)
    state, velocity = method.start(ours), plain.start(theirs)
    ends = []
    for t in range(1, rounds + 1):
        replies = [Reply(str(k), 1.0 + k, model(100 * t + k)) for k in range(3)]
        ours, state = method.aggregate(Server(ours, state, t), replies)
        theirs, velocity = plain.aggregate(Server(theirs, velocity, t), replies)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        ends += [theirs] if t % cycle == 0 else []
    members = method.predictive(ours, state).members
    if not ends:
        assert not members
        return
    for name in theirs:
        assert torch.equal(members[name], torch.stack([end[name] for end in ends[-snapshots:]]))


def test_rates_fall_as_a_cosine_in_every_cycle_alike():
    seen = []

    def inference(local):
        seen.append(local.training.lr)
        return {}

    network = torch.nn.Linear(3, 2)
    for number in range(1, 9):
        local = Local(
            network, torch.zeros(4, 3), torch.zeros(4).long(), torch.nn.functional.cross_entropy,
            inference, Training(epochs=1, batch_size=2, lr=0.4), 1.0, number, 0,
        )  # fmt: skip
        SnapshotEnsemble("FedAvg", cycle=4).fit(local, network.state_dict(), {})
    wave = [0.2 * (1 + math.cos(math.pi * part)) for part in (0, 0.25, 0.5, 0.75)]
    assert seen == pytest.approx(wave * 2)


def test_a_file_s_schedule_is_not_on_top_of_the_method_s():
    """Of the command line it is refused."""
    words = {"method": "SnapshotEnsemble", "lr_schedule": "cosine", "rounds": 8}
    run = completed(words)
    assert {lr_in(run, number) for number in range(1, 9)} == {run.lr}
    with pytest.raises(SettingError, match="lr_schedule.*method=SnapshotEnsemble does not use it"):
        resolve(words)


def test_a_client_s_round_is_the_barycentre_s_at_that_rate():
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    x, y = torch.randn(40, 3), torch.randint(2, (40,))

    def local(lr, number):
        return Local(
            network, x, y, torch.nn.functional.cross_entropy, local_method("variational"),
            Training(epochs=2, batch_size=10, lr=lr), 1.0, number, 5,
        )  # fmt: skip

    found = SnapshotEnsemble("FedAvg", cycle=2).fit(local(0.2, 4), start, {}).reply
    expected = Barycentre("FedAvg").fit(local(0.1, 4), start, {}).reply
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_snapshots_predict_together_each_with_its_part_of_the_draws(tmp_path):
    run_inline(resolve({**QUICK, "cycle": 2, "snapshots": 3, "rounds": 7}), tmp_path / "run")
    trained = load(tmp_path / "run")
    assert {len(tensor) for tensor in trained.members.values()} == {3}
    test = trained.task.evaluation_examples()

    def nll(members):
        held = {name: trained.members[name][members] for name in trained.members}
        probs = replace(trained, members=held).predict(test, samples=600).probs
        return evaluate(probs, test.y)["nll"], probs

    (together, probs), *each = nll([0, 1, 2]), *(nll([k]) for k in range(3))
    mean = torch.stack([of_one for _, of_one in each]).mean(0)
    torch.testing.assert_close(probs, mean, rtol=0, atol=0.03)
    assert together < sum(alone for alone, _ in each) / 3
    assert together == pytest.approx(trained.line["nll"], rel=0.1)


def test_rounds_after_the_last_whole_cycle_change_no_prediction(tmp_path):
    """Point weights, so that nothing is drawn."""
    words = {"rule": "FedAvg", "bayesian_layers": 0, "cycle": 2, "rounds": 5}
    run_inline(resolve({**QUICK, **words}), tmp_path / "run")
    nll = [line["nll"] for line in load(tmp_path / "run").rounds]
    assert nll[5] == nll[4] and nll[3] == nll[2] and len(set(nll)) == 4


def test_clients_fit_the_temperature_to_what_the_snapshots_predict_together(tmp_path):
    """Point weights, so that nothing is drawn: the clients' NLL is the ensemble's on their own."""
    words = {"rule": "FedAvg", "bayesian_layers": 0, "cycle": 1, "snapshots": 4, "rounds": 4}
    words |= {"clients": 1, "holdout": 0.5, "calibrate": "temperature", "lr": 0.3}
    run_inline(resolve({**QUICK, **words}), tmp_path / "run")
    trained = load(tmp_path / "run")
    shard = trained.task.shard(Site("partition 0", "", 0, 1), trained.signature)
    plain = replace(trained, rounds=[{**trained.line, "temperature": 1.0}])

    def scores(kept):
        return evaluate(kept.predict(shard.x_held_out).probs, shard.y_held_out)

    expected, alone = scores(plain), scores(replace(plain, members={}))
    (client,) = trained.line["held_out"]["clients"]
    assert client["nll"] == pytest.approx(expected["nll"], rel=1e-5)
    assert abs(expected["nll"] - alone["nll"]) > 1e-3


def test_a_temperature_of_other_predictions_is_refused():
    for name in OF_CLASSES:
        kind = METHODS[name]
        by_model = not (kind.has_members or kind.draws_around)
        words = {"method": name, "bayesian_layers": 0 if kind.deterministic else 3}
        words |= {"calibrate": "temperature", "server_fraction": 0.1, "kl_weight": 1.0}
        if by_model or kind.shows or kind.personalises:
            require_method(completed(words))
        else:
            with pytest.raises(SettingError, match=f"calibrate: 'temperature'.*none for {name}"):
                require_method(completed(words))
