"""FedPPD: every client distils its posterior predictive into a student, and both nets are averaged.

A client has a teacher and a student. Each epoch the teacher goes through the data by SGLD at
temperature T = 1, with U_k its negative log posterior (see `SGLD`),

    θ ← θ − (η/2) ∇U_k / n_k + √(η T / n_k) z,      η = `teacher_lr`, times 0.85 every third epoch
                                                    of a round;

then the student goes through the same inputs, with noise of 0.001 added for both networks, towards
what the teacher answers,

    min over the student of  mean KL(p(y | x, teacher) ‖ p(y | x, student)),

so that over the epochs it learns the mean prediction of the teacher's samples. The server takes the
mean of both by n_k. The student alone predicts: one pass, no draws.

It assumes that one network can express the predictive distribution, and that chains are long enough
to move.

Messages: 2 models either way. Clients keep nothing.

Cost: a client makes seven passes per epoch where SGD makes one: the teacher's step, and for each of
the student's three passes the teacher's answers and a step. The server keeps the teacher.

Use it where a prediction must cost one pass.

The paper has one pass of the student per epoch, and a teacher's rate of half the default here
(0.055 on CIFAR-10). That takes a hundred rounds or more. Its student is larger than the teacher;
here both are the run's network. The paper also distils at the server, as FedBE does; that is left
out, for the mean is its default.

Mini-batches of B examples add noise at this rate. With h the curvature of the mean NLL, the
teacher's temperature is T + (η/2) h n_k/(2B). That is about 2 for n_k = 1080, B = 32 and h = 1. It
is nearer to T if a round has more epochs. It is left as published: the student learns a mean over
the teacher's path, and a rate set by n_k (see SGHMC) would hardly move the teacher in a round.

Trap of the public code: its noise, (2 √η / n_k) z, has the temperature 4/n_k, nearly none for
hundreds of examples.

Reference: Bhatt, Gupta and Rai, Bayesian Federated Learning via Predictive Distribution
Distillation, 2022.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedbary.inference._steps import Momentum, Steps, Vectors
from fedbary.methods._chain import Sampler
from fedbary.methods._conditions import one_class
from fedbary.methods._distil import gap, target_of
from fedbary.methods._method import (
    ALONG_STEPS,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    weighted_mean,
)
from fedbary.parts.parameters import Count, NotNegative, Positive
from fedbary.predictive.networks import evaluation
from fedbary.seeds import derive_seed
from fedbary.variational.layers import normal_like

_TEACHER = "teacher/"

INPUT_NOISE = 0.001
"""Standard deviation of what is added to the student's inputs."""

RATE_DECAY, DECAY_EPOCHS = 0.85, 3
"""Factor by which the teacher's rate falls, and the epochs of a round from one fall to the next."""


@dataclass(frozen=True)
class FedPPD(Method):
    """Posterior predictive distillation (Bhatt et al. 2022), for point weights.

    Parameters
    ----------
    teacher_lr : float
        η of the teacher's SGLD, whose steps are η/2; the paper has 0.055. The student's step size
        is `lr`.
    temperature : float
        T of the teacher.
    student_passes : int
        Student's passes through the inputs after each epoch of the teacher; published: one, with a
        hundred rounds or more.
    """

    teacher_lr: Positive = 0.11
    temperature: NotNegative = 1.0
    student_passes: Count = 3

    defaults = ALONG_STEPS
    deterministic = True
    conditions = (one_class,)

    def held(self, clients: int) -> int:
        """Return 2: the student and the teacher."""
        return 2

    def start(self, model: Tensors) -> Tensors:
        """Let the teacher start where the student does."""
        return {_TEACHER + name: tensor.clone() for name, tensor in model.items()}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the student and the teacher."""
        return {**server.model, **server.state}

    def passes(self, epochs: int, steps: int) -> float:
        """Return the teacher's passes and the student's."""
        return epochs * (1 + self.student_passes)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Sample by the teacher and distil, epoch by epoch."""
        local.load(received)
        teacher = copy.deepcopy(local.model)
        teacher.load_state_dict({n: received[_TEACHER + n] for n in teacher.state_dict()})
        q = Vectors(local.model, 1.0)
        sgd = Momentum(q, local.training, 0.0)
        metrics: dict[str, float] = {}
        for epoch in range(local.training.epochs):
            rate = self.teacher_lr * RATE_DECAY ** (epoch // DECAY_EPOCHS)
            training = replace(local.training, epochs=1, lr=rate / 2)
            seed = derive_seed(local.seed, "teacher", epoch)
            job = replace(local, model=teacher, training=training, seed=seed)
            sampler = Sampler(job, 1.0, self.temperature)
            for _ in sampler:
                pass
            metrics = sampler.metrics
            for turn in range(self.student_passes):
                seed = derive_seed(local.seed, "student", epoch, turn)
                _distil(local, teacher, q, sgd, seed)
        found = {_TEACHER + name: tensor.detach() for name, tensor in teacher.state_dict().items()}
        return Fitted({**local.state(), **found}, metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return two models."""
        return {**model, **{_TEACHER + name: tensor for name, tensor in model.items()}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the mean student, and keep the mean teacher."""
        means = weighted_mean(replies, list(self.reply_like(server.model)))
        state = {name: means[name] for name in means if name.startswith(_TEACHER)}
        return {name: means[name] for name in server.model}, state


def _distil(local: Local, teacher: nn.Module, student: Vectors, sgd: Momentum, seed: int) -> None:
    """Let the student of a client's round go through its inputs once."""

    @contextmanager
    def distance(x: Tensor, _: Tensor) -> Iterator[Tensor]:
        noisy = x + INPUT_NOISE * normal_like(x, steps.batches.noise)
        with torch.no_grad(), evaluation(teacher):
            target = target_of(teacher, teacher(noisy)[None])
        yield gap(local.model, local.model(noisy), target)

    job = replace(local, training=replace(local.training, epochs=1), seed=seed)
    steps = Steps(job, student.points, loss=distance)
    for _ in steps:
        student.points.value.sub_(sgd.update(), alpha=local.training.lr)
