"""How a run that fails ends: what it says last, and what a server beside Ray says and does."""

import importlib
import sys
import threading
import time

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

from fedbary import server_app
from fedbary.errors import RunError, SettingError
from fedbary.server_app import experiment
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.roster import roster
from fedbary.server_app.roster.member import Member

MISSPELT = {"settings": "rule=RKBL"}
CONTEXT = Context(1, 1, {}, RecordDict(), MISSPELT)


@pytest.mark.parametrize("nodes", [2, 50])
def test_in_a_simulation_of_flower_s_the_clients_are_its_nodes(nodes):
    assert experiment.settings_with({"rounds": 3}, nodes).clients == nodes
    assert experiment.settings_with({"clients": nodes}, nodes).clients == nodes
    assert experiment.settings_with({"groups": "a,b", "method": "Hierarchy"}, 2).clients == 2
    with pytest.raises(SettingError, match=f"^clients: '7'; expected {nodes}.*num-supernodes=7"):
        experiment.settings_with({"clients": "7"}, nodes)


@pytest.mark.parametrize("output", ["auto", "runs/mine"])
def test_flower_s_run_says_where_its_results_will_lie_and_why_there(output, tmp_path, monkeypatch):
    """Flower starts it where its SuperLink was started, wherever the user stands."""
    monkeypatch.chdir(tmp_path)
    settings, folder = experiment.settings_with({"output": output}, 2), tmp_path / "runs" / "mine"
    said = experiment.place_of(settings, folder)
    assert said.startswith(f"Results will be in {folder}: ")
    assert f"was started in {tmp_path};" in said and "output='/" in said
    chosen = settings.model_copy(update={"output": str(folder)})
    assert experiment.place_of(chosen, folder) == f"Results will be in {folder}"


@pytest.mark.parametrize("name", experiment.SHARES)
def test_shares_that_do_not_reach_ray_are_refused_with_flower_s_own(name):
    with pytest.raises(SettingError, match=f"^{name}: 2; .*{experiment.SHARES[name]}=2"):
        experiment.settings_with({name: 2}, 2)


def test_nodes_are_counted_once_flower_has_registered_them_all(monkeypatch):
    """Trap: Flower starts the server's app first, which then sees none or some of its nodes."""
    monkeypatch.setattr(experiment, "SETTLED_SECONDS", 0.3)
    grid = InlineGrid(ClientApp(), 1, {})
    there = []
    monkeypatch.setattr(grid, "get_node_ids", lambda: [*there])

    def register():
        for node in range(5):
            time.sleep(0.05)
            there.append(node)

    thread = threading.Thread(target=register)
    thread.start()
    assert experiment.count_nodes(grid) == 5
    thread.join()


def test_a_count_that_was_too_early_ends_the_run():
    member = Member(1, "site 1", 0, 7, 10, 0, [], "")
    own = Member(2, "site 2", -1, 0, 10, 0, [], "")
    experiment.require_counted(7, [member, own])
    with pytest.raises(RunError, match="3 of 7 clients.*again"):
        experiment.require_counted(3, [member, own])


@pytest.fixture
def beside_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", importlib.import_module("ray"))


def test_a_ray_elsewhere_that_has_not_answered_is_named(beside_ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    named = "Ray has not joined the cluster that RAY_ADDRESS=10.0.0.1:6379 names"
    assert roster.hindrance().startswith(named)


def test_a_ray_whose_workers_do_not_answer_says_how_many_cpus_are_free(beside_ray, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.available_resources", dict)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    assert "0 of its 2 CPUs are free" in roster.hindrance()


def test_a_simulation_whose_server_has_failed_ends_though_ray_never_answers(
    beside_ray, monkeypatch
):
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: code and ended.set())
    monkeypatch.setattr(roster, "END_SECONDS", 0.01)
    roster.end_simulation()
    assert ended.wait(60)


@pytest.mark.parametrize("engine", [True, False])
def test_a_failed_run_ends_the_process_of_a_simulation_and_no_other(
    engine, beside_ray, monkeypatch
):
    ended = []
    monkeypatch.setattr(experiment, "is_simulated", lambda grid: engine)
    monkeypatch.setattr(experiment, "_say", lambda error: None)
    monkeypatch.setattr(experiment, "end_simulation", lambda: ended.append(True))
    with pytest.raises(SettingError):
        server_app.main(InlineGrid(ClientApp(), 1, MISSPELT), CONTEXT)
    assert len(ended) == engine


def _flower_ends():
    for before in (True, False):
        trigger_exit_handlers(run_before_force_exit=before)


def test_the_reason_is_said_at_once_and_again_at_flower_s_exit(caplog):
    _flower_ends()  # what earlier runs of this process had to say
    with pytest.raises(SettingError):
        server_app.app(InlineGrid(ClientApp(), 1, MISSPELT), CONTEXT)
    reason = caplog.messages[-1]
    assert reason.startswith("fedbary: rule: 'RKBL'; expected")
    caplog.clear()
    _flower_ends()
    assert caplog.messages == [reason]
