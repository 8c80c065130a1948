"""A server that searches a site's rows finds them without limits, and none under the node's own."""

import math

import numpy as np
import pytest
import torch
from runs_of import INLINE
from scipy.optimize import least_squares
from scipy.special import expit
from scipy.stats import binom

from fedbary import client_app
from fedbary.data.layout import Layout
from fedbary.data.sites import Limits
from fedbary.data.terms import parse
from fedbary.runs.answered import in_common
from fedbary.runs.sent import Sent
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from fedbary.tasks._shown import marks

COLUMNS, WIDTH = 3, 4
SLOPES = np.array([0.8, -0.5, 0.3, 0.2])
UPPER = np.triu_indices(WIDTH)
SIZES = 6, 12, 20, 30, 40


def site(rows):
    """A site's columns, the last of ones, and its outcomes, 0 or 1."""
    draw = np.random.default_rng(rows)
    x = np.c_[draw.normal(size=(rows, COLUMNS)), np.ones(rows)]
    return x, (draw.random(rows) < expit(x @ SLOPES)).astype(float)


def told(x, y, points):
    """Slopes and curvatures of a logistic model at some points: what replies hold."""
    p = expit(x @ points.T)
    slopes = x.T @ (p - y[:, None])
    curved = np.einsum("nt,nj,nk->tjk", p * (1 - p), x, x)
    return np.concatenate([slopes.T, curved[:, *UPPER]], 1).ravel()


def moves(x, y, points):
    """The derivatives of `told` by the columns, then by the logits of the outcomes."""
    p, one = expit(x @ points.T), np.eye(WIDTH)
    d = p * (1 - p)
    slopes = np.einsum("nt,tl,nj->tjnl", d, points, x)
    slopes = slopes + (p.T - y)[:, None, :, None] * one[:, None]
    curved = np.einsum("nt,tl,nj,nk->tjknl", d * (1 - 2 * p), points, x, x)
    half = np.einsum("nt,jl,nk->tjknl", d, one, x)
    curved = (curved + half + half.swapaxes(1, 2))[:, *UPPER]
    by_x = np.concatenate([slopes, curved], 1)[..., :COLUMNS]
    by_y = np.zeros((*by_x.shape[:2], len(x)))
    by_y[:, :WIDTH] = -(x * (y * (1 - y))[:, None]).T
    return np.concatenate([by_x.reshape(*by_x.shape[:2], -1), by_y], 2).reshape(-1, x.size)


def share_found(rows, points, starts=20, near=0.05):
    """The share of a site's rows that the best of some searches has, in every column."""
    x, y = site(rows)
    seen = told(x, y, points).astype(np.float32).astype(float)
    draw, count = np.random.default_rng(0), rows * COLUMNS

    def split(z):
        return np.c_[z[:count].reshape(rows, COLUMNS), np.ones(rows)], expit(z[count:])

    best = None
    for _ in range(starts):
        found = least_squares(
            lambda z: told(*split(z), points) - seen,
            draw.normal(size=x.size),
            lambda z: moves(*split(z), points),
            method="lm" if len(seen) >= x.size else "trf",
            max_nfev=200,
        )
        best = found if best is None or found.cost < best.cost else best
        if best.cost < 1e-9 and len(seen) >= x.size:
            break
    guess = split(best.x)[0]
    return (np.abs(x[:, None] - guess).max(2).min(1) < near).mean()


def honest(rows, rounds):
    """The points of Newton's method."""
    (x, y), at, points = site(rows), np.zeros(WIDTH), []
    for _ in range(rounds):
        points.append(at)
        p = expit(x @ at)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + 0.01 * np.eye(WIDTH)
        at = at - np.linalg.solve(curvature, x.T @ (p - y) + 0.01 * at)
    return np.array(points)


def picked(rows, rounds):
    """Points that a server picks to see the rows well."""
    return 1.5 * np.random.default_rng([rows, rounds]).normal(size=(rounds, WIDTH))


FOUND = [(6, honest(6, 6)), (12, picked(12, 8)), (20, picked(20, 8)), (30, picked(30, 12))]


