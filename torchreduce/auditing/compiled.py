"""The variation "compiled": each node of the graphs that torch.compile makes, compared with eager mode."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor

from .compare import DIFFERS, Comparison, Found
from .follow import Relation
from .hashes import is_hashable
from .record import Call, Names, Recorder, Seen, copied, line_of, seen_of, tensors

_SAME = Relation()


class Watched:
    """A backend of torch.compile around another: its graphs also return each intermediate tensor."""

    def __init__(self, backend: Any, names: Names) -> None:
        from torch._dynamo.backends.registry import lookup_backend

        self._backend = lookup_backend(backend) if isinstance(backend, str) else backend
        self._paths = {str(id(module)): path for module, path in names.paths.items()}
        self.found: list[Found] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen = [node for node in graph.graph.nodes if node.op.startswith("call_") and _is_tensor(node)]
        wide = torch.fx.GraphModule(graph, torch.fx.Graph())
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        outputs = wide.graph.graph_copy(graph.graph, copies)
        extra = []
        for node in seen:
            with wide.graph.inserting_after(copies[node]):
                at = wide.graph.call_method("detach", (copies[node],))
            with wide.graph.inserting_after(at):
                extra.append(wide.graph.call_method("clone", (at,)))
            for made in (at, extra[-1]):
                made.meta = {"example_value": copies[node].meta["example_value"].detach()}
        wide.graph.output((*outputs, *extra))  # type: ignore[misc]
        wide.recompile()
        compiled = self._backend(wide, inputs)

        def run(*values: Any) -> Any:
            eager = _Eager(graph, seen)
            generators = torch.get_rng_state()
            with torch.no_grad():
                eager.run(*copied(values))
            torch.set_rng_state(generators)
            results = list(compiled(*values))
            made = results[len(results) - len(seen) :]
            self._compare(dict(zip(seen, made, strict=True)), eager.seen)
            return results[: len(results) - len(seen)]

        return run

    def _compare(self, made: dict[torch.fx.Node, Tensor], eager: dict[torch.fx.Node, Seen]) -> None:
        same = {node: _SAME.same(eager[node], seen_of(t, None)) for node, t in made.items() if node in eager}
        for node, is_same in same.items():
            if is_same is False and all(same.get(given, True) for given in _sources(node)):
                shapes = [eager[given] for given in node.all_input_nodes if given in eager]
                call = self._call(node, shapes, eager[node])
                self.found.append(Found(call, DIFFERS, call.key))

    def _call(self, node: torch.fx.Node, inputs: list[Seen], output: Seen) -> Call:
        stack = node.meta.get("nn_module_stack") or {}
        path = next((self._paths[key] for key in reversed(list(stack)) if key in self._paths), "")
        lines = re.findall(r'File "(.*)", line (\d+)', node.meta.get("stack_trace") or "")
        place, code = line_of(lines[-1][0], int(lines[-1][1])) if lines else ("", "")
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return Call(
            ("compiled", node.name), 0, None, target, path, place, code, inputs=inputs, outputs=[output], via=target
        )


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), Tensor)


def _sources(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that a node reads; tuples in between are followed to what they were made of."""
    found: list[torch.fx.Node] = []
    for given in node.all_input_nodes:
        found += [given] if _is_tensor(given) else _sources(given)
    return found


class _Eager(torch.fx.Interpreter):
    """Runs a graph by torch's eager kernels."""

    def __init__(self, graph: torch.fx.GraphModule, nodes: list[torch.fx.Node]) -> None:
        super().__init__(graph)
        self._nodes = frozenset(nodes)
        self.seen: dict[torch.fx.Node, Seen] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n in self._nodes and is_hashable(result):
            self.seen[n] = seen_of(result, None)
        return result


def compare_compiled(fn: Callable[..., Any], args: Sequence[Any], backend: Any, base: Recorder) -> Comparison:
    """Run fn compiled, and compare its graphs with eager mode, and its results with the first run's."""
    watched, first = Watched(backend, base.names), base.modules[-1]
    torch._dynamo.reset()
    try:
        result = torch.compile(lambda *given: fn(*given), backend=watched)(*args)
    finally:
        torch._dynamo.reset()
    results = [*tensors([result]), *(leaf.grad for leaf in base.state.leaves() if leaf.grad is not None)]
    made = Comparison(found=watched.found)
    if len(results) == len(first.outputs):
        same = [_SAME.same(x, seen_of(t, x, rows=base.rows)) for x, t in zip(first.outputs, results, strict=True)]
        made.results = False if False in same else True if same and all(same) else None
    if made.results is False and not made.found:
        call = Call(("compiled", ""), len(base.calls), None, "gradient", "", first.line, first.code, True)
        made.found.append(Found(call, "all nodes of the forward pass are equal in the compiled code", call.key))
    return made
