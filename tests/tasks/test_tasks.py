"""What holds for every task by its name alone: signature, limits, questions, a run and its line."""

import math
from collections import defaultdict

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from own_texts import texts, write_model, write_table
from runs_of import lines

from fedbary.data.sites import Site
from fedbary.data.standardise import Sums
from fedbary.errors import RunError, SettingError
from fedbary.parts.registry import modules
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import _sums, task_of

TASKS = modules("tasks")
every_task = pytest.mark.parametrize("name", TASKS)


OWN = {}
"""The settings of a task that has no data set of its own."""


@pytest.fixture(scope="module", autouse=True)
def _own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    table = write_table(folder / "texts.csv", texts(90))
    network = write_model(folder / "model")
    times = (f"{1 + k % 17},{k % 2},{k * k % 11}" for k in range(90))
    (folder / "times.csv").write_text("\n".join(["days,died,age", *times]))
    OWN["survival"] = {"dataset": str(folder / "times.csv"), "target": "days", "event": "died"}
    OWN["text"] = {"dataset": str(table), "text": "body", "backbone": network, "min_examples": 1}


def settings(name, **changes):
    quick = {"engine": "inline", "clients": 3, "rounds": 1, "samples": 3}
    quick |= {} if name in ("glm", "survival") else {"local_epochs": 1}
    return resolve({"task": name, **quick, **OWN.get(name, {}), **changes})


@pytest.mark.slow
@every_task
def test_a_signature_travels_and_the_data_fit_it(name):
    task = task_of(settings(name))
    task.check(own_data=False)
    signature = task.signature()
    there = task.signature_from(ConfigRecord({**signature.config()}))
    assert there == signature and hash(there) == hash(signature)
    shard = task.shard(Site("partition 0", "", 0, 3), there)
    counts = task.label_counts(shard, there)
    assert len(counts) == len(signature.classes)
    assert not counts or sum(counts) == len(shard.y) + len(shard.y_held_out)
    with pytest.raises(ValueError, match="no question 'gossip'"):
        task.answer("gossip", shard, {}, {})


@pytest.mark.slow
@every_task
def test_a_run_scores_every_round_and_draws(name, tmp_path):
    chosen = settings(name, evaluate_clients=1)
    run_inline(chosen, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    task = task_of(chosen)
    assert all(math.isfinite(line[score]) for score, *_ in task.curves)
    assert all(client["num-examples"] > 0 for client in line["clients"])
    assert (tmp_path / "run" / "learning-curves.png").exists()


@every_task
def test_what_cannot_be_scored_is_said_to_be_so(name):
    said = task_of(settings(name)).said(defaultdict(lambda: math.nan))
    assert said.startswith("not scored, ") and "nan" not in said


@every_task
@pytest.mark.parametrize("change", [{"dataset": "gone"}, {"task": "divination"}, {"rule": "RKBL"}])
def test_what_there_is_not_is_one_line(name, change):
    with pytest.raises(SettingError) as caught:
        task_of(settings(name, **change)).check(own_data=False)
    assert next(iter(change.values())) in str(caught.value)


def held(dialogue, sites, liars=()):
    """Hold a dialogue with columns of rows as the sites; liars answer what they like."""
    question = next(dialogue)
    asked = {place: ("honest", rows) for place, rows in enumerate(sites)}
    asked |= {len(sites) + place: ("liar", lie) for place, lie in enumerate(liars)}
    try:
        while True:
            answers = []
            for place, (kind, what) in list(asked.items()):
                said = _sums.answer(what, question.config) if kind == "honest" else what
                try:
                    answers.append(question.read(said, len(what) if kind == "honest" else 50))
                except Exception:  # noqa: BLE001 - as the server, which trusts none
                    del asked[place]
            question = dialogue.send(answers)
    except StopIteration as end:
        return end.value


lies = st.fixed_dictionaries(
    {},
    optional={
        "count": st.one_of(st.integers(-5, 10**6), st.none(), st.text(), st.floats()),
        "total": st.one_of(st.none(), st.lists(st.floats(), max_size=4)),
        "squares": st.one_of(st.none(), st.lists(st.floats(max_value=-1e-300), max_size=4)),
    },
)


@pytest.mark.slow
@given(st.lists(lies, max_size=3), st.integers(0, 10**6), st.floats(-1e6, 1e6))
def test_the_sums_are_those_of_all_honest_rows_whatever_others_send(lies, seed, far):
    generator = torch.Generator().manual_seed(seed)
    sites = [torch.randn(n, 3, generator=generator).double() + far for n in (4, 9)]
    rows = torch.cat(sites)
    sums = held(_sums.ask(3), sites, lies)
    assert sums.count == 13
    torch.testing.assert_close(sums.mean, rows.mean(0))
    torch.testing.assert_close(sums.var, rows.var(0, correction=0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("far", "questions"), [(0.0, 1), (3.0, 1), (1000.0, 2)])
def test_columns_far_from_0_are_asked_for_again(far, questions):
    rows = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double() + far
    dialogue, asked = _sums.ask(2), 1
    question = next(dialogue)
    with pytest.raises(StopIteration) as end:
        while True:
            answers = [question.read(_sums.answer(rows, question.config), 50)]
            question = dialogue.send(answers)
            asked += 1
    assert asked == questions
    torch.testing.assert_close(end.value.value.var, rows.var(0, correction=0), rtol=1e-11, atol=0)


def test_without_an_answer_there_is_no_standardisation():
    with pytest.raises(RunError, match="no node answered"):
        held(_sums.ask(2), [], [{"count": 1}])


def test_an_answer_of_more_rows_than_a_site_trains_on_is_none():
    said = _sums.answer(torch.ones(5, 2), {"shift": [0.0, 0.0]})
    assert isinstance(_sums.read(said, 5, torch.zeros(2)), Sums)
    with pytest.raises(ValueError, match="it claims 5 rows but trains on 4"):
        _sums.read(said, 4, torch.zeros(2))


@given(st.data(), st.integers(2, 4), st.integers(0, 10**6))
def test_rows_of_classes_are_counts_whatever_one_site_sends(data, classes, seed):
    """Each site's rows are as many in all as it said, and none of a class is below 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (7,), generator=generator)
    honest = torch.nn.functional.one_hot(labels, classes).double()
    numbers = st.lists(st.floats(-1e9, 1e9), min_size=classes, max_size=classes)
    wide = st.lists(st.floats(0, 1e280), min_size=classes, max_size=classes)
    lie = {"count": data.draw(st.integers(1, 50)), "total": data.draw(numbers)}
    lie["squares"] = data.draw(st.one_of(st.just([t * t for t in lie["total"]]), wide))
    sums = held(_sums.ask(classes, classes), [honest], [lie])
    rows = sums.mean * sums.count
    assert (rows > -1e-3).all() and rows.sum().item() == pytest.approx(sums.count, abs=1e-3)
    assert (rows - honest.sum(0) < 50 + 1e-3).all()