@pytest.mark.parametrize(("rows", "points"), FOUND)
def test_without_limits_the_rows_are_found(rows, points):
    assert share_found(rows, points) == 1


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """The numbers of each answer of small sites and a large one, as the real apps give them."""
    folder, answers = tmp_path_factory.mktemp("sites"), {}
    for rows in (*SIZES, 600):
        x, y = site(rows)
        y = y if rows == 600 else np.arange(rows) % 2  # no class is rare
        lines = [f"{u},{v},{w},{'ny'[int(z)]}\n" for (u, v, w, _), z in zip(x, y, strict=True)]
        (folder / f"{rows}.csv").write_text("u,v,w,out\n" + "".join(lines))
    nodes = [
        {"data-path": f"{folder}/{n}.csv", "name": f"{n}", "state-path": f"{folder}/of {n}"}
        for n in (*SIZES, 600)
    ]

    class Grid(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if reply.has_content():
                arrays = reply.content.array_records.values()
                held = sum(math.prod(a.shape) for each in arrays for a in each.values())
                metrics = reply.content.metric_records.values()
                held += sum(np.size(v) for each in metrics for v in each.values())
                rows = int(nodes[message.metadata.dst_node_id - 2]["name"])
                kind = message.metadata.message_type
                answers.setdefault(rows, []).append((kind, held))
            return reply

    words = {"task": "glm", "target": "out", "intercepts": "common", "rounds": 3}
    words |= {"dataset": f"{folder}/600.csv", "clients": len(nodes)}
    chosen = resolve({**INLINE, **words})
    run(Grid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "run")
    return answers


@pytest.mark.parametrize("rows", SIZES)
def test_under_the_default_limits_no_row_is_found(rows, numbers):
    limits, (first, *_) = Limits(), [held for _, held in numbers[600]]
    most = limits.budget * rows * (COLUMNS + 1)
    assert sum(held for _, held in numbers.get(rows, [])) <= most
    assert not any(kind == "train" for kind, _ in numbers.get(rows, []))
    if rows < limits.min_rows or COLUMNS > limits.max_columns * rows:
        assert rows not in numbers
        return
    a_round = min(held for kind, held in numbers[600] if kind == "train")
    rounds = int((most - first) // a_round)  # of a server that asks nothing else
    assert rounds < 3 and a_round >= WIDTH + len(UPPER[0])
    if rounds:
        assert share_found(rows, picked(rows, rounds), starts=5) == 0


@pytest.mark.parametrize("powers", [1, 2, 3])
def test_a_patient_at_a_rare_value_is_read_off_a_curvature_unless_the_site_leaves_it_out(powers):
    """Powers of a column combine to one that is 0 at all values but the patient's."""
    (x, _), held = site(40), np.arange(40) % powers
    held[7] = powers
    whole = np.c_[x, *(held**k for k in range(1, powers + 1))]
    alone = np.zeros(WIDTH + powers)
    alone[COLUMNS:] = np.polynomial.Polynomial.fromroots(range(powers)).coef

    def last(x):
        p = expit(x @ np.linspace(-0.3, 0.3, x.shape[1]))
        return (x * (p * (1 - p))[:, None]).T @ x @ alone

    seen = last(whole)
    assert np.allclose(seen[:COLUMNS] / seen[COLUMNS], x[7, :COLUMNS])
    layout = Layout((*((name, ()) for name in "abc"), ("held", ())), ("n", "y"))
    terms = parse(" ".join(["a b c", "held", *(f"held^{k}" for k in range(2, powers + 1))]))
    shown = marks(terms, layout, torch.tensor(np.c_[x[:, :COLUMNS], held]))
    kept = in_common(shown, np.ones(40, dtype=bool), Limits().min_cell)
    assert not kept[7] and kept.sum() == 39 and np.abs(last(whole[kept])).max() < 1e-9


def told_of_level(x, y, points):
    """What replies hold of rows at a level alone: its slopes, and its row of the curvatures."""
    z = np.c_[x, np.ones((len(x), 2))]  # the level and the intercept
    p = expit(z @ points.T)
    curved = np.einsum("nt,nj->tj", p * (1 - p), z[:, :WIDTH])
    return np.concatenate([(p - y[:, None]).sum(0), curved.ravel()])


def picked_at_a_level(x, y, answers, draw):
    """Points that a server picks."""
    return 1.5 * draw.normal(size=(answers, WIDTH + 1))


def honest_at_a_level(x, y, answers, draw, others=400, prior_std=10.0):
    """The points of Newton's method, for these rows and others of another level."""
    u = np.c_[draw.normal(size=(others, COLUMNS)), np.zeros(others), np.ones(others)]
    z = np.r_[np.c_[x, np.ones((len(x), 2))], u]
    y = np.r_[y, draw.random(others) < expit(u @ np.insert(SLOPES, COLUMNS, 0))]
    points = [np.zeros(WIDTH + 1)]
    while len(points) < answers:
        at, p = points[-1], expit(z @ points[-1])
        curvature = (z * (p * (1 - p))[:, None]).T @ z + np.eye(len(at)) / prior_std**2
        points.append(at - np.linalg.solve(curvature, z.T @ (p - y) + at / prior_std**2))
    return np.array(points)


def found_at_a_level(rows, answers, near, seeds, points_of=picked_at_a_level, starts=8):
    """How many rows of so many at a level a search finds, and how many guesses do, by distance."""

    def split(z):
        return z[: rows * COLUMNS].reshape(rows, COLUMNS), expit(z[rows * COLUMNS :])

    def apart(z, points, seen):
        return 1e3 * (told_of_level(*split(z), points) - seen)

    found = np.zeros((2, len(near)))
    for seed in range(seeds):
        draw = np.random.default_rng(seed)
        x, y = draw.normal(size=(rows, COLUMNS)), (draw.random(rows) < 0.5).astype(float)
        points = points_of(x, y, answers, draw)
        seen, searched = told_of_level(x, y, points), []
        for _ in range(starts):
            start = np.r_[draw.normal(size=x.size), 3 * draw.choice([-1.0, 1.0], rows)]
            searched.append(least_squares(apart, start, max_nfev=60, args=(points, seen)))
        best = split(min(searched, key=lambda each: each.cost).x)[0]
        for place, guess in enumerate((best, draw.normal(size=x.shape))):
            away = np.abs(x[:, None] - guess).max(2).min(1)
            found[place] += [(away < limit).sum() for limit in near]
    return found


def test_as_many_answers_as_a_rare_level_bears_find_no_more_rows_than_guesses_do():
    """The fewest rows of a level that the default limits let into a run, in the answers of one."""
    seeds, level = 3, Sent().least(Limits())
    bear = int(level * Limits().budget)
    (found, near), (_, guessed) = found_at_a_level(level, bear, (0.05, 0.3), seeds)
    rate = max(guessed, 1) / (seeds * level)
    assert bear == 3 and found == 0 and binom.sf(near - 1, seeds * level, rate) > 0.01


def test_as_many_answers_of_fewer_rows_find_some():
    """Why such a level is left out."""
    (found, near), (_, guessed) = found_at_a_level(Limits().min_cell, 3, (0.05, 0.3), 4)
    assert found > 0 and near > 2 * guessed
