"""How far apart the clients' log-variances lie, which is taken piece by piece."""

import torch

from fedbary.aggregation.sums import PIECE
from fedbary.server_app.recorder import log_var_spread


def test_the_spread_is_the_mean_standard_deviation_whatever_the_pieces():
    generator = torch.Generator().manual_seed(0)
    sizes = {"long": PIECE + 3, "short": 2, "empty": 0}
    clients = [
        {
            f"{name}_{part}": torch.randn(size, generator=generator)
            for name, size in sizes.items()
            for part in ("mean", "log_var")
        }
        for _ in range(3)
    ]
    found = log_var_spread(clients)
    assert found.keys() == {"long", "short"}
    for name, spread in found.items():
        direct = torch.stack([c[f"{name}_log_var"] for c in clients]).double().std(0).mean()
        torch.testing.assert_close(spread, float(direct), rtol=1e-5, atol=0)
