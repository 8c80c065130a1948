"""A posterior that never trains is said by name; the optimiser's groups train it, in any unit."""

import math

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from small_apps import moving
from torch import nn

from fedbary.errors import SettingError
from fedbary.variational.layers import VariationalLinear, reset_layer
from fedbary.variational.noise import drawing
from server_app.engine.inline import InlineGrid
from strategies import CONVENTIONS, RKLB, Convention, parameter_groups

UNITS = {unit: Convention("*.m", "*.s", unit) for unit in ("log_var", "log_std", "std", "rho")}


def warnings_of(train, initial, rounds=3, clients=3, convention="fedbary"):
    """What a strategy says of standstill while `train(state, partition, round)` makes replies."""
    lines = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "strategies.stillness.log", lambda _, text, *args: lines.append(text % args)
        )
        strategy = RKLB(fraction_evaluate=0.0, convention=convention)
        strategy.start(
            InlineGrid(moving(train), clients, {}), ArrayRecord(initial), num_rounds=rounds
        )
    return lines


def gaussians(units, *log_vars):
    state = {}
    for i, log_var in enumerate(log_vars):
        state[f"{i}.m"] = torch.zeros(40, 60)
        state[f"{i}.s"] = units.from_log_var(torch.full((40, 60), log_var))
    return state


@pytest.mark.parametrize("unit", UNITS)
@given(
    steps=st.lists(st.sampled_from([0.0, 1e-4, 0.1, 1.0]), min_size=2, max_size=2),
    alike=st.booleans(),
    log_var=st.floats(-12, 0),
    rounds=st.integers(1, 5),
)
@settings(max_examples=12, deadline=None)
def test_arrays_are_named_that_do_not_move_or_are_alike(unit, steps, alike, log_var, rounds):
    units = UNITS[unit]

    def train(state, partition, server_round):
        generator = torch.Generator().manual_seed(server_round if alike else 9 * partition)
        for i, step in enumerate(steps):
            moved = units.to_log_var(state[f"{i}.s"])
            moved += step * (torch.rand(moved.shape, generator=generator) - 0.5)
            state[f"{i}.s"] = units.from_log_var(moved)
        return state

    lines = warnings_of(train, gaussians(units, log_var, log_var), rounds, convention=units)
    still = [f"'{i}.s'" for i, step in enumerate(steps) if step < 0.01]
    same = [f"'{i}.s'" for i, step in enumerate(steps) if step > 0.01 and alike]
    wanted = [(still, "raise log_var_lr, "), (same, "lower kl_weight, ")] if rounds > 2 else []
    wanted = [(names, advice) for names, advice in wanted if names]
    for line, (names, advice) in zip(lines, wanted, strict=True):
        assert [name for name in ("'0.s'", "'1.s'") if name in line] == names and advice in line


@given(step=st.floats(0.005, 0.1), differ=st.floats(0.1, 1), clients=st.integers(2, 4))
@settings(max_examples=8, deadline=None)
def test_small_steps_that_the_data_turn_are_no_standstill(step, differ, clients):
    """A short round moves variances a little, and much of it is the penalty's, alike at all."""

    def train(state, partition, server_round):
        generator = torch.Generator().manual_seed(100 * server_round + partition)
        state["0.s"] += step * (1 + differ * torch.randn(40, 60, generator=generator))
        return state

    units = UNITS["log_var"]
    assert not warnings_of(train, gaussians(units, -7.0), 4, clients, convention=units)


