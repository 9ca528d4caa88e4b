"""Record a run: each op with hashes of its inputs and outputs, its module and the line of the user's code."""

import linecache
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .hashes import by_row, hashed, is_hashable, kind

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
Key = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Seen:
    """A tensor as an op saw it: what two runs are compared by."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int | None = None  # that rows of the batch lie along
    token: Any = None  # in place of hashes: a parameter that no op has written, or "unwritten" memory
    hashes: list[Any] = field(default_factory=list)  # arrays of int64; more than one for padded tensors: any may be it
    source: int = 0  # number of the output that wrote its memory last, maybe its own; 0 for what was there before


@dataclass(eq=False, slots=True)
class Call:
    """A call of an op, of a module or of the function itself."""

    key: Key  # the same in every run: where it was called, and which call of that place it is
    index: int
    op: Any  # an OpOverload; None for modules and functions
    name: str
    path: str  # of the module: "Llama.layers.0.mlp"
    line: str  # file:number of the user's code
    code: str
    is_backward: bool = False
    inputs: list[Seen] = field(default_factory=list)
    outputs: list[Seen] = field(default_factory=list)
    options: tuple[Any, ...] = ()  # arguments that are no tensors
    via: str = ""  # the function of torch that was called
    end: int = 0  # of modules: the index of the first op after it
    opened: int = 0  # of modules: their number in the order of their beginnings


# ---- ops -------------------------------------------------------------------------------------------------------------

# Ops whose results are not initialized.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# Ops whose schemas do not tell that they write running statistics.
_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var"))
# Outputs that are state of a random generator, workspaces, or padded with what was there.
_UNREAD = {
    "_scaled_dot_product_flash_attention": (6, 7, 8),
    "_scaled_dot_product_cudnn_attention": (6, 7, 8),
    "_scaled_dot_product_efficient_attention": (1, 2, 3),
    "_flash_attention_forward": (2, 3, 4),
    "_efficient_attention_forward": (1, 2, 3),
    "_cudnn_rnn": (3, 4),
    "mkldnn_rnn_layer": (3,),
    "miopen_rnn": (3, 4),
    "cudnn_batch_norm": (3,),
    "_batch_norm_with_update": (3,),
}


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    is_view: bool
    writes: tuple[tuple[int, str], ...]  # arguments that it writes, by place and name
    unread: tuple[int, ...]
    is_unwritten: bool
    is_collective: bool


@cache
def info(op: Any) -> _Info:
    schema = op._schema
    namespace, _, packet = schema.name.partition("::")
    name = packet + (f".{schema.overload_name}" if schema.overload_name else "")
    is_aten = namespace == "aten"
    hidden = _WRITES.get(packet, ()) if is_aten else ()
    writes = tuple(
        (i, a.name)
        for i, a in enumerate(schema.arguments)
        if (a.alias_info is not None and a.alias_info.is_write)
        or a.name in hidden
        or (namespace == "c10d" and i == 0)  # collectives write their first argument, which their schemas do not tell
    )
    return _Info(
        name if is_aten else f"{namespace}::{name}",
        op.is_view,
        writes,
        _UNREAD.get(packet, ()) if is_aten else (),
        is_aten and packet in _UNWRITTEN,
        namespace in ("c10d", "_c10d_functional"),
    )


def tensors(values: Any) -> Iterator[Tensor]:
    """The tensors of arguments or results, in order."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors(value)


_OPTIONS = (bool, int, float, complex, str, torch.dtype, type(None))


def _split(values: Any, found: list[Tensor]) -> tuple[Any, ...]:
    """Adds the tensors of arguments to those found, and returns what else is compared."""
    options: list[Any] = []
    for value in values:
        if type(value) is Tensor or isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, _OPTIONS):
            options.append(value)
        elif isinstance(value, (list, tuple)):
            options.append(_split(value, found))
        elif isinstance(value, dict):
            found.extend(tensors(value))
    return tuple(options)


