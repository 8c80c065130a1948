import copy
import math
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbary.aggregation import RULES, Rule, aggregate, rule_named
from fedbary.aggregation.posteriors import aggregate_posteriors
from fedbary.aggregation.sums import Sums, normalised
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, kl_divergence, wasserstein2_squared

ALL = sorted(RULES)
MEANS = sorted(name for name, rule in RULES.items() if rule.is_mean)
ASCENDING = ["RKLB", "AALV", "WB", "EAA", "FKLB"]


def gaussian(mean, log_var, dtype=torch.float32) -> Posterior:
    return Posterior(
        {"w": torch.as_tensor(mean, dtype=dtype)}, {"w": torch.as_tensor(log_var, dtype=dtype)}
    )


def moments(p: Posterior) -> tuple[np.ndarray, np.ndarray]:
    return p.mean["w"].double().numpy(), p.log_var["w"].double().numpy()


def reference(rule: str, m: np.ndarray, lv: np.ndarray, w: np.ndarray):
    """The formulas of the papers, in float64, on arrays [clients, weights]: mean and log-var."""
    w = (w / w.sum())[:, None]
    v = np.exp(lv)
    mean = (w * m).sum(0)
    if rule == "RKLB":
        precision = (w / v).sum(0)
        return (w * m / v).sum(0) / precision, -np.log(precision)
    if rule == "FKLB":
        return mean, np.log((w * v).sum(0) + (w * (m - mean) ** 2).sum(0))
    log_var = {
        "EAA": lambda: np.log((w * v).sum(0)),
        "GAA": lambda: np.log((w**2 * v).sum(0)),
        "AALV": lambda: (w * lv).sum(0),
        "FedAvg": lambda: (w * lv).sum(0),
        "WB": lambda: 2 * np.log((w * np.sqrt(v)).sum(0)),
    }
    return mean, log_var[rule]()


@st.composite
def federations(draw, log_var_limit=40.0):
    """Draw arrays of means and log-variances [clients, weights], and weights."""
    clients = draw(st.integers(1, 6))
    numbers = st.integers(0, 2**32 - 1).map(np.random.default_rng)
    rng = draw(numbers)
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 10.0]))
    m = draw(st.sampled_from([0.0, 1.0, -30.0])) + scale * rng.standard_normal((clients, 7))
    lv = rng.uniform(-log_var_limit, log_var_limit, (clients, 7))
    if draw(st.booleans()):
        lv[:] = lv[:1]
    w = rng.uniform(0.05, 1, clients) * draw(st.sampled_from([1e-3, 1.0, 1e6]))
    return m.astype(np.float32), lv.astype(np.float32), w


def run(rule, m, lv, w, dtype=torch.float32):
    clients = [gaussian(a, b, dtype) for a, b in zip(m, lv, strict=True)]
    return moments(aggregate(rule, clients, w.tolist()))


@pytest.mark.parametrize(
    ("rule", "mean", "var"),
    [
        ("EAA", 1, 0.625),
        ("GAA", 1, 0.3125),
        ("AALV", 1, 0.5),
        ("WB", 1, 0.5625),
        ("RKLB", 1.6, 0.4),
        ("FKLB", 1, 1.625),
        ("FedAvg", 1, 0.5),
    ],
)
def test_toy_values(rule, mean, var):
    m, lv = run(rule, np.array([[0.0], [2.0]]), np.log([[1], [0.25]]), np.ones(2), torch.float64)
    assert m == pytest.approx(mean, rel=1e-12)
    assert np.exp(lv) == pytest.approx(var, rel=1e-12)


def test_every_rule_has_a_toy_value_and_a_formula():
    assert set(ALL) == {"FedAvg", "EAA", "GAA", "AALV", "RKLB", "WB", "FKLB"}
    assert not RULES["GAA"].is_mean
    assert set(MEANS) == set(ALL) - {"GAA"}


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations())
@settings(max_examples=40, deadline=None)
def test_agrees_with_the_formulas_in_float64(rule, federation):
    m, lv, w = federation
    mean, log_var = run(rule, m, lv, w)
    expected_mean, expected_log_var = reference(rule, *map(np.float64, federation))
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-7, atol=1e-12)
    np.testing.assert_allclose(log_var, expected_log_var, rtol=2e-7, atol=1e-6)


@given(federation=federations())
@settings(max_examples=60, deadline=None)
def test_variances_ascend_from_rule_to_rule(federation):
    variances = [run(rule, *federation, torch.float64)[1] for rule in ASCENDING]
    for lower, upper in zip(variances, variances[1:], strict=False):
        assert (lower <= upper + 1e-12 * np.abs(upper)).all()


