"""Sums with noise: what hides an example, what is made of them, and what is refused."""

import math
import os
import random
import secrets

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sums_of import CLASSES, WIDTH, examples, network, replies, state
from torch.nn.functional import one_hot

from fedbary.data.mechanism import delta_of, epsilon_of, noise_multiplier, secret_noise
from fedbary.errors import SettingError
from fedbary.methods import METHODS, Local, Reply, Server, require_method
from fedbary.methods._sums import SENSITIVITY, private_sums, repaired
from fedbary.methods.lda import FEATURES, PRODUCTS, SHARES
from fedbary.settings.config import resolve

NAMES = pytest.mark.parametrize("name", ["LDA", "Ridge"])
PIXELS = {"method": "LDA", "normalise": "none", "rounds": 1}


def hockey_stick(epsilon, std):
    """∫ max(0, p − e^ε q) of p = N(1, σ²), q = N(0, σ²): the definition of δ, by quadrature."""
    edge = std**2 * epsilon + 0.5  # p > e^ε q beyond it
    p, q = stats.norm(1, std), stats.norm(0, std)
    ends = edge, max(edge, 1) + 40 * std
    return integrate.quad(lambda x: p.pdf(x) - math.exp(epsilon) * q.pdf(x), *ends, limit=200)[0]


@given(epsilon=st.floats(0.05, 8), std=st.floats(0.3, 20))
def test_the_privacy_curve_is_the_divergence_of_the_two_gaussians(epsilon, std):
    assert delta_of(epsilon, std) == pytest.approx(hockey_stick(epsilon, std), rel=1e-5, abs=1e-10)


@given(epsilon=st.floats(0.01, 50), exponent=st.floats(-12, -0.5))
def test_the_noise_is_the_least_that_is_private(epsilon, exponent):
    delta = 10**exponent
    multiplier = noise_multiplier(epsilon, delta)
    assert delta_of(epsilon, multiplier) <= delta
    assert delta_of(epsilon, multiplier * (1 - 1e-6)) > delta


def test_it_is_less_noise_than_the_classical_bound_and_the_papers_number():
    assert noise_multiplier(1, 1e-5) < math.sqrt(2 * math.log(1.25 / 1e-5))
    assert noise_multiplier(1, 1e-5) == pytest.approx(3.7304, abs=1e-3)


def told(x, y, norm):
    """What an example tells, in the units of the noise; products once on, √2 times beside."""
    wide = torch.full((WIDTH, WIDTH), math.sqrt(2)).tril(-1) + torch.eye(WIDTH)
    of_class = one_hot(torch.tensor(y), CLASSES).double()
    products = (wide * torch.outer(x, x) / norm**2).tril()
    return torch.cat([of_class, torch.outer(of_class, x / norm).flatten(), products.flatten()])


@given(
    seed=st.integers(0, 10**6), norm=st.floats(0.1, 10), labels=st.tuples(*[st.integers(0, 2)] * 2)
)
def test_another_example_in_the_place_of_one_moves_the_sums_by_the_sensitivity_at_most(
    seed, norm, labels
):
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(2, WIDTH, generator=generator).double()
    pair *= norm * torch.rand(2, 1, generator=generator) ** 0.2 / pair.norm(dim=1, keepdim=True)
    one, other = (told(x, y, norm) for x, y in zip(pair, labels, strict=True))
    assert float((one - other).norm()) <= SENSITIVITY + 1e-9
    ends = torch.eye(WIDTH).double()[:2] * norm
    assert float((told(ends[0], 0, norm) - told(ends[1], 1, norm)).norm()) == pytest.approx(
        SENSITIVITY
    )


