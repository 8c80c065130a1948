"""FedAG on real Flower messages: the Gaussian over the admitted clients, and what it refuses."""

import math

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from strategies_replies import NO_GRID, failure, reply, state

import strategies
from fedbary.errors import SettingError
from fedbary.methods.fedag import fit_gaussian, stacked
from strategies import FedAG, strategy_for

NAMES = ("hidden.weight", "output.weight")


def network(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(2, 3, generator=generator) for name in NAMES}


def posterior_of(strategy, arrays):
    return strategy.predictive(arrays.to_torch_state_dict()).posterior


def aggregated(strategy, replies):
    strategy.choose_nodes = lambda server_round: []
    assert strategy.configure_train(1, ArrayRecord(network(0)), ConfigRecord(), NO_GRID) == []
    return strategy.aggregate_train(1, replies)[0]


def test_clients_go_on_from_the_mean_and_the_posterior_is_their_spread():
    strategy = FedAG()
    arrays = aggregated(strategy, [reply(k, network(k)) for k in (1, 2, 3)])
    expected = fit_gaussian(stacked([network(k) for k in (1, 2, 3)]))
    for name, tensor in arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, posterior_of(strategy, arrays).mean[name])
        torch.testing.assert_close(tensor, expected.mean[name])
        found = posterior_of(strategy, arrays).log_var[name]
        torch.testing.assert_close(found, expected.log_var[name])
    assert sorted(strategy.contributors) == [1, 2, 3]
    for place, node in enumerate(strategy.contributors):
        assert torch.equal(
            strategy.predictive({}).members[NAMES[0]][place], network(node)[NAMES[0]]
        )


def test_clients_count_alike_and_refused_replies_count_for_nothing():
    bad = network(4) | {NAMES[0]: torch.full((2, 3), math.nan)}
    replies = [reply(1, network(1), num_examples=1), reply(2, network(2), num_examples=999)]
    strategy = FedAG()
    arrays = aggregated(strategy, [*replies, reply(4, bad), failure(5, "no disk")])
    mean = (network(1)[NAMES[0]] + network(2)[NAMES[0]]) / 2
    torch.testing.assert_close(arrays.to_torch_state_dict()[NAMES[0]], mean)
    assert [refusal.node_id for refusal in strategy.refusals] == [4, 5]
    assert aggregated(FedAG(), [failure(1, "gone")]) is None


def test_a_state_that_is_loaded_is_the_one_that_was_saved():
    saved, loaded = FedAG(), FedAG()
    aggregated(saved, [reply(k, network(k)) for k in (1, 2, 3)])
    loaded.load_state_dict(saved.state_dict(), 1)
    assert loaded.completed_rounds == 1
    for name in NAMES:
        assert torch.equal(loaded.predictive({}).members[name], saved.predictive({}).members[name])
        log_vars = [strategy.predictive({}).posterior.log_var[name] for strategy in (loaded, saved)]
        assert torch.equal(*log_vars)


def test_arrays_that_are_not_floating_are_the_clients_mean_and_no_part_of_the_posterior():
    def sent(k):
        steps = torch.tensor([7 + k, -(2**63)] if k else [7, 2**63 - 1])
        return network(k) | {"steps": steps, "wave": torch.tensor([k + 2j])}

    lying = reply(1, sent(1))
    lying.content["arrays"]["steps"].dtype = "float64"
    strategy = FedAG()
    strategy.choose_nodes = lambda server_round: []
    strategy.configure_train(1, ArrayRecord(sent(0)), ConfigRecord(), NO_GRID)
    replies = [reply(0, sent(0)), lying, reply(3, sent(3))]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays["steps"].dtype == "int64"
    steps, third = arrays["steps"].numpy().tolist(), 2**64 // 3
    assert steps[0] == 8 and steps[1] == pytest.approx(-(2**63) + third, rel=1e-12)
    assert arrays["wave"].numpy() == pytest.approx([4 / 3 + 2j])
    assert posterior_of(strategy, arrays).mean.keys() == set(NAMES)


def test_it_goes_by_its_name_and_says_what_it_is_not_for():
    assert strategy_for("FedAG") is FedAG is strategies.FedAG
    with pytest.raises(SettingError, match="estimator"):
        FedAG(estimator="mean")
    with pytest.raises(SettingError, match="another method for a network with Gaussian arrays"):
        FedAG().configure_train(1, ArrayRecord(state(0)), ConfigRecord(), NO_GRID)
