"""RKLB with IVON beside others: the weights of both layers are Gaussian, biases are points.

A round is that of a run with `inference=ivon`, but for the bound on a rate that the prior's pull
alone would make unstable; it does not bind here. All federations have the same noise.
"""

import torch
from torch import Generator, Tensor

from fedbary.seeds import derive_seed
from findings.curvature.side_by_side import SideBySide, Weights, _forward, _gradients, _spread

GAUSSIAN = (0, 2)
"""The places of Gaussian tensors in `Weights`."""


class Ivon(SideBySide):
    """Several federations between two rounds, with the log-variances of their weights.

    KL weight, prior, first log-variance and their rate are those of the federation's settings.
    """

    def take_round(self) -> None:
        """Let every client of every federation fit, and take the barycentres."""
        here = self.federation
        here.round += 1
        if here.round == 1:
            first = here.settings.init_log_var
            self.log_vars = {i: torch.full_like(self.weights[i], first) for i in GAUSSIAN}
        sums = [torch.zeros_like(t, dtype=torch.float64) for t in self.weights]
        totals = [torch.zeros_like(t) for t in sums]
        for client, (x, y) in enumerate(self.data):
            fitted, log_vars = self._fit_both(x, y, here.task.seed("train", client, here.round))
            for i, tensor in enumerate(fitted):
                weight = torch.full_like(sums[i], len(y) / self.examples)
                if i in GAUSSIAN:
                    weight *= log_vars[i].double().neg().exp()
                sums[i] += weight * tensor
                totals[i] += weight
        self.weights = [(s / t).float() for s, t in zip(sums, totals, strict=True)]
        self.log_vars = {i: -totals[i].log().float() for i in GAUSSIAN}

    def _fit_both(self, x: Tensor, y: Tensor, seed: int) -> tuple[Weights, dict[int, Tensor]]:
        """Return the weights and log-variances after a client's steps."""
        by = self.federation.settings.local
        ess, prior = len(x) / by.kl_weight, by.prior_std**-2
        lr, momentum = self._rates()
        weights, velocities = [t.clone() for t in self.weights], [t * 0 for t in self.weights]
        log_vars = {i: t.clone() for i, t in self.log_vars.items()}
        noise = Generator().manual_seed(derive_seed(seed, "noise"))
        for number, (rows, targets) in enumerate(self._batches(x, y, seed), 1):
            var = {i: t.exp() for i, t in log_vars.items()}
            moved = {i: e * var[i].sqrt() for i, e in self._noise(noise).items()}
            drawn = [w + moved[i] if i in GAUSSIAN else w for i, w in enumerate(weights)]
            hidden, logits = _forward(drawn, rows)
            slopes = (logits.softmax(2) - targets) / len(rows)
            gradients = _gradients(drawn, rows, hidden, slopes)
            for i in GAUSSIAN:
                change = ess * moved[i] * gradients[i] - 1 + prior * var[i]
                change = (by.log_var_lr * change).clamp(-1, 1)
                log_vars[i] -= change.addcmul(change, change, value=0.5).log1p()
            precisions = [log_vars[i].neg().exp().movedim(int(i == 0), 0) for i in GAUSSIAN]
            mean = torch.cat([t.flatten(1) for t in precisions], 1).mean(1)
            unbiased = 1 - momentum**number
            for i, (w, u, g) in enumerate(zip(weights, velocities, gradients, strict=True)):
                pull, rate = _spread(self._each("weight_decay"), i, w), _spread(lr, i, w)
                if i in GAUSSIAN:
                    pull = pull + prior / ess
                    gain = (log_vars[i].exp() * _spread(mean, i, w)).clamp(max=1)
                    rate = gain * _spread(lr / unbiased, i, w)
                u.mul_(_spread(momentum, i, w)).add_(g).addcmul_(w, pull)
                w.addcmul_(u, rate, value=-1)
        return weights, log_vars

    def _noise(self, generator: Generator) -> dict[int, Tensor]:
        """Return a draw for each Gaussian tensor, in a run's order: (outputs, inputs) by layer."""
        inputs, _, units = self.weights[0].shape
        classes = self.weights[2].shape[2]
        drawn = torch.randn(units * (inputs + classes), generator=generator)
        hidden, output = drawn.split([units * inputs, units * classes])
        return {
            0: hidden.view(units, inputs).t()[:, None],
            2: output.view(classes, units).t()[None],
        }
