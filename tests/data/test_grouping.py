"""Rows that belong together: no group on two sides, whatever the data and the deal."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbary.data import images
from fedbary.data.deal import (
    Deal,
    client_rows,
    client_shard,
    dealt,
    evaluation_data,
    evaluation_groups,
    rows,
    site_shard,
    trained_rows,
)
from fedbary.data.examples import Examples, with_test
from fedbary.data.grouping import Units, group_numbers, one_of_each
from fedbary.data.image_examples import own_shard, read_images
from fedbary.data.image_layout import ImageLayout
from fedbary.data.partition import PARTITIONS
from fedbary.data.tables import Choice, load, load_frame, load_labelled, read_rows
from fedbary.data.text_rows import dataset_of, read_texts
from fedbary.errors import CellError, SettingError

TWO = ImageLayout((1, 8, 8), ("a", "b"))
BY_PATIENT = Choice(group="patient")
CLIENTS = 3


def numbered(sizes, seed, classes=3, numbers=False):
    """Rows whose one feature is the row's number, in groups of those sizes, shuffled."""
    rng = np.random.default_rng(seed)
    patient = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = torch.arange(len(patient)).double()[:, None]
    y = rng.normal(size=len(x)) if numbers else rng.integers(0, classes, len(x))
    return Examples(x, torch.from_numpy(y), groups=group_numbers(patient.tolist()))


def sides(held, deal):
    """Yield what stands on each side of a deal: scored, each client's two parts, the server's."""
    yield evaluation_groups(held, deal)
    yield held.groups[dealt(held, deal)[1]]
    trained = set(trained_rows(held, deal, CLIENTS).tolist())
    for part in client_rows(held, deal, CLIENTS):
        for side in (True, False):
            yield held.groups[[row for row in part.tolist() if (row in trained) == side]]


def require_apart(parts):
    seen = [set(part.tolist()) for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=30, max_size=50),
    scheme=st.sampled_from(PARTITIONS),
    evaluate_on=st.sampled_from(["test", "validation"]),
    holdout=st.sampled_from([0.0, 0.3]),
    fractions=st.sampled_from([(1.0, 0.0), (0.8, 0.2)]),
    seed=st.integers(0, 10**6),
    numbers=st.booleans(),
)
def test_no_group_lies_on_two_sides(sizes, scheme, evaluate_on, holdout, fractions, seed, numbers):
    scheme = "iid" if numbers else scheme
    own = (("alpha", 3.0),) if scheme in ("dirichlet", "quantity") else ()
    deal = Deal(0, evaluate_on, scheme, 1, holdout, seed, *fractions, own)
    held = numbered(sizes, seed, 2, numbers)
    require_apart(sides(held, deal))
    shards = [client_shard(held, deal, CLIENTS, client) for client in range(CLIENTS)]
    trained = torch.cat([shard.x for shard in shards])[:, 0].long()
    server = dealt(held, deal)[1]
    assert sorted([*trained.tolist(), *server.tolist()]) == sorted(
        trained_rows(held, deal, CLIENTS).tolist()
    )
    sizes_now = [len(shard.y) + len(shard.y_held_out) for shard in shards]
    assert sizes_now == sorted(sizes_now, reverse=True)
    for shard in shards:
        place = shard.x_held_out[:, 0].long()
        assert len(place) or not holdout or len(held.groups[shard.x[:, 0].long()].unique()) == 1
        counted = held.groups[place[shard.independent]]
        assert sorted(counted.tolist()) == held.groups[place].unique().tolist()


