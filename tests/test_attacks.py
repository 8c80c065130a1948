"""Hostile clients: what they send, and what becomes of a federation that has some."""

import pytest
import torch
from every_method import NIGHT, night
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from runs_of import INLINE, lines
from safetensors.torch import load_file
from scipy.stats import norm

from fedbary import client_app, server_app
from fedbary.attacks import ATTACKS, OMNISCIENT, attack_named, hostile_clients
from fedbary.attacks.omniscient import deviations
from fedbary.commands.start import deploy
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.strategies.compression import compression


def posterior(mean, log_var, plain, steps):
    means = {"w": torch.tensor(mean), "steps": torch.tensor(steps), "b": torch.tensor(plain)}
    return Posterior(means, {"w": torch.tensor(log_var)})


@pytest.mark.parametrize(
    ("attack", "mean", "plain", "log_var"),
    [
        ("sign_flip", [0.5, 2.0], [1.0], [-6.0, -5.0]),
        ("scaling", [6.0, 2.0], [-10.0], [-6.0, -5.0]),
        ("variance_collapse", [0.5, 2.0], [1.0], [-30.0, -30.0]),
        ("variance_explosion", [0.5, 2.0], [1.0], [10.0, 10.0]),
    ],
)
def test_an_attack_moves_the_update_from_where_the_round_began(attack, mean, plain, log_var):
    received = posterior([1.0, 2.0], [-7.0, -7.0], [0.0], 1)
    fitted = posterior([1.5, 2.0], [-6.0, -5.0], [-1.0], 2)
    states = received.state_dict(), fitted.state_dict()
    sent = Posterior.from_state_dict(attack_named(attack).sent(*states))
    assert list(sent.mean) == ["w", "steps", "b"]
    assert sent.mean["w"].tolist() == mean
    assert sent.mean["b"].tolist() == plain
    assert sent.mean["steps"] == 2
    assert sent.log_var["w"].tolist() == log_var
    assert fitted.mean["w"].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_changes_that_a_client_sends_are_updates_themselves(attack):
    sent = attack_named(attack).sent({"w": torch.ones(2)}, {"delta/w": torch.tensor([0.5, -2.0])})
    factor = {"scaling": 10}.get(attack, -1)
    assert sent["delta/w"].tolist() == [0.5 * factor, -2.0 * factor]


def states(seed, count):
    """Posteriors of clients, with a plain tensor and an integer one."""
    generator = torch.Generator().manual_seed(seed)

    def state():
        mean, log_var, plain = torch.randn(3, 2, generator=generator)
        return posterior(mean.tolist(), log_var.tolist(), plain.tolist(), seed).state_dict()

    return [state() for _ in range(count)]


