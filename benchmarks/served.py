"""Which of torch's reductions models call, and which of these the override serves: a table, made by running the models.

    python -m benchmarks.served                    # models of torch.nn, and those of the packages that are installed
    python -m benchmarks.served --model llama      # one of them
    python -m benchmarks.served --markdown docs/results/served.md

Counted are calls of reductions, scans, norms, softmax, losses and sums by segments, in a training step of each model:
forward, loss, backward, clipping, optimizer. A call is found in two ways:

- coverage() counts the overloads that are overridden, and why calls of them fell back.
- Each other op that a step calls is probed: elements of a float input that are beside each other are changed, one at a
  time. If an element of a result changes with several of them, the op combines elements; its calls count as torch's.

Matrix products, convolutions, attention and recurrent layers are not counted: docs/products.md is about these. Nor are
ops whose results are elements of their input, such as sort: these are exact in any order.
"""

import argparse
import collections
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

import torchreduce as tr
from torchreduce.override.names import function_of
from torchreduce.override.promises import KNOWN
from torchreduce.override.table import OVERLOADS, PRODUCTS

from .served_models import models

# By a word of their names.
NOT_COUNTED = re.compile(
    r"mm|mv|dot|addr|conv|attention|rnn|lstm|gru|linear(?!_cross)|sort|topk|dropout|bernoulli|empty"
)
_OF_PRODUCTS = {name for row in PRODUCTS for name in row.overloads.split()} | {"scaled_dot_product_attention"}
OVERWRITING = {("_index_put_impl_", "option"), ("put_", "option")}  # without accumulate
# Their parts count if they are not served; those of _weight_norm and cdist never do.
COMPOSITES = ("cross_entropy_loss", "nanmean", "rms_norm", "layer_norm")
PARTS = ("_weight_norm_interface", "_weight_norm_interface_backward", "_cdist_forward", "_cdist_backward")


@dataclass
class Calls:
    served: int = 0
    torchs: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))  # by reason

    @property
    def total(self) -> int:
        return self.served + sum(self.torchs.values())


def _copied(args: Any) -> Any:
    return tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, args)


