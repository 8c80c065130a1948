import numpy as np
import pytest
import torch
from aggregation_formulas import gaussian, moments, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.aggregation import DIVERGENCES, RULES, Rule, aggregate
from fedbary.aggregation.sums import RunningSums, normalised
from fedbary.gaussian import Posterior

ALL = sorted(RULES)
CHARTS = sorted(name for name, rule in RULES.items() if isinstance(rule, Rule))
MEANS = sorted(name for name, rule in RULES.items() if rule.is_mean)
ASCENDING = ["RKLB", "AALV", "WB", "EAA", "FKLB"]


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
        ("HB", 1.172006986625, 1.347436857501),
        ("Conflation", 1.6, 0.2),
        ("WeightedConflation", 1.6, 0.2),
        ("FedAvg", 1, 0.5),
        ("Median", 1, 0.5),
        ("TrimmedMean", 1, 0.5),
        ("MultiKrum", 1, 0.5625),
    ],
)
def test_toy_values(rule, mean, var):
    m, lv = run(rule, np.array([[0.0], [2.0]]), np.log([[1], [0.25]]), np.ones(2), torch.float64)
    assert m == pytest.approx(mean, rel=1e-12)
    assert np.exp(lv) == pytest.approx(var, rel=1e-12)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations())
def test_agrees_with_the_formulas_in_float64(rule, federation):
    m, lv, w = federation
    mean, log_var = run(rule, m, lv, w)
    expected_mean, expected_log_var = reference(rule, *map(np.float64, federation))
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-7, atol=1e-12)
    np.testing.assert_allclose(log_var, expected_log_var, rtol=2e-7, atol=1e-6)


@pytest.mark.slow
@given(federation=federations())
def test_variances_ascend_from_rule_to_rule(federation):
    variances = [run(rule, *federation, torch.float64)[1] for rule in ASCENDING]
    for lower, upper in zip(variances, variances[1:], strict=False):
        assert (lower <= upper + 1e-12 * np.abs(upper)).all()


@given(federation=federations())
def test_fklb_is_never_below_eaa(federation):
    assert (run("EAA", *federation)[1] <= run("FKLB", *federation)[1]).all()


@pytest.mark.parametrize("rule", MEANS)
@given(federation=federations(), clients=st.integers(1, 5))
@settings(max_examples=15)
def test_equal_posteriors_aggregate_to_themselves(rule, federation, clients):
    m, lv, _ = federation
    weights = np.arange(1.0, clients + 1)
    mean, log_var = run(rule, m[[0] * clients], lv[[0] * clients], weights)
    np.testing.assert_allclose(mean, m[0], rtol=2e-7)
    np.testing.assert_allclose(log_var, lv[0], rtol=2e-7)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations())
@settings(max_examples=15)
def test_one_client_is_its_own_aggregate(rule, federation):
    m, lv, w = (array[:1] for array in federation)
    mean, log_var = run(rule, m, lv, w)
    np.testing.assert_allclose(mean, m[0], rtol=2e-7)
    np.testing.assert_allclose(log_var, lv[0], rtol=2e-7)


