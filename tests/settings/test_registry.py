"""What settings may name is known from the files alone, before PyTorch is imported."""

import subprocess
import sys
from pathlib import Path

from fedbary.aggregation import RULES
from fedbary.inference import INFERENCE, local_method
from fedbary.methods import METHODS
from fedbary.parts import registry
from fedbary.settings.owners import owners

ROOT = Path(__file__).resolve().parents[2]

MISTAKES = """
simulate rule=RKBL
simulate ruel=WB
simulate ruonds=3
simulate locl_epochs=2
simulate method=FedPrx
simulate model=cn
simulate rounds=0
simulate attack=flip
simulate inference=mcmc
simulate partition=iidd
simulate dataset=mnist
simulate protocol=papr
simulate gone.yaml
deploy rule=RKBL
resume gone
sweep gone.yaml
sweep grid.yaml
sweep grid.yaml --only seed
"""
"""Wrong names, misspelt words, and wrong values of what every run has."""

LATER = """
simulate method=FedProx mu=-1
simulate dataset=gone.npz
simulate ood_dataset=gone.npz
simulate task=regression dataset=gone.csv
simulate task=regression holdout=0.1
simulate output=.
simulate output=/dev/null/run
simulate resume=previous output=gone
deploy dataset=none classes=2 input_shape=1x8x8
"""
"""Mistakes that are found once the chosen parts are imported."""

PROGRAM = """
import sys
from fedbary.commands import cli
for words in filter(None, sys.stdin.read().splitlines()):
    sys.argv = ["fedbary", *words.split()]
    try:
        cli.main()
    except SystemExit as ended:
        print(words, "|", ended.code, "torch" in sys.modules)
"""


def test_a_wrong_name_is_found_before_pytorch_is_imported(tmp_path):
    (tmp_path / "grid.yaml").write_text("title: T\nabout: A\nsettings: {rule: RKBL}\ngrid: [{}]\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=MISTAKES + LATER, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    soon, later = (mistakes.strip().splitlines() for mistakes in (MISTAKES, LATER))
    said = [f"{line} | 2 False" for line in soon] + [f"{line} | 2 True" for line in later]
    assert list(filter(None, done.stdout.splitlines())) == said, done.stderr
    assert len(done.stderr.strip().splitlines()) == len(said), done.stderr


def test_the_words_in_files_are_those_of_the_parts():
    parts = (own for kinds in owners().values() for own in kinds.values())
    assert {word for own in parts for word in own} <= {*registry.parameter_names()}


def test_names_are_those_that_importing_finds():
    assert tuple(registry.rules()) == tuple(RULES)
    assert registry.methods() == tuple(METHODS)
    assert registry.modules("inference") == INFERENCE
    for name in INFERENCE:
        assert callable(local_method(name))
