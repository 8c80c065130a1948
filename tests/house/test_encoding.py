"""Text is read and written in UTF-8, whatever the locale says."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("fedbary", "strategies", "server_app", "client_app")
LEAST = {"write_text": 1, "read_text": 0}
"""So many arguments have these methods of paths without an encoding."""


def in_the_locale_s_encoding(node):
    """Whether a call reads or writes text without saying in which encoding."""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    name = ast.unparse(node.func).rpartition(".")[2]
    if "encoding" in given:
        return False
    if isinstance(node.func, ast.Name):
        mode = ast.unparse(node.args[1]) if len(node.args) > 1 else given.get("mode", "'r'")
        return name == "open" and "b" not in mode
    if name in ("run", "Popen", "check_output"):
        return given.get("text") == "True"
    return name in LEAST and len(node.args) <= LEAST[name]


def calls(text):
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def test_every_text_has_its_encoding():
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            for node in calls(file.read_text(encoding="utf-8")):
                assert not in_the_locale_s_encoding(node), f"{file}:{node.lineno}"
