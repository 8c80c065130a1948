"""GIFAIR's rates balance and its loss is admitted; PropFair's gradient is that of its loss."""

import math
from collections import deque

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from small_apps import answering
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Method, Reply, Server
from fedbary.methods.fedprox import FedProx
from fedbary.methods.gifair import GIFAIR, LOSS, RATE
from fedbary.methods.propfair import FairLoss, PropFair
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import GIFAIR as Strategy
from fedbary.strategies import Client

CLIENTS = ["a/b", "", "ü %2F", "a", "b", "c", "loss/a"]


def after(method, losses, sizes, state=None):
    """Return the state after a round of clients with these losses and sizes."""
    model = {"w": torch.zeros(2)}
    replies = [
        Reply(name, float(sizes[name]), {"w": torch.ones(2), LOSS: torch.tensor(loss)})
        for name, loss in losses.items()
    ]
    return model, method.aggregate(Server(model, state or {}), replies)[1]


@given(st.data(), st.integers(2, len(CLIENTS)), st.floats(0, 0.99))
def test_rates_balance_are_bounded_and_follow_the_losses(data, count, fairness):
    names = CLIENTS[:count]
    losses = dict(zip(names, data.draw(st.permutations(range(count))), strict=True))
    sizes = {name: data.draw(st.integers(1, 500)) for name in names}
    method = GIFAIR(fairness)
    model, state = after(method, {n: float(loss) for n, loss in losses.items()}, sizes)
    rates = {n: float(method.send(Server(model, state), n)[RATE]) for n in names}
    share = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    assert sum(share[n] * (rates[n] - 1) for n in names) == pytest.approx(0, abs=1e-5)
    assert all(1 - fairness - 1e-5 <= rate <= 1 + fairness + 1e-5 for rate in rates.values())
    least = fairness * min(share.values()) / (count - 1)
    for name, loss in losses.items():
        rank = 2 * loss - (count - 1)  # the greatest loss is ranked first
        assert rates[name] == pytest.approx(1 + least * rank / share[name], rel=1e-5)
    assert float(method.send(Server(model, state), "new")[RATE]) == 1.0


def test_who_was_away_keeps_the_loss_that_it_had():
    method, sizes = GIFAIR(0.5), {"a": 10, "b": 10, "c": 10}
    model, state = after(method, {"a": 3.0, "b": 2.0, "c": 1.0}, sizes)
    model, state = after(method, {"a": 0.5}, sizes, state)
    rates = [float(method.send(Server(model, state), name)[RATE]) for name in "abc"]
    assert rates == pytest.approx([0.5, 1.5, 1.0])


