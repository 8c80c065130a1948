"""What a server beside Ray says of it, and how its process ends when the run has failed."""

import importlib
import sys
import threading

import pytest

from server_app import simulated


@pytest.fixture
def beside_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", importlib.import_module("ray"))


def test_a_ray_elsewhere_that_has_not_answered_is_named(beside_ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    named = "Ray has not joined the cluster that RAY_ADDRESS=10.0.0.1:6379 names"
    assert simulated.hindrance().startswith(named)


def test_a_simulation_whose_server_has_failed_ends_though_ray_never_answers(
    beside_ray, monkeypatch
):
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: code and ended.set())
    monkeypatch.setattr(simulated, "END_SECONDS", 0.01)
    simulated.end_simulation()
    assert ended.wait(60)
