"""Replies that arrive in any order, to models of any age: where methods end, and who refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    Linear,
    assert_is,
    clients,
    exact_fit,
    independent,
    posterior_of_all,
    start,
)

from fedbary.errors import SettingError
from fedbary.gaussian import Factor
from fedbary.inference import Training
from fedbary.methods import METHODS, Arrival, Local, Reply, Server
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.bayesadmm import BayesADMM
from fedbary.methods.fedadam import FedAdam
from fedbary.methods.fedag import FedAG
from fedbary.methods.fedavgm import FedAvgM
from fedbary.methods.fedep import FedEP
from fedbary.methods.pvi import PVI

CLIENTS = 4
SCHEDULES = st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=30)


def answer(method, sent, data, name):
    """A client's reply to what it was sent."""
    network = Linear(data[0].shape[1])
    prior = Factor.normal(1.0, {"weight": network.weight_mean.detach()})
    local = Local(network, *data, nll=None, inference=exact_fit, training=Training(kl_weight=1.0),
                  prior=prior, round=1, seed=0)  # fmt: skip
    return Reply(name, len(data[0]), method.fit(local, sent, {}).reply)


def scheduled(method, data, arriving, buffer=1, lost=(), counts=lambda place: 1.0):
    """The model after all clients have asked at once and reply, and ask again, in this order.

    The replies at the places in `lost` never come: their clients vanish, and are asked again.
    """
    model, state = start(method, data)
    sent = {k: method.send(Server(model, state), str(k)) for k in range(len(data))}
    waiting = []
    for place, k in enumerate(arriving):
        if k in (w for w, _ in waiting):
            continue
        if place in lost:
            sent[k] = method.send(Server(model, state), str(k))
            continue
        reply = answer(method, sent[k], data[k], str(k))
        own = (reply.client, reply.weight, reply.tensors)
        arrival = Arrival(*own, sent[k], 1 / len(data), len(data), counts(place))
        waiting.append((k, arrival))
        if len(waiting) == buffer:
            model, state = method.arrive(Server(model, state), [a for _, a in waiting])
            for w, _ in waiting:
                sent[w] = method.send(Server(model, state), str(w))
            waiting = []
    return model


@pytest.mark.parametrize("method", [PVI(), FedEP(), BayesADMM()], ids=lambda m: m.name)
def test_a_late_reply_replaces_its_site_whole_and_moves_point_weights_less(method):
    model = {"w_mean": torch.zeros(3), "w_log_var": torch.full((3,), -2.0), "b": torch.zeros(2)}
    server = Server(model, method.start(model))
    sent, moved = method.send(server, "0"), torch.ones(3)
    reply = {"w_mean": moved, "w_log_var": model["w_log_var"] - moved, "b": torch.ones(2)}
    soon, late = (
        method.arrive(server, [Arrival("0", 9.0, reply, sent, part, 4)]) for part in (0.25, 0.025)
    )
    assert torch.equal(soon[0]["w_mean"], late[0]["w_mean"]) and soon[0]["w_mean"].all()
    assert all(torch.equal(soon[1][name], late[1][name]) for name in soon[1])
    torch.testing.assert_close(soon[0]["b"], 10 * late[0]["b"])


@given(SCHEDULES, st.integers(1, 3), st.sets(st.integers(0, 30)))
def test_sites_end_at_the_exact_posterior_in_any_order_with_any_delays(schedule, buffer, lost):
    """Undamped, each client's first reply is its whole likelihood, however old its cavity is.

    A client that vanishes within a step takes nothing along, before its first reply or after.
    """
    data = independent(clients(2, CLIENTS))
    lost &= {*range(len(schedule))}
    turns = [*schedule, *2 * list(range(CLIENTS)), *range(3)]
    model = scheduled(PVI(damping=1.0), data, turns, buffer, lost)
    assert_is(model, *posterior_of_all(data), 1e-7)


@given(SCHEDULES, st.lists(st.floats(0.05, 4.0), min_size=40, max_size=40))
@settings(max_examples=20)
def test_damped_sites_come_as_near_as_their_replies_count(schedule, counts):
    """After replies that count n in all a site is 1 − (1 − γ)ⁿ of its likelihood, in any order."""
    data, damping = independent(clients(2, CLIENTS)), 0.25
    model = scheduled(PVI(damping=damping), data, schedule, counts=lambda place: counts[place % 40])
    precision = torch.ones(4, dtype=torch.float64)
    for k, (x, _) in enumerate(data):
        own = sum(counts[place % 40] for place, each in enumerate(schedule) if each == k)
        reached = 1 - (1 - damping) ** own
        precision += reached * x.square().sum(0) / 0.25
    torch.testing.assert_close((-model["weight_log_var"]).exp(), precision)


@given(st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=10)
def test_admm_ends_at_the_exact_posterior_in_any_order_with_any_delays(schedule, buffer):
    """Each site goes to its likelihood; the mean of the newest posteriors follows."""
    data = independent(clients(2, CLIENTS))
    method = BayesADMM(rho=0.5, damping=1.0)
    turns = [*schedule, *40 * list(range(CLIENTS))]
    model = scheduled(method, data, turns, buffer)
    torch.testing.assert_close((model["weight_mean"], model["weight_log_var"].exp()),
                               posterior_of_all(data), rtol=1e-4, atol=1e-4)  # fmt: skip