@settings(max_examples=20, deadline=None)
@given(count=st.integers(60, 90), scheme=st.sampled_from(PARTITIONS), seed=st.integers(0, 99))
def test_groups_of_a_row_each_are_dealt_as_rows(count, scheme, seed):
    own = (("alpha", 3.0),) if scheme in ("dirichlet", "quantity") else ()
    deal = Deal(0, "validation", scheme, 1, 0.3, seed, 0.9, 0.1, own)
    grouped = numbered([1] * count, seed, 2)
    alone = Examples(grouped.x, grouped.y)
    for one, other in zip(
        client_rows(grouped, deal, CLIENTS), client_rows(alone, deal, CLIENTS), strict=True
    ):
        assert (one == other).all()
    for part in (evaluation_data, rows, dealt):
        for one, other in zip(part(grouped, deal), part(alone, deal), strict=True):
            assert torch.equal(one, other)
    two = (client_shard(held, deal, CLIENTS, 1) for held in (grouped, alone))
    assert len({str((s.x.tolist(), s.x_held_out.tolist())) for s in two}) == 1
    assert evaluation_groups(alone, deal) is None


def test_a_group_is_dealt_by_its_commonest_class_or_its_mean():
    groups = group_numbers(["a", "b", "a", "c", "a", "b"])
    units = Units.of(np.arange(6), groups)
    assert units.unit.tolist() == [0, 1, 0, 2, 0, 1]
    assert units.strata(torch.tensor([1, 2, 0, 1, 1, 0])).tolist() == [1, 0, 1]
    assert units.strata(torch.tensor([1.0, 2.0, 0.0, 7.0, 5.0, 0.0])).tolist() == [2, 1, 7]
    assert units.rows_of(np.array([0, 2])).tolist() == [0, 2, 3, 4]


def test_each_row_of_a_group_may_be_the_one_that_counts():
    groups = group_numbers("aaabbc")
    drawn = torch.stack([one_of_each(groups, seed) for seed in range(600)]).double()
    assert (drawn[:, :3].sum(1) == 1).all() and (drawn[:, 3:5].sum(1) == 1).all()
    torch.testing.assert_close(
        drawn.mean(0), torch.tensor([1, 1, 1, 1.5, 1.5, 3]).double() / 3, atol=0.07, rtol=0
    )


# Kinds of data


def table(tmp_path, ending="csv", patients=40, of_each=3, **columns):
    rng = np.random.default_rng(0)
    patient = rng.permutation(np.repeat(np.arange(patients), of_each))
    held = {"a": rng.normal(size=len(patient)).round(3), "patient": [f"P{p}" for p in patient]}
    held |= {"y": np.where(patient % 2, "ill", "well"), **columns}
    frame = pd.DataFrame(held)
    path = tmp_path / f"t.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    return str(path), frame


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_of_a_table_names_groups_and_is_no_feature(ending, tmp_path):
    path, frame = table(tmp_path, ending)
    held = load_labelled(path, tmp_path, "y", choice=BY_PATIENT)
    assert held.layout.features == ("a",) and len(held.groups.unique()) == 40
    require_apart(sides(held, Deal(0, "test", "dirichlet", 1, 0.3)))
    again = load_labelled(path, tmp_path, "y", choice=Choice(id="patient"))
    assert torch.equal(again.groups, held.groups) and again.layout == held.layout
    one_each = frame.drop_duplicates("patient")
    one_each.to_csv(tmp_path / "o.csv", index=False)
    by_id = load_labelled(str(tmp_path / "o.csv"), tmp_path, "y", choice=Choice(id="patient"))
    assert by_id.groups is None
    found = read_rows(tmp_path / f"t.{ending}", "y", held.layout, BY_PATIENT)
    assert torch.equal(found.groups, held.groups) and not found.unused
    assert len(found.independent().x) == 40
    assert read_rows(tmp_path / "o.csv", "y", held.layout, Choice(group="ward")).groups is None