@pytest.mark.parametrize("rule", ALL)
@given(federation=federations(), seed=st.integers(0, 99), scale=st.sampled_from([1e-9, 3.0, 1e12]))
@settings(max_examples=15)
def test_neither_the_order_of_clients_nor_the_scale_of_weights_matters(
    rule, federation, seed, scale
):
    m, lv, w = federation
    order = np.random.default_rng(seed).permutation(len(w))
    mean, log_var = run(rule, m, lv, w, torch.float64)
    same_mean, same_log_var = run(rule, m[order], lv[order], w[order] * scale, torch.float64)
    np.testing.assert_allclose(mean, same_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_var, same_log_var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", CHARTS)
@given(federation=federations(log_var_limit=0))
@settings(max_examples=15)
def test_the_limit_of_no_variance_is_the_weighted_mean(rule, federation):
    """Where weights do not count, as in Conflation, precisions that grow with examples do."""
    m, lv, w = federation
    by_size = (1 - RULES[rule].powers[0]) * np.log(w / w.sum())[:, None]
    mean, log_var = run(rule, m, lv - 60 - by_size, w, torch.float64)
    deterministic = [Posterior({"w": torch.as_tensor(a).double()}, {}) for a in m]
    limit = aggregate(rule, deterministic, w.tolist())
    np.testing.assert_allclose(mean, limit.mean["w"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, np.average(m.astype(float), 0, w), rtol=1e-12, atol=1e-12)
    assert not limit.log_var
    if rule != "FKLB":
        assert (log_var < -59).all()


@pytest.mark.parametrize("rule", CHARTS)
@given(federation=federations())
@settings(max_examples=15)
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
@settings(max_examples=10)
def test_a_shift_of_all_means_shifts_the_aggregate(rule, federation):
    m, lv, w = federation
    mean, log_var = run(rule, m, lv, w, torch.float64)
    shifted, same = run(rule, m.astype(float) + 100, lv, w, torch.float64)
    np.testing.assert_allclose(shifted, mean + 100, rtol=1e-12)
    np.testing.assert_allclose(same, log_var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", sorted(DIVERGENCES))
@given(federation=federations(log_var_limit=2), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_no_posterior_nearby_has_a_lower_sum_of_divergences(rule, federation, seed):
    m, lv, w = federation
    clients = [gaussian(a, b, torch.float64) for a, b in zip(m, lv, strict=True)]
    mean, log_var = moments(aggregate(rule, clients, w.tolist()))
    shares = normalised(w.tolist())

    def objective(m, lv):
        q = gaussian(m, lv, torch.float64)
        return sum(s * DIVERGENCES[rule](q, p) for s, p in zip(shares, clients, strict=True))

    least, rng = objective(mean, log_var), np.random.default_rng(seed)
    for size in (1e-3, 1e-1, 1.0):
        for way in rng.standard_normal((4, 2, *mean.shape)) * rng.integers(0, 2, (4, 2, 1)):
            near = objective(mean + size * way[0], log_var + size * way[1])
            assert near >= least - 1e-12 * abs(least)
    assert all(DIVERGENCES[rule](p, p) == 0 for p in clients)


def test_locals_with_their_share_as_kl_weight_have_the_posterior_of_all_data_as_rklb():
    rng = np.random.default_rng(0)
    noise, prior, sizes = 0.5, 2.0, np.array([3, 10, 40])
    data = [rng.normal(1.0, noise, size) for size in sizes]

    def posterior(y, kl_weight=1.0):
        precision = len(y) / noise**2 / kl_weight + 1 / prior**2
        return y.sum() / noise**2 / kl_weight / precision, -np.log(precision)

    shares = sizes / sizes.sum()
    clients = [
        gaussian(*np.atleast_1d(*posterior(y, share)), torch.float64)
        for y, share in zip(data, shares, strict=True)
    ]
    found = moments(aggregate("RKLB", clients, shares.tolist()))
    np.testing.assert_allclose(np.ravel(found), posterior(np.concatenate(data)), rtol=1e-12)


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
@pytest.mark.parametrize("rule", CHARTS)
def test_float32_sums_of_many_clients_keep_float32_accuracy(rule, clients):
    rng = np.random.default_rng(0)
    m = (5 + rng.standard_normal((clients, 50))).astype(np.float32)
    lv = rng.uniform(-30, 10, (clients, 50)).astype(np.float32)
    w = rng.uniform(1, 2, clients)
    sums = RunningSums(RULES[rule], torch.float32)
    for a, b, share in zip(m, lv, normalised(w.tolist()), strict=True):
        sums.add(torch.from_numpy(a), torch.from_numpy(b), share)
    mean, log_var = sums.finish()
    expected_mean, expected_log_var = reference(rule, m.astype(float), lv.astype(float), w)
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-6)
    np.testing.assert_allclose(log_var, expected_log_var, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_float32_errors_do_not_pile_up_with_the_clients():
    clients = 20_000
    sums = RunningSums(RULES["EAA"], torch.float32)
    mean, log_var = torch.tensor([0.1, 0.7]), torch.tensor([-3.0, 2.0])
    for _ in range(clients):
        sums.add(mean, log_var, 1 / clients)
    torch.testing.assert_close(sums.finish(), (mean, log_var), rtol=4e-7, atol=0)


def test_fklb_is_finite_where_rounding_makes_the_spread_negative():
    means = np.linspace(0, 3, 1001)
    clients = [gaussian(means * k, np.full(1001, -40), torch.float64) for k in (0, 1, 1)]
    _, log_var = moments(aggregate("FKLB", clients, [1e-18, 0.3, 0.7]))
    assert (log_var >= -40 - 1e-12).all()
