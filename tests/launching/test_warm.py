"""A run forked from a warm process is the run of a fresh one, and each has its own output."""

from pathlib import Path

import psutil
import pytest
import yaml
from every_method import night

from fedbary.launching.launch import launch
from fedbary.launching.warm_process import WarmProcess
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
QUICK = {
    "engine": "inline",
    "pictures": False,
    "clients": 3,
    "rounds": 1,
    "local_epochs": 1,
    "evaluate_clients": 0,
}


def children():
    """Return this process's children and theirs: other tests of it may have left one running."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def warm():
    before = children()
    process = WarmProcess()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")
        yield process
    process.close()
    assert children() <= before


def forking():
    (process,) = (p for p in children() if "server_app.engine.warm" in p.cmdline())
    return process


def test_a_forked_run_is_the_same_as_a_fresh_one(tmp_path, warm):
    for name, process in (("forked", warm), ("again", warm), ("fresh", None)):
        settings = resolve({**QUICK, "output": str(tmp_path / name)})
        with open(tmp_path / f"{name}.log", "w") as log:
            launch(settings, log, process)
    forked, again, fresh = (
        (tmp_path / name / "posterior.safetensors").read_bytes()
        for name in ("forked", "again", "fresh")
    )
    assert forked == again == fresh
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("forked", "again", "fresh")]
    assert all(log.count("\n") == logs[-1].count("\n") > 1 for log in logs)


def test_a_failed_run_says_why_the_next_goes_on_and_what_is_forked_has_one_thread(tmp_path, warm):
    file = tmp_path / "settings.yaml"
    for rule, ends_well in (("Mystery", False), ("WB", True)):
        settings = resolve({**QUICK, "output": str(tmp_path / rule)}).model_dump()
        file.write_text(yaml.safe_dump(settings | {"rule": rule}))
        with open(tmp_path / f"{rule}.log", "w") as log:
            assert warm.run(file, log) == ends_well
        assert forking().num_threads() == 1
    assert "fedbary: rule: 'Mystery'; expected" in (tmp_path / "Mystery.log").read_text()


def test_a_process_that_was_killed_is_started_again(tmp_path, warm):
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(resolve({**QUICK, "output": str(tmp_path / "a")}).model_dump()))
    with open(tmp_path / "log", "w") as log:
        assert warm.run(file, log)
        process = forking()
        process.kill()
        process.wait()
        file.write_text(file.read_text().replace(str(tmp_path / "a"), str(tmp_path / "b")))
        assert warm.run(file, log)


@night  # by day a failed run says why
def test_what_goes_wrong_at_the_start_is_in_the_log(tmp_path, monkeypatch):
    warm = WarmProcess()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "pandas.py").write_text("raise ImportError('no pandas here')")
    with open(tmp_path / "log", "w") as log:
        assert not warm.run(tmp_path / "settings.yaml", log)
    warm.close()
    assert "no pandas here" in (tmp_path / "log").read_text()
