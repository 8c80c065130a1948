"""On real servers every method gives the model of one process."""

import subprocess

import forked
import pytest
import yaml
from every_method import ON_SERVERS, night, of_tables, same
from processes import marked, servers_of

from fedbary.runs.conformal_kept import CONFORMAL
from server_app.engine.inline import run_inline

pytestmark = [night, pytest.mark.slow]  # by day tests/launching/test_deploy has one


@pytest.mark.parametrize("name", ON_SERVERS)
def test_real_servers_give_the_model_of_one_process(name, tmp_path):
    chosen = of_tables(name, rounds=2, holdout=0.3, conformal=0.9)
    run_inline(chosen, tmp_path / "inline")
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(chosen.model_dump()))
    done = subprocess.run(
        [forked.command(), "deploy", "settings.yaml", "output=deployed"],
        cwd=tmp_path, env=marked(tmp_path), capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert same(tmp_path / "deployed", tmp_path / "inline")
    one, other = ((tmp_path / run / CONFORMAL).read_bytes() for run in ("deployed", "inline"))
    assert one == other
    assert servers_of(tmp_path) == []
