"""Clipping and mixing before a rule do to posteriors what their papers say, in (m, √v)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.aggregation import RULES, aggregate_tensors
from fedbary.aggregation.mixing import Mixing, distances_after
from fedbary.aggregation.sums import LARGEST_LOG_VAR
from fedbary.errors import SettingError
from fedbary.methods import Reply, Server, method_named

SEEDS = st.integers(0, 10**6)


def points(seed, clients, far=0):
    """Clients' points and the centre's, in the coordinates (m, √v), some of them far off."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(clients + 1, 8, generator=generator).double()
    mean[:far] += 50 * torch.randn(far, 8, generator=generator).double()
    std = 0.1 + torch.rand(clients + 1, 8, generator=generator).double()
    return mean, std


def state(mean, std):
    return {"w_mean": mean, "w_log_var": 2 * std.log(), "b": mean[:3]}


def updates(mean, std):
    """The clients' updates in m and in √v, from the last point on."""
    plain = torch.cat([mean, mean[:, :3]], 1)
    return plain[:-1] - plain[-1], std[:-1] - std[-1]


def products(mean, std):
    return torch.stack([u @ u.T for u in updates(mean, std)])


def by_hand(mixing, mean, std):
    """What the module says, client by client."""
    parts = updates(mean, std)
    count = len(parts[0])
    nearest = count - int(mixing.fraction * count + 1e-9)

    def alike(i, j):
        return sum(float(u[i] @ u[j] / (u[i].norm() * u[j].norm())) for u in parts)

    order = [sorted(range(count), key=lambda j, i=i: -alike(i, j))[:nearest] for i in range(count)]

    def moved(clients):
        radius = torch.stack([u.norm() for u in clients]).quantile(0.5)
        clients = [u * min(1.0, float(radius / u.norm())) for u in clients]
        if not mixing.mixes:
            return torch.stack(clients)
        clients = [torch.stack([clients[j] for j in near]).mean(0) for near in order]
        apart = torch.stack([torch.stack([(u - w).norm() for u in clients]) for w in clients])
        far = apart.sum(1).tolist()
        middle = next(i for i, f in enumerate(far) if f <= min(far) * (1 + 1e-9))
        radius = apart[middle].quantile(0.5)
        clients = [
            clients[middle] + (u - clients[middle]) * min(1.0, float(radius / d))
            for u, d in zip(clients, apart[middle].clamp_min(1e-300), strict=True)
        ]
        return torch.stack(clients)

    centre = torch.cat([mean[-1], mean[-1, :3], std[-1]])
    return torch.cat([moved(list(part)) for part in parts], 1) + centre


