"""The ladder: the classic reductions and scans for GPUs, from the first idea to this package's own kernels, each to be
run, checked, measured and read. docs/ladder.md is the article; `python -m torchreduce ladder` the climb."""

from .calls import run
from .catalog import Rung, climb, rungs
from .lessons import reduce, steps

__all__ = ["Rung", "climb", "reduce", "run", "rungs", "steps"]
