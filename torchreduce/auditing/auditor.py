"""What audit() does: a first run, its variations, and what they differ in."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ..override import enabled, state
from . import mends
from . import vary as variations
from .compare import DIFFERS, PARTED, Comparison, Found, compare
from .compiled import compare_compiled
from .cover import Counted, Covered, covered
from .follow import Batch, Rows, batch_of
from .record import Call, Key, Names, Recorder, tensors
from .result import Audit, Culprit, Module
from .vary import Generators, Run

_NEEDS = {
    "padding": "no argument has a dim 1 to pad",
    "ranks": "there is no process group of several processes, or batch is no dim of the arguments",
}


def _above(path: str) -> Iterator[str]:
    """A module's path, those of the modules around it, and the function's."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _is_one_of_many() -> bool:
    """Of the processes of a group: what one runs beyond the others, who may have found nothing, would wait for them."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _grouped(calls: list[tuple[Call, Run]]) -> Iterator[list[tuple[Call, Run]]]:
    """As many together as have inputs of 256 MB."""
    group: list[tuple[Call, Run]] = []
    size = 0
    for call, run in calls:
        more = sum(math.prod(seen.shape) * seen.dtype.itemsize for seen in call.inputs)
        if group and size + more > 1 << 28:
            yield group
            group, size = [], 0
        group.append((call, run))
        size += more
    if group:
        yield group


class Auditor:
    """Runs a function, and compares."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], batch: int | Batch | None, backend: Any) -> None:
        self._fn, self._backend = fn, backend
        self._dim = batch if isinstance(batch, int) else None
        self._batch = batch_of(args, batch) if isinstance(batch, int) else batch
        self._args = args if self._batch is None or args else self._batch.take(list(range(self._batch.size)))
        self._rows = 0  # that hashes are kept for
        self._counted = Counted()
        self._names, self._generators, self._result = Names(), Generators(), Audit()
        self._found: dict[tuple[Any, ...], list[tuple[Found, Run]]] = {}
        self._verdicts: dict[int, str] = {}

    def run(self, names: list[str]) -> Audit:
        wanted = [run for name in names if name != "compiled" for run in self._runs(name)]
        self._base = self._record_base(any(run.relation.rows is not None for run in wanted))
        self._after = Generators()
        for run in wanted:
            self._vary(run)
        if "compiled" in names:
            self._compile()
        self._result.coverage = self._coverage()
        found = self._ordered()
        tried = self._tried([pairs[0] for pairs in found])
        self._result.culprits = [self._culprit(pairs, tried) for pairs in found]
        self._result.modules = self._modules()
        self._after.restore()
        return self._result

    # -- runs --

    def _runs(self, name: str) -> list[Run]:
        found = variations.runs(name, self._args, self._batch, self._dim)
        if not found:
            self._result.notes.append(
                f"{name}: not run, since {_NEEDS.get(name, 'the arguments have no rows to vary')}"
            )
        return found

    def _record(self, args: Sequence[Any], recorder: Recorder) -> Recorder:
        self._generators.restore()
        recorder.run(self._fn, args)
        return recorder

    def _record_base(self, follows_rows: bool) -> Recorder:
        """The first run. Where rows are followed, a run of another number of rows comes before it, for its shapes."""
        counting = self._counted if state.eager else None  # else in a run of its own, under the override
        if not follows_rows or self._batch is None:
            return self._record(self._args, Recorder(self._names, calling=counting))
        shapes: dict[Key, Call] = {}
        for _, rows in variations.other_sizes(self._batch):
            try:
                shapes = self._record(self._batch.take(rows), Recorder(self._names, choose=None)).by_key
                break
            except Exception:  # noted where the batch is varied: a batch norm takes no row alone
                continue
        self._rows = self._batch.size if self._batch.follow is None else 0
        return self._record(
            self._args, Recorder(self._names, shapes, Rows(self._batch), calling=counting, rows=self._rows)
        )

    def _recorder(self, run: Run) -> Recorder:
        of = run.relation.rows
        rows = len(of) if of is not None and self._rows else self._rows
        return Recorder(self._names, self._base.by_key, run.choose, rows=rows)

    def _vary(self, run: Run) -> None:
        (self._generators if run.is_seeded else self._after).restore()
        recorder = self._recorder(run)
        try:
            with run.around():
                recorder.run(self._fn, run.args)
        except Exception as error:
            self._result.notes.append(f"{run.label}: the function raised {type(error).__name__}: {error}")
            return
        self._judge(compare(self._base, recorder, run.relation), run)

    def _compile(self) -> None:
        run = Run("compiled", f"compiled: {self._backend if isinstance(self._backend, str) else 'backend'}", self._args)
        before = self._base.state.snapshot()
        self._generators.restore()
        try:
            made = compare_compiled(self._fn, self._args, self._backend, self._base)
        except Exception as error:
            self._result.notes.append(f"{run.label}: raised {type(error).__name__}: {error}")
            return
        finally:
            before.restore()
        self._judge(made, run)

    # -- what was found --

    def _judge(self, made: Comparison, run: Run) -> None:
        self._result.variations[run.label] = made.results
        for found in made.found:
            call = found.call
            spot = (call.name, call.line, call.is_backward, found.why)
            self._found.setdefault(spot, []).append((found, run))
            self._verdicts[id(call)] = "culprit"
        for call in self._base.calls:
            verdict = "unknown" if made.found and call.index in made.unknown else "equal"
            if self._verdicts.setdefault(id(call), verdict) == "equal":
                self._verdicts[id(call)] = verdict

    def _ordered(self) -> list[list[tuple[Found, Run]]]:
        """Calls of one op at one line together, that of the first module first."""
        each = [sorted(found, key=lambda pair: pair[0].call.index) for found in self._found.values()]
        return sorted(each, key=lambda pairs: pairs[0][0].call.index)

    def _culprit(self, pairs: list[tuple[Found, Run]], tried: dict[Key, str]) -> Culprit:
        found, run = pairs[0]
        call = found.call
        mend = self._tried_whole(run) if found.why == PARTED else tried.get(call.key)
        return Culprit(
            call.name or "the function",
            call.via,
            tuple(dict.fromkeys(f.call.path for f, _ in pairs)),
            call.line,
            call.code,
            call.is_backward,
            tuple(seen.shape for seen in call.inputs),
            tuple(seen.shape for seen in call.outputs),
            tuple(dict.fromkeys(r.label for _, r in pairs)),
            found.why,
            mend or mends.known(found, run),
            mend is not None,
        )

    def _tried(self, pairs: list[tuple[Found, Run]]) -> dict[Key, str]:
        """What mends ops, by their keys: runs once more for their inputs, and tries on them what may mend them."""
        mended: dict[Key, str] = {}
        ops = self._base.by_key
        can = [(f.call, run) for f, run in pairs if f.why == DIFFERS and f.call.op is not None and f.call.key in ops]
        for group in _grouped(can) if not _is_one_of_many() else ():
            base = self._capture(self._args, nullcontext, [call for call, _ in group])
            for run in {id(run): run for _, run in group}.values():
                calls = [call for call, of in group if of is run]
                other = self._capture(run.args, run.around, calls)
                for call in calls:
                    if call.key in base and call.key in other:
                        text = mends.tried(base[call.key], other[call.key], call, run)
                        mended.update({call.key: text} if text else {})
        return mended

    def _capture(self, args: Sequence[Any], around: Any, calls: Sequence[Call]) -> dict[Key, mends.Captured]:
        recorder = Recorder(self._names, choose=None, capture=[call.key for call in calls])
        self._generators.restore()
        try:
            with around():
                recorder.run(self._fn, args)
        except Exception:
            return {}
        return recorder.captured

    def _tried_whole(self, run: Run) -> str | None:
        """Run both under what may mend the function."""
        if _is_one_of_many() or run.variation == "compiled":
            return None
        for text, way in mends.whole(cpu=any(t.is_cpu for t in tensors(self._args))):
            try:
                with way():
                    base = self._record(self._args, Recorder(self._names, self._base.by_key, rows=self._rows))
                    self._generators.restore()
                    other = self._recorder(run)
                    with run.around():
                        other.run(self._fn, run.args)
            except Exception:
                continue
            if compare(base, other, run.relation).results:
                return text
        return None

    def _modules(self) -> list[Module]:
        verdicts: dict[str, str] = {}
        rank = ("equal", "unknown", "culprit")
        found = [(f.call.path, "culprit") for pairs in self._found.values() for f, _ in pairs]
        for path, verdict in (*((c.path, self._verdicts.get(id(c), "equal")) for c in self._base.calls), *found):
            for above in _above(path):
                verdicts[above] = max(verdicts.get(above, "equal"), verdict, key=rank.index)
        kind = getattr(self._fn, "__name__", type(self._fn).__name__)
        paths = dict.fromkeys(call.path for call in sorted(self._base.modules, key=lambda call: call.opened))
        return [Module(p, self._names.kinds.get(p, kind), verdicts.get(p, "equal")) for p in paths]

    def _coverage(self) -> list[Covered]:
        """Of a run under the override: the first one, or one with enable(cpu=True)."""
        try:
            if not state.eager:
                with enabled(cpu=True, compile=False):
                    self._record(self._args, Recorder(self._names, choose=None, calling=self._counted))
        except Exception as error:
            self._result.notes.append(f"coverage: the function raised {type(error).__name__}: {error}")
        return covered(self._counted.calls)