# ---- the user's code -------------------------------------------------------------------------------------------------


@cache
def _is_users(file: str) -> bool:
    return not (file.startswith((_TORCH, _HERE, "<frozen", "<string>", "<eval")) or file == contextlib_file)


contextlib_file = sys.modules["contextlib"].__file__


_ENGINE = torch.autograd.graph._engine_run_backward.__code__


def place(in_backward: bool = False) -> tuple[str, str]:
    """The line of the innermost frame that is neither torch's nor torchreduce's: file:number, and its text.

    in_backward: only of frames that a backward pass has called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if in_backward and frame.f_code is _ENGINE:
            return "", ""
        frame = frame.f_back
    if frame is None:
        return "", ""
    return line_of(frame.f_code.co_filename, frame.f_lineno)


@cache
def line_of(file: str, number: int) -> tuple[str, str]:
    short = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if short.startswith('..') else short}:{number}", linecache.getline(file, number).strip()


class Names:
    """Paths of modules, the same in all runs of an audit."""

    def __init__(self) -> None:
        self.paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self.roots: Counter[str] = Counter()
        self.kinds: dict[str, str] = {}  # of each path: the class

    def of(self, module: torch.nn.Module, parent: str) -> str:
        path = self.paths.get(module)
        if path is None:
            kind = type(module).__name__
            if not parent:
                self.roots[kind] += 1
                parent = kind if self.roots[kind] == 1 else f"{kind}#{self.roots[kind]}"
                root = parent
            else:
                root = f"{parent}.{kind}"
            for name, child in module.named_modules():
                path = f"{root}.{name}" if name else root
                self.paths.setdefault(child, path)
                self.kinds.setdefault(path, type(child).__name__)
            path = self.paths[module]
        return path


# ---- state -----------------------------------------------------------------------------------------------------------


class State:
    """What a run changed that was there before: contents of memory, and gradients of leaves."""

    def __init__(self) -> None:
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._gradients: dict[int, tuple[Tensor, Tensor | None]] = {}

    def writes(self, storage: Any) -> None:
        """Keep the contents, before they are written for the first time."""
        if storage._cdata not in self._contents:
            self._contents[storage._cdata] = (storage, storage.clone())

    def meets(self, leaf: Tensor) -> None:
        if id(leaf) not in self._gradients:
            self._gradients[id(leaf)] = (leaf, leaf.grad)

    def snapshot(self) -> "State":
        """The same places, as they are now."""
        now = State()
        for storage, _ in self._contents.values():
            now.writes(storage)
        for leaf, _ in self._gradients.values():
            now.meets(leaf)
        return now

    def restore(self) -> None:
        for storage, contents in self._contents.values():
            storage.copy_(contents)
        for leaf, gradient in self._gradients.values():
            leaf.grad = gradient

    def leaves(self) -> list[Tensor]:
        return [leaf for leaf, _ in self._gradients.values()]


@dataclass(eq=False, slots=True)
class _Memory:
    """A storage that a run has met."""

    is_made: bool  # by an op of this run
    is_written: bool  # by an op of this run, or an argument of the function
    is_unwritten: bool = False  # not initialized, as far as torch knows: kernels that it does not know may have done so
    is_unread: bool = False  # a workspace, or the state of a random generator
    is_parameter: bool = False
    source: int = 0
    seen: dict[Any, Seen] = field(default_factory=dict)


def _where(t: Tensor, kind: int, guide: Seen | None) -> tuple[Any, ...]:
    """What decides what is read of a storage, and how it is hashed."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype, kind, guide and (guide.dim, guide.shape)


# ---- runs ------------------------------------------------------------------------------------------------------------

Choose = Callable[[Tensor, Seen | None], tuple[int | None, list[Tensor]]]


def plain(t: Tensor, guide: Seen | None) -> tuple[int | None, list[Tensor]]:
    """As another run had it: along the same dim."""
    return (guide.dim if guide is not None and t.dim() == len(guide.shape) else None), [t]


