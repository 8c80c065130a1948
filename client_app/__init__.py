"""The Flower ClientApp: each message is answered by the part of this package for the run's task.

The app keeps nothing of a run in itself.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app import classification, regression
from client_app.node import Node, node_of

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which data this node holds."""
    node = node_of(context)
    return classification.query(message, node) if _sees(node) else regression.query(message, node)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the global model to the site's data and reply with the site's."""
    node = node_of(context)
    return classification.train(message, node) if _sees(node) else regression.train(message, node)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the global model on the images that the site holds out."""
    return classification.evaluate(message, node_of(context))


@app.query("sums")
def sums(message: Message, context: Context) -> Message:
    """Sum up the columns of the site's data."""
    return regression.sums(message, node_of(context))


@app.query("noise")
def noise(message: Message, context: Context) -> Message:
    """Sum up the noise in the site's data."""
    return regression.noise(message, node_of(context))


def _sees(node: Node) -> bool:
    """Whether the run is of images."""
    return node.settings.task == "classification"
