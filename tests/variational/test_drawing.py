"""`drawing` says where noise comes from: for its module, in its thread, while its block lasts."""

import threading

import pytest
import torch
from torch import Generator, nn

from fedbary.variational.layers import VariationalLinear, drawing, generator_of, reset_layer
from fedbary.variational.layers import seeded as default_seeded


def layer():
    made = VariationalLinear(3, 3)
    reset_layer(made, 0.0, Generator().manual_seed(0))
    return made


def seeded(seed):
    return Generator().manual_seed(seed)


X = torch.randn(4, 3, generator=seeded(5))


def answer(net, seed):
    with drawing(net, seeded(seed)), torch.no_grad():
        return net(X)


def test_one_generator_serves_all_layers_in_their_order():
    net = nn.Sequential(layer(), nn.Sequential(nn.ReLU(), layer()))
    generator = seeded(1)
    with drawing(net[0], generator):
        x = net[0](X).relu()
    with drawing(net[1][1], generator):
        x = net[1][1](x)
    assert torch.equal(answer(net, 1), x)


def test_each_pass_is_another_draw_and_a_seed_repeats_it():
    net = layer()
    with drawing(net, seeded(1)):
        first, second = net(X), net(X)
    assert not torch.equal(first, second)
    assert torch.equal(answer(net, 1), first)


@pytest.mark.parametrize("training", [True, False])
def test_modes_do_not_matter_and_outside_weights_are_means(training):
    net = layer().train(training)
    means = net(X)
    assert not torch.equal(answer(net, 1), means)
    with drawing(net, None):
        assert torch.equal(net(X), means)
    assert torch.equal(net(X), means)


def test_blocks_nest_and_an_inner_one_holds_for_its_module_alone():
    net, outer, inner = nn.Sequential(layer(), layer()), seeded(1), seeded(2)
    with drawing(net, outer):
        with drawing(net[1], inner):
            assert generator_of(net[0]) is outer
            assert generator_of(net[1]) is inner
            with drawing(net, None):
                assert generator_of(net[1]) is None
            assert generator_of(net[1]) is inner
        assert generator_of(net[1]) is outer
    assert generator_of(net[0]) is None


def test_an_error_ends_a_block():
    net = layer()
    with pytest.raises(ArithmeticError), drawing(net, seeded(1)):
        raise ArithmeticError
    assert generator_of(net) is None


def test_threads_that_share_a_network_do_not_share_noise():
    """Two threads alternate draw by draw from one network, each with its own seed."""
    net, turn = layer(), threading.Barrier(2, timeout=60)
    alone = {}
    for seed in (1, 2):
        with drawing(net, seeded(seed)), torch.no_grad():
            alone[seed] = torch.stack([net(X) for _ in range(20)])
    together = {}

    def work(seed):
        draws = []
        with drawing(net, seeded(seed)), torch.no_grad():
            for _ in range(20):
                turn.wait()
                draws.append(net(X))
        together[seed] = torch.stack(draws)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[seed], together[seed]) for seed in (1, 2))


def test_nothing_of_it_stays_in_the_module():
    net = layer()
    before = dict(vars(net))
    with drawing(net, seeded(1)):
        net(X)
        assert dict(vars(net)) == before


def test_the_default_generator_starts_from_a_seed_and_is_afterwards_as_it_was():
    state = torch.get_rng_state()
    with default_seeded(3):
        inside = torch.rand(4)
    assert torch.equal(inside, torch.rand(4, generator=seeded(3)))
    assert torch.equal(torch.get_rng_state(), state)
