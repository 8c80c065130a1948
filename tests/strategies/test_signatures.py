"""What a strategy takes can be read: by `help`, by an editor, by a type checker."""

import inspect
import pickle
import subprocess
import sys
from dataclasses import fields

import pytest
import strategies_stub
from every_method import night
from flwr.serverapp.strategy import FedAvg

from fedbary import strategies
from fedbary.aggregation import RULES
from fedbary.methods import METHODS
from fedbary.strategies import RKLB, WB, Asynchronous, FedProx, strategy_for

NAMES = [*RULES, *METHODS]


def strategy(name, **changes):
    needs = name in METHODS and METHODS[name].needs_bench
    return strategy_for(name)(**{"bench": "examples"} if needs else {}, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_signature_has_flower_s_arguments_first_and_the_method_s_last(name):
    kind = strategy_for(name)
    taken, flower = (inspect.signature(k).parameters for k in (kind, FedAvg))
    assert [(p.name, p.default, p.kind) for p in taken.values()][: len(flower)] == [
        (p.name, p.default, p.kind) for p in flower.values()
    ]
    own = [parameter.name for parameter in fields(kind.method_class)]
    assert {*own} <= taken.keys() and "parameters" not in taken


def test_a_rule_s_own_default_is_its_name_and_a_class_of_one_s_own_has_its_own_signature():
    class Own(WB):
        def __init__(self, speed):
            super().__init__()

    assert inspect.signature(WB).parameters["rule"].default == "WB"
    assert list(inspect.signature(Own).parameters) == ["speed"]


def test_a_strategy_is_at_most_three_classes_over_flower_s():
    assert RKLB.__mro__.index(FedAvg) <= 3


@pytest.mark.parametrize(
    ("kind", "word", "meant"),
    [
        (RKLB, "trim_fractoin", "trim_fraction"),
        (FedProx, "muu", "mu"),
        (WB, "min_reply", "min_replies"),
        (FedProx, "proximal_mu", "mu"),
        (WB, "no_such", "fraction_train, .* trim_fraction"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name_or_all(kind, word, meant):
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument '{word}'.*{meant}"):
        kind(**{word: 1})


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_pickles(name):
    again = pickle.loads(pickle.dumps(strategy(name, min_replies=2)))
    assert type(again) is strategy_for(name) and again.admission.min_replies == 2


def test_a_strategy_without_rounds_pickles():
    again = pickle.loads(pickle.dumps(RKLB(asynchronous=Asynchronous(buffer=2))))
    assert again.pace.asynchronous.buffer == 2


def test_the_package_lists_its_classes():
    assert {*NAMES} - {"FedAvg"} <= {*dir(strategies)}


@pytest.mark.slow
def test_the_stub_is_what_the_code_says():
    """If not: PYTHONPATH=. python tests/strategies_stub.py."""
    assert strategies_stub.FILE.read_text(encoding="utf-8") == strategies_stub.text()


@night
def test_a_type_checker_refuses_an_unknown_argument(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from strategies import FedProx, RKLB\n\nFedProx(mu=0.1)\nRKLB(no_such=1)\n")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert 'mine.py:4: error: Unexpected keyword argument "no_such"' in said
    assert "Found 1 error" in said
