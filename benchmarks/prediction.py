"""Time prediction: 10 posterior samples at n = 3 against 10 plain forward passes, 10,000 images.

The deterministic trunk runs once per batch and only the variational head is sampled. Target: at
least 10 times faster. The sides alternate within one run; the median of the ratios is printed.

    python benchmarks/prediction.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from fedbary import predict
from fedbary.data.batches import scale_pixels
from fedbary.models import build

SHAPE, CLASSES, BATCH = (1, 28, 28), 10, 500


def sampled(model: nn.Module, x: torch.Tensor, samples: int) -> float:
    """Seconds of one prediction with `samples` networks."""
    start = time.perf_counter()
    predict(model, x, samples, seed=0, batch_size=BATCH)
    return time.perf_counter() - start


def plain(model: nn.Module, x: torch.Tensor, passes: int) -> float:
    """Seconds of `passes` forward passes of the deterministic network."""
    start = time.perf_counter()
    with torch.inference_mode():
        for _ in range(passes):
            torch.cat([model(scale_pixels(batch)).softmax(-1) for batch in x.split(BATCH)])
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7, help="alternations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randint(0, 256, (args.images, *SHAPE), dtype=torch.uint8)
    variational, deterministic = (build("cnn", SHAPE, CLASSES, 0, n, -5.0) for n in (3, 0))
    pairs = [
        (sampled(variational, x, args.samples), plain(deterministic, x, args.samples))
        for _ in range(args.repeats + 1)
    ][1:]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{args.samples} samples at n = 3: median {ours:.3f} s")
    print(f"{args.samples} forward passes at n = 0: median {theirs:.3f} s")
    ratio = statistics.median(other / own for own, other in pairs)
    print(f"plain over sampled: {ratio:.1f} (target at least 10)")


if __name__ == "__main__":
    main()