def test_the_noise_has_the_standard_deviation_that_is_asked_for():
    norm, multiplier = 3.0, 0.5
    zeros = {SHARES: torch.zeros(3), FEATURES: torch.zeros(3 * 40), PRODUCTS: torch.zeros(820)}
    drawn = [private_sums(zeros, norm, multiplier) for _ in range(200)]
    places = torch.tensor([k * (k + 3) // 2 for k in range(40)])
    on = torch.stack([sums[PRODUCTS][places] for sums in drawn])
    others = torch.ones(820).index_fill(0, places, 0).bool()
    beside = torch.stack([sums[PRODUCTS][others] for sums in drawn])
    std = SENSITIVITY * multiplier
    assert float(on.std()) == pytest.approx(std * norm**2, rel=0.03)
    assert float(beside.std()) == pytest.approx(std * norm**2 / math.sqrt(2), rel=0.01)
    assert float(torch.stack([s[FEATURES] for s in drawn]).std()) == pytest.approx(
        std * norm, rel=0.02
    )
    assert float(torch.stack([s[SHARES] for s in drawn]).std()) == pytest.approx(std, rel=0.1)


@NAMES
def test_under_a_large_epsilon_the_model_is_nearly_that_without_noise(name):
    x, y = examples(1, 600)
    parts = list(torch.arange(600).chunk(3))
    model = {}
    for epsilon in (0.0, 1e6):
        method = METHODS[name](max_norm=4.0, epsilon=epsilon)
        sent = replies(method, x, y, parts)
        model[epsilon], _ = method.aggregate(Server(state(network()), {}), sent)
    for key, tensor in model[0.0].items():
        torch.testing.assert_close(model[1e6][key], tensor, rtol=0.05, atol=0.05)


@NAMES
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_whatever_the_noise_there_is_a_model(name, epsilon):
    x, y = examples(2, 60)
    method = METHODS[name](max_norm=2.0, epsilon=epsilon)
    for _ in range(20):
        sent = replies(method, x, y, list(torch.arange(60).chunk(3)))
        model, kept = method.aggregate(Server(state(network()), {}), sent)
        assert all(tensor.isfinite().all() for tensor in model.values())
        method.check_state(model, kept)


def seeds_of(counts, std, seeds):
    """The seeds of a torch generator with a noise that, taken off, leaves whole counts."""
    generator, found, classes = torch.Generator(), [], len(counts)
    for some in torch.tensor(list(seeds)).split(2**14):
        streams = torch.zeros(len(some), 15, dtype=torch.float64)  # from 16 on it draws otherwise
        for stream, seed in zip(streams, some.tolist(), strict=True):
            torch.randn(15, generator=generator.manual_seed(seed), out=stream)
        left = counts - std * streams.unfold(1, classes, 1)
        whole = ((left - left.round()).abs().amax(-1) < 1e-3).any(1)
        found += some[whole].tolist()
    return found


@pytest.mark.slow
def test_no_seed_takes_the_noise_off_a_message(monkeypatch):
    """S1: a seed of 32 bits was found from one message. Here every seed would be of 16 bits."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: random.randrange(2 ** min(bits, 16)))
    classes, n, epsilon = 10, 200, 1.0
    model = torch.nn.Sequential(torch.nn.Linear(2, classes))
    method = METHODS["LDA"](max_norm=1.0, epsilon=epsilon)
    local = Local(model, torch.ones(n, 2), torch.arange(n) % classes)
    sent = method.fit(local, state(model), {}).reply
    std = SENSITIVITY * noise_multiplier(epsilon, method.delta)
    assert seeds_of(n * sent[SHARES].double(), std, range(2**16)) == []


@pytest.mark.parametrize("before", [0, 4])
def test_the_search_finds_the_seed_of_a_torch_generator(before):
    seed, std, counts = secrets.randbits(20), 9.0, torch.full((10,), 20.0)
    weak = torch.Generator().manual_seed(seed)
    torch.randn(before, generator=weak, dtype=torch.float64)
    noise = torch.randn(10, generator=weak, dtype=torch.float64)
    sent = ((counts + std * noise) / 200).float()
    around = range(max(0, seed - 2**10), seed + 2**10)
    assert seeds_of(200 * sent.double(), std, around) == [seed]


def test_each_number_of_the_noise_has_64_bits_of_the_operating_system_of_its_own(monkeypatch):
    """Two messages share no stream: no number of the noise comes twice, at any place in either."""
    given, system = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: given.append(count) or system(count))
    zeros = {SHARES: torch.zeros(3), FEATURES: torch.zeros(30), PRODUCTS: torch.zeros(55)}
    sent = [private_sums(zeros, 1.0, 1.0) for _ in range(2)]
    assert sum(given) >= 2 * 8 * (3 + 30 + 55)
    on = torch.tensor([k * (k + 3) // 2 for k in range(10)])
    scale = torch.full((55,), math.sqrt(2), dtype=torch.float64).index_fill(0, on, 1)
    noise = [torch.cat([sums[SHARES], sums[FEATURES], sums[PRODUCTS] * scale]) for sums in sent]
    numbers = {round(float(abs(number)), 9) for each in noise for number in each}
    assert len(numbers) == 2 * (3 + 30 + 55)


def test_the_noise_is_normal_and_independent_of_its_neighbours():
    noise = secret_noise(100_001).numpy()
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    half = len(noise) // 2
    pairs = {"next": (noise[:-1], noise[1:]), "partner": (noise[:half], noise[half + 1 :])}
    for one, other in pairs.values():
        for power in (1, 2):
            assert abs(stats.pearsonr(one**power, other**power).statistic) < 6 / math.sqrt(half)


@given(epsilon=st.floats(0.01, 20), exponent=st.floats(-12, -0.5))
def test_the_epsilon_of_a_noise_is_that_which_it_was_made_for(epsilon, exponent):
    delta = 10**exponent
    assert epsilon_of(delta, noise_multiplier(epsilon, delta)) == pytest.approx(epsilon, rel=1e-6)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_what_is_made_of_noisy_sums_is_what_examples_could_have(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = {SHARES: CLASSES, FEATURES: CLASSES * WIDTH, PRODUCTS: WIDTH * (WIDTH + 1) // 2}
    stds = {SHARES: 0.5, FEATURES: 2.0, PRODUCTS: 3.0}
    means = {n: stds[n] * torch.randn(size, generator=generator) for n, size in sizes.items()}
    means[SHARES] += 1 / CLASSES
    counts, centres, within = repaired(50.0, means, 1.5, 0.1)
    assert counts.min() >= 0 and float(counts.sum()) == pytest.approx(50)
    assert float(centres.norm(dim=1).max()) <= 1.5 + 1e-9
    assert float(torch.linalg.eigvalsh(within)[0]) >= -1e-9


@NAMES
@pytest.mark.parametrize("factor", [100.0, -100.0])
def test_sums_that_noise_does_not_explain_are_refused(name, factor):
    x, y = examples(4, 200)
    method = METHODS[name](max_norm=2.0, epsilon=5.0)
    (sound,) = replies(method, x, y, [torch.arange(200)])
    for key in (SHARES, FEATURES, PRODUCTS):
        forged = {**sound.tensors, key: factor * sound.tensors[key]}
        with pytest.raises(ValueError, match="no examples have, even with noise"):
            method.aggregate(Server(state(network()), {}), [Reply("b", 200, forged)])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_norm": 0}, "max_norm: 0; expected above 0 with epsilon"),
        ({"rounds": 2}, "rounds: 2; expected 1 with epsilon"),
        ({"normalise": "channels"}, "normalise: 'channels'; expected none with epsilon"),
        ({"calibrate": "temperature"}, "calibrate: 'temperature'; expected none with epsilon"),
        ({"task": "tables", "dataset": "breast_cancer"}, "epsilon: 1.0; expected 0 for task="),
        ({"epsilon": -1}, "epsilon: -1; expected a number from 0 up"),
        ({"delta": 0}, "delta: 0; expected a number above 0"),
    ],
)
def test_settings_under_which_the_guarantee_would_be_none_are_refused(changes, why):
    with pytest.raises(SettingError, match=why):
        require_method(resolve({**PIXELS, "epsilon": 1.0, "max_norm": 4.0, **changes}))


def test_a_delta_that_an_example_may_lose_by_is_refused():
    x, y = examples(5, 100)
    method = METHODS["LDA"](max_norm=2.0, epsilon=1.0, delta=0.02)
    with pytest.raises(SettingError, match="below one over the examples of every site"):
        replies(method, x, y, [torch.arange(100)])
