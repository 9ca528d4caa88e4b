"""Speed by values: one call on random numbers, and on the same with masks, zeros, NaN, infinities or subnormal numbers.

    python -m benchmarks.values                   # on a GPU if there is one, else on one thread of the CPU
    python -m benchmarks.values --device cpu --op softmax prod

Printed are the medians of torchreduce in microseconds and, in brackets, torch's times divided by them. Results go to
results/values/<device>.csv.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torchreduce as tr
from torchreduce._tools.bench import Run, percentile, take_turns

from .cpu import device_name
from .results import RESULTS, Writer, commit
from .run import short_name

FIELDS = ("device", "torch", "commit", "op", "dtype", "shape", "dim", "values", "provider", "p50_us")
Change = Callable[[Tensor], Tensor]


def some(share: float, value: float) -> Change:
    """`value` instead of so many of the elements."""
    return lambda x: x.masked_fill(torch.rand_like(x) < share, value)


def masked(x: Tensor) -> Tensor:
    """-inf from some place on in each row, not at the first one."""
    first = torch.randint(0, x.shape[1], (x.shape[0], 1), device=x.device)
    return x.masked_fill(torch.arange(x.shape[1], device=x.device) > first, -torch.inf)


VALUES: dict[str, Change] = {
    "random": lambda x: x,
    "masked": masked,
    "half -10000": some(0.5, -10000),
    "times 30": lambda x: x * 30,
    "NaN": some(0.01, torch.nan),
    "inf": some(0.01, torch.inf),
    "half 0": some(0.5, 0.0),
    "subnormal": some(0.05, 1e-39),
    "times 1e30": lambda x: x * 1e30,
    "times 1e-30": lambda x: x * 1e-30,
}
OF_LOGITS = ("random", "masked", "half -10000", "times 30", "NaN")
OTHERS = ("random", "NaN", "inf", "half 0", "subnormal", "times 1e30", "times 1e-30")
LOGITS = ("softmax", "log_softmax", "logsumexp", "cross_entropy", "logcumsumexp")
OPS = (*LOGITS, "sum", "argmax", "var", "vector_norm", "rms_norm", "layer_norm", "cumsum", "prod", "cumprod", "cummax")


@dataclass(frozen=True)
class Case:
    op: str
    dtype: torch.dtype
    shape: tuple[int, int]
    dim: int
    values: str

    def input(self, device: str) -> Tensor:
        x = torch.randn(self.shape, device=device)
        if self.op in ("prod", "cumprod") and not self.values.startswith("times"):
            x = 1 + x / 1000  # products that stay in range
        return VALUES[self.values](x).to(self.dtype)

    def calls(self, x: Tensor) -> tuple[Run, Run]:
        """torchreduce's, and torch's."""
        own = getattr(tr, self.op)
        if self.op in ("rms_norm", "layer_norm", "cross_entropy"):
            theirs = getattr(F, self.op)
            more: Any = x.shape[1:]
            if self.op == "cross_entropy":
                more = torch.randint(0, x.shape[1], x.shape[:1], device=x.device)
            return lambda: own(x, more), lambda: theirs(x, more)
        theirs = getattr(torch.linalg if self.op == "vector_norm" else torch, self.op)
        return lambda: own(x, dim=self.dim), lambda: theirs(x, dim=self.dim)


def lines(device: str, ops: list[str]) -> Iterator[list[Case]]:
    """The cases of an op, dtype, shape and dim. A GPU's tensors have 2^26 elements, a CPU's 2^20."""
    rows = 2**26 if device == "cuda" else 2**20
    for dtype in (torch.float32, torch.bfloat16):
        for length in (2048, 128):
            for op in ops:
                for dim in (0, 1) if op in ("prod", "cumprod") else (1,):
                    kinds = OF_LOGITS if op in LOGITS else OTHERS
                    yield [Case(op, dtype, (rows // length, length), dim, values) for values in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--op", nargs="+", choices=OPS, default=OPS, metavar="OP", help=", ".join(OPS))
    parser.add_argument("--out", type=Path, help="default: results/values/<device>.csv")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if args.device == "cuda" else device_name()
    file = short_name(name) if args.device == "cuda" else "cpu"
    writer = Writer(args.out or RESULTS / "values" / f"{file}.csv", FIELDS)
    common = {"device": name, "torch": torch.__version__, "commit": commit()}
    for line in lines(args.device, args.op):
        shown = []
        for case in line:
            ours, theirs = case.calls(case.input(args.device))
            ours()
            theirs()
            times = take_turns({"torchreduce": ours, "torch": theirs}, args.device, budget=0.03)
            median = {provider: percentile(t, 50) * 1e6 for provider, t in times.items()}
            shown.append(f"{case.values} {median['torchreduce']:.0f} ({median['torch'] / median['torchreduce']:.2f})")
            dtype, shape = str(case.dtype).removeprefix("torch."), "x".join(map(str, case.shape))
            row = common | {"op": case.op, "dtype": dtype, "shape": shape, "dim": case.dim, "values": case.values}
            writer(row | {"provider": provider, "p50_us": f"{us:.1f}"} for provider, us in median.items())
        print(f"{line[0].op} {dtype} {shape} dim {line[0].dim}:", ", ".join(shown), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
