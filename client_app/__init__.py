"""The Flower ClientApp.

Its answers, and PyTorch with them, are imported with the first message: Flower loads the app before
it starts Ray, and each takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbary.runs.ending import end_with_parent

if TYPE_CHECKING:
    from fedbary.strategies.internals import ClientAppCallable


def apply_mods(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message through the gates of every message."""
    return _answers().apply_mods(message, context, call_next)


app = ClientApp(mods=[apply_mods])


@app.lifespan()
def lifespan(_context: Context) -> Iterator[None]:
    """End this process if its SuperNode is killed while a message is answered."""
    end_with_parent()
    yield


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer with this node's data, and its numbers of examples and of each class."""
    return _answers().query(message, context)


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    """Answer a question of the task about the site's data."""
    return _answers().ask(message, context)


@app.query("look")
def look(message: Message, context: Context) -> Message:
    """Answer a question about the columns of the site's table, before any model."""
    answered: Message = import_module("fedbary.client_app.look").look(message, context)
    return answered


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the global model to the site's data and reply with the result."""
    return _answers().train(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the global model on the site's holdout, and the site's own model."""
    return _answers().evaluate(message, context)


def _answers() -> Any:
    return import_module("fedbary.client_app.answers")
