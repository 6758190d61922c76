"""The risk of a batch against ``torch.topk(losses, k).values.mean()``, value and gradient.

Both are timed in turn in one run, and what is shown is the median of the ratios of neighbouring
blocks, on the CPU of its own time, so that a busy machine counts for little. Run as
``python -m benchmarks.torch_risk [--device cuda]``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import median

import torch

from sorel.risks import parse_risk
from sorel.torch.risk import SpectralRisk

BATCHES = (64, 256, 1024, 4096)
RISKS = ("cvar:0.02", "cvar:0.1", "cvar:0.5", "esrm:2")
# Blocks of each, batches in a block, and calls for each batch. Sorting the same batch again and
# again would be faster than it is.
BLOCKS, FRESH, CALLS = 40, 32, 4


def seconds(function: Callable[[torch.Tensor], torch.Tensor], batches: list[torch.Tensor]) -> float:
    """Time of a call with its gradient, as the mean of a block of them."""
    clock = time.process_time
    if batches[0].is_cuda:
        clock = time.perf_counter
        torch.cuda.synchronize()
    start = clock()
    for _ in range(CALLS):
        for losses in batches:
            losses.grad = None
            function(losses).backward()
    if batches[0].is_cuda:
        torch.cuda.synchronize()
    return (clock() - start) / (CALLS * len(batches))


def compare(risk: str, batches: list[torch.Tensor]) -> tuple[float, float, float]:
    """Median seconds of the risk and of the mean of the largest k, and the median ratio."""
    criterion = SpectralRisk(risk)
    # As many losses as have weight: all of them, but for CVaR.
    k = int((parse_risk(risk).weights(len(batches[0])) > 0).sum())

    def largest(values: torch.Tensor) -> torch.Tensor:
        return torch.topk(values, k).values.mean()

    seconds(criterion, batches), seconds(largest, batches)
    pairs = [(seconds(criterion, batches), seconds(largest, batches)) for _ in range(BLOCKS)]
    own, other = zip(*pairs, strict=True)
    return median(own), median(other), median(a / b for a, b in pairs)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", help="type of the losses")
    parser.add_argument("--ties", action="store_true", help="losses of few different values")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on the CPU")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, {options.dtype}, microseconds")
    print("| risk | batch | sorel | topk | ratio |\n|---|---|---|---|---|")
    worst = -math.inf
    for risk in RISKS:
        for batch in BATCHES:
            drawn = torch.rand(FRESH, batch, generator=torch.Generator().manual_seed(batch))
            if options.ties:
                drawn = (8.0 * drawn).floor()
            drawn = drawn.to(device, getattr(torch, options.dtype))
            own, other, ratio = compare(risk, [row.clone().requires_grad_() for row in drawn])
            worst = max(worst, ratio)
            print(f"| {risk} | {batch} | {1e6 * own:.0f} | {1e6 * other:.0f} | {ratio:.2f} |")
    print(f"worst ratio: {worst:.2f}")


if __name__ == "__main__":
    main()
