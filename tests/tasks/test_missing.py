"""Missing values: filled from all sites' sums, as if the sites had shared their rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedbary import client_app
from fedbary.data.standardise import Sums
from fedbary.data.tables import load_labelled
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import _sums, task_of


def sites(folder, count=3, rows=50):
    """Write a server's and some sites' tables with holes; return the sites' together."""
    rng = np.random.default_rng(0)
    held = []
    for number in range(count + 1):
        age = rng.exponential(30, rows).round(2)
        ward = rng.choice(["a", "b", "c"], rows).astype(object)
        table = pd.DataFrame({"age": age, "ward": ward, "size": rng.normal(size=rows)})
        table["out"] = np.where(table["size"] > 0, "x", "y")
        table["cost"] = 1000 * table["size"] + age
        table.loc[rng.random(rows) < 0.3, "age"] = np.nan
        table.loc[rng.random(rows) < 0.2, "ward"] = None
        table.to_csv(folder / f"{number}.csv", index=False)
        held.append(table)
    return pd.concat(held[1:])


def federated(folder, task, missing):
    held = sites(folder)
    about = {"task": task, "target": "out" if task == "tables" else "cost", "missing": missing}
    about |= {"leave_out": "cost" if task == "tables" else "out", "holdout": 0.0}
    about |= {"dataset": str(folder / "0.csv"), "pictures": False, "clients": 3, "rounds": 1}
    chosen = resolve({**about, "engine": "inline", "local_epochs": 1})
    nodes = [{"data-path": str(folder / f"{n}.csv"), "name": str(n)} for n in (1, 2, 3)]
    run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "run")
    return held, chosen, load_file(folder / "run" / "standardiser.safetensors")


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("task", ["tables", "regression"])
@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_values_are_filled_as_if_all_rows_lay_together(missing, task, tmp_path):
    held, chosen, facts = federated(tmp_path, task, missing)
    features = ["age", "ward=a", "ward=b", "ward=c", "size"]
    features += ["age missing", "ward missing"] if missing == "indicator" else []
    assert task_of(chosen).signature().features == tuple(features)
    known = held["ward"].dropna()
    shares = [float((known == ward).mean()) for ward in "abc"]
    mean = [held["age"].mean(), *shares, held["size"].mean()]
    assert facts["mean"][:5].tolist() == pytest.approx(mean)
    assert float(facts["std"][0]) == pytest.approx(held["age"].std(ddof=0))
    fill = mean
    if missing == "median":
        fill = [held["age"].median(), *shares, held["size"].median()]
        # halfway between the two middle values there are others as good
        assert abs(float(facts["fill"][0]) - fill[0]) < 0.5
        fill[0], fill[4] = facts["fill"][[0, 4]].tolist()
    assert facts["fill"][:5].tolist() == pytest.approx(fill)
    if missing == "indicator":
        gone = [held["age"].isna().mean(), held["ward"].isna().mean()]
        assert facts["mean"][5:7].tolist() == pytest.approx(gone)
    assert load_file(tmp_path / "run" / "posterior.safetensors")


def test_without_the_setting_a_missing_value_is_refused_with_the_way_out(tmp_path):
    sites(tmp_path)
    with pytest.raises(SettingError, match=r"feature 'age': .*see missing="):
        load_labelled(str(tmp_path / "0.csv"), tmp_path, "out")


columns = st.lists(
    st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=2, max_size=2), min_size=1
)


@given(st.lists(columns, min_size=1, max_size=4))
def test_a_median_from_counts_has_half_the_values_on_either_side(parts):
    parts = [torch.tensor(part).double() for part in parts]
    whole = torch.cat(parts)
    dialogue = _sums.ask_medians(Sums.of(whole, whole.nan_to_num().mean(0), missing=True))
    question = next(dialogue)
    with pytest.raises(StopIteration) as ended:
        while True:
            told = [_sums.answer_medians(part, question.config) for part in parts]
            read = [question.read(one, len(part)) for one, part in zip(told, parts, strict=True)]
            question = dialogue.send(read)
    for found, values in zip(ended.value.value, whole.T, strict=True):
        known = values[~values.isnan()]
        if len(known):
            near = 1e-4 * float(known.std(correction=0)) + 1e-9 * float(known.abs().max())
            assert (known <= found + near).sum() >= len(known) / 2
            assert (known >= found - near).sum() >= len(known) / 2


@pytest.mark.parametrize(
    "changed", [{"seen": [1.0]}, {"seen": [99, 99]}, {"below": [3] * 30}, {"seen": [-1, 2]}]
)
def test_counts_that_no_rows_have_are_not_believed(changed):
    points = {"points": [0.0] * 30, "of-columns": [0, 1]}
    told = _sums.answer_medians(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]).double(), points)
    assert _sums.read_medians(told, 2, 2)[1].tolist() == [2, 1]
    with pytest.raises(ValueError):
        _sums.read_medians({**told, **changed}, 2, 2)


@pytest.mark.parametrize(
    ("changes", "features"),
    [
        ({}, ("key", "age", "sex=f", "sex=m")),
        ({"columns": "sex,age"}, ("sex=f", "sex=m", "age")),
        ({"columns": ["age", "sex"], "leave_out": "sex"}, ("age",)),
        ({"leave_out": " sex , age"}, ("key",)),
        ({"id": "key"}, ("age", "sex=f", "sex=m")),
    ],
)
@pytest.mark.parametrize("task", ["tables", "regression"])
def test_columns_are_chosen_by_name(task, changes, features, tmp_path):
    rows = "".join(f"{i},{20 + i},{'mf'[i % 2]},{i % 3}\n" for i in range(20))
    (tmp_path / "t.csv").write_text("key,age,sex,out\n" + rows)
    about = {"task": task, "dataset": str(tmp_path / "t.csv"), "target": "out"}
    assert task_of(resolve({**about, **changes})).signature().features == features
    for setting in ("columns", "leave_out"):
        with pytest.raises(SettingError, match=f"{setting}: 'Age'.*; perhaps age"):
            task_of(resolve({**about, setting: "Age"})).signature()
    with pytest.raises(SettingError, match="leave_out: .*at least one column"):
        task_of(resolve({**about, "columns": "age", "id": "age"})).signature()


def test_a_loaded_run_fills_too_and_gives_the_ids_back(tmp_path, monkeypatch):
    import fedbary
    from fedbary.commands.use import predict

    monkeypatch.chdir(tmp_path)
    held = pd.concat([sites(tmp_path)], ignore_index=True)
    held["patient"] = [f"=P{i}" for i in range(len(held))]
    held.to_csv("all.csv", index=False)
    about = {"task": "tables", "dataset": "all.csv", "target": "out", "leave_out": "cost"}
    about |= {"missing": "mean", "id": "patient", "clients": 2, "rounds": 1, "local_epochs": 1}
    run_inline(resolve({**about, "pictures": False, "partition": "iid"}), tmp_path / "run")
    held.head(7).to_csv("new.csv", index=False)
    predict(tmp_path / "run", tmp_path / "new.csv")
    found = pd.read_csv("predictions.csv")
    assert found["patient"].tolist() == [f"'=P{i}" for i in range(7)]
    assert found["p(x)"].notna().all() and list(found)[:3] == ["example", "patient", "class"]
    trained = fedbary.load(tmp_path / "run")
    x = trained.read("new.csv").x
    filled = x.where(~x.isnan(), trained.facts["fill"])
    assert torch.equal(trained.predict(x).probs, trained.predict(filled).probs)