def _results(op: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """What a call returns and writes, of copies of its arguments."""
    args, kwargs = _copied((args, kwargs))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        results = tree_leaves(op(*args, **kwargs))
    return [t for t in (*results, *tree_leaves((args, kwargs))) if isinstance(t, Tensor)]


def _changed(before: list[Tensor], after: list[Tensor], skipped: int) -> set[tuple[int, int]]:
    """The elements that differ, but for those of the tensor that was changed itself."""
    places = set()
    for k, (a, b) in enumerate(zip(before, after, strict=True)):
        if k != skipped and a.shape == b.shape and a.layout is torch.strided:
            differs = (a != b) & ~(a.isnan() & b.isnan()) if a.is_floating_point() else a != b
            places |= {(k, i) for i in differs.reshape(-1).nonzero().reshape(-1).tolist()}
    return places


def combines(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether an element of a result changes with several elements of one input."""
    leaves = tree_leaves((args, kwargs))
    floats = [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point() and t.numel() > 1]
    before = _results(op, args, kwargs)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    for x in floats:
        skipped = len(before) - len(tensors) + next(k for k, t in enumerate(tensors) if t is x)
        base = [n // 2 for n in x.shape]
        probes = [base] + [
            [(i + 1) % n if d == e else i for e, (i, n) in enumerate(zip(base, x.shape, strict=True))]
            for d in range(x.dim()) if x.shape[d] > 1
        ]  # fmt: skip
        changes = []
        for place in probes:
            moved = x.detach().clone()
            moved[tuple(place)] += 0.5 + moved[tuple(place)].abs() * 0.25
            swapped = tree_map(lambda t, x=x, moved=moved: moved if t is x else t, (args, kwargs))
            changes.append(_changed(before, _results(op, *swapped), skipped))
        if any(changes[0] & other for other in changes[1:]):
            return True
    return False


def is_made_of_served(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether what torch makes of a call is served, and so counts by itself."""
    with tr.enabled(cpu=True, compile=False):
        before = tr.coverage()
        _results(op, args, kwargs)
        after = tr.coverage()
    new = [
        (why, n - before[name][why]) for name, row in after.items() for why, n in row.items() if n > before[name][why]
    ]
    return any(why == "served" for why, _ in new)


class Watch(TorchDispatchMode):
    """Counts the calls of ops that are not overridden and combine elements."""

    told: dict[Any, bool] = {}  # noqa: RUF012  # by the op and the shapes of its arguments

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = collections.defaultdict(int)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op.name().removeprefix("aten::")
        packet = name.partition(".")[0]
        is_told = torch.Tag.pointwise in op.tags or op.is_view or name in OVERLOADS or NOT_COUNTED.search(packet)
        is_told = is_told or name in PARTS
        if not is_told and op.namespace == "aten":
            key = (name, *(t.shape for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)))
            if key not in self.told:
                with _disable_current_modes():
                    try:
                        self.told[key] = combines(op, args, kwargs) and not is_made_of_served(op, args, kwargs)
                    except (RuntimeError, NotImplementedError):  # of a copy that is not what the op was to write
                        self.told[key] = False
            self.calls[name] += self.told[key]
        return op(*args, **kwargs)


def calls_of(step: Callable[[], Any]) -> dict[str, Calls]:
    """By torch's function, the calls of a step."""
    found: dict[str, Calls] = collections.defaultdict(Calls)
    torch.manual_seed(0)
    step()  # state of optimizers
    with tr.enabled(cpu=True, compile=False):
        before = tr.coverage()
        step()
        after = tr.coverage()
    for name, row in after.items():
        if name in _OF_PRODUCTS:
            continue
        for why, n in row.items():
            new = n - before[name][why]
            is_counted = why == "served" or name not in COMPOSITES  # whose parts count then
            if new and is_counted and (name, why) not in OVERWRITING:
                calls = found[function_of(name, KNOWN)]
                if why == "served":
                    calls.served += new
                else:
                    calls.torchs[why] += new
    with Watch() as watch:
        step()
    for name, n in watch.calls.items():
        if n:
            found[function_of(name, KNOWN).partition(".")[0]].torchs["not overridden"] += n
    return found


def share(calls: Iterator[Calls]) -> tuple[int, int]:
    """Served, and all."""
    listed = list(calls)
    return sum(c.served for c in listed), sum(c.total for c in listed)


def percent(served: int, total: int) -> str:
    return f"{100 * served / total:.1f} %" if total else "-"


def table(found: dict[str, dict[str, Calls]]) -> str:
    """By model, and then by function."""
    lines = ["| model | calls | served | share | of torch |", "|---|---|---|---|---|"]
    functions: dict[str, Calls] = collections.defaultdict(Calls)
    for model, calls in found.items():
        served, total = share(iter(calls.values()))
        rest = [f"{n} {name} ({why})" for name, c in calls.items() for why, n in sorted(c.torchs.items())]
        lines.append(f"| {model} | {total} | {served} | {percent(served, total)} | {', '.join(rest)} |")
        for name, c in calls.items():
            functions[name].served += c.served
            for why, n in c.torchs.items():
                functions[name].torchs[why] += n
    served, total = share(iter(functions.values()))
    lines += [f"| **all** | {total} | {served} | {percent(served, total)} | |", ""]
    lines += ["| function | calls | share of all | served | why not |", "|---|---|---|---|---|"]
    for name, c in sorted(functions.items(), key=lambda item: -item[1].total):
        rest = ", ".join(f"{why}: {n}" for why, n in sorted(c.torchs.items()))
        lines.append(f"| `{name}` | {c.total} | {percent(c.total, total)} | {percent(c.served, c.total)} | {rest} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="one of the models; may be given several times")
    parser.add_argument("--markdown", type=Path, help="a file to write the table to")
    given = parser.parse_args()
    all_models = models()
    for name in given.model or ():
        if name not in all_models:
            parser.error(f"no model {name!r}; there are {', '.join(all_models)}")
    found = {}
    for name in given.model or all_models:
        torch.manual_seed(0)
        found[name] = calls_of(all_models[name]())
        print(f"{name}: {percent(*share(iter(found[name].values())))}", file=sys.stderr)
    text = table(found)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
