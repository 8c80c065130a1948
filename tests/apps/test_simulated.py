"""What a server beside Ray says of it, and how its process ends when the run has failed."""

import importlib
import os
import posix
import sys
import threading

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

import server_app
from fedbary.errors import SettingError
from server_app import experiment
from server_app.engine.inline import InlineGrid
from server_app.roster import simulated


@pytest.fixture
def beside_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", importlib.import_module("ray"))


def test_a_ray_elsewhere_that_has_not_answered_is_named(beside_ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    named = "Ray has not joined the cluster that RAY_ADDRESS=10.0.0.1:6379 names"
    assert simulated.hindrance().startswith(named)


def test_a_ray_whose_workers_do_not_answer_says_how_many_cpus_are_free(beside_ray, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.available_resources", dict)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    assert "0 of its 2 CPUs are free" in simulated.hindrance()


def test_a_simulation_whose_server_has_failed_ends_though_ray_never_answers(
    beside_ray, monkeypatch
):
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: code and ended.set())
    monkeypatch.setattr(simulated, "END_SECONDS", 0.01)
    simulated.end_simulation()
    assert ended.wait(60)


@pytest.mark.parametrize("engine", [True, False])
def test_a_failed_run_ends_the_process_of_a_simulation_and_no_other(
    engine, beside_ray, monkeypatch
):
    ended = []
    monkeypatch.setattr(experiment, "is_simulated", lambda grid: engine)
    monkeypatch.setattr(experiment, "_say", lambda error: None)
    monkeypatch.setattr(experiment, "end_simulation", lambda: ended.append(True))
    config = {"settings": "rule=RKBL"}
    with pytest.raises(SettingError):
        grid = InlineGrid(ClientApp(), 1, config)
        server_app.main(grid, Context(1, 1, {}, RecordDict(), config))
    assert len(ended) == engine


def test_no_test_ends_its_worker():
    assert os._exit is not posix._exit
    with pytest.raises(RuntimeError, match="a test was about to end its worker"):
        os._exit(1)
