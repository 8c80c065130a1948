"""Federations side by side are those of runs."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from fedbary import Posterior
from fedbary.aggregation import aggregate
from fedbary.settings.config import resolve
from findings import maker
from findings.curvature.cells import SETTING, USUAL, read, write
from findings.curvature.convolutions import Convolutions
from findings.curvature.estimates import DrawnLabels, Exact, Hutchinson
from findings.curvature.page import best
from findings.curvature.posteriors import (
    Ivon,
    IvonOfConvolutions,
    Variational,
    VariationalOfConvolutions,
)
from findings.curvature.side_by_side import Member, SideBySide
from findings.truth.federation import Federation

WORDS = {
    "engine": "inline", "dataset": "digits", "train_fraction": 0.1, "clients": 3, "rounds": 2,
    "alpha": 1.0, "normalise": "none", "model": "mlp", "bayesian_layers": 2, "hidden_units": 5,
    "batch_size": 4,
    "inference": "curvature", "rule": "WB", "local_epochs": 2, "max_grad_norm": None,
    "lr": 0.1, "momentum": 0.5, "lr_schedule": "cosine", "prior_std": 0.5, "weight_decay": 0.01,
}  # fmt: skip
MEMBER = Member(0.1, 0.5, "cosine", 4.0, weight_decay=WORDS["weight_decay"])
OTHER = Member(0.3, 0.0, "constant")
NAMES = [f"{layer}.{part}_mean" for layer in ("hidden", "output") for part in ("weight", "bias")]
POINTS = ["hidden.weight", "hidden.bias", *NAMES[2:]]


def take(rounds, *federations):
    for federation in federations:
        for _ in range(rounds):
            federation.take_round()


def agree(tensors, beside, alone):
    """The second of those beside one another is the one alone."""
    for name, found in zip(beside.names, tensors(beside.weights, 1), strict=True):
        expected = alone.model.get(f"{name}_mean", alone.model.get(name))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def flat(weights, member):
    hidden, *others = weights
    return [hidden[:, member].t(), others[0][member], others[1][member].t(), others[2][member]]


NARROW = {"model": "findings.curvature.networks:narrow", "bayesian_layers": 3, "lr": 0.05}


def narrow(weights, member):
    """The tensors of one network in the order of its model."""
    *before, linear, last = [t[member] for t in weights]
    return [*before, linear.t(), last]


@pytest.mark.parametrize("method", ["WB", "SCAFFOLD", "FedProx"])
def test_convolutions_beside_others_are_a_run_of_their_own(method):
    gaussian = {**{n: w for n, w in WORDS.items() if n != "hidden_units"}, **NARROW}
    alone, sides = Federation(resolve(gaussian)), [OTHER, replace(MEMBER, lr=0.05)]
    if method != "WB":
        words = {n: w for n, w in gaussian.items() if n not in ("rule", "inference", "prior_std")}
        own = {"mu": 0.7} if method == "FedProx" else {}
        alone = Federation(resolve({**words, "method": method, "bayesian_layers": 0, **own}))
        sides = [replace(each, precision=0.0, method=method, **own) for each in sides]
    beside = Convolutions(Federation(resolve(gaussian)), sides, 1)
    take(2, alone, beside)
    names = [name for name in alone.model if not name.endswith("_log_var")]
    tensors = [f"{layer}.{part}" for layer in "01347" for part in ("weight", "bias")]
    named = {name.removesuffix("_mean"): alone.model[name] for name in names}
    for name, found in zip(tensors, narrow(beside.weights, 1), strict=True):
        torch.testing.assert_close(found, named[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("start", "layers"), [(1.0, 2), (2.0, 2), (2.0, 1)])
def test_a_federation_beside_others_is_a_run_of_its_own(start, layers):
    words = {**WORDS, "bayesian_layers": layers}
    alone, names = Federation(resolve(words)), NAMES if layers == 2 else POINTS
    alone.model = {n: start * t if n in names else t for n, t in alone.model.items()}
    members = [OTHER, replace(MEMBER, start=start)]
    beside = SideBySide(Federation(resolve(words)), members, 1)
    take(2, alone, beside)
    for name, found in zip(names, flat(beside.weights, 1), strict=True):
        torch.testing.assert_close(found, alone.model[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["SCAFFOLD", "FedAdam"])
def test_another_method_beside_others_is_a_run_of_its_own(method):
    unused = "rule", "inference", "prior_std"
    words = {name: word for name, word in WORDS.items() if name not in unused} | {"rounds": 3}
    own = {"server_lr": 0.02} if method == "FedAdam" else {}
    alone = Federation(resolve({**words, **own, "method": method, "bayesian_layers": 0}))
    sides = [replace(each, precision=0.0, method=method, **own) for each in (OTHER, MEMBER)]
    beside = SideBySide(Federation(resolve({**WORDS, "rounds": 3})), sides, 1)
    take(3, alone, beside)
    for name, found in zip(NAMES, flat(beside.weights, 1), strict=True):
        point = alone.model[name.removesuffix("_mean")]
        torch.testing.assert_close(found, point, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["RKLB", "AALV"])
@pytest.mark.parametrize(("kind", "inference"), [(Ivon, "ivon"), (Variational, "variational")])
def test_a_posterior_beside_others_is_a_run_of_its_own(kind, inference, rule):
    gaussian = {"inference": inference, "rule": rule, "kl_weight": 0.1, "init_log_var": -4.0}
    words = {**WORDS, **gaussian, "log_var_lr": 0.05}
    alone, beside = Federation(resolve(words)), kind(Federation(resolve(words)), [OTHER, MEMBER], 1)
    take(2, alone, beside)
    for name, found in zip(NAMES, flat(beside.weights, 1), strict=True):
        expected = alone.model.get(name, alone.model.get(name.removesuffix("_mean")))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    found = beside.log_vars[0][:, 1].t()
    torch.testing.assert_close(found, alone.model["hidden.weight_log_var"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "inference"),
    [(IvonOfConvolutions, "ivon"), (VariationalOfConvolutions, "variational")],
)
def test_a_posterior_of_convolutions_beside_others_is_a_run_of_its_own(kind, inference):
    gaussian = {**{n: w for n, w in WORDS.items() if n != "hidden_units"}, **NARROW}
    own = {"rule": "RKLB", "inference": inference, "kl_weight": 0.1, "init_log_var": -4.0}
    words = resolve({**gaussian, **own, "log_var_lr": 0.05})
    alone, sides = Federation(words), [OTHER, replace(MEMBER, lr=0.05)]
    beside = kind(Federation(words), sides, 1)
    take(2, alone, beside)
    agree(narrow, beside, alone)
    found, expected = beside.log_vars[4][1], alone.model["3.weight_log_var"]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["curvature", "SCAFFOLD by curvature"])
@pytest.mark.parametrize(
    ("words", "kind", "tensors"),
    [({"hidden_units": 5}, SideBySide, flat), (NARROW, Convolutions, narrow)],
)
def test_means_by_curvature_beside_others_are_a_run_of_their_own(words, kind, tensors, method):
    """Both draw the same signs for the estimate."""
    common = {name: word for name, word in WORDS.items() if name not in ("hidden_units", "rule")}
    own = {"rule": "RKLB"} if method == "curvature" else {"method": "SCAFFOLD"}
    gaussian = resolve({**common, **own, **words})
    sides = [replace(OTHER, precision=4.0), replace(MEMBER, lr=gaussian.local.lr)]
    alone = Federation(gaussian)
    beside = kind(Federation(gaussian), [replace(s, method=method) for s in sides], 1)
    take(2, alone, beside)
    agree(tensors, beside, alone)


def test_estimates_have_the_mean_of_the_exact_diagonal():
    """Hutchinson's has it for the last layer, where the Hessian is the Gauss-Newton matrix."""
    one = Federation(resolve(WORDS))
    one.take_round()
    exact = Exact(one, [OTHER, MEMBER], 1)
    expected = [t.sum() for t in exact._curvature(exact.weights, exact.data[0][0], 0)]
    for kind, places in ((SideBySide, range(4)), (DrawnLabels, range(4)), (Hutchinson, (2, 3))):
        beside = kind(one, [OTHER, MEMBER], 1)
        estimate = beside.diagonal if kind is Hutchinson else beside._curvature
        x = beside.data[0][0]
        drawn = [[t.sum() for t in estimate(beside.weights, x, seed)] for seed in range(200)]
        drawn = torch.tensor(drawn)
        error = drawn.std(0) / len(drawn) ** 0.5
        for i in places:
            assert abs(drawn[:, i].mean() - expected[i]) < 5 * error[i]
            assert kind is Hutchinson or error[i] < 0.1 * expected[i]