def test_a_client_trains_at_its_rate_and_sends_its_loss():
    seen = []

    def spy(local):
        seen.append(local.training.lr)
        return {"train_nll": 0.75}

    local = Local(nn.Linear(2, 2), torch.zeros(3, 2), torch.zeros(3), None, spy,
                  Training(lr=0.2), 1.0, 1, 0)  # fmt: skip
    reply = GIFAIR().fit(local, {**local.state(), RATE: torch.tensor(1.25)}, {}).reply
    assert seen == [pytest.approx(0.25)]
    assert reply[LOSS] == 0.75 and reply.keys() == {"weight", "bias", LOSS}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda arrays: arrays.pop(LOSS),
        lambda arrays: arrays.update({LOSS: torch.tensor(float("nan"))}),
        lambda arrays: arrays.update({LOSS: torch.ones(3)}),
        lambda arrays: arrays.update({"fairness/other": torch.ones(())}),
    ],
)
def test_a_loss_that_is_missing_or_none_is_refused_by_admission(spoil):
    def client(k):
        torch.manual_seed(k)
        return Client(nn.Linear(2, 2), torch.randn(20, 2), torch.randint(0, 2, (20,)), Training())

    app = answering(client, {(1, 1), (1, 2)}, spoil)
    strategy = Strategy(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    start = ArrayRecord(nn.Linear(2, 2).state_dict())
    strategy.start(grid=InlineGrid(app, 3, {}), initial_arrays=start, num_rounds=2)
    assert [refusal.round for refusal in strategy.refusals] == [1, 2]
    assert all("fairness/" in refusal.reason for refusal in strategy.refusals)


def test_without_fairness_it_is_fedavg():
    torch.manual_seed(0)
    x, y = torch.randn(30, 2), torch.randint(0, 2, (30,))
    method, model = GIFAIR(0.0), {k: v.clone() for k, v in nn.Linear(2, 2).state_dict().items()}
    losses = {"a": 2.0, "b": 1.0}
    _, state = after(method, losses, {"a": 3, "b": 5})
    job = Local(nn.Linear(2, 2), x, y, nn.functional.cross_entropy, local_method("variational"),
                Training(), 1.0, 1, 0)  # fmt: skip
    reply = method.fit(job, method.send(Server(model, state), "a"), {}).reply
    job.load(model)
    job.infer(1.0)
    assert all(torch.equal(reply[name], tensor) for name, tensor in job.state().items())


def fair(method, losses):
    """Return the fair loss and its gradient for each loss."""
    leaf = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
    made = FairLoss(lambda outputs, targets: outputs, method, deque())
    found = torch.stack([made(loss, torch.zeros(1)) for loss in leaf])
    (grad,) = torch.autograd.grad(found.sum(), leaf)
    return found.detach(), grad


@given(
    st.lists(st.floats(-50, 500), min_size=1, max_size=20),
    st.floats(0.01, 5),
    st.floats(0.001, 100),
)
def test_the_gradient_is_the_loss_s_times_m_over_m_minus_the_loss(losses, epsilon, above):
    baseline = epsilon + above
    found, grad = fair(PropFair(baseline, epsilon), losses)
    assert found.isfinite().all() and grad.isfinite().all()
    losses = torch.tensor(losses, dtype=torch.float64)
    within = losses <= baseline - epsilon
    expected = torch.where(within, baseline / (baseline - losses), 1.0)
    torch.testing.assert_close(grad, expected)
    assert (grad <= baseline / epsilon * (1 + 1e-9)).all()
    torch.testing.assert_close(found[~within], losses[~within])
    product = -baseline * (1 - losses[within] / baseline).log()
    torch.testing.assert_close(found[within], product, rtol=1e-9, atol=1e-9)


def job(nll=nn.functional.cross_entropy, epochs=2, batch_size=16):
    torch.manual_seed(0)
    x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
    training = Training(epochs, batch_size, lr=0.1)
    model = nn.Linear(4, 3)
    return Local(model, x, y, nll, local_method("variational"), training, 1.0, round=1, seed=0)


class FedAvg(Method):
    pass


def test_with_a_baseline_far_away_it_is_fedavg():
    one, other = job(), job()
    fair_reply = PropFair(baseline=1e7).fit(one, one.state(), {})
    plain = FedAvg().fit(other, other.state(), {})
    for name, tensor in plain.reply.items():
        torch.testing.assert_close(fair_reply.reply[name], tensor, rtol=1e-5, atol=1e-6)
    assert fair_reply.metrics == pytest.approx(plain.metrics, rel=1e-5)  # of the last epoch alone


@pytest.mark.parametrize("method", [PropFair(), FedProx(), GIFAIR()])
def test_clients_count_by_size(method):
    sent = {1.0: torch.ones(2), 3.0: torch.full((2,), 5.0)}
    replies = [Reply(str(n), n, {"w": w, LOSS: torch.tensor(n)}) for n, w in sent.items()]
    after, _ = method.aggregate(Server({"w": torch.zeros(2)}, {}), replies)
    torch.testing.assert_close(after["w"], torch.full((2,), 4.0))


def test_its_metric_is_the_loss_itself_over_the_last_epoch():
    still = job(epochs=3)
    x, y, before = still.x, still.y, still.state()
    training = Training(3, 16, lr=1e-12)
    still = Local(still.model, x, y, still.nll, still.inference, training, 1.0, round=1, seed=0)
    fitted = PropFair().fit(still, before, {})
    expected = float(nn.functional.cross_entropy(still.model(x), y).detach())
    assert fitted.metrics["train_nll"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("wrong", [{"baseline": 0.2}, {"baseline": math.inf}, {"epsilon": 5.0}])
def test_the_baseline_lies_above_epsilon(wrong):
    with pytest.raises(SettingError, match="baseline"):
        PropFair(**wrong)
