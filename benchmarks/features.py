"""Time a client's round through a frozen body against the same round on cached features.

FedAvg's epochs and LDA's sums, on images of 96 × 96 pixels. The body is EfficientNet-Lite0. Its
weights are random: a pretrained network costs the same. Sides alternate within one run. Times are
the process's CPU seconds on one thread. The medians and their ratios are printed (target: at least
100).

    python -m benchmarks.features
"""

from __future__ import annotations

import argparse
import statistics

import timm
import torch
from torch import nn

from benchmarks.methods import CLASSES, Side, seconds
from fedbary.methods import Method, method_named
from fedbary.models import build
from fedbary.variational.frozen import keep_frozen

BODY, SHAPE = "tf_efficientnet_lite0", (3, 96, 96)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=256, help="of a client")
    parser.add_argument("--epochs", type=int, default=1, help="of a round of FedAvg")
    parser.add_argument("--repeats", type=int, default=3, help="alternations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randint(0, 256, (args.examples, *SHAPE), dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (len(x),))
    body = timm.create_model(BODY, num_classes=0).requires_grad_(False).eval()
    with torch.no_grad():
        features = torch.cat([body(part.float() / 255) for part in x.split(64)])
    methods = {"FedAvg": method_named("barycentre")(rule="FedAvg"), "LDA": method_named("LDA")()}
    for name, method in methods.items():
        through, cached = _sides(method, body, features, x, y, args.epochs)
        pairs = [(seconds(through.fit), seconds(cached.fit)) for _ in range(args.repeats)]
        slow, fast = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"{name}: {slow:.2f} s through the body, {fast:.3f} s on features, {ratio:.0f} ×")


def _sides(
    method: Method,
    body: nn.Module,
    features: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    epochs: int,
) -> tuple[Side, Side]:
    """Return a client whose images pass through the body, and one that has their features."""
    heads = [build("linear", features.shape[1:], CLASSES, 0, 0) for _ in range(2)]
    whole = keep_frozen(nn.Sequential(body, heads[0]))
    return Side(method, whole, x, y, epochs), Side(method, heads[1], features, y, epochs)


if __name__ == "__main__":
    main()
