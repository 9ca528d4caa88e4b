"""Which ops of a run torchreduce handles, which fall back to torch and why, and which it does not cover."""

from collections import Counter
from typing import Any, NamedTuple

import torch

from ..override import registry
from ..override.table import PRODUCTS
from .record import Call

_PRODUCTS = {name for row in PRODUCTS for name in row.overloads.split()}
# Ops that copy, select or make elements: there is no order of summation in them. Others have torch's tag "pointwise".
_NAMES = """
    _assert_async _local_scalar_dense _to_copy _unique2 _unsafe_view alias arange argsort bernoulli bucketize cat clone
    constant_pad_nd copy detach diag_embed dropout embedding empty empty_like empty_permuted empty_strided equal
    exponential eye fill flip full full_like gather index index_copy index_fill index_select is_same_size isin
    kthvalue lift_fresh linspace log_normal masked_fill masked_scatter masked_select median mode multinomial
    native_dropout native_dropout_backward new_empty new_empty_strided new_full new_ones new_zeros nonzero normal ones
    ones_like rand rand_like randint randn randn_like random randperm reflection_pad1d reflection_pad2d repeat
    repeat_interleave resize roll scalar_tensor scatter searchsorted select_backward select_scatter set slice_backward
    slice_scatter sort split_with_sizes_copy squeeze stack swapaxes t take topk transpose tril tril_indices triu
    triu_indices unbind_copy unfold_backward uniform unique_consecutive unique_dim unsqueeze where zero zeros
    zeros_like
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


class Counted:
    """Calls ops, and keeps what coverage() counts of each that combines elements: once for equal arguments, since it
    counts all that is overridden."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, Counter[str]]] = []
        self._known: dict[Any, Counter[str]] = {}
        self._places: list[tuple[str, str]] = []

    def __call__(self, call: Call, args: Any, kwargs: Any) -> Any:
        if not _combines(call):
            return call.op(*args, **kwargs)
        kind = (call.name, repr(call.options), *((seen.shape, seen.dtype) for seen in call.inputs))
        if kind in self._known:
            result = call.op(*args, **kwargs)
        else:
            before = registry.registered().counts()
            result = call.op(*args, **kwargs)
            self._known[kind] = _of(call.name, self._since(before))
        self.calls.append((call, self._known[kind]))
        return result

    def _since(self, before: list[int]) -> Counter[tuple[str, str]]:
        """What was counted: by overload, and by why they fell back, or "served"."""
        rows = registry.registered()
        after = rows.counts()
        if before == after:
            return Counter()
        if len(self._places) != len(after):
            self._places = rows.places()
        return Counter({p: m - n for p, n, m in zip(self._places, before, after, strict=True) if m > n})


def _of(name: str, counts: Counter[tuple[str, str]]) -> Counter[str]:
    """Of an op, which may call others that are overridden: by why they fell back, or "served" if it is itself."""
    if counts[name, "served"] or name.startswith("torchreduce::"):
        return Counter({"served": 1})
    return Counter(why for _, why in counts.elements())


def _combines(call: Call) -> bool:
    """Whether the op sums, or otherwise combines elements."""
    name = call.name.partition(".")[0]
    if call.name.startswith("torchreduce::"):
        return True
    if name in ("index_put", "index_put_", "scatter", "scatter_"):
        return "reduce" in call.name or True in call.options  # accumulate
    if call.op is None or not call.inputs or torch.Tag.pointwise in call.op.tags or name.removesuffix("_") in _EXACT:
        return False
    return not name.startswith(("_foreach_", "_fused_ad", "_fused_sgd")) or "norm" in name


def covered(calls: list[tuple[Call, Counter[str]]]) -> list[Covered]:
    """A row for each op and way, in the order of first calls."""
    rows: dict[tuple[str, str], list[Call]] = {}
    for call, counts in calls:
        reasons = [why for why in counts if why != "served"]
        if reasons:
            how = f"torch's: {', '.join(reasons)}"
        else:
            how = "served" if counts else "needs products=True" if call.name in _PRODUCTS else "not covered"
        rows.setdefault((call.name, how), []).append(call)

    def via(call: Call) -> str:
        return call.via + (" (backward)" if call.is_backward else "") if call.via else ""

    return [
        Covered(name, " ".join(dict.fromkeys(filter(None, map(via, made)))), len(made), how, made[0].line)
        for (name, how), made in rows.items()
    ]
