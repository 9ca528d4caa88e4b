"""The override in graphs that Inductor compiles: the pass over the joint graph, ops that stay whole, and the guard.

Inductor's decompositions come first. Ops that torchreduce has are not decomposed, so that their results are bitwise
identical to eager. All other ops that contain reductions are then made of sum, mean, amax and similar ops. The pass
replaces these by torchreduce's ops.
"""

import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._inductor import decomposition as inductors
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils._pytree import tree_leaves, tree_map

from . import losses, products, rewrite, state
from .rules import GRAPH_RULES, Rule, Torchs, Traced, evaluate, overload, writes
from .table import SCATTERED

_ours, _convert = torch.ops.torchreduce, torch.ops.prims.convert_element_type.default
_DEVICES = {"cuda": 1, "cpu": 2}
_RULES = {overload(name): rule for name, rule in GRAPH_RULES.items()}
_PRODUCT_RULES = {
    flag: {overload(name): rule for name, rule in products.rules(flag).items() if not writes(name)}
    for flag in (False, True)
}
# How Inductor takes those of them apart that it takes apart.
_DECOMPOSITIONS = {
    op: inductors.decompositions[op] for op in (*_RULES, *_PRODUCT_RULES[True]) if op in inductors.decompositions
}


def _rules(devices: int) -> dict[Any, Any]:
    """By overload. `devices` also has whether products are overridden."""
    of_products = _PRODUCT_RULES[bool(devices & state.FLOAT32_PRODUCTS)] if devices & state.PRODUCTS else {}
    return {**_RULES, **of_products}


@contextmanager
def whole(devices: int) -> Iterator[None]:
    """Keep Inductor from decomposing ops with a rule. Changes its table, since another one would disable its cache."""
    table = inductors.decompositions
    kept = {op: table.pop(op) for op in (*_rules(devices), *losses.KEPT) if op in table}
    inductors.fast_random_decomps.cache_clear()
    try:
        yield
    finally:
        table.update(kept)
        inductors.fast_random_decomps.cache_clear()


def guard_switch() -> None:
    """Guard the graph that is being compiled: it is valid for the current state of the override only."""
    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:
        return  # no Dynamo, no guards: who calls Inductor by hand sees to it
    module = translator.import_source(state.__name__)
    for name in ("compiled", "excluded"):
        install_guard(AttrSource(module, name).make_guard(GuardBuilder.CONSTANT_MATCH))


def _kept_stats(mean: torch.fx.Node, rstd: torch.fx.Node) -> torch.fx.Node | None:
    """The statistics that both are planes of, if torchreduce's layer_norm made them in this graph."""

    def origin(plane: torch.fx.Node, k: int) -> tuple[Any, ...] | None:
        """The call that made what `plane` is number k of, and which of its results that is."""
        if plane.target is not torch.ops.aten.select.int or plane.args[1:] != (0, k):
            return None
        item = plane.args[0]
        return item.args if isinstance(item, torch.fx.Node) and item.target is operator.getitem else None

    of = origin(mean, 0)
    if of is None or of != origin(rstd, 2) or of[0].target is not _ours.layer_norm.raw:
        return None
    return mean.args[0]  # type: ignore[return-value]