def test_correlated_features_reach_the_same_end():
    data = clients(1, 3, features=3)
    turns = torch.randint(3, (900,), generator=torch.Generator().manual_seed(0)).tolist()
    assert_is(scheduled(PVI(), data, turns), *posterior_of_all(data), 1e-5)


@pytest.mark.parametrize(
    "method",
    [PVI(), PVI(undamped_start=True), FedEP(), BayesADMM(), Barycentre("RKLB"), Barycentre("WB"),
     Barycentre("FKLB", server_momentum=0.5)],
)  # fmt: skip
def test_replies_of_all_to_the_model_of_now_are_a_round(method):
    data = clients(1, 3)
    model, state = start(method, data)
    for _ in range(3):
        server = Server(model, state)
        sent = {str(k): method.send(server, str(k)) for k in range(3)}
        replies = [answer(method, sent[str(k)], data[k], str(k)) for k in range(3)]
        every = sum(reply.weight for reply in replies)
        arrivals = [
            Arrival(r.client, r.weight, r.tensors, sent[r.client], r.weight / every, 3)
            for r in replies
        ]
        model, state = method.aggregate(server, replies)
        found, held = method.arrive(server, arrivals)
        torch.testing.assert_close(found, dict(model), rtol=1e-6, atol=1e-6)
        shared = {name: tensor for name, tensor in held.items() if "newest/" not in name}
        torch.testing.assert_close(shared, dict(state), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["RKLB", "WB", "FKLB", "EAA"])
def test_remembered_changes_alter_no_round_of_all(rule):
    data = clients(1, 3)
    plain = Barycentre(rule, server_momentum=0.5)
    remembering = Barycentre(rule, server_momentum=0.5, remember=True)
    model, state = start(plain, data)
    held = state
    for _ in range(3):
        replies = [answer(plain, model, data[k], str(k)) for k in range(3)]
        found, held = remembering.aggregate(Server(model, held), replies)
        model, state = plain.aggregate(Server(model, state), replies)
        torch.testing.assert_close(found, dict(model), rtol=1e-4, atol=1e-5)
    assert {key.split("/")[1] for key in held if "/" in key} == {"0", "1", "2"}


@pytest.mark.parametrize("method", [FedAvgM(0.5, 0.9), FedAdam(0.1)])
def test_a_server_s_optimiser_takes_the_changes_of_all_for_a_round(method):
    generator = torch.Generator().manual_seed(0)
    model = {"w": torch.zeros(4), "bn.running_mean": torch.zeros(1)}
    state = held = {}
    for _ in range(3):
        own = [{n: t + torch.randn(t.shape, generator=generator) for n, t in model.items()}
               for _ in range(3)]  # fmt: skip
        replies = [Reply(str(k), k + 1.0, tensors) for k, tensors in enumerate(own)]
        arrivals = [Arrival(r.client, r.weight, r.tensors, model, r.weight / 6, 3) for r in replies]
        found, held = method.arrive(Server(model, state), arrivals)
        model, state = method.aggregate(Server(model, state), replies)
        torch.testing.assert_close((found, dict(held)), (dict(model), dict(state)))


@given(st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=20))
@settings(max_examples=20)
def test_of_fedag_the_newest_network_of_each_client_counts_once(schedule):
    method, state, newest = FedAG(), {}, {}
    model = {"w": torch.zeros(2), "count": torch.tensor(0)}
    for number, k in enumerate(schedule):
        newest[k] = {"w": torch.tensor([float(k), float(number)]), "count": torch.tensor(number)}
        arrival = Arrival(f"site/{k}", 9.0, newest[k], model, 0.1, CLIENTS)
        model, state = method.arrive(Server(model, state), [arrival])
    networks = torch.stack([newest[k]["w"] for k in sorted(newest)])
    torch.testing.assert_close(model["w"], networks.mean(0))
    assert torch.equal(method.predictive(model, state).members["w"], networks)


def test_a_method_without_arrivals_is_refused_by_name():
    able = []
    for name, kind in METHODS.items():
        try:
            kind().check_arrivals()
            able.append(name)
        except SettingError as error:
            assert f"rounds for {name}" in str(error)
    rivals = {"FedAvgM", "FedAdam"}
    assert {"barycentre", "PVI", "FedEP", "BayesADMM", "FedAG", "LDA", "Ridge"} | rivals <= {*able}
    assert not {"FedSEP", "SCAFFOLD"} & set(able)
    for name in able:
        kinds = METHODS[name].__mro__
        at, of_rounds = (
            next(place for place, kind in enumerate(kinds) if word in vars(kind))
            for word in ("arrive", "aggregate")
        )
        assert at <= of_rounds, f"{name} aggregates in its own way in rounds alone"


@pytest.mark.parametrize(
    "parameters",
    [{"rule": "Median"}, {"rule": "HB"}, {"rule": "GAA"}, {"clipping": True}, {"mixing": True},
     {"max_precision_ratio": 2.0}],
)  # fmt: skip
def test_what_compares_the_replies_of_a_round_is_refused(parameters):
    with pytest.raises(SettingError, match=r"mode=async.*remember=true"):
        Barycentre(**parameters).check_arrivals()