def flat(tensors):
    return torch.cat([tensors["w_mean"], tensors["b"]]).double()


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_an_inner_product_with_what_honest_clients_agree_on_is_negative(seed, honest):
    received, fitted, *others = states(seed, honest + 2)
    sent = attack_named("inner_product").sent(received, fitted, others, 1)
    agreed = torch.stack([flat(other) - flat(received) for other in others]).mean(0)
    update = flat(sent) - flat(received)
    assert float(update @ agreed) < 0
    torch.testing.assert_close(update, -agreed, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
def test_a_little_is_within_its_deviations_of_the_honest_mean(seed, honest, hostile):
    received, fitted, *others = states(seed, honest + 2)
    sent = attack_named("little_is_enough").sent(received, fitted, others, hostile)
    values = torch.stack([flat(other) for other in others])
    away = (flat(sent) - values.mean(0)).abs()
    far = deviations(honest + hostile, hostile) * values.std(0, correction=0)
    assert bool((away <= far + 1e-5).all())


@pytest.mark.parametrize("attack", OMNISCIENT)
def test_omniscient_clients_agree_on_means_and_keep_their_own_log_variances(attack):
    received, one, another, *others = states(1, 9)
    sent = [attack_named(attack).sent(received, fitted, others, 2) for fitted in (one, another)]
    assert torch.equal(sent[0]["w_mean"], sent[1]["w_mean"])
    for new, fitted in zip(sent, (one, another), strict=True):
        assert torch.equal(new["w_log_var"], fitted["w_log_var"])
        assert list(new) == list(fitted) and torch.equal(new["steps"], fitted["steps"])
    alone = attack_named(attack).sent(received, one, [], 2)
    assert all(torch.equal(alone[name], one[name]) for name in one)


@pytest.mark.parametrize(("clients", "hostile"), [(50, 24), (10, 3), (10, 4), (100, 30), (11, 5)])
def test_the_deviations_are_those_of_the_paper(clients, hostile):
    supporters = clients // 2 + 1 - hostile
    z = norm.ppf((clients - hostile - supporters) / (clients - hostile))
    assert deviations(clients, hostile) == pytest.approx(z)


def test_few_hostile_clients_have_no_deviations_and_a_majority_finitely_many():
    assert deviations(10, 1) == deviations(2, 1) == 0
    assert deviations(10, 9) == 0 < deviations(100, 60) < 3


def test_the_seed_chooses_the_hostile_clients():
    chosen = [hostile_clients(0.3, 10, seed) for seed in range(20)]
    assert all(len(clients) == 3 and clients <= set(range(10)) for clients in chosen)
    assert hostile_clients(0.3, 10, 0) == chosen[0]
    assert set.union(*map(set, chosen)) == set(range(10))
    assert hostile_clients(0.0, 10, 0) == frozenset()
    assert hostile_clients(1.0, 4, 0) == set(range(4))


def test_an_unknown_attack_lists_the_names():
    with pytest.raises(SettingError, match="attack: 'flip'.*none, scaling, sign_flip"):
        resolve({"attack": "flip"})


def test_an_omniscient_attack_needs_a_minority_and_a_simulation(tmp_path):
    with pytest.raises(
        SettingError, match="hostile_fraction: 0.4.*below half of 4 clients for inner"
    ):
        resolve({"attack": "inner_product", "hostile_fraction": 0.4, "clients": 4})
    with pytest.raises(SettingError, match="hostile_fraction: 0.2.*at least 1/2"):
        resolve({"attack": "sign_flip", "clients": 2})
    with pytest.raises(SettingError, match="attack: 'inner_product'.*sign_flip.*on a deployment"):
        deploy(["attack=inner_product", f"output={tmp_path / 'run'}"], [])
    chosen = resolve({"attack": "inner_product", "output": str(tmp_path / "run")})
    context = Context(1, 1, {}, RecordDict(), chosen.model_dump())
    with pytest.raises(SettingError, match="attack: 'inner_product'.*sign_flip.*on a deployment"):
        server_app.main(InlineGrid(client_app.app, 2, {}), context)


MARGIN = 0.1
"""How much accuracy of the honest federation a hostile client may cost."""


def accuracy(folder, **changes):
    """The accuracy on digits of five clients after six short rounds."""
    short = {
        "engine": "inline", "clients": 5, "partition": "iid", "rounds": 6, "local_epochs": 3,
        "pictures": False, "normalise": "none", "initialisation": "papers", "max_grad_norm": "none",
        "lr_schedule": "constant", "log_var_lr": 0.01,
        "lr": 0.05, "bayesian_layers": 2, "holdout": 0, "samples": 3, "evaluate_clients": 0,
    }  # fmt: skip
    run_inline(resolve({**short, **changes}), folder)
    return lines(folder)[-1]["accuracy"]


@night  # by day laws of the bound and of Median in tests/aggregation, and docs/results/hostile.md
@pytest.mark.slow
def test_one_client_of_tiny_variances_ruins_rklb_but_not_with_a_bound_nor_the_median(tmp_path):
    honest = accuracy(tmp_path / "honest", rule="RKLB")
    hostile = {"attack": "variance_collapse", "hostile_fraction": 0.2}
    assert accuracy(tmp_path / "ruined", rule="RKLB", **hostile) < honest - 5 * MARGIN
    bounded = accuracy(tmp_path / "bounded", rule="RKLB", max_precision_ratio=1.5, **hostile)
    assert bounded > honest - MARGIN
    if NIGHT:
        assert accuracy(tmp_path / "median", rule="Median", **hostile) > honest - MARGIN


@night
@pytest.mark.slow
def test_clients_of_huge_variances_ruin_wb_but_not_after_clipping_and_mixing(tmp_path):
    honest = accuracy(tmp_path / "honest", rule="WB")
    hostile = {"attack": "variance_explosion", "hostile_fraction": 0.2, "rule": "WB"}
    assert accuracy(tmp_path / "ruined", **hostile) < honest - 5 * MARGIN
    held = {"clipping": True, "mixing": True, "trim_fraction": 0.2}
    assert accuracy(tmp_path / "held", **hostile, **held) > honest - MARGIN


FEDAG = {**INLINE, "task": "regression", "clients": 3, "rounds": 1, "local_epochs": 1}
"""A run that ends with the networks that its clients sent."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The networks that honest clients send."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    run_inline(resolve(FEDAG), folder)
    return load_file(folder / "networks.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*ATTACKS, *OMNISCIENT])
def test_the_point_weights_of_fedag_are_attacked_too(attack, honest, tmp_path):
    """One client of three sends what its attack makes of its network; the others' are honest."""
    run_inline(resolve({**FEDAG, "attack": attack, "hostile_fraction": 0.3}), tmp_path / "run")
    sent = load_file(tmp_path / "run" / "networks.safetensors")
    for name, tensor in honest.items():
        same = [network for network in sent[name].tolist() if network in tensor.tolist()]
        assert len(same) == 2


@pytest.mark.slow
def test_what_omniscient_clients_send_is_made_of_all_honest_replies(tmp_path):
    """Of five clients' replies three stay as they were, and two become what the three make."""
    attack = "little_is_enough"
    for name, changes in {"none": {}, attack: {"attack": attack, "hostile_fraction": 0.4}}.items():
        run_inline(resolve({**FEDAG, "clients": 5, **changes}), tmp_path / name)
    fitted, sent = (load_file(tmp_path / k / "networks.safetensors") for k in ("none", attack))
    for name, networks in fitted.items():
        honest = [network for network in sent[name] if network.tolist() in networks.tolist()]
        hostile = [network for network in sent[name] if network.tolist() not in networks.tolist()]
        assert len(honest) == 3
        values = torch.stack(honest).double()
        expected = values.mean(0) - deviations(5, 2) * values.std(0, correction=0)
        for network in hostile:
            torch.testing.assert_close(network.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_under_an_omniscient_attack_goes_on_to_the_same_model(tmp_path):
    tables = {
        "task": "tables", "engine": "inline", "pictures": False, "clients": 5, "rounds": 3,
        "attack": "inner_product", "hostile_fraction": 0.4, "rule": "WB", "compress": "all",
    }  # fmt: skip
    run_inline(resolve(tables), tmp_path / "whole")
    app, left = ClientApp(mods=[compression]), iter(range(8))

    @app.train()
    def train(message, context):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return client_app.train(message, context)

    for action in ("query", "evaluate"):
        getattr(app, action)()(getattr(client_app, action))
    app.query("ask")(client_app.ask)
    chosen = resolve({**tables, "output": str(tmp_path / "cut")})
    with pytest.raises(KeyboardInterrupt):
        run(InlineGrid(app, 5, chosen.model_dump()), chosen, tmp_path / "cut")
    run_inline(resolve({**tables, "resume": "last"}), tmp_path / "cut")
    whole, cut = (load_file(tmp_path / k / "posterior.safetensors") for k in ("whole", "cut"))
    assert all(torch.equal(cut[name], tensor) for name, tensor in whole.items())
