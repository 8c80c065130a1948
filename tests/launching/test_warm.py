"""A run forked from a warm process is that of any other; for what forks killed see warm_lost."""

import psutil
import pytest
import yaml
from every_method import same
from runs_of import INLINE

from fedbary.launching.launch import launch
from fedbary.launching.warm import run_warm
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow


QUICK = {**INLINE, "clients": 3, "rounds": 1, "local_epochs": 1, "evaluate_clients": 0}


def test_a_forked_run_is_the_same_as_one_of_this_process_and_has_its_own_output(tmp_path):
    with open(tmp_path / "log", "w") as log:
        launch(resolve({**QUICK, "output": str(tmp_path / "forked")}), log)
    assert (tmp_path / "log").read_text().count("\n") > 1
    run_inline(resolve(QUICK), tmp_path / "here")
    assert same(tmp_path / "forked", tmp_path / "here")


def test_a_failed_run_says_why_the_next_goes_on_and_what_is_forked_has_one_thread(tmp_path):
    file = tmp_path / "settings.yaml"
    for rule, ends_well in (("Mystery", False), ("WB", True)):
        settings = resolve({**QUICK, "output": str(tmp_path / rule)}).model_dump()
        file.write_text(yaml.safe_dump(settings | {"rule": rule}))
        with open(tmp_path / f"{rule}.log", "w") as log:
            assert (run_warm(file, log) == 0) == ends_well
        assert forking().num_threads() == 1
    assert "fedbary: rule: 'Mystery'; expected" in (tmp_path / "Mystery.log").read_text()


def forking():
    (process,) = (
        p for p in psutil.Process().children() if any("forkserver" in word for word in p.cmdline())
    )
    return process
