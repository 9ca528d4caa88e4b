"""Find the op that makes a result depend on the run, the batch, strides or threads: audit()."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from ..override import enabled, state
from . import mends
from . import vary as variations
from .compare import Comparison, Found, compare
from .compiled import compare_compiled
from .cover import Covered, covered, differences
from .follow import Batch, Rows, batch_of
from .record import Call, Key, Names, Recorder
from .result import Audit, Culprit, Module
from .vary import DEFAULT, VARIATIONS, Generators, Run

__all__ = ["Audit", "Batch", "Covered", "Culprit", "Module", "audit"]


def audit(
    fn: Callable[..., Any],
    *args: Any,
    vary: str | Sequence[str] = DEFAULT,
    batch: int | Batch | None = 0,
    backend: Any = "inductor",
) -> Audit:
    """Run a function again and again under variations, and name the first op that makes its results differ.

    fn(*args) may be a module, a loss with its gradients, or a step of training. Each run computes hashes of the inputs
    and outputs of every op, on their device. An op is a culprit if its inputs are bitwise identical in two runs and its
    outputs are not. fn must give the same in each run otherwise: what its ops write (parameters, buffers, gradients) is
    put back after each run, and so are the random generators; other state, as that of an optimizer that fn does not
    make, is not.

    vary has the names of variations:

    - "repeat": the same call again
    - "seed": again, with the random generators as the first run left them: finds dropout without a seed
    - "threads": another number of threads of the CPU
    - "batch": a row alone, and a batch of twice the size; rows must not change
    - "order": the rows in reverse order
    - "strides": arguments with other strides and another alignment
    - "padding": zeros after the elements of dim 1 of the arguments; the elements before them must not change. For
      functions that mask them
    - "compiled": torch.compile(fn, backend=backend), compared with eager mode
    - "ranks": in a process group, one process that computes the batches of all

    The default is all but the last three and padding. batch is the dim of the arguments that the rows of a batch lie
    along. In the model they are followed along the dim whose size changes with their number. A Batch says it otherwise;
    None: the arguments have no rows.

    The result has `ok`, `culprits`, `modules`, `coverage`, `variations` and `notes`; print() shows it, with a tree of
    the modules. An exception in the first run is raised; a variation that raises becomes a note.

    >>> import torch, torchreduce
    >>> def normalized(x):
    ...     return x - x.mean(0)
    >>> result = torchreduce.audit(normalized, torch.randn(4, 100), vary="batch")
    >>> result.ok, result.culprits[0].op, result.culprits[0].variations
    (False, 'mean.dim', ('batch of 1', 'batch of 8'))
    >>> torchreduce.audit(torch.relu, torch.randn(4, 100)).ok
    True
    """
    names = [vary] if isinstance(vary, str) else list(vary)
    for name in names:
        if name not in VARIATIONS:
            raise ValueError(f"audit(): vary must have names of {', '.join(VARIATIONS)}, got {name!r}")
    if isinstance(batch, int):
        batch = batch_of(args, batch)
    return _Auditor(fn, args, batch, backend).run(names)


class _Auditor:
    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], batch: Batch | None, backend: Any) -> None:
        self._fn, self._batch, self._backend = fn, batch, backend
        self._args = args if batch is None or args else batch.take(list(range(batch.size)))
        self._names, self._generators, self._result = Names(), Generators(), Audit()
        self._found: dict[tuple[Any, ...], list[tuple[Found, Run]]] = {}
        self._verdicts: dict[int, str] = {}

    def run(self, names: list[str]) -> Audit:
        wanted = [run for name in names if name not in ("compiled", "ranks") for run in self._runs(name)]
        self._base = self._record_base(any(run.relation.rows is not None for run in wanted))
        self._after = Generators()
        for run in wanted:
            self._vary(run)
        if "compiled" in names:
            self._compile()
        self._result.coverage = self._coverage()
        self._result.culprits = [self._culprit(pairs) for pairs in self._ordered()]
        self._result.modules = self._modules()
        self._after.restore()
        return self._result

    # -- runs --

    def _runs(self, name: str) -> list[Run]:
        found = variations.runs(name, self._args, self._batch)
        if not found:
            self._result.notes.append(f"{name}: not run, since the arguments have no batch of two rows to vary")
        return found

    def _record(self, args: Sequence[Any], recorder: Recorder) -> Recorder:
        self._generators.restore()
        recorder.run(self._fn, args)
        return recorder

    def _record_base(self, follows_rows: bool) -> Recorder:
        """The first run. Where rows are followed, a run of another number of rows comes before it, for its shapes."""
        if not follows_rows or self._batch is None:
            return self._record(self._args, Recorder(self._names))
        shapes: dict[Key, Call] = {}
        for _, rows in variations.other_sizes(self._batch):
            try:
                shapes = self._record(self._batch.take(rows), Recorder(self._names, choose=None)).by_key
                break
            except Exception:  # noted where the batch is varied: a batch norm takes no row alone
                continue
        return self._record(self._args, Recorder(self._names, shapes, Rows(self._batch)))

    def _vary(self, run: Run) -> None:
        (self._generators if run.is_seeded else self._after).restore()
        recorder = Recorder(self._names, self._base.by_key, run.choose)
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
        base = self._base.modules[-1]
        try:
            made = compare_compiled(self._fn, self._args, self._backend, self._names, self._base.state.leaves(), base)
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

    def _culprit(self, pairs: list[tuple[Found, Run]]) -> Culprit:
        found, run = pairs[0]
        call = found.call
        mend = None
        if call.op is not None and call.key in self._base.by_key:
            mend = self._tried(call, run)
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

    def _tried(self, call: Call, run: Run) -> str | None:
        """Run both once more for the inputs of the op, and try on them what may mend it."""
        pair = []
        for args, around in ((self._args, nullcontext), (run.args, run.around)):
            recorder = Recorder(self._names, choose=None, capture=[call.key])
            self._generators.restore()
            try:
                with around():
                    recorder.run(self._fn, args)
            except Exception:
                return None
            if call.key not in recorder.captured:
                return None
            pair.append(recorder.captured[call.key])
        return mends.tried(pair[0], pair[1], call, run)

    def _modules(self) -> list[Module]:
        verdicts: dict[str, str] = {}
        rank = ("equal", "unknown", "culprit")
        for call in self._base.calls:
            path, verdict = call.path, self._verdicts.get(id(call), "equal")
            while True:
                verdicts[path] = max(verdicts.get(path, "equal"), verdict, key=rank.index)
                if not path:
                    break
                path = path.rpartition(".")[0]
        for found, _ in (pair for pairs in self._found.values() for pair in pairs):
            path = found.call.path
            while True:
                verdicts[path] = "culprit"
                if not path:
                    break
                path = path.rpartition(".")[0]
        kind = getattr(self._fn, "__name__", type(self._fn).__name__)
        paths = dict.fromkeys(call.path for call in sorted(self._base.modules, key=lambda call: call.opened))
        return [Module(p, self._names.kinds.get(p, kind), verdicts.get(p, "equal")) for p in paths]

    def _coverage(self) -> list[Covered]:
        """Of a run under the override: as it is, or as it would be with enable(cpu=True)."""
        is_on = state.eager != 0

        def run() -> None:
            before = self._base.state.snapshot()
            self._generators.restore()
            try:
                with nullcontext() if is_on else enabled(cpu=True, compile=False):
                    self._fn(*self._args)
            finally:
                before.restore()

        return covered(self._base.calls, differences(run))
