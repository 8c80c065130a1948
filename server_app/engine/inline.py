"""The two apps in one process, without Ray: `python -m server_app.engine.inline settings.yaml`.

It is for breakpoints, tests and many short runs, and for a machine with one GPU.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedbary.errors import last_words
from fedbary.figures import draw_without_screen
from fedbary.settings.config import Settings, validated
from fedbary.strategies.internals import (
    ErrorCode,
    empty_run,
    identify_task,
    number,
    unavailable,
    with_content,
)

if TYPE_CHECKING:
    from fedbary.strategies.internals import Run

RUN_ID, SERVER_NODE_ID = 1, 1


class InlineGrid(Grid):
    """A federation in this process: a message is answered by calling the ClientApp.

    As of Flower's SuperLink, a reply can be pulled once. Who asks for it again gets an error.

    Messages carry the identity of the process's task, which Flower's launchers set and this sets.

    Parameters
    ----------
    client_app
        Called as `client_app(message, context)`; an exception becomes an error reply.
    nodes
        Each node's config; or their number, with partition ids 0…nodes−1.
    run_config
        The run config that each client's context carries.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int | Sequence[Mapping[str, str | int]],
        run_config: dict[str, str | int | float | bool],
    ) -> None:
        if isinstance(nodes, int):
            nodes = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
        identify_task(RUN_ID, SERVER_NODE_ID)
        self._client_app = client_app
        self._run = empty_run(RUN_ID)
        self._message_ids = itertools.count(1)
        self._open: set[str] = set()
        self._replies: dict[str, Message] = {}
        self._contexts = {
            node_id: Context(
                run_id=RUN_ID,
                node_id=node_id,
                node_config={**node_config},
                state=RecordDict(),
                run_config=run_config,
            )
            for node_id, node_config in enumerate(nodes, SERVER_NODE_ID + 1)
        }

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer messages at once; the replies wait to be pulled."""
        messages = list(messages)
        message_ids = [str(next(self._message_ids)) for _ in messages]
        for message, message_id in zip(messages, message_ids, strict=True):
            number(message, message_id)
        self._open.update(message_ids)
        self._replies.update(zip(message_ids, map(self._answer, messages), strict=True))
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand the replies over, each once; an id that is not open has an error for a reply."""
        asked = set(message_ids)
        closed = [unavailable(message_id, RUN_ID) for message_id in sorted(asked - self._open)]
        replied = [message_id for message_id in self._replies if message_id in asked]
        self._open -= set(replied)
        return [*closed, *map(self._replies.pop, replied)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Answer messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        received = with_content(message, copy.deepcopy(message.content))
        try:
            return self._client_app(received, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001 - the reply carries it, as from a remote client
            reason = f"{type(error).__name__}: {error}"
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
            return Message(failure, reply_to=message)


def run_inline(settings: Settings, folder: Path) -> None:
    """Run the server app against the client app in this process; results go to `folder`."""
    from fedbary.client_app import app
    from fedbary.server_app import run

    settings = settings.model_copy(update={"output": str(folder)})
    grid = InlineGrid(app, settings.clients, settings.model_dump())
    run(grid, settings, folder)


def run_settings_file(file: Path, run: Callable[[Settings, Path], None]) -> None:
    """Run the settings of a file in the folder that they name; an error ends the process."""
    from fedbary.runs.location import claimed_folder

    draw_without_screen()
    try:
        settings = validated(yaml.safe_load(file.read_text(encoding="utf-8")))
        with claimed_folder(settings, Path.cwd()) as folder:
            run(settings, folder)
    except Exception as error:
        if (said := last_words(error)) is None:
            raise
        sys.exit(f"fedbary: {said}")


def main() -> None:
    """Run the settings file that the command line names; it may be a pipe, and come late."""
    for module in ("fedbary.client_app.answers", "fedbary.server_app.experiment"):
        import_module(module)
    run_settings_file(Path(sys.argv[1]), run_inline)


if __name__ == "__main__":
    main()
