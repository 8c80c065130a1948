"""Variances that do not train are named once, and so is a rule that shrinks them."""

import math
from logging import WARNING

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from small_apps import moving
from torch import nn

from fedbary import strategies
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import CONVENTIONS, Convention, parameter_groups
from fedbary.variational.layers import VariationalLinear

UNITS = {unit: Convention("*.m", "*.s", unit) for unit in ("log_var", "log_std", "std", "rho")}

PRODUCTS = {"Conflation", "WeightedConflation", "GAA"}


def warnings_of(train, log_vars, units=UNITS["log_var"], rule="RKLB", rounds=3, clients=3):
    """Return what a rule's strategy says while `train(log_vars, partition, round)` moves them."""
    lines = []

    def trained(state, partition, server_round):
        of = [units.to_log_var(state[f"{i}.s"]) for i in range(len(log_vars))]
        moved = train(of, partition, server_round)
        return {**state, **{f"{i}.s": units.from_log_var(m) for i, m in enumerate(moved)}}

    initial = {}
    for i, log_var in enumerate(log_vars):
        initial[f"{i}.m"] = torch.zeros(40, 60)
        initial[f"{i}.s"] = units.from_log_var(torch.full((40, 60), log_var))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "fedbary.strategies.strategy.log",
            lambda level, text, *args: level == WARNING and lines.append(text % args),
        )
        strategy = getattr(strategies, rule)(fraction_evaluate=0.0, convention=units)
        grid = InlineGrid(moving(trained), clients, {})
        strategy.start(grid, ArrayRecord(initial), num_rounds=rounds)
    return lines


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("unit", UNITS)
@given(
    steps=st.lists(st.sampled_from([0.0, 1e-4, 0.1, 1.0]), min_size=2, max_size=2),
    alike=st.booleans(),
    log_var=st.floats(-12, 0),
    rounds=st.integers(1, 5),
)
@settings(max_examples=12)
def test_arrays_are_named_that_do_not_move_or_are_alike(unit, steps, alike, log_var, rounds):
    def train(log_vars, partition, server_round):
        draw = seeded(server_round if alike else 9 * partition)
        return [
            s + step * (torch.rand(s.shape, generator=draw) - 0.5)
            for s, step in zip(log_vars, steps, strict=True)
        ]

    lines = warnings_of(train, [log_var, log_var], UNITS[unit], rounds=rounds)
    still = [f"'{i}.s'" for i, step in enumerate(steps) if step < 0.01]
    same = [f"'{i}.s'" for i, step in enumerate(steps) if step > 0.01 and alike]
    wanted = [(still, "raise log_var_lr, "), (same, "lower kl_weight, ")] if rounds > 2 else []
    wanted = [(names, advice) for names, advice in wanted if names]
    for line, (names, advice) in zip(lines, wanted, strict=True):
        assert [name for name in ("'0.s'", "'1.s'") if name in line] == names and advice in line


@given(step=st.floats(0.005, 0.1), differ=st.floats(0.1, 1), clients=st.integers(2, 4))
@settings(max_examples=8)
def test_small_steps_that_the_data_turn_are_no_standstill(step, differ, clients):
    """A short round moves variances a little, and much of it is the penalty's, alike at all."""

    def train(log_vars, partition, server_round):
        noise = torch.randn(40, 60, generator=seeded(100 * server_round + partition))
        return [log_vars[0] + step * (1 + differ * noise)]

    assert not warnings_of(train, [-7.0], rounds=4, clients=clients)


@given(step=st.floats(0.01, 0.5), longer=st.integers(1, 9))
@settings(max_examples=8)
def test_clients_that_follow_the_penalty_alone_are_alike_however_many_steps_each_takes(
    step, longer
):
    penalty = torch.rand(40, 60, generator=seeded(0))

    def train(log_vars, partition, server_round):
        return [log_vars[0] + step * (1 + longer * partition) * penalty]

    (line,) = warnings_of(train, [-7.0])
    assert "'0.s'" in line and "kl_weight" in line


def test_what_trains_again_in_between_is_not_named_and_nothing_is_named_twice():
    def train(log_vars, partition, server_round):
        return [log_vars[0] + 0.1 * torch.randn(40, 60) * (server_round % 3 == 0), log_vars[1]]

    (line,) = warnings_of(train, [-4.0, -6.0], rounds=9)
    assert "'1.s' (by 0)" in line and "'0.s'" not in line


@pytest.mark.parametrize("rule", sorted({"RKLB", "WB", "EAA", "HB", "FKLB", "AALV"} | PRODUCTS))
@pytest.mark.parametrize(
    "widened, rounds, narrows",
    [(0.5, 5, True), (0.5, 2, False), (-0.5, 5, False), (math.log(4) + 0.5, 5, False)],
)
def test_rules_that_narrow_further_than_clients_widen_are_named_once(
    rule, widened, rounds, narrows
):
    """Four clients widen by half: a product of four is narrower by a factor of four."""

    def train(log_vars, partition, server_round):
        noise = 0.1 * torch.rand(40, 60, generator=seeded(partition))
        return [log_vars[0] + widened * (1 + noise)]

    lines = warnings_of(train, [-6.0], rule=rule, rounds=rounds, clients=4)
    assert len(lines) == (narrows and rule in PRODUCTS)
    assert all(rule in line and "DWC" in line for line in lines)


@pytest.mark.parametrize("unit", UNITS)
@given(log_var=st.floats(-14, 2), log_var_lr=st.sampled_from([1e-3, 1e-2]), spread=st.floats(0, 1))
@settings(max_examples=15)
def test_a_step_of_the_advised_groups_moves_log_variances_by_their_rate_in_any_unit(
    unit, log_var, log_var_lr, spread
):
    units = UNITS[unit]
    log_vars = log_var + spread * torch.randn(500, generator=seeded(0))
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
    net = nn.Sequential(nn.Linear(3, 3), VariationalLinear(3, 2))
    net[0].bias.requires_grad_(False)
    means, *scales = parameter_groups(net, 0.1, 0.01)
    named = {id(p): name for name, p in net.named_parameters()}
    assert {named[id(p)] for p in means["params"]} == {"0.weight", "1.weight_mean", "1.bias"}
    assert [named[id(p)] for group in scales for p in group["params"]] == ["1.weight_log_var"]
    torch.optim.SGD([means]), torch.optim.Adam(scales)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_what_would_train_nothing_is_an_error(rate):
    net = VariationalLinear(3, 2)
    with pytest.raises(SettingError, match="log_var_lr"):
        parameter_groups(net, 0.1, rate)
    with pytest.raises(SettingError, match="convention: .*mu_.*some of the parameters are scales"):
        parameter_groups(net, 0.1, 0.01, CONVENTIONS["bayesian-torch"])
