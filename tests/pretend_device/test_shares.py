"""How clients on Ray share GPUs: all that Flower starts find a place."""

from math import floor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