@pytest.mark.slow
@given(SEEDS, st.integers(3, 9), st.booleans(), st.sampled_from(["WB", "Median"]))
def test_it_is_what_its_page_says_client_by_client(seed, clients, mixes, rule):
    mean, std = points(seed, clients, far=1)
    mixing = Mixing(0.3, mixes)
    states = [state(m, s) for m, s in zip(mean, std, strict=True)]
    found = aggregate_tensors(
        RULES[rule], states[:-1], [1.0] * clients, mixing=mixing, centre=states[-1]
    )
    moved = by_hand(mixing, mean, std)
    plain = [state(x[:8], x[11:]) for x in moved]
    expected = aggregate_tensors(RULES[rule], plain, [1.0] * clients)
    for name in ("w_mean", "w_log_var"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


@given(SEEDS, st.integers(2, 9), st.booleans(), st.floats(0, 0.49))
def test_every_point_becomes_a_mean_of_points(seed, clients, mixes, fraction):
    between = products(*points(seed, clients, far=1))
    matrices = Mixing(fraction, mixes).matrices(between)
    assert matrices.shape == (2, clients, clients) and bool((matrices >= 0).all())
    assert bool((matrices.sum(2) <= 1 + 1e-12).all())
    plain = distances_after(torch.eye(clients).double().expand(2, -1, -1), between)
    after = distances_after(matrices, between)
    torch.testing.assert_close(after, after.mT)
    for part in range(2):
        farthest = max(float(plain[part].max()), float(between[part].diagonal().max()))
        assert float(after[part].max()) <= farthest * (1 + 1e-9)


@given(SEEDS, st.floats(0.01, 100), st.floats(0.01, 100))
def test_neighbours_are_by_direction_whatever_the_lengths(seed, small, large):
    """The honest mean with its sign flipped, of any length, is nobody's neighbour."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(50, generator=generator).double()
    honest = common + 0.5 * torch.randn(7, 50, generator=generator).double()
    honest = honest * torch.linspace(small, large, 7).double()[:, None]
    flipped = -honest.mean(0).expand(3, 50) * small
    both = torch.cat([honest, flipped])
    between = torch.stack([both @ both.T, torch.zeros(10, 10).double()])
    mixed = Mixing(0.3, True).matrices(between)
    assert bool((mixed[:, :7, 7:] == 0).all())


def test_what_all_do_to_variances_hides_nobody():
    """Three flip their means, and their standard deviations shrink as everybody's do."""
    generator = torch.Generator().manual_seed(0)
    mean = 0.1 + 0.1 * torch.randn(11, 40, generator=generator).double()
    mean[10], mean[7:10] = 0, -mean[:7].mean(0)
    shrunk = torch.full((11, 40), 0.5).double() + 0.01 * torch.randn(11, 40, generator=generator)
    shrunk[10] = 3.0
    found = Mixing(0.3, True).matrices(products(mean, shrunk))
    assert bool((found[:, :7, 7:] == 0).all())


@given(SEEDS, st.booleans(), st.floats(1, 100), st.floats(0.01, 100))
def test_no_update_is_longer_than_the_median_in_means_or_in_deviations(seed, mixes, scale, ratio):
    """Also where three scale their means, and however far honest standard deviations move."""
    mean, std = points(seed, 10)
    of_means, of_stds = updates(mean, std)
    of_means, of_stds = of_means.clone(), of_stds * ratio
    of_means[:3] *= scale
    between = torch.stack([u @ u.T for u in (of_means, of_stds)])
    matrices = Mixing(0.3, mixes).matrices(between)
    for part, matrix in zip((of_means, of_stds), matrices, strict=True):
        assert float((matrix @ part).norm(dim=1).max()) <= float(
            part.norm(dim=1).quantile(0.5) * (1 + 1e-9)
        )


ABSURD = [1e3, -1e6, 1e14]
"""Means that admission lets pass, in float32."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["WB", "RKLB", "Median", "MultiKrum"])
@given(
    SEEDS,
    st.lists(st.sampled_from([*ABSURD, 3e31, 3e38]), min_size=3, max_size=3),
    st.lists(st.sampled_from([-39.0, 39.0, 0.0]), min_size=3, max_size=3),
)
def test_absurd_numbers_of_three_move_seven_little_and_nothing_overflows(
    rule, seed, means, log_vars
):
    """All is worked out in float32."""
    generator = torch.Generator().manual_seed(seed)

    def of(mean, log_var, plain):
        noise = torch.randn(3, 20, generator=generator)
        return {
            "w_mean": mean * noise[0],
            "w_log_var": (log_var + 0.1 * noise[1]).clamp(-39.6, 39.6),
            "b": plain * noise[2].sign(),
        }

    centre, *honest = [of(0.5, -7.0, 0.5) for _ in range(8)]
    hostile = [
        of(min(mean, 1e14), log_var, mean) for mean, log_var in zip(means, log_vars, strict=True)
    ]
    found = aggregate_tensors(
        replace(RULES[rule], trim_fraction=0.3) if rule == "MultiKrum" else RULES[rule],
        [*hostile, *honest], [1.0] * 10, mixing=Mixing(0.3, True), centre=centre,
        least_dtype=torch.float32, largest_log_var=LARGEST_LOG_VAR,
    )  # fmt: skip
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())
    assert float(found["w_mean"].abs().max()) <= 10 and float(found["b"].abs().max()) <= 10


@pytest.mark.parametrize("rule", ["RKLB", "WB", "EAA"])
def test_three_of_ten_who_lie_far_off_move_the_aggregate_little(rule):
    mean, std = points(0, 10, far=3)
    states = [state(m, s) for m, s in zip(mean, std, strict=True)]
    honest = aggregate_tensors(RULES[rule], states[3:10], [1.0] * 7)
    spread = float(mean[3:10].std(0).norm())

    def moved(mixing):
        both = {"mixing": mixing, "centre": states[-1]}
        found = aggregate_tensors(RULES[rule], states[:10], [1.0] * 10, **both)
        return float((found["w_mean"] - honest["w_mean"]).norm())

    assert moved(None) > 5 * spread
    assert moved(Mixing(0.3, True)) < spread
    assert moved(Mixing(0.3, True)) < moved(None)


def test_clients_who_agree_are_left_as_they_are():
    mean, std = points(3, 1)
    states = [state(mean[0], std[0]) for _ in range(5)]
    found = aggregate_tensors(
        RULES["RKLB"], states, [1.0] * 5,
        mixing=Mixing(0.2, True), centre=state(mean[1], std[1]),
    )  # fmt: skip
    torch.testing.assert_close(found["w_mean"], mean[0])
    torch.testing.assert_close(found["w_log_var"], 2 * std[0].log())


def test_the_method_mixes_before_its_rule():
    mean, std = points(5, 5, far=1)
    states = [state(m, s) for m, s in zip(mean, std, strict=True)]
    replies = [Reply(str(k), 1.0, tensors) for k, tensors in enumerate(states[:-1])]
    server = Server(states[-1], {}, 1)
    plain = method_named("barycentre")(rule="WB").aggregate(server, replies)[0]
    both = {"clipping": True, "mixing": True, "trim_fraction": 0.2}
    found = method_named("barycentre")(rule="WB", **both).aggregate(server, replies)[0]
    assert not torch.allclose(found["w_mean"], plain["w_mean"])
    with pytest.raises(SettingError, match="trim_fraction"):
        method_named("barycentre")(rule="WB", mixing=True, trim_fraction=0.6)


@given(SEEDS, st.integers(1, 6), st.floats(-6, 2))
def test_a_bound_on_precisions_is_relative_to_the_clients_not_to_the_centre(seed, clients, log_var):
    """All at one point, so that clipping moves nobody: what is left is the bound."""
    mean, std = points(seed, clients)
    states = [state(mean, s) for s in std[:-1, None].expand(-1, len(mean), -1)]
    centre = {**states[0], "w_log_var": torch.full_like(states[0]["w_log_var"], log_var)}
    shares, rule = [1.0] * clients, RULES["WB"]
    plain = aggregate_tensors(rule, [states[0]] * clients, shares, 1.0)
    kept = Mixing(0.0, mixes=False)
    clipped = aggregate_tensors(
        rule, [states[0]] * clients, shares, 1.0, mixing=kept, centre=centre
    )
    for name in plain:
        torch.testing.assert_close(clipped[name], plain[name])
