"""What mends a culprit: tried on the op's own inputs, or known by its kind."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..override import enabled, state
from ..override.table import PRODUCTS
from .compare import MIXES, PARTED, PASSED, Found
from .record import Call, Choose, Seen, copied, info, plain, seen_of, tensors
from .vary import Run

_PRODUCTS = {name for row in PRODUCTS for name in row.overloads.split()}
Captured = tuple[Any, Any, Any]


_FIXED = {
    "repeat": "nothing known: the op itself is not deterministic. Replace it",
    "seed": "a seed: torch.manual_seed(...) before the call",
    "threads": "nothing known: keep torch.set_num_threads(...) fixed",
    "batch": "nothing known: keep the shapes fixed, so the size of the batch",
    "order": "nothing known: keep the order of the batch fixed",
    "padding": "a mask before it, or nothing known: keep the lengths fixed",
    "strides": "x.contiguous() before it",
    "compiled": "torch._inductor.config.emulate_precision_casts = True, or backend='aot_eager'",
    "ranks": "torchreduce.distributed: sums in an order that does not depend on the processes",
}


@contextmanager
def _deterministic() -> Iterator[None]:
    before, only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only)


def _ways(call: Call, values: list[Tensor]) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    """What might mend it, the least first."""
    cpu = any(t.is_cpu for t in values)
    word = "cpu=True" if cpu else ""
    if call.name in _PRODUCTS:
        floats = any(t.dtype is torch.float32 for t in values)
        kind: Any = "float32" if floats else True
        text = ", ".join(filter(None, (word, f"products={kind!r}".replace("'", '"'))))
        yield f"torchreduce.enable({text})", lambda: enabled(cpu=cpu, compile=False, products=kind)
    elif not state.eager or (cpu and not state.eager & state.CPU):
        yield f"torchreduce.enable({word})", lambda: enabled(cpu=cpu, compile=False)
    yield "torch.use_deterministic_algorithms(True)", _deterministic
    if cpu:
        yield "torch.backends.mkldnn.enabled = False", lambda: torch.backends.mkldnn.flags(enabled=False)


def whole(cpu: bool) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    """What might mend a function whose runs take other paths."""
    word = "cpu=True" if cpu else ""
    for products in (False, "float32" if cpu else True):
        text = ", ".join(filter(None, (word, f"products={products!r}".replace("'", '"') if products else "")))
        yield f"torchreduce.enable({text})", partial(enabled, cpu=cpu, compile=False, products=products)


def _outputs(captured: Captured, like: Call, choose: Choose = plain) -> list[Seen]:
    op, args, kwargs = captured
    args, kwargs = copied(args), copied(kwargs)
    result = op(*args, **kwargs)
    written = [args[i] if i < len(args) else kwargs.get(name) for i, name in info(op).writes]
    results = result if isinstance(result, (list, tuple)) else [result]
    outputs = list({id(t): t for t in (*tensors(written), *tensors(results))}.values())
    return [seen_of(t, guide, choose) for t, guide in zip(outputs, like.outputs, strict=True)]


def _is_mended(base: Captured, other: Captured, like: Call, run: Run) -> bool:
    """Whether the op gives equal outputs in both runs, three times."""
    generator = torch.get_rng_state()
    for _ in range(3):
        torch.set_rng_state(generator)
        a = _outputs(base, like)
        if run.is_seeded:
            torch.set_rng_state(generator)
        with run.around():
            b = _outputs(other, like, run.choose)
        if not all(run.relation.same(x, y) for x, y in zip(a, b, strict=True)):
            return False
    return True


def tried(base: Captured, other: Captured, like: Call, run: Run) -> str | None:
    """What mends the op, tried on the inputs that it had in both runs."""
    values = [t for t in tensors((base[1], base[2]))]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text, way in (("", nullcontext), *_ways(like, values)):
            try:
                with way():
                    is_mended = _is_mended(base, other, like, run)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                continue
            if is_mended:
                return text or None  # alone it does not differ at all
    return None


def known(found: Found, run: Run) -> str:
    """What is known to mend ops of this kind."""
    call = found.call
    name = call.name.partition(".")[0]
    if call.op is not None and torch.Tag.nondeterministic_seeded in call.op.tags:
        return "a seed: torch.manual_seed(...) before the call; for dropout also model.eval()"
    if found.why == PASSED:
        return "numbers that depend on neither the run nor the batch: no counter, len(x) or .item() of all rows"
    if found.why == MIXES or ("batch_norm" in name and run.relation.rows is not None):
        return (
            "model.eval(), for statistics of the batch, or a norm of each row alone (layer_norm, rms_norm); "
            "nothing, if rows are meant to depend on each other"
        )
    if found.why == PARTED and run.relation.rows is not None and not run.relation.is_of_ranks:
        return "a path that does not depend on the batch (block sizes, splits); Batch(follow=...) if rows lie otherwise"
    if name.startswith(("c10d::", "_c10d_functional::")):
        return "torchreduce.distributed: sums in an order that does not depend on the processes"
    if "::" in name:
        return f"{name} is not torch's: give it one order of summation, or call a function of torchreduce"
    if call.op is not None and torch.Tag.pointwise in call.op.tags:
        return (
            "nothing: on a CPU, torch's result depends on the element's place (vector loop or tail). "
            "Keep shapes, strides and threads fixed; on a GPU it does not depend on them"
        )
    if "rnn" in name:
        return "torch.backends.mkldnn.enabled = False, on a CPU, and torchreduce.enable(products=...)"
    if "attention" in name:
        return "torchreduce.enable(products=True) on a GPU; or the math backend, of ops that can be overridden"
    return _FIXED[run.variation]
