"""Parameters are what a dataclass declares; a type's range is the same for parts and settings."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_origin

import numpy as np
import pytest
from pydantic import Field, TypeAdapter, ValidationError
from refusals import refused

from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.parts import parameters
from fedbary.parts.parameters import (
    BelowOne,
    Checked,
    Parameter,
    Positive,
    Ratio,
    allowed,
    declared,
)

NAMES = ("Positive", "NotNegative", "Ratio", "Share", "ShareOrZero", "BelowOne", "BelowHalf",
         "LogVar", "Count", "Number", "Several", "Units")  # fmt: skip


def holds(kind, value):
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_a_range_is_the_same_in_a_part_as_in_settings(name):
    kind = getattr(parameters, name)
    whole = parameters.bare(kind) is int
    values = [-1, 0, 1, 2, 10**4, 10**4 + 1, 10**9, 10**9 + 1, *range(-41, 42)]
    if not whole:
        drawn = np.random.default_rng(0).normal(size=50).tolist()
        values += [*drawn, 0.5, 1.0, 1e300, float("inf"), float("-inf"), float("nan")]
    parameter = Parameter("x", kind, 1, "")
    found = set()
    for value in values:
        if holds(kind, value):
            assert parameter.read(value) == parameter.read(str(value)) == value
        else:
            for given in (value, str(value)):
                with pytest.raises(SettingError) as caught:
                    parameter.read(given)
                assert caught.value.allowed == allowed(kind)
        found.add(holds(kind, value))
    assert found == {True, False}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Positive, "a number above 0"),
        (BelowOne, "a number from 0 to below 1"),
        (Ratio | None, "none, or a number from 1 up"),
        (Literal["share"] | Positive, "share, or a number above 0"),
        (Annotated[int, Field(ge=2, le=9)], "a whole number from 2 to 9"),
        (Literal["a", 2], "a, 2"),
        (bool, "true or false"),
        (str | Checked, "a text"),
    ],
)
def test_what_is_allowed_in_words(kind, words):
    assert allowed(kind) == words


@dataclass(frozen=True)
class Above(Checked):
    """Inherited.

    Parameters
    ----------
    decay : float
        λ,
        a rate.
    """

    decay: BelowOne = 0.5
    KINDS: ClassVar[int] = 3


@dataclass(frozen=True)
class Below(Above):
    """What it is.

    Parameters
    ----------
    step, other : float
        γ.
    """

    step: Ratio | None = None
    other: bool = False
    decay: BelowOne = 0.25


def test_a_dataclass_declares_its_parameters_and_those_it_inherits():
    said = [(p.name, p.default, p.meaning) for p in declared(Below).values()]
    assert said == [("decay", 0.25, "λ, a rate."), ("step", None, "γ."), ("other", False, "γ.")]
    assert declared(Below)["step"].read("none") is None
    assert declared(Below)["other"].read("True") is True
    for value in (1.0, -1e-9, float("nan")):
        refused(r"^decay: .*; expected a number from 0 to below 1$", Below, decay=value)


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        (float, ..., "no default"),
        (int, "a", "a whole number"),
        (list, [], "float, int, bool, str or Literal"),
        (Literal["a", "b"], "c", "a, b"),
        (Positive, 0.0, "above 0"),
    ],
)
def test_a_field_that_is_no_parameter_is_named(kind, default, said):
    body = {} if default is ... else {"step": default}
    made = type("X", (), {**body, "__annotations__": {"step": kind}})
    if not isinstance(default, list):
        refused("X: step.*|" + said, lambda: declared(dataclass(frozen=True)(made)))
    refused("dataclass", lambda: declared(type("Y", (Above,), {"__annotations__": {"step": kind}})))


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_read_as_themselves(name):
    for parameter in declared(METHODS[name]).values():
        assert parameter.read(parameter.default) == parameter.default
        assert parameter.read(str(parameter.default)) == parameter.default
        assert parameter.meaning


@pytest.mark.parametrize("given", [2, "2"])
def test_a_choice_may_hold_numbers(given):
    choice = Parameter("kind", Literal["a", 2], "a", "")
    assert choice.read(given) == 2 and choice.read("a") == "a"
    refused("a, 2", choice.read, "b")


@pytest.mark.parametrize("bad", ["1", "nan", float("nan"), [1], {}, b"1", True])
def test_every_method_checks_its_numbers_and_choices_in_python_too(bad):
    for method in METHODS.values():
        for own in declared(method).values():
            kind = parameters.bare(parameters.arms(own.kind)[0])
            if kind in (int, float) or get_origin(kind) is Literal:
                refused(own.name, method, **{own.name: bad})
    assert METHODS["FedProx"](mu=np.float32(0.5)).mu == 0.5
    refused("clipping", lambda: METHODS["barycentre"](clipping="false"))
