"""A method that starts from another run's end: what comes is added to what was, in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_gaussian import (
    NOISE_VAR,
    assert_is,
    clients,
    double,
    independent,
    one_round,
    posterior_of_all,
)
from linear_gaussian import rounds as linear_rounds
from linear_gaussian import start as start_of
from refusals import refused
from sums_of import CLASSES, WIDTH, examples, head, network, replies, state
from test_methods_expanded import PRIOR_STD, half_squares, rounds
from test_methods_expanded import network as layer

from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.methods import METHODS, Local, Reply, Server
from fedbary.methods._method import Inherited, age, older, whose
from fedbary.methods._sites import factors
from fedbary.methods._sums import sites_of
from fedbary.methods.pvi import PVI


def goes_on(method, model, held, places=()):
    """Begin with the model and the state of a run that has ended."""
    return method.inherit(model, Inherited(Posterior.from_state_dict(model), held, places))


@pytest.mark.parametrize("name", ["LDA", "Ridge"])
@given(seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=5)
def test_sums_of_runs_in_any_order_make_the_model_of_all_data(name, seed, data):
    """The same sites come again, in each run with new examples."""
    method, (x, y) = METHODS[name](), examples(seed, 60)
    parts = [part for part in torch.randperm(60).chunk(6)]
    order = data.draw(st.permutations(range(3)))
    model, held = state(network()), {}
    for run in order:
        sent = replies(method, x, y, parts[2 * run : 2 * run + 2])
        if held:
            model, held = goes_on(method, model, held)
        model, held = method.aggregate(Server(model, held), sent)
    alone = head(method, replies(method, x, y, [torch.arange(60)]))
    found = torch.cat([model["0.weight"], model["0.bias"][:, None]], 1)
    torch.testing.assert_close(found, alone, rtol=2e-3, atol=2e-3 * float(alone.abs().max()))
    assert {whose(site) for site in sites_of(held)} == {"0", "1"}
    assert sorted(map(age, sites_of(held))) == [0, 0, 1, 1, 2, 2]


def test_sums_that_a_site_sends_again_count_once_and_the_server_says_so():
    method, (x, y) = METHODS["LDA"](), examples(0, 40)
    sent, said = replies(method, x, y, [torch.arange(30), torch.arange(30, 40)]), []
    model, held = method.aggregate(Server(state(network()), {}), sent)
    began, kept = goes_on(method, model, held)
    again, _ = method.aggregate(Server(began, kept, warn=said.append), sent)
    assert all(torch.equal(again[name], model[name]) for name in model)
    assert [line.split()[0] for line in said] == ["0", "1"]


def test_a_new_class_begins_without_examples_and_old_ones_go_to_their_places():
    """Two classes, then a third between them: as if it had been known from the beginning."""
    method, (x, y) = METHODS["LDA"](), examples(3, 60)
    first, second = y != 1, y == 1
    two = torch.nn.Sequential(torch.nn.Linear(WIDTH, CLASSES - 1))
    few = [Reply("0", float(first.sum()), _sums(method, two, x[first], y[first] // 2))]
    model, held = method.aggregate(Server(state(two), {}), few)
    model, held = method.inherit(
        state(network()), Inherited(Posterior.from_state_dict(model), held, (0, -1, 1))
    )
    late = replies(method, x, y, [second.nonzero()[:, 0]])
    model, _ = method.aggregate(Server(model, held), late)
    found = torch.cat([model["0.weight"], model["0.bias"][:, None]], 1)
    parts = [first.nonzero()[:, 0], second.nonzero()[:, 0]]
    whole = head(method, replies(method, x, y, parts))
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


def _sums(method, model, x, y):
    return method.fit(Local(model, x, y), state(model), {}).reply


@given(order=st.permutations(range(4)))
@settings(max_examples=8)
def test_sites_of_runs_in_any_order_make_the_posterior_of_all_data(order):
    data, method = independent(clients(4, 4)), PVI()
    model, held = start_of(method, data)
    for number, client in enumerate(order):
        if number:
            model, held = goes_on(method, model, held)
        model, held = one_round(method, model, held, data, [client])
    assert_is(model, *posterior_of_all(data), 1e-7)


def test_correlated_features_lose_what_a_factorising_posterior_does_not_hold():
    """Then two runs are another posterior than one of all data, and say the same variance."""
    data, method = clients(0, 2), PVI()
    model, held = linear_rounds(method, data, [[0]])
    model, held = goes_on(method, model, held)
    model, _ = one_round(method, model, held, data, [1])
    (x, y), (later, targets) = data
    eye = torch.eye(4, dtype=torch.float64)
    before = x.T @ x / NOISE_VAR + eye
    kept = before.diag().diag()
    now = later.T @ later / NOISE_VAR
    pull = kept @ torch.linalg.solve(before, x.T @ y / NOISE_VAR) + later.T @ targets / NOISE_VAR
    torch.testing.assert_close(model["weight_mean"], torch.linalg.solve(kept + now, pull))
    assert not torch.allclose(model["weight_mean"], posterior_of_all(data)[0], rtol=1e-3)
    torch.testing.assert_close(model["weight_log_var"].exp(), posterior_of_all(data)[1])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_full_sites_of_runs_end_at_the_mode_of_all_data_where_losses_are_quadratic(order):
    parts = [(double(n, 3, seed=n), double(n, 2, seed=n + 1)) for n in (12, 20)]
    model, method = layer(3, 2, bias=False), PVI(covariance="full", prior_std=PRIOR_STD)
    tensors, held = rounds(method, model, [parts[order[0]]], half_squares, 2)
    tensors, held = goes_on(method, tensors, held)
    model.load_state_dict(tensors)
    tensors, _ = rounds(method, model, [parts[order[1]]], half_squares, 2, held)
    x, y = (torch.cat(both) for both in zip(*parts, strict=True))
    precision = x.T @ x + torch.eye(3, dtype=torch.float64) / PRIOR_STD**2
    exact = torch.linalg.solve(precision, x.T @ y).T
    torch.testing.assert_close(tensors["1.weight"], exact, rtol=1e-5, atol=1e-6)


def old_rows_alone(outputs, y):
    """Return half the squares of those outputs that have a target."""
    known = y.isfinite()
    return 0.5 * torch.where(known, outputs - y.nan_to_num(), 0).square().sum(1).mean()


@pytest.mark.parametrize("covariance", ["diagonal", "kronecker", "full"])
@pytest.mark.parametrize("places", [(0, 1, -1), (1, -1, 0, -1)])
def test_sites_that_get_rows_are_those_of_a_layer_that_had_them_from_the_start(places, covariance):
    """The first data say nothing of rows that came later; a new row begins at its prior's mode."""
    parts = [(double(n, 3, seed=n), double(n, 2, seed=n + 1)) for n in (12, 20)]
    if covariance == "diagonal":
        parts = [(torch.linalg.qr(x).Q, y) for x, y in parts]
    method = PVI(covariance=covariance, prior_std=PRIOR_STD)
    small, wide = layer(3, 2, bias=False), layer(3, len(places), bias=False)
    there = torch.tensor(places) >= 0
    rows = [place for place in places if place >= 0]
    first = torch.full((12, len(places)), torch.nan, dtype=torch.float64)
    first[:, there] = parts[0][1][:, rows]
    tensors, held = rounds(method, small, [parts[0]], half_squares, 2)
    inherited = Inherited(Posterior(tensors, {}), held, places)
    model = {n: inherited.laid_out(tensors[n], t) for n, t in wide.state_dict().items()}
    assert model["1.weight"][~there].all()
    grown, held = method.inherit(model, inherited)
    assert torch.equal(grown["1.weight"][there], tensors["1.weight"][rows])
    assert not grown["1.weight"][~there].any()
    known, state = rounds(method, wide, [(parts[0][0], first)], old_rows_alone, 3)
    torch.testing.assert_close(known["1.weight"], grown["1.weight"], rtol=1e-5, atol=1e-6)
    known, state = goes_on(method, known, state)
    second = parts[1][0], double(20, len(places), seed=3)
    ends = []
    for begun, kept in ((grown, held), (known, state)):
        wide.load_state_dict(begun)
        ends.append(rounds(method, wide, [second], half_squares, 2, kept)[0]["1.weight"])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
    exact = torch.zeros(len(places), 3, dtype=torch.float64)
    for row, place in enumerate(places):
        x = torch.cat([parts[0][0], second[0]]) if place >= 0 else second[0]
        y = torch.cat([first[:, row], second[1][:, row]]) if place >= 0 else second[1][:, row]
        exact[row] = torch.linalg.solve(
            x.T @ x + torch.eye(3, dtype=torch.float64) / PRIOR_STD**2, x.T @ y
        )
    torch.testing.assert_close(ends[0], exact, rtol=1e-5, atol=1e-6)


