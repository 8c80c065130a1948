"""A server that picks its questions, facts and points is shown no few rows of a site."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord
from runs_of import INLINE

from fedbary import client_app
from fedbary.aggregation.covariance import unpacked
from fedbary.errors import RunError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

ROWS, SITE = 600, 2
GLM = {"task": "glm", "target": "ill", "terms": "age crp", "intercepts": "common"}
HAZARD = {"task": "survival", "target": "days", "event": "died", "terms": "age crp"}


def table(seed):
    """Rows of a realistic table."""
    draw = np.random.default_rng(seed)
    age, crp = draw.normal(60, 12, ROWS).round(1), np.exp(draw.normal(1, 1, ROWS)).round(2)
    risk = 0.04 * (age - 60) + 0.3 * np.log(crp) - 0.8
    found = pd.DataFrame({"age": age, "crp": crp, "dose": np.arange(ROWS) % 2})
    found.loc[7, "dose"] = 2
    found["ill"] = np.where(draw.random(ROWS) < 1 / (1 + np.exp(-risk)), "y", "n")
    found["days"] = (400 * draw.exponential(np.exp(-risk)) + 0.1).round(1)
    found["died"] = (draw.random(ROWS) < 0.7).astype(float)
    return found


class Server(InlineGrid):
    """A server that keeps what an honest one asks, and asks it again with words of its own."""

    def __init__(self, folder, words):
        for seed, name in enumerate(("server", "site")):
            table(seed).to_csv(folder / f"{name}.csv", index=False)
        held = {"dataset": f"{folder}/server.csv", "clients": 1, "method": "Newton", "rounds": 9}
        chosen = resolve({**INLINE, **held, **words})
        self.state, self.asked, self.is_honest = folder / "state", {}, True
        node = {"data-path": f"{folder}/site.csv", "name": "a", "state-path": f"{self.state}"}
        super().__init__(client_app.app, [node], chosen.model_dump())
        try:
            run(self, chosen, folder / f"run {len([*folder.glob('run *')])}")
        except RunError:
            pass  # the site's budget is spent
        self.is_honest = False

    def _answer(self, message):
        config = message.content.config_records["config"]
        kind = config.get("of", config.get("question", message.metadata.message_type))
        if self.is_honest:
            self.asked[kind] = copy.deepcopy(message.content), message.metadata.message_type
        return super()._answer(message)

    @property
    def sent(self):
        """What the site has counted."""
        return json.loads((self.state / "sent.json").read_bytes())

    def begin(self):
        """Let the site forget."""
        for name in ("sent.json", "answered.safetensors", "functions.json", "data.json"):
            (self.state / name).unlink(missing_ok=True)
        self.ask("query")

    def look(self):
        """Return how many rows a look is of."""
        self.asked["look"] = copy.deepcopy(self.asked["query"][0]), "query.look"
        return self.ask("look")["metrics"]["num-examples"]

    def ask(self, kind, point=None, **words):
        """Return the site's answer, or its error's text."""
        content, message_type = copy.deepcopy(self.asked[kind])
        content["config"].update(words)
        if point is not None:
            weight, *bias = point
            held = {"output.weight": torch.tensor([weight])}
            held |= {"output.bias": torch.tensor(bias)} if bias else {}
            content["arrays"] = ArrayRecord(held)
        message = self.create_message(content, message_type, SITE, "1")
        (reply,) = self.send_and_receive([message])
        return reply.content if reply.has_content() else reply.error.reason


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    return Server(tmp_path_factory.mktemp("glm"), GLM)


OWN = {"fact.turn": [1.0, 0.0, 0.0, 1.0], "fact.centre": [0.0, 0.0]}


def curvature(answer):
    """Return the Hessian of an answer."""
    tensors = answer["arrays"].to_torch_state_dict()
    return unpacked(tensors["sums/hessian"], len(tensors["sums/gradient"])).numpy()


def test_a_point_at_which_few_rows_have_weight_has_no_answer(glm):
    """Such a point would show rows one by one: here all but a year of age have none."""
    glm.begin()
    before = glm.sent
    for age in (45.0, 60.05, 75.0):
        assert "more of a site's rows" in glm.ask("train", ([30.0, 0.0], -30.0 * age), **OWN)
    assert glm.sent["numbers"] == before["numbers"] + 3  # each refusal tells a bit
    assert "more of a site's rows" in glm.ask("train", ([0.0, 0.0], 900.0), **OWN)
    seen = curvature(glm.ask("train", ([0.1, 0.1], -6.5), **OWN))
    assert seen[-1, -1] > 14 / 4


def test_facts_that_round_columns_have_no_answer(glm):
    """Rounding makes a column that is 0 but for one row, whose products show it."""
    glm.begin()
    age = np.sort(table(1).age).tolist()
    step = (age[-1] + age[-2]) / 2
    middle, least = (age[0] + step) / 2 - 1, 1.401298464324817e-45
    for turn, centre in (
        ([least / 2 / (step - middle), 0.0, 0.0, 1.0], [middle, 0.0]),
        (OWN["fact.turn"], [-float(2**24), 0.0]),
        (OWN["fact.turn"], [float("nan"), 0.0]),
        ([1e300, 0.0, 0.0, 1.0], [0.0, 0.0]),
        ([1.0, -1.0, 0.0, 1.0], [float(2**56), float(2**56)]),
    ):
        said = glm.ask("train", **{"fact.turn": turn, "fact.centre": centre})
        assert isinstance(said, str) and "keep the digits" in said


def test_another_method_than_the_run_s_has_no_answer(glm):
    glm.begin()
    content, _ = glm.asked["train"]
    for name in [key for key in content["config"] if key.startswith("method.")]:
        del content["config"][name]
    assert "method: expected Newton" in glm.ask("train", method="FedAvgM")


def test_knots_of_all_runs_count_together(tmp_path):
    """Five runs whose knots differ by little would show the rows between these."""
    server = Server(tmp_path, {**GLM, "terms": "spline(age,4) crp"})
    server.begin()
    knots = list(server.asked["moments"][0]["config"]["all-knots"])
    said = []
    for step in range(5):
        moved = [*knots[:2], knots[2] + step / 10, *knots[3:]]
        said.append(server.ask("moments", **{"all-knots": moved}))
    assert not isinstance(said[0], str) and "those of earlier runs" in said[-1]
    assert "rise" in server.ask("moments", **{"all-knots": knots[::-1]})


def test_functions_of_all_runs_count_together(tmp_path):
    """Sums of a column less those of its square are of the one row that has 2."""
    rows = []
    for terms in ("dose age", "dose^2 age", "dose age"):
        words = {**GLM, "terms": terms, "rounds": 1}
        server = Server(tmp_path, words)
        rows.append(server.ask("query")["metrics"]["num-examples"])
    assert rows[0] == rows[2] == ROWS and rows[1] <= ROWS - 10


@pytest.mark.parametrize("look_first", [True, False])
def test_a_look_counts_as_a_run_of_the_columns_themselves(tmp_path, look_first):
    server = Server(tmp_path, {**GLM, "terms": "dose^2 age", "rounds": 1})
    for file in ("answered.safetensors", "functions.json"):
        (server.state / file).unlink()

    def run_rows():
        return server.ask("query")["metrics"]["num-examples"]

    answers = [server.look, run_rows] if look_first else [run_rows, server.look]
    first, second = (answer() for answer in answers)
    assert first == ROWS and second <= ROWS - 10


def test_cuts_that_hold_the_ends_of_few_rows_have_no_answer(tmp_path):
    """Sums of two intervals differ by the rows that end in the first, in one run or in two."""
    server = Server(tmp_path, HAZARD)
    server.begin()
    times = np.unique(table(1).days)
    spread = times[np.arange(1, 8) * 70].tolist()
    for cuts in (times[300:307].tolist(), [*spread[:-1], float(times[-2])], spread[::-1]):
        said = server.ask("intervals", cuts=cuts)
        assert isinstance(said, str) and ("fewer intervals" in said or "rise" in said)
        said = server.ask("train", **{"fact.cuts": cuts})
        assert isinstance(said, str) and ("fewer intervals" in said or "rise" in said)
    assert not isinstance(server.ask("intervals", cuts=spread), str)
    moved = [cut + 0.2 for cut in spread]
    assert "those of earlier runs" in server.ask("intervals", cuts=moved)


def test_cox_risk_sets_that_one_row_dominates_have_no_answer(tmp_path):
    server = Server(tmp_path, {**HAZARD, "family": "cox"})
    server.begin()
    assert "more of a site's rows" in server.ask("train", ([20.0, 0.0],))
    assert not isinstance(server.ask("train", ([0.3, 0.3],)), str)
