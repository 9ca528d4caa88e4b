"""Which ops of a run torchreduce handles, which fall back to torch and why, and which it does not cover."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from ..override import coverage
from ..override.table import LOSSES, PRODUCTS, ROWS, SCATTERS
from .record import Call

_PRODUCTS = {name for row in PRODUCTS for name in row.overloads.split()}
# The overloads that eager calls of an overload of graphs reach.
_REACHED = {name: row.overloads.split() for row in (*ROWS, *LOSSES, *SCATTERS) for name in row.in_graphs.split()}
# Ops that copy, select or make elements: there is no order of summation in them. Others have torch's tag "pointwise".
_NAMES = """
    _assert_async _local_scalar_dense _to_copy _unique2 alias arange argsort bernoulli bucketize cat clone
    constant_pad_nd copy detach diag_embed dropout embedding empty empty_like empty_permuted empty_strided equal
    exponential eye fill flip full full_like gather index index_copy index_fill index_put index_select is_same_size isin
    kthvalue lift_fresh linspace log_normal masked_fill masked_scatter masked_select median mode multinomial
    native_dropout native_dropout_backward new_empty new_empty_strided new_full new_ones new_zeros nonzero normal ones
    ones_like rand rand_like randint randn randn_like randperm random reflection_pad1d reflection_pad2d repeat
    repeat_interleave resize roll scalar_tensor scatter searchsorted select_backward select_scatter set slice_backward
    slice_scatter sort split_with_sizes_copy stack take topk tril tril_indices triu triu_indices unbind_copy
    unfold_backward uniform unique_consecutive unique_dim where zero zeros zeros_like
"""
_EXACT = frozenset(_NAMES.split())


class Covered(NamedTuple):
    """Calls of an op that are not elementwise, and how the override handles them."""

    op: str
    via: str  # the functions of torch that called it
    calls: int
    how: str  # "served", or why not
    line: str

    @property
    def is_served(self) -> bool:
        return self.how == "served"


def differences(run: Callable[[], object]) -> dict[str, dict[str, int]]:
    """The calls that coverage() counts in a run."""
    before = coverage()
    run()
    after = coverage()
    none: dict[str, int] = {}
    return {
        name: {why: n - before.get(name, none).get(why, 0) for why, n in row.items()} for name, row in after.items()
    }


def _orders(call: Call) -> bool:
    """Whether the op sums, or otherwise combines elements."""
    name = call.name.partition(".")[0]
    if call.name.startswith("torchreduce"):
        return False
    if call.op is None or torch.Tag.pointwise in call.op.tags or name.removesuffix("_") in _EXACT:
        return False
    return not name.startswith(("_foreach_", "_fused_ad", "_fused_sgd")) or "norm" in name


def covered(calls: Iterable[Call], counts: dict[str, dict[str, int]]) -> list[Covered]:
    """One row for each op and way, in the order of first calls. counts are those of a run under the override."""
    by_name: dict[str, list[Call]] = {}
    for call in calls:
        if call.name in counts or call.name in _REACHED or _orders(call):
            by_name.setdefault(call.name, []).append(call)
    rows = []
    for name, made in by_name.items():
        via = " ".join(dict.fromkeys(c.via + (" (backward)" if c.is_backward else "") for c in made if c.via))
        count: Counter[str] = Counter()
        for reached in [name] if name in counts else [n for n in _REACHED.get(name, ()) if n not in by_name]:
            count += Counter(counts.get(reached, {}))
        line = made[0].line
        if not count:
            how = "needs products=True" if name in _PRODUCTS else "not covered"
            rows.append(Covered(name, via, len(made), how, line))
        for why, n in count.items():
            rows.append(Covered(name, via, n, "served" if why == "served" else f"torch's: {why}", line))
    return rows
