"""What a reduction is, before any kernel: any associative op over any data, and the order of its steps, printed."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

State = TypeVar("State", Tensor, tuple[Tensor, ...])


def reduce(data: State, identity: State, op: Callable[[State, State], State]) -> State:
    """All of `data` combined by `op`, in a tree of neighbours, on whatever device it is.

    data: a tensor of one dim, or a tuple of several of one length: the state of a reduction that needs more than one
    value. identity: what leaves a state as it is, 0-d of the same dtypes; the result of no data. op: of two states
    (tensors of one dim) and associative; it need not be commutative, since the left operand always comes first. It is
    called ceil(log2(n)) times, on ever shorter tensors.

    >>> import torch, torchreduce.ladder as ladder
    >>> ladder.reduce(torch.tensor([1, 2, 3, 4, 5]), torch.tensor(1), lambda a, b: a * b)
    tensor(120)
    """
    single = isinstance(data, Tensor)
    state: tuple[Tensor, ...] = (data,) if isinstance(data, Tensor) else tuple(data)
    neutral: tuple[Tensor, ...] = (identity,) if isinstance(identity, Tensor) else tuple(identity)
    if len({tuple(t.shape) for t in state}) != 1 or state[0].dim() != 1:
        raise ValueError(f"ladder.reduce: data must have one dim and one length, got {[tuple(t.shape) for t in state]}")
    if len(state) != len(neutral):
        raise ValueError(f"ladder.reduce: {len(state)} tensors of data need as many identities, got {len(neutral)}")
    pad = tuple(i.to(t).reshape(1) for i, t in zip(neutral, state, strict=True))
    if state[0].numel() == 0:
        state = pad
    while state[0].numel() > 1:
        if state[0].numel() % 2:
            state = tuple(torch.cat((t, i)) for t, i in zip(state, pad, strict=True))
        left, right = tuple(t[0::2] for t in state), tuple(t[1::2] for t in state)
        combined: Any = op(left[0], right[0]) if single else op(left, right)  # type: ignore[arg-type]
        state = (combined,) if single else tuple(combined)
    scalars = tuple(t.reshape(()) for t in state)
    return cast(State, scalars[0] if single else scalars)


def steps(data: Sequence[float], op: Callable[[Any, Any], Any], tree: bool = True) -> str:
    """A reduction step by step, a line each, to print: of neighbours in a tree, or from left to right.

    >>> import torchreduce.ladder as ladder
    >>> print(ladder.steps([5, 2, 8, 1], max))
    start  | 5 | 2 | 8 | 1 |
    step 1 | 5     | 8     |
    step 2 | 8             |
    >>> print(ladder.steps([5, 2, 8, 1], max, tree=False))
    start  | 5 | 2 | 8 | 1 |
    step 1 | 5     | 8 | 1 |
    step 2 | 8         | 1 |
    step 3 | 8             |
    """
    parts = [(value, 1) for value in data]  # a value, and how many elements it stands for
    lines = [parts]
    while len(parts) > 1:
        if tree:
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        else:
            pairs = [parts[:2], *([part] for part in parts[2:])]
        parts = [p[0] if len(p) == 1 else (op(p[0][0], p[1][0]), p[0][1] + p[1][1]) for p in pairs]
        lines.append(parts)
    width = max((len(f"{value}") for line in lines for value, _ in line), default=0) + 3
    names = ["start", *(f"step {i}" for i in range(1, len(lines)))]
    longest = max(map(len, names))
    rows = ["".join(f"| {value}".ljust(width * count) for value, count in line) for line in lines]
    return "\n".join(f"{name.ljust(longest)} {row}|" for name, row in zip(names, rows, strict=True))
