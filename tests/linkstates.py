"""A grid on the state of Flower's SuperLink, the one in memory, whose clients answer in threads."""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from flwr.app import Context, RecordDict
from flwr.common.constant import HEARTBEAT_INTERVAL_INF, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedbary.server_app.engine.inline import InlineGrid


class LinkedGrid(InlineGrid):
    """An inline federation whose messages and replies lie in Flower's own state.

    `seconds` takes a partition's number and returns how long its client takes.
    """

    def __init__(self, client_app, nodes, seconds=lambda partition: 0.0):
        super().__init__(client_app, nodes, {})
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state, self._seconds = factory.state(), seconds
        self._run.primary_task_id, self._run.federation_id = 1, NOOP_FEDERATION_ID
        self.state.run_ids[self._run.run_id] = RunRecord(run=self._run)
        self.state.task_store[1] = Task(task_id=1, run_id=self._run.run_id)
        self._flower = InMemoryGrid(factory)
        self._flower.set_run(self._run)
        configs = [context.node_config for context in self._contexts.values()]
        self._contexts = {
            (node := self._registered()): Context(self._run.run_id, node, own, RecordDict(), {})
            for own in configs
        }
        self.partitions = {
            node: context.node_config["partition-id"] for node, context in self._contexts.items()
        }
        self._pool = ThreadPoolExecutor(nodes)

    def _registered(self):
        node = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), HEARTBEAT_INTERVAL_INF
        )
        self.state.acknowledge_node_heartbeat(node, HEARTBEAT_INTERVAL_INF)
        return node

    def push_messages(self, messages):
        ids = list(self._flower.push_messages(messages))
        for node in self._contexts:
            for message in self.state.get_message_ins(node, limit=None):
                self._pool.submit(self._work, message)
        return ids

    def pull_messages(self, message_ids):
        return list(self._flower.pull_messages(message_ids))

    def send_and_receive(self, messages, *, timeout=None):
        waiting, replies = set(self.push_messages(messages)), []
        while waiting:
            replies += (new := self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            time.sleep(0.001)
        return replies

    def _work(self, message):
        time.sleep(self._seconds(self.partitions[message.metadata.dst_node_id]))
        reply = self._answer(message)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        self.state.store_message_res(reply)