@given(federation=federations())
@settings(max_examples=40, deadline=None)
def test_fklb_is_never_below_eaa(federation):
    assert (run("EAA", *federation)[1] <= run("FKLB", *federation)[1]).all()


@pytest.mark.parametrize("rule", MEANS)
@given(federation=federations(), clients=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_equal_posteriors_aggregate_to_themselves(rule, federation, clients):
    m, lv, _ = federation
    weights = np.arange(1.0, clients + 1)
    mean, log_var = run(rule, m[[0] * clients], lv[[0] * clients], weights)
    np.testing.assert_allclose(mean, m[0], rtol=2e-7)
    np.testing.assert_allclose(log_var, lv[0], rtol=2e-7)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations())
@settings(max_examples=30, deadline=None)
def test_one_client_is_its_own_aggregate(rule, federation):
    m, lv, w = (array[:1] for array in federation)
    mean, log_var = run(rule, m, lv, w)
    np.testing.assert_allclose(mean, m[0], rtol=2e-7)
    np.testing.assert_allclose(log_var, lv[0], rtol=2e-7)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations(), seed=st.integers(0, 99), scale=st.sampled_from([1e-9, 3.0, 1e12]))
@settings(max_examples=30, deadline=None)
def test_neither_the_order_of_clients_nor_the_scale_of_weights_matters(
    rule, federation, seed, scale
):
    m, lv, w = federation
    order = np.random.default_rng(seed).permutation(len(w))
    mean, log_var = run(rule, m, lv, w, torch.float64)
    same_mean, same_log_var = run(rule, m[order], lv[order], w[order] * scale, torch.float64)
    np.testing.assert_allclose(mean, same_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_var, same_log_var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations(log_var_limit=0))
@settings(max_examples=30, deadline=None)
def test_the_limit_of_no_variance_is_the_weighted_mean(rule, federation):
    m, lv, w = federation
    mean, log_var = run(rule, m, lv - 60, w, torch.float64)
    deterministic = [Posterior({"w": torch.as_tensor(a).double()}, {}) for a in m]
    limit = aggregate(rule, deterministic, w.tolist())
    np.testing.assert_allclose(mean, limit.mean["w"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, np.average(m.astype(float), 0, w), rtol=1e-12, atol=1e-12)
    assert not limit.log_var
    if rule != "FKLB":
        assert (log_var < -59).all()


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations())
@settings(max_examples=30, deadline=None)
def test_the_inverse_undoes_the_chart(rule, federation):
    m, lv = (torch.as_tensor(array[0]).double() for array in federation[:2])
    if RULES[rule].centred:
        m = torch.zeros_like(m)
    arguments = m.clone(), lv.clone()
    mean, log_var = RULES[rule].inverse(*RULES[rule].forward(m, lv))
    torch.testing.assert_close(mean, m, rtol=1e-12, atol=0)
    torch.testing.assert_close(log_var, lv, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, (m, lv), arguments))


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations(log_var_limit=3))
@settings(max_examples=20, deadline=None)
def test_a_shift_of_all_means_shifts_the_aggregate(rule, federation):
    m, lv, w = federation
    mean, log_var = run(rule, m, lv, w, torch.float64)
    shifted, same = run(rule, m.astype(float) + 100, lv, w, torch.float64)
    np.testing.assert_allclose(shifted, mean + 100, rtol=1e-12)
    np.testing.assert_allclose(same, log_var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("rule", "divergence"),
    [
        ("RKLB", kl_divergence),
        ("FKLB", lambda q, p: kl_divergence(p, q)),
        ("WB", wasserstein2_squared),
    ],
)
def test_a_barycentre_minimises_its_divergence(rule, divergence):
    clients = [
        gaussian([m], [lv], torch.float64) for m, lv in [(0.3, -1.0), (-1.2, 0.4), (2.0, -2.5)]
    ]
    weights = [0.5, 0.2, 0.3]

    def objective(x):
        q = gaussian(x[:1], x[1:], torch.float64)
        return sum(w * divergence(q, p) for w, p in zip(weights, clients, strict=True))

    found = minimize(objective, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9}).x
    mean, log_var = moments(aggregate(rule, clients, weights))
    np.testing.assert_allclose([mean.item(), log_var.item()], found, atol=1e-6)


@pytest.mark.parametrize("rule", ALL)
@pytest.mark.parametrize("log_var", [-40.0, 40.0])
def test_extreme_log_variances_give_finite_results_in_float32(rule, log_var):
    clients = [gaussian([1.0, 1e3], [log_var] * 2), gaussian([1.0, -7.0], [log_var] * 2)]
    mean, lv = moments(aggregate(rule, clients, [3, 1]))
    expected_mean, expected = reference(
        rule, np.array([[1, 1e3], [1, -7]]), np.full((2, 2), log_var), np.array([3, 1])
    )
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-7)
    np.testing.assert_allclose(lv, expected, rtol=2e-7)


