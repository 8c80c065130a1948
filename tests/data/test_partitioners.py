"""Partitioners of flwr-datasets: what they deal, their parameters as settings, what is refused."""

import sys

import numpy as np
import pytest

from fedbary.data import deal
from fedbary.data.partitioners import partition_by
from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.parts.parameters import declared
from fedbary.settings.config import resolve
from fedbary.settings.explain import explained, overview
from fedbary.settings.owners import models
from fedbary.settings.partition_names import partitioners
from fedbary.tasks import task_of

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
GIVEN = {"min_examples": 1, "parameters": {"alpha": 0.5}}
NEEDS = {
    "PathologicalPartitioner": {"num_classes_per_partition": 10},
    "ShardPartitioner": {"num_shards_per_partition": 2},
    "ContinuousPartitioner": {"strictness": 0.5},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # in datasets
@pytest.mark.parametrize("name", sorted(partitioners()))
def test_every_partitioner_deals_by_the_seed_and_no_example_twice(name):
    given = {**GIVEN, "parameters": {"alpha": 0.5, **NEEDS.get(name, {})}}
    deals = [partition_by(name, LABELS, 5, seed, **given) for seed in (0, 0, 1)]
    sizes = [len(part) for part in deals[0]]
    dealt = np.concatenate(deals[0])
    assert len(sizes) == 5 and sizes == sorted(sizes, reverse=True)
    assert len(np.unique(dealt)) == len(dealt) and dealt.min() >= 0 and dealt.max() < 1000
    assert all((np.diff(part) > 0).all() for part in deals[0])
    assert all(map(np.array_equal, deals[0], deals[1]))
    assert not all(map(np.array_equal, deals[0], deals[2]))
    if name != "ShardPartitioner":
        assert len(dealt) == 1000


def test_they_deal_as_their_names_say():
    pathological = partition_by(
        "PathologicalPartitioner",
        LABELS,
        5,
        0,
        **{**GIVEN, "parameters": {"num_classes_per_partition": 6,
                                   "class_assignment_mode": "deterministic"}},
    )  # fmt: skip
    assert {len(np.unique(LABELS[part])) for part in pathological} == {6}
    linear = [len(part) for part in partition_by("LinearPartitioner", LABELS, 4, 0, **GIVEN)]
    assert linear == [400, 300, 200, 100]
    targets = np.random.default_rng(1).normal(size=400)
    strict = {**GIVEN, "parameters": {"strictness": 1.0}}
    parts = partition_by("ContinuousPartitioner", targets, 4, 0, **strict)
    ranges = sorted((targets[part].min(), targets[part].max()) for part in parts)
    assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:], strict=False))


def test_a_run_is_dealt_by_one_with_its_parameters_as_settings():
    parameters = {"num_classes_per_partition": "3", "class_assignment_mode": "deterministic"}
    chosen = resolve({"partition": "PathologicalPartitioner", **parameters})
    assert dict(chosen.partition_parameters)["num_classes_per_partition"] == 3
    task = task_of(chosen)
    rows = deal.client_rows(task.held, task.deal, chosen.clients)
    assert {len(np.unique(task.held.y_train[part])) for part in rows} == {3}
    again = resolve(chosen.model_dump())
    assert again == chosen and hash(task_of(again).deal) == hash(task.deal)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "ShardsPartitioner"}, "dirichlet, iid.*PathologicalPartitioner"),
        ({"partition": "VerticalEvenPartitioner"}, "partition: 'VerticalEven"),
        ({"num_classes_per_partition": 2}, "partition=PathologicalPartitioner do"),
        (
            {"partition": "PathologicalPartitioner", "class_assignment_mode": "any"},
            "class_assignment_mode: 'any'; expected random, deterministic",
        ),
        (
            {"partition": "PathologicalPartitioner", "num_classes_per_partition": "x"},
            "num_classes_per_partition: 'x'",
        ),
        ({"task": "regression", "partition": "ShardPartitioner"}, "partition: .*regression"),
    ],
)
def test_settings_that_are_none(settings, message):
    with pytest.raises(SettingError, match=message):
        resolve(settings)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("PathologicalPartitioner", {}, "1000 examples to 5 clients .*num_classes_per_partition"),
        ("PathologicalPartitioner", {"num_classes_per_partition": 11}, "partition: "),
        ("ExponentialPartitioner", {}, "min_examples: 300; expected at most"),
    ],
)
def test_deals_that_cannot_be_made(name, given, message):
    with pytest.raises(SettingError, match=message):
        partition_by(name, LABELS, 5, 0, **{**GIVEN, "min_examples": 300, "parameters": given})


def test_settings_without_use_are_refused():
    assert resolve({"partition": "DirichletPartitioner", "alpha": 1.0}).alpha == 1.0
    with pytest.raises(SettingError, match="partition=IidPartitioner does not use it"):
        resolve({"partition": "IidPartitioner", "alpha": 1.0})


def test_their_parameters_are_no_other_part_s_and_explained():
    own = {name for parameters in partitioners().values() for name in parameters} - {"alpha"}
    assert not own & {name for method in METHODS.values() for name in declared(method)}
    assert not own & {name for parameters in models().values() for name in parameters}
    assert "PathologicalPartitioner" in overview()
    assert "num_classes_per_partition=none" in explained("PathologicalPartitioner")
    assert "with partition=ContinuousPartitioner: strictness" in explained("strictness")


def test_without_them_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("fedbary.settings.model.partitioners", dict)
    monkeypatch.setattr("fedbary.settings.resolving.partitioners", dict)
    for parameters in ({}, {"num_classes_per_partition": 2}):
        with pytest.raises(SettingError, match=r"quantity; pip install 'fedbary\[partitioners\]'"):
            resolve({"partition": "PathologicalPartitioner", **parameters})
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(SettingError, match=r"pip install 'fedbary\[partitioners\]'"):
        partition_by("IidPartitioner", LABELS, 5, 0, **GIVEN)
