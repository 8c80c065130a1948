"""The server's momentum is heavy ball on the means, whatever the rule, and leaves scales alone."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedbary.errors import SettingError
from strategies import CONVENTIONS, RKLB
from strategies.limits import check_arrays
from strategies.momentum import ServerMomentum

RNG = np.random.default_rng(0)


def record(values):
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in values.items()})


def values(arrays):
    return {key: array.numpy() for key, array in arrays.items()}


def rounds(beta, count=4):
    """Steps towards fixed targets: what the server holds after each round, and the targets."""
    server = ServerMomentum(beta)
    start = {
        "w_mean": RNG.normal(size=(2, 3)),
        "w_log_var": RNG.normal(size=(2, 3)),
        "bias": RNG.normal(size=3),
        "steps": np.arange(2),
    }
    targets = [
        {key: value + (RNG.normal(size=value.shape) if value.dtype.kind == "f" else 1)
         for key, value in start.items()}
        for _ in range(count)
    ]  # fmt: skip
    held = [start]
    for target in targets:
        after = server.step(record(held[-1]), record(target), CONVENTIONS["fedbary"])
        held.append(values(after))
    return held, targets


def test_means_and_points_follow_the_heavy_ball():
    held, targets = rounds(0.7)
    for key in ("w_mean", "bias"):
        velocity = 0
        for before, target, after in zip(held, targets, held[1:], strict=False):
            velocity = 0.7 * velocity + target[key] - before[key]
            np.testing.assert_allclose(after[key], before[key] + velocity)


def test_scales_and_counters_are_the_rules_own():
    held, targets = rounds(0.9)
    for target, after in zip(targets, held[1:], strict=True):
        assert np.array_equal(after["w_log_var"], target["w_log_var"])
        assert np.array_equal(after["steps"], target["steps"])


def test_without_momentum_the_aggregate_is_handed_on_untouched():
    aggregate = record({"w": [1.0]})
    assert (
        ServerMomentum(0.0).step(record({"w": [0.0]}), aggregate, CONVENTIONS["fedbary"])
        is aggregate
    )


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_a_momentum_out_of_range_is_refused(beta):
    with pytest.raises(SettingError, match="server_momentum"):
        RKLB(server_momentum=beta)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_a_step_that_overflows_is_not_taken_and_forgotten(kind):
    """Infinity stayed in the velocity, and in the global arrays for ever."""
    server, fedbary = ServerMomentum(0.9), CONVENTIONS["fedbary"]
    most = min(0.9 * float(np.finfo(kind).max), 1e32)
    held = record({"w": np.array([-most], kind)})
    aggregate = record({"w": np.array([most], kind)})
    for _ in range(3):
        held = server.step(held, aggregate, fedbary)
        check_arrays(held, aggregate, fedbary)
    for _ in range(300):
        held = server.step(held, record({"w": held["w"].numpy() / 2}), fedbary)
    assert abs(held["w"].numpy()) < 1e-6 * most


def test_a_velocity_of_infinity_from_an_old_checkpoint_is_forgotten():
    strategy = RKLB(server_momentum=0.5)
    strategy.load_state_dict({"velocity.w": torch.tensor([float("inf")])}, 3)
    before, aggregate = record({"w": [1.0]}), record({"w": [3.0]})
    for _ in range(2):
        after = strategy.server_momentum.step(before, aggregate, CONVENTIONS["fedbary"])
    assert after["w"].numpy() == 3 + 0.5 * 2 - 1


def test_batch_norm_s_moments_are_the_aggregate_s():
    server = ServerMomentum(0.9)
    held = {"bn.running_var": np.ones(2), "bn.running_mean": np.zeros(2), "w": np.zeros(2)}
    target = {"bn.running_var": np.full(2, 0.05), "bn.running_mean": np.ones(2), "w": np.ones(2)}
    for _ in range(4):
        held = values(server.step(record(held), record(target), CONVENTIONS["fedbary"]))
        assert (held["bn.running_var"] == 0.05).all() and (held["bn.running_mean"] == 1).all()
    assert (held["w"] != 1).all()
