"""A federation that stays, on real servers: the documentation's lines, and kills of the service."""

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import yaml
from every_method import night
from processes import marked, servers_of, wait_until
from runs_of import lines
from walkthroughs import blocks_of, clone_in, script_of

from fedbary.launching.programs import stop

pytestmark = [pytest.mark.slow, night]

KILLED = """
python ../examples/deployment/cut_sites.py sites 3
for AFTER in 2 6 12; do
  fedbary stay ours runs stays.yaml &
  sleep $AFTER; kill -KILL $!
done
for TRY in 1 2 3 4 5; do
  if [ ! -f runs/0003/posterior.safetensors ]; then sleep 5; fedbary stay ours runs stays.yaml; fi
done
"""
"""A third run, whose service is killed three times."""


def test_the_next_run_starts_when_there_are_new_examples_whenever_the_service_is_killed(tmp_path):
    servers, (settings, months) = (
        blocks_of("deploy.md", "walkthrough.py"),
        blocks_of("stays.md", "walkthrough.py"),
    )
    parts = ["set -e\n", *servers[:4], settings, months, "set +e\n", KILLED, servers[-1]]
    (tmp_path / "fedbary").symlink_to(forked.command())
    paths = [tmp_path, forked.tools(), Path(sys.executable).parent, os.environ["PATH"]]
    environment = {**marked(tmp_path), "PATH": os.pathsep.join(map(str, paths))}
    clone = clone_in(tmp_path)
    with open(tmp_path / "output", "w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script_of(parts)],
            cwd=clone, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(1500)
            wait_until(lambda: servers_of(tmp_path) == [], 30)
        finally:
            stop(servers_of(tmp_path))
    said = (tmp_path / "output").read_text()
    assert code == 0, said
    assert said.count("so none is new") >= 1
    runs = clone / "federation" / "runs"
    assert sorted(each.name for each in runs.iterdir()) == ["0001", "0002", "0003"], said
    for number in (1, 2, 3):
        (clients,) = (line["clients"] for line in lines(runs / f"000{number}")[1:])
        assert [client["site"] for client in clients] == ["north", "south", "west"]
        start = yaml.safe_load((runs / f"000{number}" / "settings.yaml").read_text())
        assert start["settings"]["start_from"].endswith(
            f"000{number - 1}" if number > 1 else "none"
        )
