"""The examples run as they stand, against a federation in this process."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from flwr.app import Context, RecordDict

from examples import own_model_rivals
from server_app.inline import InlineGrid

OWN_MODEL = Path(__file__).resolve().parents[2] / "examples" / "own-model"


def test_flower_takes_it_for_an_app(tmp_path):
    build = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(OWN_MODEL)]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(list(tmp_path.glob("*.fab"))) == 1, done.stdout + done.stderr


def test_the_rival_runs_on_the_same_layers(capsys):
    own_model_rivals.main(["--rounds", "2", "--clients", "2", "--seeds", "0", "1"])
    rklb, fedavg = capsys.readouterr().out.splitlines()
    form = r" +[\d.]+ ± [\d.]+ % right, NLL [\d.]+ ± [\d.]+"
    assert re.fullmatch("RKLB" + form, rklb) and re.fullmatch("FedAvg" + form, fedavg)
    assert rklb.split()[1:] != fedavg.split()[1:]


def test_somebody_s_own_model_in_under_sixty_lines(monkeypatch, capsys):
    assert sum(len(file.read_text().splitlines()) for file in OWN_MODEL.glob("*.py")) < 60
    monkeypatch.syspath_prepend(OWN_MODEL)
    components = tomllib.loads((OWN_MODEL / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        getattr(import_module(module), name)
        for module, name in (ref.split(":") for ref in components["components"].values())
    )
    config = components["config"] | {"rounds": 3}
    server(InlineGrid(client, 2, config), Context(1, 1, {}, RecordDict(), config))
    printed = capsys.readouterr().out
    accuracy = [float(share) for share in re.findall(r"([\d.]+)% right", printed)]
    everything, surest, others = accuracy
    assert surest > everything > others
    assert everything > 80
    assert re.search(r"^NLL 0\.\d+ nats$", printed, re.MULTILINE)
    assert len(re.findall(r"^digit \d+: \d\? is \d; ", printed, re.MULTILINE)) == 5
