"""A machine on which Flower's programs start too late."""

import importlib
import inspect
import io
from pathlib import Path

from fedbary.launching.deploy import REFUSALS, too_busy


def test_program_after_program_refused_ends_a_run_that_has_not_begun(tmp_path):
    asks = importlib.import_module("flwr.supercore.dependencies.task")
    line = "task-token authentication failed"
    assert line in inspect.getsource(asks), "Flower words it otherwise now"
    log = io.StringIO(f"ERROR: {line}.\n" * (REFUSALS - 1))
    busy, begun = too_busy(log, tmp_path / "run"), too_busy(io.StringIO(line * 20), Path(tmp_path))
    assert not busy() and not begun()
    log.write(line)
    log.seek(log.tell() - len(line))
    assert busy() and busy()