class Kept(SideBySide):
    """Federations that keep what their clients fitted."""

    def _fit(self, *given):
        fitted = super()._fit(*given)
        self.kept.append((fitted[0], []))
        return fitted

    def _curvature(self, *given):
        self.kept[-1][1].extend(super()._curvature(*given))
        return self.kept[-1][1]


def test_means_by_precision_are_those_of_the_rule():
    beside = Kept(
        Federation(resolve(WORDS)), [Member(0.1, 0.5, "cosine", 4.0, "curvature", 0.01)], 1
    )
    beside.kept = []
    beside.take_round()
    count, decay = beside.examples, 0.01
    posteriors = [
        Posterior(
            {name: t.double() for name, t in zip("abcd", mean, strict=True)},
            {
                name: -(count * (h + decay) + 4).double().log()
                for name, h in zip("abcd", curved, strict=True)
            },
        )
        for mean, curved in beside.kept
    ]
    found = aggregate("RKLB", posteriors, [len(y) for _, y in beside.data]).mean
    for mean, weights in zip(found.values(), beside.weights, strict=True):
        torch.testing.assert_close(mean.float(), weights, rtol=1e-5, atol=1e-6)


def test_a_map_that_stops_in_its_choice_is_read_again(tmp_path):
    setting = dict(zip(SETTING, [0.1, 0.9, "cosine", *USUAL.values(), 2], strict=True))
    place = {"condition": "a", "side": "FedAvg", **setting}
    chosen = {**place, "stage": "choice", "seed": 100, "held_out": 0.5}
    fresh = {**place, "stage": "fresh", "seed": 10, "nll": 0.75, "accuracy": 0.5}
    for rows in ([chosen], [chosen, fresh]):
        write(tmp_path, pd.DataFrame(rows))
        for _ in range(2):
            found = read(tmp_path)
            for row in rows:
                (held,) = maker.where(found, stage=row["stage"]).to_dict("records")
                assert {name: held[name] for name in row} == row
            assert len(found) == len(rows)
            write(tmp_path, found)


def test_a_setting_that_only_lucky_seeds_have_is_not_chosen():
    setting = dict(zip(SETTING, [0.1, 0.9, "cosine", *USUAL.values(), 2], strict=True))
    place = {"condition": "a", "side": "FedAvg", "stage": "choice"}
    scores = {0.1: {1: 0.5, 2: 0.7}, 0.2: {1: 0.5, 2: 0.9}, 0.3: {1: 0.4}}
    cells = [
        {**place, **setting, "lr": lr, "seed": seed, "held_out": score}
        for lr, by_seed in scores.items()
        for seed, score in by_seed.items()
    ]
    assert best(pd.DataFrame(cells), "a", "FedAvg")["lr"] == 0.1
