"""The examples run as they stand, against a federation in this process."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from flwr.app import Context, RecordDict

from server_app.inline import InlineGrid

OWN_MODEL = Path(__file__).resolve().parents[1] / "examples" / "own-model"


def test_flower_takes_it_for_an_app(tmp_path):
    build = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(OWN_MODEL)]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(list(tmp_path.glob("*.fab"))) == 1, done.stdout + done.stderr


def test_somebody_s_own_model_in_under_sixty_lines(monkeypatch, capsys):
    assert sum(len(file.read_text().splitlines()) for file in OWN_MODEL.glob("*.py")) < 60
    monkeypatch.syspath_prepend(OWN_MODEL)
    components = tomllib.loads((OWN_MODEL / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        getattr(import_module(module), name)
        for module, name in (ref.split(":") for ref in components["components"].values())
    )
    context = Context(1, 1, {}, RecordDict(), components["config"] | {"rounds": 3})
    server(InlineGrid(client, 2, {}), context)
    printed = capsys.readouterr().out
    accuracy = [float(share) for share in re.findall(r"([\d.]+)% right", printed)]
    everything, surest, others = accuracy
    assert surest > everything > others
    assert everything > 80
    assert len(re.findall(r"^digit \d+: \d\? is \d; ", printed, re.MULTILINE)) == 5
