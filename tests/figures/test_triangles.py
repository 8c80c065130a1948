"""Triangles show the signed-rank test's draws between its three outcomes."""

import itertools
import math

import numpy as np
import pytest
from pictures import assert_no_text_overlaps, outcome, picture

from fedbary.figures.triangles import triangles
from fedbary.scores.stats import SignedRank

HEIGHT = math.sqrt(0.75)


def test_triangle_places_the_sample_between_its_corners():
    corners = np.repeat(np.eye(3), [70, 20, 10], axis=0)
    figure = triangles({("RKLB", "WB"): SignedRank(0.7, 0.2, 0.1, 0.1, 27, corners)})
    pixels = picture(figure)
    assert_no_text_overlaps(figure)
    (axes,) = figure.axes
    hexagons = axes.collections[0]
    cells = dict(
        zip(map(tuple, hexagons.get_offsets().round(1)), hexagons.get_array(), strict=True)
    )
    assert cells == {(0.0, 0.0): 70, (0.5, 0.9): 20, (1.0, 0.0): 10}
    places = [(*text.get_position(), text.get_text()) for text in axes.texts]
    assert [text for _, _, text in places] == [
        "RKLB\nbetter: 0.700",
        "equal: 0.200",
        "WB\nbetter: 0.100",
    ]
    assert [x for x, _, _ in places] == [0, 0.5, 1]
    assert places[0][1] < 0 and places[1][1] > HEIGHT and places[2][1] < 0
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_triangle_parts_the_regions_where_each_outcome_is_largest():
    (axes,) = triangles({("A", "B"): outcome(0.4, 0.3, 0.3)}).axes
    ends = [tuple(np.round(line.get_xydata(), 9).ravel()) for line in axes.lines]
    centre, rounded = (0.5, HEIGHT / 3), lambda *xy: tuple(np.round(xy, 9))
    assert set(ends) == {
        rounded(*centre, 0.75, HEIGHT / 2),
        rounded(*centre, 0.25, HEIGHT / 2),
        rounded(*centre, 0.5, 0),
    }


def test_triangle_keeps_every_draw():
    result = outcome(0.2, 0.7, 0.1)
    (axes,) = triangles({("A", "B"): result}).axes
    assert axes.collections[0].get_array().sum() == len(result.sample)
    certain = SignedRank(0, 1, 0, 0.1, 27, np.tile([0.0, 1.0, 0.0], (400, 1)))
    (axes,) = triangles({("A", "B"): certain}).axes
    assert axes.collections[0].get_array().tolist() == [400]


@pytest.mark.parametrize(("pairs", "grid"), [(1, (1, 1)), (3, (1, 3)), (10, (2, 5)), (11, (3, 5))])
def test_triangles_of_many_pairs(pairs, grid):
    names = list(itertools.combinations(["pFedBayes", "RKLB", "WB", "AALV", "GAA", "EAA"], 2))
    results = {name: outcome(i / 20, 0.4, 0.6 - i / 20) for i, name in enumerate(names[:pairs])}
    figure = triangles(results)
    picture(figure)
    assert_no_text_overlaps(figure)
    assert len(figure.axes) == pairs
    assert figure.axes[0].get_gridspec().get_geometry() == grid
    for axes, ((first, second), result) in zip(figure.axes, results.items(), strict=True):
        assert [text.get_text() for text in axes.texts] == [
            f"{first}\nbetter: {result.first:.3f}",
            "equal: 0.400",
            f"{second}\nbetter: {result.second:.3f}",
        ]


def test_no_pair_is_no_picture():
    with pytest.raises(ValueError, match="no pair"):
        triangles({})
