"""Losses in the graphs of torch.compile: a log-softmax that nothing but a loss reads becomes a cross_entropy.

    x -> [convert] -> _log_softmax -> [convert] -> nll_loss_forward                      cross_entropy -> sum -> [div]
         [convert] <- _log_softmax_backward_data <- [convert] <- nll_loss_backward       cross_entropy_gradient

The log-probabilities are never in memory, nor rounded to 16 bits, and 16-bit logits are read without a conversion. The
loss and its gradient are bitwise identical to torchreduce.cross_entropy, and so to F.cross_entropy in eager mode.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.fx import Graph, Node

from .rewrite import insert, replace_items, take_apart

_ops, _aten = torch.ops.torchreduce, torch.ops.aten
_convert, _size = torch.ops.prims.convert_element_type.default, _aten.sym_size.int
_SAME = (_aten.alias.default, _aten.detach.default, _convert)  # the same values, if perhaps as another dtype
_LOSSES = {
    _aten.nll_loss_forward.default: _aten.nll_loss_backward.default,
    _aten.nll_loss2d_forward.default: _aten.nll_loss2d_backward.default,
}
KEPT = (*_LOSSES, *_LOSSES.values())  # what Inductor must not have taken apart before
# What is left without a reader.
_PURE = {
    *(*KEPT, *_SAME, operator.getitem),
    *(_aten._log_softmax.default, _aten._log_softmax_backward_data.default),
}


@dataclass
class Loss:
    """Calls of a graph; torch's types leave the arguments of a Node open."""

    log_softmax: Any
    forward: Any  # of nll_loss
    gradient: Any  # of the logits; None where nothing asks for it
    x: Any  # the logits
    dim: int


def join(graph: Graph, is_ours: Callable[[torch.device], bool]) -> None:
    """Fuse losses where possible, on some devices, and decompose torch's other losses as Inductor would have done."""
    for node in graph.find_nodes(op="call_function", target=_aten._log_softmax.default):
        if is_ours(node.meta["val"].device) and (loss := _loss(node)):
            _replace(graph, loss)
    _erase_unread(graph)
    _widen(graph)
    for op in KEPT:
        for node in graph.find_nodes(op="call_function", target=op):
            take_apart(graph, node, decomposition_table[node.target])
    _erase_unread(graph)


def _widen(graph: Graph) -> None:
    """Losses of 16 bits that stay are computed in float32 and rounded once, and so are their gradients, which divide by
    the sum of the weights: that is not rounded."""
    narrow = (torch.float16, torch.bfloat16)

    def wide(node: Node, of: Any) -> Any:
        has_value = isinstance(of, Node) and of.meta["val"].dtype in narrow
        return insert(graph, node, _convert, of, torch.float32) if has_value else of

    def rounded(node: Node, of: Node, dtype: torch.dtype) -> Node:
        return insert(graph, node, _convert, of, dtype)

    for op, gradient in _LOSSES.items():
        for node in graph.find_nodes(op="call_function", target=op):
            dtype = node.args[0].meta["val"].dtype
            if dtype not in narrow:
                continue
            with graph.inserting_before(node):
                new = insert(graph, node, op, *(wide(node, a) for a in node.args))
                loss, total = (insert(graph, node, operator.getitem, new, k) for k in range(2))
                results = rounded(node, loss, dtype), rounded(node, total, dtype)
            totals = [item for item in node.users if item.args[1] == 1]
            for reader in [reader for item in totals for reader in _readers(item) if reader.target is gradient]:
                reader.args = (*reader.args[:-1], total)
            replace_items(node, results)
        for node in graph.find_nodes(op="call_function", target=gradient):
            dtype = node.args[1].meta["val"].dtype
            if dtype in narrow:
                with graph.inserting_before(node):
                    new = insert(graph, node, gradient, *(wide(node, a) for a in node.args))
                    node.replace_all_uses_with(rounded(node, new, dtype))