@given(step=st.floats(0.01, 0.5), longer=st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_clients_that_follow_the_penalty_alone_are_alike_however_many_steps_each_takes(
    step, longer
):
    penalty = torch.rand(40, 60, generator=torch.Generator().manual_seed(0))

    def train(state, partition, server_round):
        state["0.s"] += step * (1 + longer * partition) * penalty
        return state

    units = UNITS["log_var"]
    (line,) = warnings_of(train, gaussians(units, -7.0), convention=units)
    assert "'0.s'" in line and "kl_weight" in line


def test_what_trains_again_in_between_is_not_named_and_nothing_is_named_twice():
    def train(state, partition, server_round):
        state["0.s"] += 0.1 * torch.randn(40, 60) * (server_round % 3 == 0)
        return state

    lines = warnings_of(
        train, gaussians(UNITS["log_var"], -4.0, -6.0), 9, convention=UNITS["log_var"]
    )
    (line,) = lines
    assert "'1.s' (by 0)" in line and "'0.s'" not in line


class Net(nn.Module):
    """A network whose second layer is Gaussian, trained by a loop of the user's own."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), VariationalLinear(32, 10)
        generator = torch.Generator().manual_seed(0)
        reset_layer(self.hidden, 0.0, generator)
        reset_layer(self.out, -6.0, generator)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


OPTIMISERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.05),
    "groups": lambda net: torch.optim.Adam(parameter_groups(net, 0.005, 0.01)),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_plain_sgd_leaves_the_variances_and_the_groups_train_them(optimiser):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:600] / 16, dtype=torch.float32), torch.tensor(y[:600])
    loss_of, spread = nn.CrossEntropyLoss(), []

    def train(state, partition, server_round):
        net, noise = Net(), torch.Generator().manual_seed(10 * server_round + partition)
        net.load_state_dict(state)
        update = OPTIMISERS[optimiser](net)
        for batch in torch.randperm(200, generator=noise).repeat(3).split(20):
            rows = 3 * batch + partition
            variances = net.out.weight_log_var
            kl = 0.5 * (net.out.weight_mean.square() + variances.exp() - variances).sum()
            update.zero_grad()
            with drawing(net, noise):
                loss = loss_of(net(x[rows]), y[rows])
            (loss + 1e-3 * kl / 200).backward()
            update.step()
        spread.append(net.out.weight_log_var.detach() + 6)
        return net.state_dict()

    lines = warnings_of(train, Net().state_dict())
    assert len(lines) == (optimiser == "SGD")
    if lines:
        assert "'out.weight_log_var'" in lines[0]
        assert max(moved.abs().mean() for moved in spread) < 0.01
    else:
        assert spread[-1].abs().mean() > 0.1


@pytest.mark.parametrize("unit", UNITS)
@given(log_var=st.floats(-14, 2), log_var_lr=st.sampled_from([1e-3, 1e-2]), spread=st.floats(0, 1))
@settings(max_examples=15, deadline=None)
def test_a_step_moves_log_variances_by_their_rate_in_any_unit(unit, log_var, log_var_lr, spread):
    units = UNITS[unit]
    log_vars = log_var + spread * torch.randn(500, generator=torch.Generator().manual_seed(0))
    model = nn.ParameterDict({"w": nn.ParameterDict({"m": torch.zeros(500)})})
    model["w"]["s"] = nn.Parameter(units.from_log_var(log_vars))
    groups = parameter_groups(model, 0.1, log_var_lr, units)
    optimiser = torch.optim.AdamW(groups, weight_decay=0.5)
    before = units.to_log_var(model["w"]["s"].detach().double())
    (1e-7 * (units.to_log_var(model["w"]["s"]).sum() + model["w"]["m"].sum())).backward()
    optimiser.step()
    moved = units.to_log_var(model["w"]["s"].detach().double()) - before
    assert (moved < 0).all()
    assert moved.abs().mean() == pytest.approx(log_var_lr, rel=0.05)
    torch.testing.assert_close(model["w"]["m"].data, torch.full((500,), -0.1), rtol=0.2, atol=0)


def test_sgd_may_keep_the_means_and_frozen_parameters_are_left_out():
    net = Net()
    net.hidden.bias.requires_grad_(False)
    means, *scales = parameter_groups(net, 0.1, 0.01)
    named = {id(p): name for name, p in net.named_parameters()}
    assert {named[id(p)] for p in means["params"]} == {
        "hidden.weight", "out.weight_mean", "out.bias",
    }  # fmt: skip
    assert [named[id(p)] for group in scales for p in group["params"]] == ["out.weight_log_var"]
    torch.optim.SGD([means]), torch.optim.Adam(scales)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_what_would_train_nothing_is_an_error(rate):
    with pytest.raises(SettingError, match="log_var_lr"):
        parameter_groups(Net(), 0.1, rate)
    with pytest.raises(SettingError, match="convention: .*mu_.*some of the parameters are scales"):
        parameter_groups(Net(), 0.1, 0.01, CONVENTIONS["bayesian-torch"])
