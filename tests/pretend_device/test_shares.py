"""How clients on Ray share GPUs: all that Flower starts find a place."""

import sys
from math import floor

import pytest
import torch
from every_method import night
from hypothesis import given
from hypothesis import strategies as st
from processes import ran

from fedbary.errors import SettingError
from fedbary.settings import device
from fedbary.settings.config import completed

some = st.integers(1, 64)


def share(gpus, cores, **words):
    """The share of a client on a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.os, "cpu_count", lambda: cores)
        patch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        return device.gpu_share(completed({"device": "auto", "min_replies": 1, **words}))


@given(gpus=st.integers(1, 16), cores=some, clients=some)
def test_clients_that_flower_starts_find_places_and_all_that_the_cpus_serve_are_started(
    gpus, cores, clients
):
    own = share(gpus, cores, clients=clients)
    started = int(gpus / own + 1e-9)
    assert min(clients, cores) <= started <= gpus * floor(1 / own + 1e-9)


@given(gpus=st.integers(1, 16), least=st.floats(0.001, 1))
def test_a_share_by_hand_is_the_least_that_a_client_has(gpus, least):
    own = share(gpus, 8, gpus_per_client=least)
    assert own >= least - 1e-9 and int(gpus / own + 1e-9) == gpus * floor(1 / least + 1e-9)


def test_clients_have_none_where_there_is_none():
    assert share(0, 8) == share(2, 8, device="cpu") == share(2, 8, gpus_per_client=0) == 0


@pytest.mark.parametrize("given", [0, 2])
def test_shares_that_reach_no_gpu_or_several_are_refused(given):
    with pytest.raises(SettingError, match="gpus_per_client: .*auto"):
        completed({"device": "cuda", "gpus_per_client": given})


POOL = """
import sys, ray
from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources
gpus, clients, share = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
ray.init(num_cpus=clients, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
needs = {"num_cpus": 1, "num_gpus": share}
idle = ray.remote(type("Idle", (), {}))
actors = [idle.options(**needs).remote() for _ in range(pool_size_from_resources(needs))]
ready = [actor.__ray_ready__.remote() for actor in actors]
print(*map(len, ray.wait(ready, num_returns=len(ready), timeout=900)))
"""
"""Starts the actors that Flower would start on so many GPUs, which Ray takes our word for."""


@night
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("gpus", "clients"), [(2, 3), (4, 6)])
def test_ray_starts_all_clients(gpus, clients, tmp_path):
    own = share(gpus, clients, clients=clients)
    patient = {"RAY_raylet_start_wait_time_s": "300"}
    done = ran(
        sys.executable, "-c", POOL, gpus, clients, own, cwd=tmp_path, seconds=1200, **patient
    )
    assert done.stdout.split() == [str(clients), "0"]