def _erase_unread(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if node.target in _PURE and not node.users:
            graph.erase_node(node)


def _behind(node: Any) -> Any:
    while isinstance(node, Node) and node.target in _SAME:
        node = node.args[0]
    return node


def _readers(node: Any) -> Iterator[Any]:
    for user in node.users:
        if user.target in _SAME:
            yield from _readers(user)
        else:
            yield user


def _loss(log_softmax: Any) -> Loss | None:
    """What follows a log-softmax, if it is one loss, and the gradient of that."""
    logits, dim, _ = log_softmax.args
    dims = max(1, log_softmax.meta["val"].dim())
    readers = {reader.target: reader for reader in _readers(log_softmax)}
    forward = next((readers[op] for op in _LOSSES if op in readers), None)
    if forward is None or dim % dims != min(1, dims - 1) or _behind(forward.args[0]) is not log_softmax:
        return None
    if forward.args[1].meta["val"].dtype is not torch.int64:
        return None
    scattered = readers.get(_LOSSES[forward.target])
    gradient = readers.get(_aten._log_softmax_backward_data.default)
    if sum(1 for _ in _readers(log_softmax)) != (3 if scattered and gradient else 1):
        return None
    if scattered and gradient:
        _, y, *options, total = scattered.args
        if [_behind(y), *options, *_behind(total).args] != [log_softmax, *forward.args[1:], forward, 1]:
            return None
        if [*map(_behind, gradient.args[:2])] != [scattered, log_softmax] or [*_readers(scattered)] != [gradient]:
            return None
    return Loss(log_softmax, forward, gradient, _narrow(logits, gradient), dim)


def _narrow(logits: Any, gradient: Any) -> Any:
    """The logits before they were converted to float32, if their gradient, if any, is wanted in that dtype alone."""
    if logits.target is not _convert or logits.meta["val"].dtype is not torch.float32:
        return logits
    source = logits.args[0]
    dtype = source.meta["val"].dtype
    back = [(user.target, *user.args[1:]) for user in gradient.users] if gradient else []
    is_narrow = dtype in (torch.float16, torch.bfloat16) and all(to == (_convert, dtype) for to in back)
    return source if is_narrow else logits


def _replace(graph: Graph, loss: Loss) -> None:
    target, weight, reduction, ignored = loss.forward.args[1:]
    dtype = loss.forward.args[0].meta["val"].dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def call(op: Any, *args: Any) -> Node:
        return insert(graph, loss.forward, op, *args)

    with graph.inserting_before(loss.forward):
        rows = call(_ops.cross_entropy.raw, loss.x, target, weight, loss.dim, ignored, 0)
        losses, weights, stats = (call(operator.getitem, rows, k) for k in range(3))
        if weight is None:
            kept = call(_ops.count_nonzero.raw, call(_aten.ne.Scalar, target, ignored), None, False, 0)
            total = call(_convert, kept, wide)
        else:
            total = call(_ops.sum.raw, weights, None, False, None, 0)
        value = losses if reduction == 0 else call(_ops.sum.raw, losses, None, False, None, 0)
        if reduction == 1:
            value = call(_aten.div.Tensor, value, total)
        results = call(_convert, value, dtype), call(_convert, total, dtype)
    replace_items(loss.forward, results)
    if loss.gradient is None:
        return
    with graph.inserting_before(loss.gradient):
        g = call(_convert, _behind(loss.gradient.args[0]).args[0], wide)
        if reduction == 1:
            g = call(_aten.div.Tensor, g, total)
        if reduction != 0:
            sizes = enumerate(target.meta["val"].shape)
            g = call(_aten.expand.default, g, [n if isinstance(n, int) else call(_size, target, d) for d, n in sizes])
        of = (g, None, loss.x, target, weight, stats, loss.dim, ignored, 0.0)
        _replace_gradient(graph, loss, call, of)


def _replace_gradient(graph: Graph, loss: Loss, call: Callable[..., Node], of: Sequence[Any]) -> None:
    """Replace the gradient. If its rows of classes go to a matrix product, they are padded with zeros: products are
    fast for rows of a multiple of 16 bytes, and Inductor would copy the gradient to pad them."""
    x = loss.x.meta["val"]
    replaced = [loss.gradient] if loss.x is loss.log_softmax.args[0] else list(loss.gradient.users)
    if loss.dim + 1 == x.dim():
        classes = x.shape[-1] if isinstance(x.shape[-1], int) else call(_size, loss.x, loss.dim)
        filled = call(_ops.cross_entropy_backward.raw, *of, 16 // x.element_size(), 0)
        made = call(_aten.slice.Tensor, filled, loss.dim, 0, classes)
        try:
            views = [view for node in replaced for view in _views(node, made.meta["val"])]
        except (RuntimeError, ValueError):  # one that there is of contiguous rows alone
            graph.erase_node(made)
            graph.erase_node(filled)
        else:
            for view, value in views:
                view.meta["val"] = value
            for node in replaced:
                node.replace_all_uses_with(made)
            if isinstance(classes, int):
                for look in (made, *(view for view, _ in views)):
                    _fill_up_products(graph, look, filled, classes)
            return
    made = call(_ops.cross_entropy_gradient.raw, *of, 0)
    for node in replaced:
        node.replace_all_uses_with(made)


def _fill_up_products(graph: Graph, look: Any, filled: Any, classes: int) -> None:
    """Replace products of `look`, a view of `filled` without its zeros, by products of all of `filled`."""
    *rows, full = filled.meta["val"].shape
    value = look.meta["val"]
    strides = (full, 1) if value.shape[-1] == classes else (1, full)
    if value.dim() != 2 or value.stride() != strides or value.numel() != classes * math.prod(rows):
        return
    for product in [user for user in look.users if user.target is _aten.mm.default]:
        a, b = product.args
        sums = (a is look) == (strides[1] == 1)  # over the classes
        if a is b or not (a is look or sums):
            continue  # of which a row would not stay contiguous
        call = partial(insert, graph, product)
        with graph.inserting_before(product):
            whole = filled if len(rows) == 1 else call(_aten.view.default, filled, [-1, full])
            whole = whole if strides[1] == 1 else call(_aten.permute.default, whole, [1, 0])
            if sums:
                edge = [0, 0, 0, full - classes] if a is look else [0, full - classes]
                other = call(_aten.constant_pad_nd.default, b if a is look else a, edge)
                new = call(_aten.mm.default, *((whole, other) if a is look else (other, whole)))
            else:
                new = call(_aten.slice.Tensor, call(_aten.mm.default, whole, b), 0, 0, classes)
        product.replace_all_uses_with(new)
        graph.erase_node(product)


def _is_view(op: Any) -> bool:
    """Whether op is a view of its first argument's elements for any strides; as_strided depends on the memory."""
    if op in (_aten._unsafe_view.default, _aten.reshape.default):
        return True
    arguments = op._schema.arguments if isinstance(op, torch._ops.OpOverload) else ()
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and not alias.is_write


def _views(node: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Return the views of a node, and their values if the node's value is `value`. Raises ValueError for a view with
    given strides, RuntimeError for a view that does not exist of `value`."""
    for user in node.users:
        if user.target is operator.getitem:
            seen = value[user.args[1]]
        elif _is_view(user.target):
            if "as_strided" in user.target.name():
                raise ValueError("as_strided() is of contiguous rows alone")
            with value.fake_mode:
                seen = user.target(value, *user.args[1:], **user.kwargs)
        else:
            continue
        yield user, seen
        yield from _views(user, seen)
