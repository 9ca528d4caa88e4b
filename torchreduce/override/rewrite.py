"""Edit the graphs of torch.compile: insert a call, and replace a call by its decomposition."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only


def insert(graph: Graph, like: Node, target: Any, *args: Any) -> Node:
    """Insert a call that replaces `like`, or one of several that do."""
    new = graph.call_function(target, args)
    values = tree_map_only(Node, lambda n: n.meta["val"], args)
    with _value(like).fake_mode:
        new.meta = {**like.meta, "val": target(*values)}
    return new


def _value(node: Node) -> Any:
    """A tensor that the call takes or gives."""
    tensors = [n.meta["val"] for n in (node, *node.all_input_nodes) if isinstance(n.meta.get("val"), torch.Tensor)]
    return tensors[0]


def replace_items(node: Any, results: Sequence[Node]) -> None:
    """Replace the uses of the items of a call's results by the items of `results`."""
    for item in node.users:
        if item.target is operator.getitem:
            item.replace_all_uses_with(results[item.args[1]])


def take_apart(graph: Graph, node: Any, decomposition: Callable[..., Any]) -> bool:
    """Replace a call by its decomposition; nothing reads the call's results then. Return False, and keep the call, if
    the decomposition does not take these arguments."""
    inputs, applies = node.all_input_nodes, True

    def decomposed(*values: Any) -> Any:
        nonlocal applies
        value = dict(zip(inputs, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), value.__getitem__)
        made = decomposition(*args, **kwargs)
        applies = made is not NotImplemented
        return made if isinstance(made, torch.Tensor) else tuple(made) if applies else ()

    with _value(node).fake_mode:
        traced = make_fx(decomposed, select_decomp_table())(*(n.meta["val"] for n in inputs)).graph
    if not applies:
        return False
    for inner in traced.nodes:
        inner.meta = {**node.meta, **inner.meta}
    with graph.inserting_before(node):
        results = graph.graph_copy(traced, dict(zip(traced.find_nodes(op="placeholder"), inputs, strict=True)))
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        replace_items(node, results)  # type: ignore[arg-type]
    return True
