"""A site's sums are held to what its number of examples allows."""

import pytest
import torch
from every_method import OF_NUMBERS
from hypothesis import given
from hypothesis import strategies as st
from runs_of import lines, posterior, same
from runs_of_sums import chosen, run_of
from torch import nn

from fedbary.attacks import attack_named
from fedbary.methods import METHODS, Local, Reply, Server
from fedbary.methods.lda import FEATURES, PRODUCTS, SHARES

CLASSES, WIDTH = 3, 6
SUMS = pytest.mark.parametrize("name", ["LDA", "Ridge", "ConjugateGaussian"])
OF_CLASSES = pytest.mark.parametrize("name", ["LDA", "Ridge"])


def network(method):
    if method.name not in OF_NUMBERS:
        return nn.Sequential(nn.Linear(WIDTH, CLASSES))
    model = nn.Sequential(nn.Linear(WIDTH, 1))
    model.register_buffer("log_noise_var", torch.zeros(()))
    return model


def reply_of(method, x, y, weight=None, client="a"):
    model = network(method)
    fitted = method.fit(Local(model, x, y), dict(model.state_dict()), {})
    return Reply(client, weight or len(x), fitted.reply)


def examples(method, count, seed, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    x = offset + torch.randn(count, WIDTH, generator=generator)
    numbers = torch.randn(count, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return x, numbers if method.name in OF_NUMBERS else labels


def admitted(method, *replies, **server):
    return method.aggregate(Server(dict(network(method).state_dict()), {}, **server), replies)


@SUMS
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 40), offset=st.sampled_from([0.0, 30.0, 1e3]),
    twins=st.booleans(),
)  # fmt: skip
def test_what_examples_have_is_admitted(name, seed, count, offset, twins):
    method = METHODS[name]()
    x, y = examples(method, count, seed, offset)
    x = x[:1].expand_as(x) if twins else x
    model, _ = admitted(method, reply_of(method, x, y))
    assert all(tensor.isfinite().all() for tensor in model.values())


@SUMS
def test_sums_of_more_examples_than_are_claimed_are_refused(name):
    method = METHODS[name]()
    sound = reply_of(method, *examples(method, 40, 1))
    forged = Reply("b", 4, sound.tensors)
    with pytest.raises(ValueError, match="rank above|whole numbers"):
        admitted(method, forged)
    admitted(method, forged, counted=False)  # its weight is bounded: nobody knows how many


@OF_CLASSES
def test_products_of_a_rank_that_so_few_examples_do_not_have_are_refused(name):
    method = METHODS[name]()
    x, y = examples(method, 4, 2)
    sound = reply_of(method, x, y)
    more = sound.tensors[PRODUCTS].clone()
    places = [k * (k + 3) // 2 for k in range(WIDTH)]
    more[places] += 0.5  # a ball about each example
    with pytest.raises(ValueError, match="rank above"):
        admitted(method, Reply("b", 4, {**sound.tensors, PRODUCTS: more}))


@OF_CLASSES
def test_class_sums_that_the_products_do_not_bear_are_refused(name):
    """Cauchy and Schwarz: the scatter within the classes has no eigenvalue below 0."""
    method = METHODS[name]()
    sound = reply_of(method, *examples(method, 30, 3))
    far = {**sound.tensors, FEATURES: 3 * sound.tensors[FEATURES]}
    with pytest.raises(ValueError, match="no examples have these sums"):
        admitted(method, Reply("b", 30, far))


@OF_CLASSES
def test_a_share_of_no_whole_number_of_examples_is_refused(name):
    method = METHODS[name]()
    sound = reply_of(method, *examples(method, 30, 4))
    shares = sound.tensors[SHARES] + torch.tensor([0.01, -0.01, 0.0])
    with pytest.raises(ValueError, match="whole numbers"):
        admitted(method, Reply("b", 30, {**sound.tensors, SHARES: shares}))


@SUMS
@pytest.mark.parametrize("attack", ["sign_flip", "scaling"])
def test_the_known_attacks_send_no_sums(name, attack):
    method = METHODS[name]()
    x, y = examples(method, 30, 5)
    sound = reply_of(method, x, y)
    sent = attack_named(attack).sent(dict(network(method).state_dict()), sound.tensors)
    with pytest.raises(ValueError, match="no examples|shares|ones"):
        admitted(method, Reply("b", 30, sent))


def test_a_hostile_site_is_named_and_the_model_is_that_of_the_others(tmp_path):
    settings = chosen("pixels", attack="scaling", hostile_fraction=0.34)
    run_of(settings, (0, 1, 2), tmp_path / "attacked")
    (line,) = (line for line in lines(tmp_path / "attacked") if line["round"] == 1)
    (refused,) = line["refused"]
    honest = [int(client["site"].split()[1]) for client in line["clients"]]
    assert len(honest) == 2 and not any(f"partition {k}" in refused for k in honest)
    run_of(chosen("pixels"), honest, tmp_path / "honest")
    assert same(posterior(tmp_path / "attacked"), posterior(tmp_path / "honest"))


@SUMS
def test_features_of_a_larger_norm_than_is_allowed_are_shortened_and_else_refused(name):
    method, free = METHODS[name](max_norm=2.0), METHODS[name]()
    x, y = examples(method, 50, 6)
    norms = x.norm(dim=1, keepdim=True)
    short = x * (2 / norms).clamp_max(1)
    one, other = reply_of(method, x, y), reply_of(free, short, y)
    for key, tensor in one.tensors.items():
        torch.testing.assert_close(tensor, other.tensors[key], rtol=1e-5, atol=1e-6)
    admitted(method, one)
    with pytest.raises(ValueError, match="features of norm .*, allowed are 2"):
        admitted(method, reply_of(free, 3 * x, y))
