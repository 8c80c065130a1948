"""`kl_weight=share`: n_k/n at client k, with which a federation counts the prior once in all."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from client_app.node import Node
from fedbary import Posterior
from fedbary.aggregation import aggregate
from fedbary.data.deal import training_data
from fedbary.errors import SettingError
from fedbary.predictive.regression import RegressionStandardiser
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from server_app.engine.inline import run_inline
from server_app.rounds import Rounds
from strategies.asking import ASKED_KEY, EXAMPLES_KEY

NOISE_VAR = 0.5
LINEAR = {
    "task": "regression", "method": "barycentre", "rule": "RKLB", "model": "linear",
    "noise": NOISE_VAR, "predictive": "montecarlo", "inference": "natural_gradient",
    "bayesian_layers": 1,
    "engine": "inline", "clients": 4, "partition": "quantity", "alpha": 0.5, "rounds": 1,
    "pictures": False,
    "local_epochs": 300, "batch_size": 64, "lr": 0.003, "log_var_lr": 0.003, "prior_std": 0.1,
    "weight_decay": 0, "evaluate_clients": 0, "device": "cpu", "samples": 2,
}  # fmt: skip


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(0, 10**6))
def test_rklb_of_linear_gaussian_clients_is_the_posterior_of_all_data_at_any_sizes(sizes, seed):
    """Independent features: every client's posterior factorises, as the barycentre does."""
    generator = torch.Generator().manual_seed(seed)
    total, prior_precision = sum(sizes), 3.0
    shift, curvature = torch.zeros(5).double(), torch.zeros(5).double()
    posteriors = []
    for size in sizes:
        h = torch.rand(5, generator=generator).double() * size
        b = torch.randn(5, generator=generator).double() * size
        kl_weight = size / total
        precision = h / kl_weight + prior_precision
        mean = b / kl_weight / precision
        posteriors.append(Posterior({"w": mean}, {"w": -precision.log()}))
        shift, curvature = shift + b, curvature + h
    found = aggregate("RKLB", posteriors, sizes)
    exact = curvature + prior_precision
    torch.testing.assert_close(found.mean["w"], shift / exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.log_var["w"], -exact.log(), rtol=1e-12, atol=1e-12)


def standardised(chosen, facts):
    x, y = training_data(task_of(chosen).held, task_of(chosen).deal)
    by = RegressionStandardiser(**facts)
    return by.features(x).double(), by.target(y).double()


def test_through_the_apps_precisions_are_those_of_all_data_whatever_the_sizes(tmp_path):
    """With 1/K, or 1, they are not: the prior is counted too often at small clients."""
    gaps = {}
    for word in ("share", 0.25, 1.0):
        chosen = resolve({**LINEAR, "kl_weight": word})
        run_inline(chosen, tmp_path / str(word))
        x, _ = standardised(chosen, load_file(tmp_path / str(word) / "standardiser.safetensors"))
        exact = x.square().sum(0) / NOISE_VAR + 100
        found = load_file(tmp_path / str(word) / "posterior.safetensors")
        (log_var,) = (t for name, t in found.items() if name.endswith("_log_var"))
        gaps[word] = (log_var.double().flatten() + exact.log()).abs().max()
    assert gaps["share"] < 0.1
    assert gaps[0.25] > 0.3 and gaps[1.0] > 0.3


def test_a_client_s_share_is_of_all_clients_not_of_those_that_train(tmp_path, monkeypatch):
    seen = []
    training = Node.training

    def spy(self, request, examples):
        found = training(self, request, examples)
        seen.append((self.site.partition, examples, found.kl_weight))
        return found

    monkeypatch.setattr(Node, "training", spy)
    chosen = resolve(
        {**LINEAR, "kl_weight": "share", "participation": 0.5, "rounds": 3, "local_epochs": 1}
    )
    run_inline(chosen, tmp_path / "run")
    total = len(training_data(task_of(chosen).held, task_of(chosen).deal)[1])
    assert len(seen) == 6 and len({examples for _, examples, _ in seen}) > 1
    assert all(math.isclose(found, examples / total) for _, examples, found in seen)


@pytest.mark.parametrize("value", ["shares", "nan", "inf", -0.1, ""])
def test_other_words_and_numbers_are_refused(value):
    with pytest.raises(SettingError, match="kl_weight.*share, or a number from 0 up"):
        resolve({"kl_weight": value})


def test_a_method_that_counts_the_prior_itself_does_not_take_it():
    with pytest.raises(SettingError, match="kl_weight.*PVI"):
        resolve({"method": "PVI", "kl_weight": "share"})


def test_a_claim_that_max_weight_ratio_bounds_leaves_the_others_their_shares():
    """Three sites of 100 examples, and one that says it holds a thousand million."""
    settings = resolve({**LINEAR, "kl_weight": "share", "max_weight_ratio": 2.0})
    members = [SimpleNamespace(num_examples=n) for n in (100, 100, 100, 10**9)]
    roster = SimpleNamespace(members=members, trained_on=lambda node: members[node].num_examples)
    strategy = SimpleNamespace(counted=0)
    rounds = Rounds(roster, None, SimpleNamespace(settings=settings, strategy=strategy), {})
    rounds._trainers = [0, 3]
    told = rounds.tell()
    assert told[EXAMPLES_KEY] == 500 and told[ASKED_KEY] == 300
    request = SimpleNamespace(config=told, round=1)
    shares = [Node(settings, None).training(request, n).kl_weight for n in (100, 10**9)]
    assert shares == [0.2, 1.0]
