"""A small federation without Flower, of one setting.

A round is that of a run; `tests/docs/test_findings_truth.py` compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedbary.data import deal
from fedbary.data.deal import Shard
from fedbary.inference import Local, Training, local_method
from fedbary.methods import Method, Reply, Server, method_of
from fedbary.predictive import Prediction
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings
from fedbary.tasks import Task, task_of


@dataclass(eq=False)
class Federation:
    """A federation between two rounds.

    Attributes
    ----------
    settings : Settings
        Of a run without facts: `normalise=none`, all clients in every round.
    model, state : mapping of str to Tensor
        The global model, and the method's state.
    numbers : int
        Numbers that a client has sent in all.
    """

    settings: Settings
    task: Task = field(init=False)
    method: Method = field(init=False)
    shards: list[Shard] = field(init=False)
    numbers: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        self.task, self.method = task_of(self.settings), method_of(self.settings)
        clients = range(self.settings.clients)
        by = self.task.held, self.task.deal, len(clients)
        self.shards = [deal.client_shard(*by, client) for client in clients]
        self.examples = sum(len(shard.y) for shard in self.shards)
        self.network = self.task.make_model(self.task.signature())
        begun = self.network.state_dict()
        self.model: Mapping[str, Tensor] = {name: tensor.clone() for name, tensor in begun.items()}
        self.state: Mapping[str, Tensor] = self.method.start(self.model)
        self.kept: list[Mapping[str, Tensor]] = [{} for _ in clients]

    def server(self) -> Server:
        """Return the server in the round that begins."""
        seed = derive_seed(self.settings.seed, "server", self.round)
        return Server(
            self.model, self.state, self.round, seed, examples=self.examples,
            clients=len(self.shards),
        )  # fmt: skip

    def local(self, client: int) -> Local:
        """Return a client's part in the round."""
        shard, by = self.shards[client], self.settings.local
        share = by.kl_weight == "share"
        training = Training(
            epochs=by.local_epochs, batch_size=by.batch_size,
            lr=by.lr_in(self.round, self.settings.rounds),
            momentum=by.momentum, weight_decay=by.weight_decay, max_grad_norm=by.max_grad_norm,
            log_var_lr=by.log_var_lr,
            kl_weight=len(shard.y) / self.examples if share else float(by.kl_weight),
        )  # fmt: skip
        return Local(
            self.network, shard.x, shard.y, self.task.loss({}),
            local_method(self.settings.inference, dict(self.settings)), training,
            by.prior_std,
            self.round, self.task.seed("train", client, self.round),
            share=len(shard.y) * len(self.shards) / self.examples,
        )  # fmt: skip

    def take_round(self) -> None:
        """Let the clients fit, and aggregate what they send."""
        self.round, replies = self.round + 1, []
        for client, shard in enumerate(self.shards):
            sent = self.method.send(self.server(), f"partition {client}")
            fitted = self.method.fit(self.local(client), sent, self.kept[client])
            self.kept[client] = fitted.kept
            replies.append(Reply(f"partition {client}", len(shard.y), fitted.reply))
        self.numbers += sum(tensor.numel() for tensor in replies[0].tensors.values())
        self.model, self.state = self.method.aggregate(self.server(), replies)

    def predicted(self, x: Tensor) -> Prediction:
        """Predict by what the method says."""
        by = self.method.predictive(self.model, self.state)
        self.network.load_state_dict({**by.model})
        seed = self.task.seed("predict-global", self.round)
        return self.task.predicted(self.network, x, {}, seed, by)
