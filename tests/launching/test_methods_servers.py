"""On real servers every method gives the model of one process."""

import pytest
from every_method import ON_SERVERS, night, of_tables, same
from processes import deployed

from fedbary.runs.conformal_kept import CONFORMAL
from fedbary.server_app.engine.inline import run_inline

pytestmark = [night, pytest.mark.slow]  # by day tests/launching/test_deploy has one


@pytest.mark.parametrize("name", ON_SERVERS)
def test_real_servers_give_the_model_of_one_process(name, tmp_path):
    chosen = of_tables(name, rounds=2, holdout=0.3, conformal=0.9)
    run_inline(chosen, tmp_path / "inline")
    deployed(chosen, tmp_path)
    assert same(tmp_path / "run", tmp_path / "inline")
    one, other = ((tmp_path / run / CONFORMAL).read_bytes() for run in ("run", "inline"))
    assert one == other