class Recorder(TorchDispatchMode):
    """Records the calls of a run.

    guide has the calls of an earlier run. choose(tensor, what the guide saw in its place) returns the dim that hashes
    are taken along, and what is hashed; None: nothing is hashed. The arguments of the calls in capture are kept.
    calling(call, args, kwargs) calls the ops. rows: hashes along a dim are kept for so many rows alone.
    """

    def __init__(
        self,
        names: Names,
        guide: dict[Key, Call] | None = None,
        choose: Choose | None = plain,
        capture: Sequence[Key] = (),
        calling: Callable[[Call, Any, Any], Any] | None = None,
        rows: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.guide, self._choose, self.rows = names, guide or {}, choose, rows
        self.calls: list[Call] = []
        self.modules: list[Call] = []  # in the order of their ends; the last one is the function itself
        self.state = State()
        self.captured: dict[Key, tuple[Any, Any, Any]] = {}
        self._capture = frozenset(capture)
        self._calling = calling
        self._memory: dict[int, _Memory] = {}
        self._references: list[int] = []  # weak ones to storages: while they live, no other gets the address
        self._counts: dict[Key, int] = {}
        self._open: list[Call] = []
        self._opened = self._made_count = 0
        self._by_sequence: dict[int, Call] = {}
        self._pending: list[Seen] = []
        self.function = ""

    # -- hashes --

    def _remember(self, t: Tensor, is_made: bool) -> _Memory:
        storage: Any = t.untyped_storage()
        memory = self._memory.get(storage._cdata)
        if memory is None:
            self._references.append(storage._weak_ref())
            memory = self._memory[storage._cdata] = _Memory(is_made, is_made)
        return memory

    def _meet(self, t: Tensor) -> _Memory:
        memory = self._remember(t, is_made=False)
        if not memory.is_made:
            if t.is_leaf and t.requires_grad:
                self.state.meets(t)
            if type(t) is torch.nn.Parameter:
                memory.is_parameter = True
        return memory

    def _see(self, t: Tensor, guide: Seen | None, is_overwritten: bool = False) -> Seen:
        of = kind(t)
        if of == 0:
            return Seen(tuple(t.shape), t.dtype, token=object())
        memory = self._meet(t)
        if self._choose is None:
            return Seen(tuple(t.shape), t.dtype)
        where = _where(t, of, guide)
        known = memory.seen.get(where)
        if known is not None and not memory.is_unwritten:
            return known
        seen = Seen(tuple(t.shape), t.dtype, source=memory.source)
        if memory.is_unread or (memory.is_unwritten and is_overwritten):
            seen.token = "unwritten"
        elif memory.is_parameter and not memory.is_written:
            seen.token = (t.untyped_storage()._cdata, *where[:5])
        else:
            self._hash(t, seen, guide, self._choose)
        memory.seen[where] = seen
        return seen

    def _hash(self, t: Tensor, seen: Seen, guide: Seen | None, choose: Choose) -> None:
        seen.dim, seen.hashes = _hashed(t, guide, choose, self.rows)
        if type(seen.hashes[0]) is Tensor:
            self._pending.append(seen)

    def _see_all(
        self, given: Iterable[Tensor], guide: Sequence[Seen] | None, written: frozenset[int] = frozenset()
    ) -> list[Seen]:
        return [
            self._see(t, guide[i] if guide and i < len(guide) else None, id(t) in written) for i, t in enumerate(given)
        ]

    def _finish(self) -> None:
        """Bring the hashes to the host, those of a device at once."""
        by_device: dict[torch.device, list[tuple[Seen, int]]] = {}
        for seen in self._pending:
            for i, values in enumerate(seen.hashes):
                by_device.setdefault(values.device, []).append((seen, i))
        for places in by_device.values():
            counts = [len(seen.hashes[i]) for seen, i in places]
            flat = torch.cat([seen.hashes[i] for seen, i in places]).cpu().numpy()
            for (seen, i), values in zip(places, np.split(flat, np.cumsum(counts)[:-1]), strict=True):
                seen.hashes[i] = values
        self._pending.clear()

    # -- ops --

    def _key(self, spot: Key) -> Key:
        n = self._counts[spot] = self._counts.get(spot, 0) + 1
        return (*spot, n)

    def _call(self, name: str, op: Any) -> Call:
        is_backward = torch._C._current_graph_task_id() != -1
        of = None
        if is_backward and (node := torch._C._current_autograd_node()) is not None:
            of = self._by_sequence.get(node._sequence_nr())
        if of is not None:
            path, via = of.path, of.via
            (line, code) = place(in_backward=True)
            if not line:
                line, code = of.line, of.code
        else:
            path, (line, code), via = self._open[-1].path if self._open else "", place(), self.function
        key = self._key((path, name, line, is_backward))
        call = Call(key, len(self.calls), op, name, path, line, code, is_backward, via=via)
        if not is_backward:
            self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, call)
        return call

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        of = info(op)
        if of.is_view:
            if args and is_hashable(args[0]):
                self._meet(args[0])
            return op(*args, **kwargs)
        call = self._call(of.name, op)
        guide = self.guide.get(call.key)
        given: list[Tensor] = []
        call.options = _split((*args, *kwargs.values()) if kwargs else args, given)
        written: list[Tensor] = []
        if of.writes:
            written += tensors([args[i] if i < len(args) else kwargs.get(name) for i, name in of.writes])
        call.inputs = self._see_all(given, guide.inputs if guide else None, frozenset(map(id, written)))
        if call.key in self._capture:
            self.captured[call.key] = (op, copied(args), copied(kwargs))
        for t in written:
            if is_hashable(t) and not self._remember(t, is_made=False).is_made:
                self.state.writes(t.untyped_storage())
        result = self._calling(call, args, kwargs) if self._calling else op(*args, **kwargs)
        if of.is_collective:
            _await(op, result)
        results = [result] if type(result) is Tensor else list(tensors(_listed(result)))
        if results and not written and self._are_views(results, given):
            return result  # a view after all
        outputs = results
        if written or len(results) > 1:
            outputs = list({id(t): t for t in (*written, *results)}.values())
        like = guide.outputs if guide else ()
        call.outputs = [self._made(t, like[i] if i < len(like) else None, of, i) for i, t in enumerate(outputs)]
        self.calls.append(call)
        return result

    def _are_views(self, results: list[Tensor], given: list[Tensor]) -> bool:
        if all(is_hashable(t) and t.untyped_storage()._cdata in self._memory for t in results):
            memory = {t.untyped_storage()._cdata for t in given if is_hashable(t)}
            return all(t.untyped_storage()._cdata in memory for t in results)
        return False

    def _made(self, t: Tensor, guide: Seen | None, op: _Info, place: int) -> Seen:
        """A tensor that an op has just written, in the place of its outputs."""
        of, seen = kind(t), Seen(tuple(t.shape), t.dtype)
        if of == 0:
            seen.token = object()
            return seen
        memory = self._remember(t, is_made=True)
        memory.is_written, memory.is_unwritten = True, op.is_unwritten
        memory.is_unread = place in op.unread
        self._made_count += 1
        memory.source = seen.source = self._made_count
        memory.seen = {}
        if memory.is_unwritten or memory.is_unread:
            seen.token = "unwritten"
        elif self._choose is not None:
            self._hash(t, seen, guide, self._choose)
            memory.seen[_where(t, of, guide)] = seen
        return seen

    # -- modules, and the function --

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():
            return
        path = self.names.of(module, self._open[-1].path if self._open else "")
        self._begin(path, ("module", path), args)

    def _begin(self, path: str, spot: Key, args: Any) -> None:
        line, code = place()
        call = Call(self._key(spot), len(self.calls), None, path, path, line, code)
        guide = self.guide.get(call.key)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # these calls are not the user's
            call.inputs = self._see_all(tensors(args), guide.inputs if guide else None)
        call.opened = self._opened = self._opened + 1
        self._open.append(call)

    def _leave(self, module: torch.nn.Module, args: Any, *rest: Any) -> None:
        """rest is (kwargs, result), or (result,) after an exception."""
        if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():
            return
        self._end(rest[-1], rest[0] if len(rest) == 2 else None)

    def _end(self, result: Any, kwargs: Any = None) -> None:
        """Of a module's arguments by keyword, torch tells after the call."""
        call = self._open.pop()
        guide = self.guide.get(call.key)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # these calls are not the user's
            call.inputs += self._see_all(tensors(kwargs or {}), guide.inputs[len(call.inputs) :] if guide else None)
            gradients = [leaf.grad for leaf in self.state.leaves()] if not self._open else []
            call.outputs = self._see_all(tensors([result, gradients]), guide.outputs if guide else None)
        call.end = len(self.calls)
        self.modules.append(call)

    def run(self, fn: Callable[..., Any], args: Any) -> None:
        """Call the function, and put back what it changed."""
        before = torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = torch.nn.modules.module.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)
        try:
            with _Functions(self), self:
                for t in filter(is_hashable, tensors(args)):
                    self._remember(t, is_made=False).is_written = True
                self._begin("", ("function",), args)
                self._end(fn(*args))
            self._finish()
        finally:
            before.remove()
            after.remove()
            self.state.restore()
            self._memory.clear()
            for reference in self._references:
                torch.UntypedStorage._free_weak_ref(reference)
            self._references.clear()

    @cached_property
    def by_key(self) -> dict[Key, Call]:
        """Of a run that has ended."""
        return {call.key: call for call in (*self.calls, *self.modules)}


