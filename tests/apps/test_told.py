"""What the server tells with each training message, and a share of the prior by that."""

import math
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from nodes import Grid
from refusals import refused
from runs_of import SHORT, tensors

from fedbary import client_app
from fedbary.client_app.answers import require_same_app
from fedbary.client_app.node import Node
from fedbary.data.deal import training_data
from fedbary.gaussian import Posterior
from fedbary.inference import PosteriorParameters
from fedbary.predictive.regression import RegressionStandardiser
from fedbary.runs.commit import APP_KEY, app_digest
from fedbary.server_app import run
from fedbary.server_app.engine.inline import run_inline
from fedbary.server_app.rounds import Rounds
from fedbary.settings.config import resolve
from fedbary.strategies.client import Request, part_asked, share_of
from fedbary.strategies.federation import ASKED_KEY, EXAMPLES_KEY
from fedbary.tasks import task_of


def test_a_client_that_runs_other_code_of_fedbary_says_so_and_sends_nothing():
    """Trap: Ray's workers imported fedbary from the folder where the SuperLink was started."""
    require_same_app({APP_KEY: app_digest()})
    require_same_app({})  # a question after the first
    refused("code of fedbary.*SuperLink", require_same_app, {APP_KEY: "0" * 16})


class Heard(Grid):
    """It notes what training messages say, and in round 1 lets nobody answer."""

    def push_messages(self, messages):
        messages = list(messages)
        configs = [m.content.config_records.get("config", {}) for m in messages]
        trains = [m.metadata.message_type == "train" for m in messages]
        self.said += [dict(c) for c, is_train in zip(configs, trains, strict=True) if is_train]
        first = any(trains) and configs[0]["server-round"] == 1
        self.mute = {m.metadata.dst_node_id for m in messages} if first else set()
        return super().push_messages(messages)


def test_a_message_says_how_many_examples_are_asked_of_all_and_how_many_rounds_counted(tmp_path):
    chosen = resolve(
        {"task": "regression", "method": "FALD", "engine": "inline", "pictures": False,
         "device": "cpu", "clients": 4, "participation": 0.5, "rounds": 3, "min_replies": 1,
         "noise": "learned", "local_steps": 1, "evaluate_clients": 0, "round_timeout": 1}
    )  # fmt: skip
    grid = Heard(client_app.app, chosen)
    grid.said = []
    run(grid, chosen, tmp_path / "run")
    rounds = {n: [s for s in grid.said if s["server-round"] == n] for n in (1, 2, 3)}
    assert [rounds[n][0]["counted-rounds"] for n in rounds] == [0, 0, 1]
    for said in grid.said:
        assert said["all-examples"] > said["asked-examples"] > 0 and said["all-clients"] == 4
        assert 0.2 < part_asked(ConfigRecord(said)) < 0.8


def test_until_a_round_counts_there_is_no_global_posterior_to_be_the_prior():
    """Trap: after a skipped round 1 the untrained start was the prior, a precision of 1097."""
    start = {"a_mean": torch.tensor(0.7), "a_log_var": torch.tensor(-7.0)}
    node = Node(SimpleNamespace(local=PosteriorParameters(prior="global")), None)
    first, later = (
        Request(None, ConfigRecord({"counted-rounds": count}), start, None) for count in (0, 1)
    )
    assert node.prior(first) == 1.0
    assert isinstance(node.prior(later), Posterior)


@given(st.integers(-5, 100), st.integers(-5, 100))
def test_the_part_asked_is_above_nothing_and_at_most_all(asked, every):
    found = part_asked(ConfigRecord({"asked-examples": asked, "all-examples": every}))
    assert 0 < found <= 1
    assert found == pytest.approx(asked / every) if 0 < asked <= every else found == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_the_mean_client_has_a_share_of_one(sizes):
    told = ConfigRecord({"all-clients": len(sizes), "all-examples": sum(sizes)})
    assert sum(share_of(told, size) for size in sizes) == pytest.approx(len(sizes))


