"""One thread: bitwise equality needs one number of them, and Ray's actors need the cores.

What a test starts has one, too, and so has SciPy's BLAS, whose threads spin where cores are busy.
No example has a deadline: machines are shared. Examples share their test's fixtures. By day a law
is tried on fewer examples, unless it says how many. No file waits for the disk: no test cuts the
power.
"""

import gc
import os
import sys
from contextlib import nullcontext
from pathlib import Path

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # before NumPy

import forked
import hypothesis
import pytest
import torch
from combinations import cyclic

torch.set_num_threads(1)
os.fsync = lambda descriptor: None
NIGHT = bool(os.environ.get("FEDBARY_EVERY_METHOD"))
EXAMPLES = 100 if NIGHT else 25
hypothesis.settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
hypothesis.settings.load_profile("shared machine")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def pytest_configure(config):
    """Add the markers of tests that need a GPU, and of those that try less by day.

    Workers share the process that forks their commands.
    """
    if getattr(config.option, "numprocesses", None):
        forked.share()
    config.addinivalue_line("markers", "cuda: needs a GPU that PyTorch can use")
    config.addinivalue_line("markers", "in_turn: by day each value of its lists once")


def pytest_collection_modifyitems(items):
    """Take what is tried now; put files with slow tests first, so that no worker ends with one."""
    items[:] = items if NIGHT else cyclic(items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Leave modules and tests out of further garbage collections: a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")


@pytest.fixture
def in_this_process(monkeypatch):
    """Let commands simulate in the test's process: a program of its own takes 4 s to start."""
    from fedbary.launching.simulation import PROGRAMS
    from fedbary.server_app.engine.inline import run_inline

    def simulate(settings):
        run_inline(settings, Path(settings.output))
        return 0

    monkeypatch.setitem(PROGRAMS, "inline", lambda log=None: nullcontext(simulate))


@pytest.fixture(autouse=True, scope="session")
def _exits_are_failures():
    """Fail a test that ends its own process by `os._exit`, which takes a worker without a word.

    Forks may, and xdist's own thread when nobody wants the worker any more.
    """
    worker, end = os.getpid(), os._exit

    def refuse(code):
        if os.getpid() != worker or sys._getframe(1).f_globals["__name__"].startswith("execnet"):
            end(code)
        raise RuntimeError("a test was about to end its worker")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", refuse)
        yield
