"""What a site's errors tell the server: that a table is wrong, and nothing that stands there."""

from __future__ import annotations

from logging import ERROR

from flwr.app import Context, Message

from fedbary.data.sites import site_from
from fedbary.errors import CellError
from strategies.internals import ClientAppCallable, log


def discretion(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message; what a site's own table holds goes into its log alone.

    Flower sends the text of every error to the server.
    """
    try:
        return call_next(message, context)
    except CellError as error:
        if site_from(context.node_config).partition is not None:
            raise
        log(ERROR, "%s", error)
        raise ValueError(f"{error.told}; the site's log says more") from None