@pytest.mark.parametrize("names", [[7, 7, 8], ["7", "7", "8"], ["A", "A", "b"], [0.5, 0.5, 2.0]])
@pytest.mark.parametrize("by", ["group", "id"])
def test_groups_of_a_file_to_predict_are_those_of_training(by, names, tmp_path):
    pd.DataFrame({"p": names, "a": [1.0, 2.0, 4.0], "y": [1.5, 2, 3]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    choice = Choice(**{by: "p"})
    trained = load(str(tmp_path / "t.csv"), tmp_path, "y", choice=choice)
    again = read_rows(tmp_path / "t.csv", "y", trained.layout, choice)
    assert torch.equal(again.groups, trained.groups)


def test_a_regression_has_groups_and_an_npz_names_them_by_an_array(tmp_path):
    rng = np.random.default_rng(0)
    held = {"x": rng.normal(size=(90, 2)), "y": rng.normal(size=90), "ward": np.arange(90) // 3}
    np.savez(tmp_path / "t.npz", **held)
    found = load(str(tmp_path / "t.npz"), tmp_path, choice=Choice(group="ward"))
    assert found.layout.features == ("0", "1") and len(found.groups.unique()) == 30
    require_apart(sides(found, Deal(0, "validation", "iid", 1, 0.3)))
    np.savez(tmp_path / "t.npz", **{**held, "ward": np.zeros((90, 2))})
    with pytest.raises(SettingError, match="ward: .*; expected a group's name for each row"):
        load(str(tmp_path / "t.npz"), tmp_path, choice=Choice(group="ward"))


@pytest.mark.parametrize(
    ("choice", "change", "said"),
    [
        (Choice(group="Patient"), {}, "group: 'Patient'; .*perhaps patient"),
        (BY_PATIENT, {"patient": ["", *"ab" * 59, "a"]}, "row 1, group, column 'patient'"),
        (BY_PATIENT, {"patient": ["a"] * 120}, "no class of two rows, or groups"),
    ],
)
def test_what_names_no_groups_is_refused(choice, change, said, tmp_path):
    path, _ = table(tmp_path, **change)
    with pytest.raises(SettingError, match=said) as caught:
        load_labelled(path, tmp_path, "y", choice=choice).split(0)
    if isinstance(caught.value, CellError):
        assert "atient" not in caught.value.told and caught.value.told


def test_a_prescribed_test_part_with_a_group_of_the_training_part_is_refused():
    one, other = numbered([2, 2], 0), numbered([2], 1)
    assert with_test(Examples(one.x, one.y), other).split(0).test.tolist() == [4, 5]
    with pytest.raises(SettingError, match="1 groups in both parts"):
        with_test(one, other).split(0)


def pictures(folder, patients, of_each=3, shared=0):
    """Write a folder of images, a folder for each patient below each class."""
    rng = np.random.default_rng(len(str(folder)))
    for number in range(patients):
        name = f"P{number}"
        for k in range(of_each):
            place = folder / "ab"[number % 2 if number >= shared else k % 2] / name
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(pixels).save(place / f"{k}.png")
    return folder


def test_the_folder_below_a_class_is_a_group(tmp_path):
    folder = pictures(tmp_path / "scans", 40, shared=4)
    held = images.load(str(folder), tmp_path, False, group="folder")
    assert len(held.groups.unique()) + len(held.groups_test.unique()) == 40
    require_apart([*sides(held, Deal(None, "test", "dirichlet", 1, 0.3))])
    assert images.load(str(folder), tmp_path, False).groups is None
    shard = own_shard((str(folder), TWO, "none", "y", "folder"), Deal(holdout=0.5), 7)
    assert int(shard.independent.sum()) == 20 and len(shard.y_held_out) + len(shard.y) == 120
    found = read_images(folder, TWO, "none", "folder")
    assert len(found.groups.unique()) == 40 == len(found.independent().x)
    with pytest.raises(SettingError, match="group: 'patient'; expected none, or folder"):
        images.load(str(folder), tmp_path, False, group="patient")
    Image.new("L", (8, 8), 200).save(folder / "a" / "loose.png")
    with pytest.raises(SettingError, match="1 of 121 images right in the folder of a class"):
        images.load(str(folder), tmp_path, False, group="folder")


def test_parts_of_a_folder_that_share_a_group_are_refused(tmp_path):
    pictures(tmp_path / "d" / "train", 4)
    pictures(tmp_path / "d" / "test", 2)
    with pytest.raises(SettingError, match="2 groups in both parts"):
        images.load(str(tmp_path / "d"), tmp_path, False, group="folder")


def test_arrays_of_images_name_their_groups(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 8, 8), np.uint8), np.arange(120) % 2
    parts = {"x_train": x[:90], "y_train": y[:90], "x_test": x[90:], "y_test": y[90:]}
    names = {"ward_train": np.arange(90) // 3, "ward_test": np.array(["z"] * 30)}
    np.savez(tmp_path / "d.npz", **parts, **names)
    held = images.load(str(tmp_path / "d.npz"), tmp_path, False, group="ward")
    assert len(held.groups.unique()) == 30 and len(held.groups_test.unique()) == 1
    require_apart(sides(held, Deal(None, "validation", "iid", 1, 0.3)))
    np.savez(tmp_path / "own.npz", x=x, y=y, ward=np.arange(120) // 3)
    shard = own_shard((str(tmp_path / "own.npz"), TWO, "none", "y", "ward"), Deal(holdout=0.5), 7)
    assert int(shard.independent.sum()) == 20
    assert len(read_images(tmp_path / "own.npz", TWO, "none", "ward").independent().x) == 40
    np.savez(tmp_path / "d.npz", **parts)
    for name, allowed in (("ward", "ward_train and ward_test"), ("x", "groups")):
        with pytest.raises(SettingError, match=allowed):
            images.load(str(tmp_path / "d.npz"), tmp_path, False, group=name)
    with pytest.raises(SettingError, match="group: 'ward'; expected none"):
        images.load("digits", tmp_path, False, group="ward")


def test_a_column_beside_images_names_their_groups(tmp_path):
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    held = {
        "image": [Image.fromarray(p) for p in rng.integers(0, 256, (60, 8, 8), np.uint8)],
        "label": [k % 2 for k in range(60)],
        "patient": [f"P{k // 2}" for k in range(60)],
    }
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    features = datasets.Features({**kinds, "patient": datasets.Value("string")})
    datasets.Dataset.from_dict(held, features).save_to_disk(str(tmp_path / "d"))
    name = f"hf:{tmp_path / 'd'}"
    found = images.load(name, tmp_path, False, group="patient")
    assert len(found.groups.unique()) + len(found.groups_test.unique()) == 30
    with pytest.raises(
        SettingError, match="group: 'ward'; expected a column of .*: label, patient"
    ):
        images.load(name, tmp_path, False, group="ward")


class Letters:
    """Takes texts to the codes of their first four letters."""

    longest = 4

    def __call__(self, texts):
        codes = [[ord(c) for c in text[:4].ljust(4)] for text in texts]
        return torch.tensor(codes, dtype=torch.int32), 0

    def empty(self, tokens):
        return (tokens == 32).all(1)

    def unknown(self, tokens):
        return torch.zeros(len(tokens), dtype=torch.bool)


def test_texts_of_a_group_stay_together(tmp_path):
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list("abcdefgh"), 4)) for _ in range(120)]
    path, _ = table(tmp_path, text=["", *texts[1:]])
    frame = load_frame(path, tmp_path, "y", False, BY_PATIENT)
    rows_of_texts = read_texts(frame, "text", Letters())
    held = dataset_of(rows_of_texts)
    assert len(held.groups) + len(held.groups_test) == 119
    require_apart(sides(held, Deal(None, "test", "iid", 1, 0.3)))
    known = rows_of_texts.known()
    shard = site_shard(*known.examples, Deal(holdout=0.5), 3, known.groups)
    assert int(shard.independent.sum()) == 20


def test_equal_names_alone_have_equal_numbers():
    one, other, again = group_numbers(["Ann", "Bob", "Ann"]).tolist()
    assert one == again != other and group_numbers([]).tolist() == []