def _go_on(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Decompose a call that falls back to torch, as Inductor would have done."""
    decomposition = _DECOMPOSITIONS.get(node.target)
    if decomposition is not None and rewrite.take_apart(graph, node, decomposition):
        _erase(graph, node)


def _erase(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Of a call that was taken apart: nothing reads its results any more."""
    for item in list(node.users):
        graph.erase_node(item)
    graph.erase_node(node)


def _round_norms(graph: torch.fx.Graph) -> None:
    """Norms in float32 that one 16-bit dtype alone is made of, as under autocast: rounded to it as they are written."""
    for op, rounding in ((_ours.layer_norm.raw, _ours.layer_norm_as.raw), (_ours.rms_norm.raw, _ours.rms_norm_as.raw)):
        for node in graph.find_nodes(op="call_function", target=op):
            result: Any = next((user for user in node.users if user.args[1] == 0), None)
            if result is None or result.meta["val"].dtype is not torch.float32:
                continue
            reads = {(user.target, *user.args[1:]) for user in result.users}
            if not any(reads == {(_convert, dtype)} for dtype in (torch.bfloat16, torch.float16)):
                continue
            [(_, dtype)] = reads
            *args, level = node.args
            with graph.inserting_before(node):
                new = rewrite.insert(graph, node, rounding, *args, dtype, level)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            result.meta["val"] = new.meta["val"][0]
            for read in list(result.users):
                read.replace_all_uses_with(result)
                graph.erase_node(read)


def _bare(graph: torch.fx.Graph) -> None:
    """Differentiable ops have done what they do in a trace: what runs are their bare kernels."""
    for node in graph.nodes:
        target: Any = node.target
        if node.op == "call_function" and getattr(target, "namespace", None) == "torchreduce":
            packet = target.overloadpacket
            if target is getattr(packet, "default", None) and "raw" in packet.overloads():
                node.target = packet.raw


class Rewrite(CustomGraphPass):
    """Replace aten's ops by torchreduce's, on some devices, and then apply other passes.

    It has no state, since torch.compile copies its configuration, and keys its caches by the uuid.
    """

    def __init__(self, devices: int, excluded: str = "", after: tuple[CustomGraphPass, ...] = ()) -> None:
        self._devices, self._excluded, self._after = devices, excluded, after

    def uuid(self) -> Any:
        names = ("graph", "losses", "rewrite", "above", "rules", "products", "bags")
        files = [Path(__file__).with_name(f"{name}.py") for name in names]
        files += [Path(__file__).parents[1] / f"{name}.py" for name in ("scatters", "bags", "channels")]
        others = [other.uuid() for other in self._after]
        if None in others:
            return None  # not to be cached
        digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
        return (digest, self._devices, self._excluded, *others)

    def _is_ours(self, device: torch.device) -> bool:
        return bool(self._devices & _DEVICES.get(device.type, 0))

    def __call__(self, graph: torch.fx.Graph) -> None:
        losses.join(graph, self._is_ours)
        of_torch = {overload(name) for op in self._excluded.split(",") if op for name in SCATTERED[op]}
        rules = _rules(self._devices)
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in rules:
                continue
            if node.target in of_torch or not self._rewrite(graph, node, rules[node.target]):
                _go_on(graph, node)
        _round_norms(graph)
        _bare(graph)
        for other in self._after:
            other(graph)

    def _rewrite(self, graph: torch.fx.Graph, node: torch.fx.Node, rule: Rule) -> bool:
        """Whether torchreduce handles the call."""
        of: dict[int, torch.fx.Node] = {}  # nodes by their values

        def value(argument: torch.fx.Node) -> Any:
            meta = argument.meta.get("val")
            of[id(meta)] = argument
            return meta

        args = torch.fx.node.map_arg(node.args, value)
        kwargs = torch.fx.node.map_arg(node.kwargs, value)
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if not tensors or not all(self._is_ours(t.device) for t in tensors):
            return False
        if node.target is torch.ops.aten.native_layer_norm_backward.default:
            stats = _kept_stats(*node.args[3:5])  # type: ignore[arg-type]
            kwargs = {**kwargs, "stats": value(stats) if stats else None}
        try:
            made = rule(*args, **kwargs)
        except Torchs:
            return False
        if isinstance(made, Traced):
            rewrite.take_apart(graph, node, made.function)
            _erase(graph, node)
            return True

        def insert(target: Any, *arguments: Any) -> torch.fx.Node:
            return rewrite.insert(graph, node, target, *tree_map(lambda a: of.get(id(a), a), arguments))

        with graph.inserting_before(node):
            results = evaluate(
                made, lambda call, arguments: insert(call.op, *arguments), partial(insert, operator.getitem)
            )
            if not isinstance(results, list):
                node.replace_all_uses_with(results)
            else:
                for user in list(node.users):  # each takes one
                    user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
                    graph.erase_node(user)
        graph.erase_node(node)
        return True
