import copy
import math
import weakref

import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments, reference
from refusals import refused

from fedbary.aggregation import RULES, RobustRule, Rule, aggregate, rule_named
from fedbary.gaussian import Posterior

ALL = sorted(RULES)


def model(seed: int) -> Posterior:
    generator = torch.Generator().manual_seed(seed)
    return Posterior(
        {
            "steps": torch.tensor(10 + seed),
            "mask": torch.tensor([True, seed == 0]),
            "scalar": torch.randn((), generator=generator),
            "empty": torch.empty(0, 3),
            "w": torch.randn(3, 2, generator=generator).t(),
            "half": torch.randn(4, generator=generator).half(),
            "double": torch.randn(4, generator=generator).double(),
            "big": torch.randn(300_000, generator=generator),
        },
        {
            "big": torch.randn(300_000, generator=generator) - 4,
            "double": torch.randn(4, generator=generator).double(),
            "scalar": torch.randn((), generator=generator),
        },
    )


@pytest.mark.parametrize("rule", ALL)
def test_names_shapes_and_dtypes_are_kept(rule):
    clients = [model(0), model(1)]
    before = copy.deepcopy([client.state_dict() for client in clients])
    result = aggregate(rule, clients, [1, 3])
    for part, expected in ((result.mean, clients[0].mean), (result.log_var, clients[0].log_var)):
        assert list(part) == [name for name in clients[0].mean if name in expected]
        for name, tensor in part.items():
            assert tensor.dtype == expected[name].dtype, name
            assert tensor.shape == expected[name].shape, name
    robust = isinstance(RULES[rule], RobustRule)
    assert result.mean["steps"] == (10 if robust else 11)
    masks = torch.stack([client.mean["mask"] for client in clients])
    assert torch.equal(result.mean["mask"], masks.all(0) if robust else masks[1])
    shares = [1 / 2, 1 / 2] if robust else [1 / 4, 3 / 4]
    mean_of_weights = sum(s * c.mean["w"] for s, c in zip(shares, clients, strict=True))
    torch.testing.assert_close(result.mean["w"], mean_of_weights)
    for name in ("big", "double", "scalar"):
        m, lv = (
            np.stack([getattr(c, part)[name].double().reshape(-1).numpy() for c in clients])
            for part in ("mean", "log_var")
        )
        mean, log_var = reference(rule, m, lv, np.array([1.0, 3.0]))
        np.testing.assert_allclose(result.mean[name].reshape(-1), mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(result.log_var[name].reshape(-1), log_var, rtol=1e-6, atol=1e-6)
    for was, client in zip(before, clients, strict=True):
        assert all(torch.equal(was[key], now) for key, now in client.state_dict().items())


def test_results_do_not_share_memory_with_the_posteriors():
    client = model(0)
    result = aggregate("FedAvg", [client], [1])
    assert not {t.data_ptr() for t in result.state_dict().values() if t.numel()} & {
        t.data_ptr() for t in client.state_dict().values()
    }


def test_a_generator_of_posteriors_is_never_held():
    alive: list[weakref.ref] = []

    def clients():
        for seed in range(40):
            posterior = model(seed)
            alive.append(weakref.ref(posterior))
            assert sum(ref() is not None for ref in alive) <= 2
            yield posterior
            del posterior

    aggregate("RKLB", clients(), [1] * 40)
    assert len(alive) == 40


@pytest.mark.parametrize("rule", ["FKLB", "Median", "TrimmedMean", "MultiKrum"])
@pytest.mark.parametrize("max_precision_ratio", [None, 2])
def test_a_weight_of_zero_leaves_a_client_out(rule, max_precision_ratio):
    clients = [gaussian([math.nan], [math.inf]), gaussian([1.0], [-2.0])]
    mean, log_var = moments(aggregate(rule, clients, [0, 5], max_precision_ratio))
    assert (mean, log_var) == (1, pytest.approx(-2))


def test_weights_may_be_huge():
    mean, _ = moments(
        aggregate("EAA", [gaussian([0.0], [0.0]), gaussian([2.0], [0.0])], [1e308] * 2)
    )
    assert mean == 1


def test_an_unknown_rule_lists_the_names():
    refused(f"rule: 'Mean'.*{', '.join(RULES)}", lambda: aggregate("Mean", [model(0)], [1]))
    assert rule_named("WB") is RULES["WB"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "there are more"),
        ([1, 2, 3], "there are 2"),
        ([1, -1], "-1"),
        ([1, math.nan], "nan"),
        ([math.inf, 1], "inf"),
        ([0, 0], "at least one positive"),
        ([], "at least one positive"),
    ],
)
def test_weights_that_do_not_fit_are_errors(weights, message):
    refused(f"weights: .*{message}", lambda: aggregate("EAA", [model(0), model(1)], weights))


def test_no_posteriors_is_an_error():
    refused("at least one posterior", aggregate, "EAA", [], [1])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Posterior({"v": torch.zeros(2)}, {}), "posterior 1: the mean of tensor 'w' is missing"),
        (Posterior({"w": torch.zeros(2)}, {}), "posterior 1: the log-variance of tensor 'w'"),
        (gaussian([0.0], [0.0]), r"posterior 1: .*tensor 'w' has shape \(1,\), not \(2,\)"),
    ],
)
def test_posteriors_that_differ_are_named(other, message):
    with pytest.raises(ValueError, match=message):
        aggregate("EAA", [gaussian([0.0, 1.0], [0.0, 0.0]), other], [1, 1])


def test_a_rule_needs_no_name_in_the_registry():
    harmonic = Rule("", lambda m, lv: (m, (-lv).exp()), lambda m, p: (m, -p.log()))
    clients = [gaussian([0.0], [0.0]), gaussian([2.0], [math.log(3)])]
    mean, log_var = moments(aggregate(harmonic, clients, [1, 1]))
    assert mean == 1
    assert np.exp(log_var) == pytest.approx(1.5)
