"""A federation that stays, on real servers, by the documentation's lines."""

import pytest
import yaml
from every_method import night
from runs_of import lines
from walkthroughs import blocks_of, run_script

pytestmark = [pytest.mark.slow, night]


def test_the_next_run_starts_from_the_last_when_there_are_new_examples(tmp_path):
    servers = blocks_of("deploy.md", "walkthrough.py")
    first, second = blocks_of("stays.md", "walkthrough.py")
    said, clone = run_script(["set -e\n", *servers[:4], first, second, servers[-1]], tmp_path)
    assert said.count("so none is new") >= 1
    runs = sorted((clone / "federation" / "runs").iterdir())
    started = []
    for run in runs:
        (clients,) = (line["clients"] for line in lines(run)[1:])
        assert [client["site"] for client in clients] == ["north", "south", "west"]
        made = yaml.safe_load((run / "settings.yaml").read_text())
        started.append(made["settings"]["start_from"])
    assert started == ["none", str(runs[0])], said
