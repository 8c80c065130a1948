"""A Ray cluster of two raylets, which a simulation joins and leaves running."""

import os
import sys
import tempfile
from pathlib import Path

import own_data
import psutil
import pytest
from every_method import night, same
from processes import ran, servers_of

from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import parse_overrides, resolve

pytestmark = [night, pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TESTS = Path(own_data.__file__).parent


@pytest.fixture
def cluster(tmp_path):
    """Two nodes of one CPU; their workers know where to note what they have read."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("RAY_TMPDIR", home)  # the paths of Ray's sockets must be short
        patch.setenv(own_data.READERS, str(tmp_path / "readers"))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def test_a_simulation_works_on_every_node_of_a_cluster_and_leaves_it_running(cluster, tmp_path):
    words = [
        "dataset=own_data:bars_on_raylets", "clients=4", "rounds=1", "local_epochs=1", "samples=2",
        "device=cpu",
    ]  # fmt: skip
    (tmp_path / "readers").mkdir()
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    ran(
        Path(sys.executable).parent / "fedbary", "simulate", *words, "engine=ray", "output=ray",
        cwd=tmp_path, PYTHONPATH=paths, RAY_ADDRESS=cluster.address,
    )  # fmt: skip
    nodes = cluster.list_all_nodes()
    raylets = {node.all_processes["raylet"][0].process.pid for node in nodes}
    assert {int(file.name) for file in (tmp_path / "readers").iterdir()} == raylets
    assert all(psutil.pid_exists(raylet) for raylet in raylets)
    assert servers_of(tmp_path) == []
    run_inline(resolve(parse_overrides(words)), tmp_path / "inline")
    assert same(tmp_path / "ray", tmp_path / "inline")