def test_a_bound_of_a_softmax_takes_no_new_class_and_sites_are_of_one_structure():
    x, y = double(12, 3), torch.arange(12) % 2
    small, loss = layer(3, 2), torch.nn.functional.cross_entropy
    grown = {name: torch.zeros(3, *tensor.shape[1:]) for name, tensor in small.state_dict().items()}
    for covariance, said in (("shared", "new classes.*diagonal, kronecker, full"), ("full", None)):
        method = PVI(covariance=covariance)
        tensors, held = rounds(method, small, [(x, y)], loss, 1)
        inherited = Inherited(Posterior(tensors, {}), held, (0, 1, -1))
        if said:
            refused(said, method.inherit, grown, inherited)
        with pytest.raises(SettingError, match="start_from: .a run without such sites"):
            goes_on(PVI(covariance="kronecker"), tensors, held)


@pytest.mark.parametrize("name", ["PVI", "BayesADMM", "FedEP"])
def test_another_methods_posterior_is_one_site_so_that_the_global_factor_is_that_posterior(name):
    posterior = Posterior({"w": double(4)}, {"w": 0.3 * double(4, seed=1)})
    method, model = METHODS[name](), posterior.state_dict()
    began, held = goes_on(method, model, {})
    found, wanted = method.global_factor(Server(began, held)), Factor.of(posterior)
    torch.testing.assert_close(found.shift["w"], wanted.shift["w"])
    torch.testing.assert_close(found.precision["w"], wanted.precision["w"])
    assert list(factors("site", held)) == [older("")]


