"""A run forked from a warm process is the run of a fresh one, and each has its own output."""

import threading

import psutil
import pytest
import yaml
from processes import wait_until
from runs_of import INLINE

from fedbary.launching.launch import launch
from fedbary.launching.simulation import PROGRAMS
from fedbary.launching.warm import Lost, run_warm
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow


QUICK = {**INLINE, "clients": 3, "rounds": 1, "local_epochs": 1, "evaluate_clients": 0}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")
        yield


def test_a_forked_run_is_the_same_as_a_fresh_one(tmp_path):
    for name in ("forked", "fresh"):
        settings = resolve({**QUICK, "output": str(tmp_path / name)})
        with open(tmp_path / f"{name}.log", "w") as log, PROGRAMS["inline"](log) as fresh:
            launch(settings, log, fresh if name == "fresh" else None)
    names = [f"{name}/posterior.safetensors" for name in ("forked", "fresh")]
    forked, fresh = ((tmp_path / name).read_bytes() for name in names)
    assert forked == fresh
    lines = [(tmp_path / f"{name}.log").read_text().count("\n") for name in ("forked", "fresh")]
    assert lines[0] == lines[1] > 1


def test_a_failed_run_says_why_the_next_goes_on_and_what_is_forked_has_one_thread(tmp_path):
    file = tmp_path / "settings.yaml"
    for rule, ends_well in (("Mystery", False), ("WB", True)):
        settings = resolve({**QUICK, "output": str(tmp_path / rule)}).model_dump()
        file.write_text(yaml.safe_dump(settings | {"rule": rule}))
        with open(tmp_path / f"{rule}.log", "w") as log:
            assert (run_warm(file, log) == 0) == ends_well
        assert forking().num_threads() == 1
    assert "fedbary: rule: 'Mystery'; expected" in (tmp_path / "Mystery.log").read_text()


def test_if_what_forks_is_killed_the_run_ends_too_and_the_next_is_forked_anew(tmp_path):
    said = []
    files = [tmp_path / f"{name}.yaml" for name in ("long", "next")]
    for file, rounds in zip(files, (400, 1), strict=True):
        settings = resolve({**QUICK, "rounds": rounds, "output": str(tmp_path / file.stem)})
        file.write_text(yaml.safe_dump(settings.model_dump()))

    def run(file, log):
        try:
            said.append(run_warm(file, log))
        except Lost as lost:
            said.append(lost)

    with open(tmp_path / "log", "w") as log:
        life = threading.Thread(target=run, args=[files[0], log])
        life.start()
        wait_until((tmp_path / "long" / "metrics.jsonl").exists)
        process = forking()
        (forked,) = process.children()
        process.kill()
        life.join()
        assert not forked.is_running()
        run(files[1], log)
    assert isinstance(said[0], Lost) and said[1] == 0


def forking():
    (process,) = (
        p for p in psutil.Process().children() if any("forkserver" in word for word in p.cmdline())
    )
    return process