@pytest.mark.parametrize("clients", [10, 1000])
@pytest.mark.parametrize("rule", ALL)
def test_float32_sums_of_many_clients_keep_float32_accuracy(rule, clients):
    rng = np.random.default_rng(0)
    m = (5 + rng.standard_normal((clients, 50))).astype(np.float32)
    lv = rng.uniform(-30, 10, (clients, 50)).astype(np.float32)
    w = rng.uniform(1, 2, clients)
    sums = Sums(RULES[rule], torch.float32)
    for a, b, share in zip(m, lv, normalised(w.tolist()), strict=True):
        sums.add(torch.from_numpy(a), torch.from_numpy(b), share)
    mean, log_var = sums.finish()
    expected_mean, expected_log_var = reference(rule, m.astype(float), lv.astype(float), w)
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-6)
    np.testing.assert_allclose(log_var, expected_log_var, rtol=2e-6, atol=2e-6)


def test_float32_errors_do_not_pile_up_with_the_clients():
    clients = 20_000
    sums = Sums(RULES["EAA"], torch.float32)
    mean, log_var = torch.tensor([0.1, 0.7]), torch.tensor([-3.0, 2.0])
    for _ in range(clients):
        sums.add(mean, log_var, 1 / clients)
    torch.testing.assert_close(sums.finish(), (mean, log_var), rtol=4e-7, atol=0)


def test_fklb_is_finite_where_rounding_makes_the_spread_negative():
    means = np.linspace(0, 3, 1001)
    clients = [gaussian(means * k, np.full(1001, -40), torch.float64) for k in (0, 1, 1)]
    _, log_var = moments(aggregate("FKLB", clients, [1e-18, 0.3, 0.7]))
    assert (log_var >= -40 - 1e-12).all()


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
def test_names_shapes_and_dtypes_are_kept_and_buffers_pass_through(rule):
    clients = [model(0), model(1)]
    before = copy.deepcopy([client.state_dict() for client in clients])
    result = aggregate(rule, clients, [1, 3])
    for part, expected in ((result.mean, clients[0].mean), (result.log_var, clients[0].log_var)):
        assert list(part) == [name for name in clients[0].mean if name in expected]
        for name, tensor in part.items():
            assert tensor.dtype == expected[name].dtype, name
            assert tensor.shape == expected[name].shape, name
    assert result.mean["steps"] == 10
    assert result.mean["mask"].tolist() == [True, True]
    torch.testing.assert_close(
        result.mean["w"], (clients[0].mean["w"] + 3 * clients[1].mean["w"]) / 4
    )
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


def test_a_weight_of_zero_leaves_a_client_out():
    wild = gaussian([math.nan], [math.inf])
    mean, log_var = moments(aggregate("FKLB", [wild, gaussian([1.0], [-2.0])], [0, 5]))
    assert (mean, log_var) == (1, -2)


def test_weights_may_be_huge():
    mean, _ = moments(
        aggregate("EAA", [gaussian([0.0], [0.0]), gaussian([2.0], [0.0])], [1e308] * 2)
    )
    assert mean == 1


def test_an_unknown_rule_lists_the_names():
    with pytest.raises(SettingError, match=f"rule: 'Mean' is not allowed.*{', '.join(RULES)}"):
        aggregate("Mean", [model(0)], [1])
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
    with pytest.raises(SettingError, match=f"weights: .*{message}"):
        aggregate("EAA", [model(0), model(1)], weights)


def test_no_posteriors_is_an_error():
    with pytest.raises(SettingError, match="at least one posterior"):
        aggregate("EAA", [], [1])


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
    mean, log_var = moments(aggregate_posteriors(harmonic, clients, [1, 1]))
    assert mean == 1
    assert np.exp(log_var) == pytest.approx(1.5)


def test_one_new_file_makes_a_rule_and_a_strategy(tmp_path):
    root = Path(__file__).parents[1]
    for package in ("fedbary", "strategies"):
        shutil.copytree(root / package, tmp_path / package)
    (tmp_path / "fedbary/aggregation/newcomer.py").write_text(
        "from fedbary.aggregation.rule import Rule\n"
        "RULE = Rule('Newcomer', lambda m, lv: (m, lv), lambda m, lv: (m, lv))\n"
    )
    program = (
        "from fedbary.aggregation import RULES\n"
        "import strategies\n"
        "assert strategies.Newcomer is strategies.strategy_for('Newcomer')\n"
        "assert strategies.Newcomer().rule is RULES['Newcomer']\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