_OPS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._library.custom_ops.CustomOpDef)


class _Functions(TorchFunctionMode):
    """Tells the recorder which function of torch is called: einsum, kl_div."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._recorder.function = "" if isinstance(function, _OPS) else getattr(function, "__name__", "")
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self._recorder.function = ""


def _listed(result: Any) -> Any:
    return result if isinstance(result, (list, tuple)) else [result]


def _await(op: Any, result: Any) -> None:
    """Wait for the results of a collective."""
    if op.namespace == "_c10d_functional":
        for t in tensors(_listed(result)):
            torch.ops._c10d_functional.wait_tensor(t)
    elif isinstance(result, (list, tuple)) and isinstance(result[-1], torch.ScriptObject):
        torch._C._distributed_c10d.Work.unbox(result[-1]).wait()


def copied(values: Any) -> Any:
    """A copy of arguments, with their strides."""
    if isinstance(values, Tensor):
        if not is_hashable(values):
            return values
        storage = torch.empty_like(values)
        if storage.stride() != values.stride():
            extent = (
                1 + sum((n - 1) * s for n, s in zip(values.shape, values.stride(), strict=True))
                if values.numel()
                else 0
            )
            storage = values.new_empty(extent).as_strided(values.shape, values.stride())
            if torch._debug_has_internal_overlap(storage):
                return values.detach().clone()
        return storage.copy_(values.detach())
    if isinstance(values, dict):
        return {key: copied(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(copied(value) for value in values)
    return values


def _hashed(t: Tensor, guide: Seen | None, choose: Choose, rows: int) -> tuple[int | None, list[Any]]:
    dim, chosen = choose(t, guide)
    if dim is None:
        return dim, [hashed(c) for c in chosen]
    return dim, [by_row(hashed(c, dim), rows) for c in chosen]


def seen_of(t: Tensor, guide: Seen | None, choose: Choose = plain, rows: int = 0) -> Seen:
    """A tensor outside of a run."""
    dim, found = _hashed(t, guide, choose, rows)
    return Seen(tuple(t.shape), t.dtype, dim, hashes=[h.cpu().numpy() if type(h) is Tensor else h for h in found])