def test_rows_of_new_classes_are_those_given_and_any_other_change_of_shape_is_refused():
    inherited = Inherited(Posterior({}, {}), {}, (1, -1, 0))
    old, new = torch.tensor([[1.0, 2], [3, 4]]), torch.zeros(3, 2)
    assert inherited.laid_out(old, new).tolist() == [[3, 4], [0, 0], [1, 2]]
    assert torch.equal(inherited.laid_out(old, torch.zeros(2, 2)), old)
    for like in (torch.zeros(3, 5), torch.zeros(4, 2), torch.zeros(())):
        with pytest.raises(ValueError, match=r"of shape \(2, 2\)"):
            inherited.laid_out(old, like)
    with pytest.raises(ValueError, match="of shape"):
        Inherited(Posterior({}, {}), {}).laid_out(old, new)


def test_sums_go_on_from_sums_of_the_same_parameters_alone():
    method, (x, y) = METHODS["LDA"](), examples(0, 30)
    model, held = method.aggregate(
        Server(state(network()), {}), replies(method, x, y, [torch.arange(30)])
    )
    refused("start_from: .a run without sums", goes_on, method, model, {})
    told = Inherited(Posterior.from_state_dict(model), held, settings={"max_norm": 2.0})
    refused("max_norm: 0.0; expected 2.0", method.inherit, model, told)
