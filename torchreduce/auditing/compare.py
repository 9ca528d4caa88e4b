"""Compare a run with the first one, op by op: which op is the first with equal inputs and other outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .follow import Relation
from .record import Call, Key, Recorder, Seen

# Why a call is a culprit.
DIFFERS = "inputs are bitwise identical, outputs are not"
MIXES = "what it makes of all rows together flows back into each row"
ADDS = "it adds what processes hold; one process with the batches of all has another sum"
PASSED = "its tensors are bitwise identical, its other arguments (numbers) are not the first run's"
PARTED = "its module's inputs are bitwise identical; from here on, ops, shapes or elements are not the first run's"


@dataclass(frozen=True)
class Found:
    call: Call
    why: str
    key: Key  # in the first run, or of the run that has another path


@dataclass
class Comparison:
    found: list[Found] = field(default_factory=list)
    equal: set[int] = field(default_factory=set)  # calls of the first run that are equal, inputs and outputs
    unknown: set[int] = field(default_factory=set)  # whose inputs differ, or cannot be followed
    by_gradients: list[Found] = field(
        default_factory=list
    )  # what reached rows by a gradient: the fault, if none else is
    results: bool | None = None  # whether the function's results are; None: nothing to compare


def _is_float(seen: Seen) -> bool:
    return seen.dtype.is_floating_point or seen.dtype.is_complex


def _adds(call: Call) -> bool:
    return call.name.startswith(("c10d::", "_c10d_functional::")) and "reduce" in call.name


def _options_are_equal(a: Call, b: Call) -> bool:
    return repr(a.options) == repr(b.options)  # NaN is itself


def compare(base: Recorder, other: Recorder, relation: Relation) -> Comparison:
    by_key, made = other.by_key, Comparison()
    known: dict[tuple[int, int], bool | None] = {}

    def same(x: Seen, y: Seen) -> bool | None:
        """Of what one op made and others read, once."""
        pair = (id(x), id(y))
        if pair not in known:
            known[pair] = relation.same(x, y)
        return known[pair]

    mixed: dict[int, Call] = {}  # outputs that are of all rows together, by number: the op that mixed them
    for a in base.calls:
        b = by_key.get(a.key)
        if b is None or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
            made.unknown.add(a.index)
            continue
        inputs = list(map(same, a.inputs, b.inputs))
        outputs = list(map(same, a.outputs, b.outputs))
        if all(inputs) and all(outputs):
            made.equal.add(a.index)
            continue
        if relation.is_of_ranks and _adds(a) and False in outputs:
            made.found.append(Found(a, ADDS, a.key))
        wrong = [x for x, is_same in zip(a.outputs, outputs, strict=True) if is_same is False]
        if not all(inputs):
            made.unknown.add(a.index)
            _flow(a, inputs, wrong, mixed, made)
        elif not _options_are_equal(a, b):
            made.unknown.add(a.index)
        elif wrong:
            takes_rows = relation.rows is not None and any(x.dim is not None for x in a.inputs)
            own = [x for x in wrong if x.dim is not None or not takes_rows]
            if own and (relation.rows is None or any(map(_is_float, own))):  # integers may be places in the batch
                made.found.append(Found(a, DIFFERS, a.key))
            else:
                made.unknown.add(a.index)
            for x in wrong:
                if takes_rows and x.dim is None:
                    mixed[x.source] = a
        else:
            made.unknown.add(a.index)
    made.results = _results(base.modules[-1], by_key.get(base.modules[-1].key), relation)
    if made.results is False and not made.found:
        made.found += made.by_gradients[:1] or _parted(base, other, relation, made.equal)
    return made


def _flow(a: Call, inputs: Sequence[bool | None], wrong: list[Seen], mixed: dict[int, Call], made: Comparison) -> None:
    """What becomes of results of all rows: they are a culprit where they reach rows of the forward pass.

    Gradients are of all rows, and reach them by a mean loss or by a step of training. That is no fault as long as the
    results of the function are equal.
    """
    differing = [x for x, is_same in zip(a.inputs, inputs, strict=True) if not is_same]
    origins = [mixed.get(x.source) for x in differing]
    if not wrong or None in origins:
        return
    origin = origins[0]
    assert origin is not None
    for x in wrong:
        if x.dim is None:
            mixed[x.source] = origin
            continue
        into = made.by_gradients if a.is_backward or origin.is_backward else made.found
        if all(f.call is not origin for f in into):
            into.append(Found(origin, MIXES, origin.key))


def _results(a: Call, b: Call | None, relation: Relation) -> bool | None:
    if b is None or len(a.outputs) != len(b.outputs):
        return None
    compared = [
        relation.same(x, y)
        for x, y in zip(a.outputs, b.outputs, strict=True)
        if relation.rows is None or relation.is_of_ranks or x.dim is not None
    ]
    return False if False in compared else True if compared and all(compared) else None


def _parted(base: Recorder, other: Recorder, relation: Relation, equal: set[int]) -> list[Found]:
    """Of the innermost module with equal inputs and other results, the first op that has no equal counterpart."""
    theirs, ours = other.by_key, base.by_key
    if relation.is_of_ranks:  # each op on what processes hold is another one
        return [Found(base.modules[-1], PARTED, base.modules[-1].key)]
    for module in base.modules:
        b = theirs.get(module.key)
        if b is None or _results(module, b, relation) is not False:
            continue
        if not all(relation.same(x, y) for x, y in zip(module.inputs, b.inputs, strict=False)):
            continue
        for call in other.calls[b.index : b.end]:
            a = ours.get(call.key, call)
            if a.inputs and (a is call or a.index not in equal):
                same = [relation.same(x, y) for x, y in zip(a.inputs, call.inputs, strict=False)]
                if a is call or not all(same):
                    return [Found(a, PARTED, a.key)]
                if not _options_are_equal(a, call):
                    return [Found(a, PASSED, a.key)]
                return [Found(a, PARTED if relation.rows is None else MIXES, a.key)]
        return [Found(module, PARTED, module.key)]
    return []
