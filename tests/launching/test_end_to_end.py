"""The real thing: Flower's SuperLink and Ray, from the command line."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from every_method import ON_SERVERS, few, night, same
from processes import dead_ray, marked, ran, servers_of
from terminals import shown_in_a_terminal, shows_its_rounds_and_its_lines

from fedbary.launching.environment import flower_environment
from fedbary.methods import METHODS
from fedbary.runs.conformal_kept import CONFORMAL
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import parse_overrides, resolve

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
QUICK = ["clients=3", "rounds=2", "local_epochs=1", "samples=2", "device=cpu"]
SETS = ["holdout=0.3", "conformal=0.9"]
ATTACKED = ["attack=inner_product", "hostile_fraction=0.4"]


HOSTILE = {
    **{
        form(f"{kind}_proxy"): "http://127.0.0.1:9"
        for kind in ("http", "https", "all", "grpc")
        for form in (str.lower, str.upper)
    },
    **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
    "MPLBACKEND": "module://a_notebook_s.backend",
}
"""What a user's environment may hold: a proxy that is dead, a backend of a notebook."""


@pytest.fixture(scope="module", params=ON_SERVERS)
def on_ray(request, tmp_path_factory):
    """A method's run on Ray, in a terminal of a machine on which a Ray died: folder, words, text.

    A client attacks, so it sees what the honest ones send. The environment is hostile.
    """
    folder, name = tmp_path_factory.mktemp("on-ray"), request.param
    words = [*QUICK, *ATTACKED, *SETS, f"method={name}"]
    words += [f"{key}={value}" for key, value in few(name).items()]
    if METHODS[name].needs_bench:
        words.append("server_fraction=0.1")
    command = [str(BIN / "fedbary"), "simulate", *words, "engine=ray", "output=ray"]
    with dead_ray() as trace:
        environment = {**marked(folder), **trace, **HOSTILE}
        return folder, words, shown_in_a_terminal(*command, cwd=folder, environment=environment)


def test_ray_gives_the_model_of_one_process_and_leaves_nothing_behind(on_ray, tmp_path):
    folder, words, _ = on_ray
    assert servers_of(folder) == []
    run_inline(resolve({**parse_overrides(words), "engine": "inline"}), tmp_path / "inline")
    assert same(folder / "ray", tmp_path / "inline")
    one, other = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (folder / "ray", tmp_path / "inline")
    )
    sets = [(path / CONFORMAL).read_bytes() for path in (folder / "ray", tmp_path / "inline")]
    assert sets[0] == sets[1]
    for ray, inline in zip(one, other, strict=True):
        assert ray["accuracy"] == inline["accuracy"]
        assert [c["site"] for c in ray.get("clients", [])] == [
            c["site"] for c in inline.get("clients", [])
        ]


def a_worker_of(run):
    """Return a process in which clients of a run on Ray train; others may end meanwhile."""
    for process in psutil.Process(run.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "ClientAppActor" in " ".join(process.cmdline()):
                return process
    raise AssertionError("no worker")


@night
def test_without_rounds_ray_gives_the_model_of_one_process_though_a_worker_is_killed(tmp_path):
    """Costs a start of Ray, some 20 seconds: clients work at once, in the clock's order."""
    words = [*QUICK, "mode=async", "speeds=uniform", "rounds=40", "method=PVI", "kl_weight=1"]
    command, metrics = [str(BIN / "fedbary"), "simulate"], tmp_path / "ray" / "metrics.jsonl"
    with (tmp_path / "said").open("w+") as said, subprocess.Popen(
        [*command, *words, "engine=ray", "output=ray"], cwd=tmp_path, env=marked(tmp_path),
        stdout=said, stderr=said,
    ) as run:  # fmt: skip
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 4):
            assert run.poll() is None, said.seek(0) or said.read()
            time.sleep(0.05)
        a_worker_of(run).kill()
        assert run.wait(240) == 0, said.seek(0) or said.read()
    run_inline(resolve({**parse_overrides(words), "engine": "inline"}), tmp_path / "inline")
    assert same(tmp_path / "ray", tmp_path / "inline")


def test_a_run_in_a_terminal_shows_its_rounds_and_its_lines(on_ray):
    folder, _, shown = on_ray
    shows_its_rounds_and_its_lines(shown)
    assert (folder / "ray" / "learning-curves.png").exists()


def test_the_trace_of_a_dead_cluster_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert flower_environment(tmp_path)["RAY_ADDRESS"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert flower_environment(tmp_path)["RAY_ADDRESS"] == "10.0.0.1:6379"


@night
def test_a_run_that_fails_exits_with_an_error(tmp_path):
    words = [*QUICK, "cpus_per_client=2", "round_timeout=0.01", "output=run"]
    done = ran(BIN / "fedbary", "simulate", *words, cwd=tmp_path, code=1)
    assert done.stderr.strip().splitlines()[-1].startswith("fedbary: the run ended")
    assert servers_of(tmp_path) == []
