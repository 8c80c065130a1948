"""PropFair's gradient is the loss's times M/(M − ℓ), bounded, and its loss is always finite."""

import math
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbary.errors import SettingError
from fedbary.inference import Training, local_method
from fedbary.methods import Local, Method, Reply, Server
from fedbary.methods.fedprox import FedProx
from fedbary.methods.gifair import GIFAIR, LOSS
from fedbary.methods.propfair import FairLoss, PropFair


def fair(method, losses):
    """Return the fair loss and its gradient for each loss."""
    leaf = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
    made = FairLoss(lambda outputs, targets: outputs, method, deque())
    found = torch.stack([made(loss, torch.zeros(1)) for loss in leaf])
    (grad,) = torch.autograd.grad(found.sum(), leaf)
    return found.detach(), grad


@settings(deadline=None)
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
