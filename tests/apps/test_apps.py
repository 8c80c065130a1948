"""The two apps together, in one process: what a run writes, how it repeats, what it survives."""

import pytest
import torch
import yaml
from every_method import NIGHT
from hostile_site import run_with
from runs_of import SHORT, lines, network, posterior, same

from fedbary import Posterior, client_app
from fedbary.aggregation import RULES, aggregate
from fedbary.data.deal import client_shard
from fedbary.errors import RunError
from fedbary.inference import Local, Training, local_method
from fedbary.seeds import derive_seed
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

QUICK = {
    **SHORT, "clients": 3, "rounds": 2, "samples": 3, "bayesian_layers": 2, "normalise": "none",
    "train_fraction": 0.3,
}  # fmt: skip


SMALL = {"clients": 5, "rounds": 4, "min_examples": 5, "model": "linear", "bayesian_layers": 1}
SITES = ["partition 0", "partition 1", "partition 2"]


def settings(**changes):
    return resolve({**QUICK, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apps") / "run"
    run_inline(settings(pictures=True), folder)
    return folder


def test_a_run_folder_holds_settings_metrics_posterior_and_pictures(finished):
    assert {path.name for path in finished.iterdir()} == {
        "settings.yaml", "metrics.jsonl", "record.jsonl", "posterior.safetensors", "partition.png",
        "learning-curves.png", "reliability.png", "signature.json",
        "data.json", "data-rows.safetensors",
        "checkpoint-0001.safetensors", "checkpoint-0002.safetensors",
    }  # fmt: skip
    written = yaml.safe_load((finished / "settings.yaml").read_text())
    assert resolve(written["settings"]) == settings(output=str(finished), pictures=True)
    assert {"fedbary", "flwr", "torch", "numpy", "ray", "python"} <= written["versions"].keys()
    assert written["commit"]
    assert (written["nodes"], written["device"]) == (3, "cpu")


def test_every_round_is_a_line_with_global_and_client_metrics(finished):
    rounds = lines(finished)
    assert [line["round"] for line in rounds] == [0, 1, 2]
    for line in rounds:
        assert {"accuracy", "nll", "ece", "brier", "seconds"} <= line.keys()
    for line in rounds[1:]:
        assert line["admitted"] == 3
        assert line["refused"] == []
        assert not line["skipped"]
        for part in ("local_models", "held_out"):
            fair = line[part]
            assert 0 <= fair["worst10_accuracy"] <= fair["weighted_accuracy"] <= 1
        for clients, prefix in ((line["clients"], "local-"), (line["held_out"]["clients"], "")):
            assert [client["site"] for client in clients] == SITES
            for name in ("accuracy", "nll", "ece", "brier"):
                assert all(prefix + name in client for client in clients)


def test_the_posterior_has_the_models_tensors(finished):
    assert posterior(finished).keys() == network(settings()).state_dict().keys()


def test_a_posterior_travels_once_either_way(finished):
    """Four bytes a number, and each array's header."""
    tensors = posterior(finished).values()
    numbers = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    for line in lines(finished)[1:]:
        assert line["bytes"]["down"] == line["bytes"]["up"]
        assert 0 <= line["bytes"]["up"] - numbers <= 256 * len(tensors)


def test_one_seed_one_result_with_pictures_or_without(finished, tmp_path):
    run_inline(settings(), tmp_path / "again")
    assert same(posterior(finished), posterior(tmp_path / "again"))
    names, others = ({path.name for path in f.iterdir()} for f in (finished, tmp_path / "again"))
    assert others == {name for name in names if not name.endswith(".png")}
    run_inline(settings(seed=1), tmp_path / "other")
    assert not same(posterior(finished), posterior(tmp_path / "other"))


def test_a_replicate_starts_alike_and_trains_otherwise(finished, tmp_path):
    run_inline(settings(replicate=1), tmp_path / "again")
    first, again = lines(finished), lines(tmp_path / "again")
    assert again[0]["nll"] == first[0]["nll"] and again[1]["nll"] != first[1]["nll"]
    counts = [yaml.safe_load((folder / "settings.yaml").read_text())["label_counts"]
              for folder in (finished, tmp_path / "again")]  # fmt: skip
    assert counts[0] == counts[1]


def test_measuring_more_or_less_does_not_change_the_model(finished, tmp_path):
    run_inline(settings(evaluate_clients=0, samples=7), tmp_path / "run")
    assert same(posterior(finished), posterior(tmp_path / "run"))
    assert "local_models" not in lines(tmp_path / "run")[1]


def test_clients_that_hold_nothing_out_are_not_asked_to_evaluate(tmp_path):
    run_inline(settings(holdout=0.0), tmp_path / "run")
    for line in lines(tmp_path / "run")[1:]:
        assert line["refused"] == []
        assert "held_out" not in line
        assert "local_models" in line


@pytest.mark.parametrize("rule", RULES if NIGHT else ["GAA"])
def test_every_rule_runs_and_the_first_round_is_its_aggregate(rule, tmp_path):
    chosen = settings(rule=rule, rounds=1, evaluate_clients=0)
    run_inline(chosen, tmp_path / "run")
    posteriors, weights = [], []
    task = task_of(chosen)
    for client in range(3):
        shard, model = client_shard(task.held, task.deal, 3, client), network(chosen)
        training = Training(
            1, chosen.batch_size, chosen.lr, chosen.momentum, chosen.weight_decay,
            chosen.log_var_lr, chosen.kl_weight, chosen.max_grad_norm,
        )  # fmt: skip
        seed = derive_seed(0, "train", client, 1)
        augment = task.held.augment
        local_method("variational")(
            Local(model, shard.x, shard.y, training=training, seed=seed, augment=augment)
        )
        posteriors.append(Posterior.from_state_dict(model.state_dict()))
        weights.append(len(shard.y))
    expected = aggregate(rule, posteriors, weights).state_dict()
    for name, tensor in posterior(tmp_path / "run").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_part_of_the_clients_train_chosen_by_the_seed(tmp_path):
    chosen = settings(**SMALL, participation=0.4)
    trained = []
    for name in ("one", "two"):
        run_inline(chosen, tmp_path / name)
        rounds = lines(tmp_path / name)[1:]
        trained.append([[c["site"] for c in line["clients"]] for line in rounds])
    assert trained[0] == trained[1]
    assert all(len(clients) == 2 for clients in trained[0])
    assert len({tuple(clients) for clients in trained[0]}) > 1
    assert same(posterior(tmp_path / "one"), posterior(tmp_path / "two"))


def test_part_of_the_clients_scores_the_model_until_all_do_after_the_last_round(tmp_path):
    chosen = settings(**SMALL)
    run_inline(chosen, tmp_path / "all")
    run_inline(chosen.model_copy(update={"evaluate_fraction": 0.4}), tmp_path / "part")
    scored = [
        [client["site"] for client in line["held_out"]["clients"]]
        for line in lines(tmp_path / "part")[1:]
    ]
    assert [len(sites) for sites in scored] == [2, 2, 2, 5]
    assert len({tuple(sites) for sites in scored[:3]}) > 1
    assert same(posterior(tmp_path / "all"), posterior(tmp_path / "part"))


def test_the_previous_global_posterior_as_prior_changes_the_second_round_only(tmp_path, finished):
    run_inline(settings(prior="global", kl_weight=1.0), tmp_path / "global")
    run_inline(settings(prior="normal", kl_weight=1.0), tmp_path / "normal")
    one, two = lines(tmp_path / "global"), lines(tmp_path / "normal")
    assert one[1]["nll"] == two[1]["nll"]
    assert one[2]["nll"] != two[2]["nll"]


def failing(partitions):
    """Return how clients train of whom some fail."""

    def train(message, context):
        if (partition := context.node_config["partition-id"]) in partitions:
            raise RuntimeError(f"disk of {partition} is full")
        return client_app.train(message, context)

    return train


def test_a_client_that_fails_is_named_and_the_others_go_on(tmp_path):
    run_with(settings(), tmp_path / "run", train=failing({1}))
    for line in lines(tmp_path / "run")[1:]:
        assert line["admitted"] == 2
        assert [c["site"] for c in line["clients"]] == [SITES[0], SITES[2]]
        (refused,) = line["refused"]
        assert refused.startswith("partition 1 (node ") and "disk of 1 is full" in refused


def test_a_run_in_which_no_round_counts_is_an_error_and_leaves_no_posterior(tmp_path):
    with pytest.raises(RunError, match="every round was skipped"):
        run_with(settings(), tmp_path / "run", train=failing({0, 1, 2}))
    assert len(lines(tmp_path / "run")) == 3
    assert not (tmp_path / "run" / "posterior.safetensors").exists()
