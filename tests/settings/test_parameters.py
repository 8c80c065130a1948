"""A method's file says what the class is, whatever it inherits from; a mistake names the file."""

from dataclasses import fields
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from fedbary.errors import SettingError
from fedbary.settings import explain, parameters
from fedbary.settings.parameters import Parameter, methods

HEAD = '''"""A method."""
from dataclasses import dataclass
from typing import ClassVar, Literal
from fedbary.methods import fedpa, pvi as other
from fedbary.methods._method import Method as Root
from fedbary.methods.fedpa import FedPA
from fedbary.methods import Method


'''
BODY = (
    '    """What it is.\n\n    Parameters\n    ----------\n    step : float\n        γ.\n    """\n'
)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A copy of the package's files, which the registry reads, to add methods to."""
    package = tmp_path / "fedbary"
    plain = ("methods", "models", "aggregation", "tasks", "inference")
    for part in (*plain, "data/images", "data/tables"):
        (package / part).mkdir(parents=True)
        for file in (parameters._PACKAGE / part).glob("*.py"):
            (package / part / file.name).write_bytes(file.read_bytes())
    dealing = "data/partition.py"
    (package / dealing).write_bytes((parameters._PACKAGE / dealing).read_bytes())
    import_module("fedbary.methods")  # while its files are still the package's own
    from fedbary import registry

    for module in (parameters, explain, registry):
        monkeypatch.setattr(module, "_PACKAGE", package)
    methods.cache_clear()
    yield package / "methods"
    methods.cache_clear()


@pytest.mark.parametrize(
    "bases", ["Method", "Root", "FedPA", "fedpa.FedPA", "other.PVI", "_Shared", "Mixin, FedPA"]
)
def test_any_subclass_is_read_with_what_it_inherits(room, bases):
    file = room / "sampled.py"
    file.write_text(
        f"{HEAD}class Mixin:\n    pass\n\n\n@dataclass(frozen=True)\nclass _Shared(Method):\n"
        f"    decay: float = 0.5\n\n\n@dataclass(frozen=True)\nclass Sampled({bases}):\n{BODY}\n"
        "    step: float = -1.5\n    rho: float = 0.7\n    KINDS: ClassVar[int] = 3\n"
        "    kind: Literal['a', 2] = 2\n"
    )
    spec = spec_from_file_location("sampled", file)
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "sampled", module)
        spec.loader.exec_module(module)
    read = methods()["Sampled"]
    assert {n: p.default for n, p in read.parameters.items()} == {
        field.name: field.default for field in fields(module.Sampled)
    }
    assert read.deterministic == module.Sampled.deterministic
    assert read.parameters["step"].meaning == "γ."
    assert "method=Sampled" in explain.explained("Sampled")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class X:\n    step: float = 1.0\n", "one public class"),
        ("class X(Method):\n    pass\n\n\nclass Y(X):\n    pass\n", "X, Y"),
        ("class X(Method):\n    step: float = 1 / 3\n", "step: '1 / 3'"),
        ("class X(Method):\n    step: float = 1.0\n", "@dataclass(frozen=True)"),
        ("class X(Method):\n    step: float\n", "step: None"),
        ("class X(Method):\n    step: int = 'a'\n", "step"),
        ("class X(Method):\n    step: list = []\n", "step: 'list'"),
        ("class X(Method):\n    step: Literal['a', 'b'] = 'c'\n", "step"),
    ],
)
def test_a_file_that_is_no_method_is_named(room, text, said):
    (room / "odd.py").write_text(HEAD + text)
    with pytest.raises(SettingError) as caught:
        methods()
    assert str(room / "odd.py") in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize("given", [2, "2"])
def test_a_choice_may_hold_numbers(given):
    choice = Parameter("kind", "Literal['a', 2]", "a", "")
    assert choice.read(given) == 2 and choice.read("a") == "a"
    with pytest.raises(SettingError, match="a, 2"):
        choice.read("b")
