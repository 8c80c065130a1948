"""A Ray cluster of two raylets, which a simulation joins and leaves running."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import own_data
import psutil
import pytest
from every_method import night, same
from nodes import Grid
from processes import marked, servers_of

import client_app
from fedbary.errors import RunError
from fedbary.settings.config import parse_overrides, resolve
from fedbary.tasks._images import layout_of
from server_app.engine.inline import run_inline
from server_app.roster.roster import Roster

pytestmark = [night, pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TESTS = Path(own_data.__file__).parent


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return tmp_path_factory.mktemp("readers")


@pytest.fixture(scope="module")
def cluster(readers):
    """Two nodes of one CPU; their workers know where to note what they have read."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("RAY_TMPDIR", home)  # the paths of Ray's sockets must be short
        patch.setenv(own_data.READERS, str(readers))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def raylets(cluster):
    return {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}


def test_a_simulation_works_on_every_node_of_a_cluster_and_leaves_it_running(
    cluster, readers, tmp_path
):
    words = [
        "dataset=own_data:bars_on_raylets", "clients=4", "rounds=1", "local_epochs=1", "samples=2",
        "device=cpu",
    ]  # fmt: skip
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [Path(sys.executable).parent / "fedbary", "simulate", *words, "engine=ray", "output=ray"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
        env={**marked(tmp_path), "PYTHONPATH": paths, "RAY_ADDRESS": cluster.address},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {int(file.name) for file in readers.iterdir()} == raylets(cluster)
    assert all(psutil.pid_exists(raylet) for raylet in raylets(cluster))
    assert servers_of(tmp_path) == []
    run_inline(resolve(parse_overrides(words)), tmp_path / "inline")
    assert same(tmp_path / "ray", tmp_path / "inline")


def test_where_ray_runs_and_no_worker_answers_the_log_says_once_how_many_cpus_are_free(
    cluster, monkeypatch, caplog
):
    import ray

    chosen = resolve({"clients": 3, "round_timeout": 3})
    grid = Grid(client_app.app, chosen)
    grid.online = []
    monkeypatch.setattr("server_app.roster.roster.LOG_SECONDS", 0.2)
    monkeypatch.setattr("server_app.roster.roster.PATIENCE", 0.5)
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with caplog.at_level("WARNING"), pytest.raises(RunError, match="Ray runs, but no worker"):
            Roster(grid, chosen, layout_of(chosen)).gather()
    finally:
        ray.shutdown()
    (said,) = [line for line in caplog.messages if line.startswith("Ray runs")]
    assert "2 of its 2 CPUs are free" in said