def test_where_nobody_says_so_all_are_asked_and_alike():
    assert part_asked(ConfigRecord({})) == share_of(ConfigRecord({}), 7) == 1


NOISE_VAR = 0.5
LINEAR = {
    **SHORT, "task": "regression", "method": "barycentre", "rule": "RKLB", "model": "linear",
    "noise": NOISE_VAR, "predictive": "montecarlo", "inference": "natural_gradient",
    "bayesian_layers": 1, "clients": 4, "partition": "quantity", "alpha": 0.5, "local_epochs": 300,
    "batch_size": 64, "lr": 0.003, "log_var_lr": 0.003, "prior_std": 0.1, "weight_decay": 0,
    "evaluate_clients": 0,
}  # fmt: skip


def standardised(chosen, facts):
    x, y = training_data(task_of(chosen).held, task_of(chosen).deal)
    by = RegressionStandardiser(**facts)
    return by.features(x).double(), by.target(y).double()


def test_through_the_apps_precisions_are_those_of_all_data_whatever_the_sizes(tmp_path):
    """With 1/K, or 1, they are not: the prior is counted too often at small clients."""
    gaps = {}
    for word in ("share", 0.25, 1.0):
        chosen = resolve({**LINEAR, "kl_weight": word})
        run_inline(chosen, tmp_path / str(word))
        x, _ = standardised(chosen, tensors(tmp_path / str(word), "standardiser"))
        exact = x.square().sum(0) / NOISE_VAR + 100
        found = tensors(tmp_path / str(word))
        (log_var,) = (t for name, t in found.items() if name.endswith("_log_var"))
        gaps[word] = (log_var.double().flatten() + exact.log()).abs().max()
    assert gaps["share"] < 0.1
    assert gaps[0.25] > 0.3 and gaps[1.0] > 0.3


def test_a_client_s_share_is_of_all_clients_not_of_those_that_train(tmp_path, monkeypatch):
    seen = []
    training = Node.training

    def spy(self, request, examples):
        found = training(self, request, examples)
        seen.append((self.site.partition, examples, found.kl_weight))
        return found

    monkeypatch.setattr(Node, "training", spy)
    chosen = resolve(
        {**LINEAR, "kl_weight": "share", "participation": 0.5, "rounds": 3, "local_epochs": 1}
    )
    run_inline(chosen, tmp_path / "run")
    total = len(training_data(task_of(chosen).held, task_of(chosen).deal)[1])
    assert len(seen) == 6 and len({examples for _, examples, _ in seen}) > 1
    assert all(math.isclose(found, examples / total) for _, examples, found in seen)


@pytest.mark.parametrize("value", ["shares", "nan", "inf", -0.1, ""])
def test_other_words_and_numbers_are_refused(value):
    refused("kl_weight.*share, or a number from 0 up", resolve, {"kl_weight": value})


def test_a_method_that_counts_the_prior_itself_does_not_take_it():
    refused("kl_weight.*PVI", resolve, {"method": "PVI", "kl_weight": "share"})


def test_a_claim_that_max_weight_ratio_bounds_leaves_the_others_their_shares():
    """Three sites of 100 examples, and one that says it holds a thousand million."""
    settings = resolve({**LINEAR, "kl_weight": "share", "max_weight_ratio": 2.0})
    members = [SimpleNamespace(num_examples=n) for n in (100, 100, 100, 10**9)]
    roster = SimpleNamespace(members=members, trained_on=lambda node: members[node].num_examples)
    strategy = SimpleNamespace(counted=0)
    rounds = Rounds(roster, None, SimpleNamespace(settings=settings, strategy=strategy), {})
    rounds._trainers = [0, 3]
    told = rounds.tell()
    assert told[EXAMPLES_KEY] == 500 and told[ASKED_KEY] == 300
    request = SimpleNamespace(config=told, round=1)
    shares = [Node(settings, None).training(request, n).kl_weight for n in (100, 10**9)]
    assert shares == [0.2, 1.0]
