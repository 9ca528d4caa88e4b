"""The public scatters: sums and other reductions of the elements that meet at one place of a tensor.

Common to all scatters
- Names, arguments and their order, and exceptions are torch's. A function whose name ends in an underscore writes to
  its first argument and returns it.
- Elements that meet at a place are reduced in a fixed order, in float32 or, for float64, in float64: the result
  depends on the data alone, and is rounded once, also for 16 bits and in place. Places that no element meets keep their
  bits.
- input and source are floating and of one dtype. Calls on integers, bool and complex are torch's own calls.
- An index is int32 or int64. If it is out of range, a CPU raises torch's exception. A GPU, which the host does not wait
  for, leaves the element out; with the environment variable TORCHREDUCE_CHECK_INDICES=1 it raises, too.
- Gradients, tangents, vmap and torch.compile are supported, for input and source.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._core.checks import check_bool, check_dim, check_input, kind_of
from ._core.dispatch import is_bare, serving
from ._fake.reductions import decided, same_shape
from .determinism import level_code
from .segmented import check_in_range, check_index, segment_overloads, segments
from .table import FLOATS

_SCATTER = segment_overloads("scatter_segments")
_SCATTER_ = torch.ops.torchreduce.scatter_.raw
_REDUCES = ("sum", "prod", "mean", "amax", "amin")


# ---- what they have in common ----------------------------------------------------------------------------------------


def _is_float(name: str, input: Any, source: Any, argument: str) -> bool:
    """Whether the call is torchreduce's; else torch's, which also raises if the tensors are none."""
    if not isinstance(input, Tensor) or not isinstance(source, Tensor) or input.dtype not in FLOATS:
        return False
    if source.dtype != input.dtype:
        raise RuntimeError(f"{name}(): input and {argument} must have one dtype, got {input.dtype} and {source.dtype}")
    check_input(name, input, "input", FLOATS)
    check_input(name, source, argument, FLOATS)
    if input.device != source.device:
        raise RuntimeError(
            f"{name}(): input and {argument} must be on one device, got {input.device} and {source.device}"
        )
    return True


def _check_reduce(name: str, reduce: Any, known: Sequence[str]) -> None:
    if reduce not in known:
        raise RuntimeError(f"{name}(): reduce must be one of {', '.join(known)}, got {reduce!r}")


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    return torch._C._is_alias_of(a, b)  # type: ignore[attr-defined, no-any-return]


def _written(
    input: Tensor, view: Callable[[Tensor], Tensor], source: Tensor, index: Tensor, dim: int, reduce: str,
    include_self: bool, alpha: float, in_place: bool,
) -> Tensor | None:  # fmt: skip
    """Reduce source along dim into the view of input, of plain tensors that need no derivative; None for others.

    index: of one dim, or one for each element of source."""
    if not is_bare(input, source, index):
        return None
    target = input if in_place else input.clone(memory_format=torch.contiguous_format)
    if not target.is_contiguous() or target.is_neg() or (in_place and _shares_memory(input, source)):
        return None
    _SCATTER_(view(target), source, index, dim, reduce, include_self, alpha, level_code())
    if in_place:
        torch.autograd.graph.increment_version(input)
    return target


def _scattered(
    input: Tensor, view: Callable[[Tensor], Tensor], source: Tensor, index: Tensor, dim: int, reduce: str,
    include_self: bool, alpha: float, in_place: bool,
) -> Tensor:  # fmt: skip
    """Reduce source along dim, by index, into the view of input; in place into input itself."""
    written = _written(input, view, source, index, dim, reduce, include_self, alpha, in_place)
    if written is not None:
        return written
    places = segments(index, view(input).shape[dim])
    how = (dim, reduce, include_self, alpha, level_code())
    kept = in_place and reduce not in ("sum", "mean")  # for the gradient
    target = view(input.clone() if kept else input)
    result = serving(_SCATTER, target, source, places.offsets)(target, source, *places, *how)
    result = result.reshape(input.shape)
    return input.copy_(result) if in_place else result


def _itself(t: Tensor) -> Tensor:
    return t


# ---- one index a row -------------------------------------------------------------------------------------------------


def _by_rows(
    name: str, input: Tensor, dim: Any, index: Any, source: Tensor, reduce: str, include_self: bool, alpha: Any,
    in_place: bool,
) -> Tensor:  # fmt: skip
    check_index(name, "index", index, None)
    if index.dim() > 1:
        raise IndexError(f"{name}(): index must have 1 dim, got shape {tuple(index.shape)}")
    dim = check_dim(name, dim, input.dim()) % max(input.dim(), 1)
    index = index.reshape(-1)
    shape = [index.shape[0] if d == dim else size for d, size in enumerate(input.shape)]
    fits = same_shape(source.shape, shape) if input.dim() else source.numel() == index.shape[0]
    if not fits:
        raise RuntimeError(
            f"{name}(): source must have the shape of input, but {index.shape[0]} along dim {dim}, as index: got "
            f"{tuple(source.shape)} for an input of shape {tuple(input.shape)}"
        )
    error = RuntimeError if name == "index_add" else IndexError
    check_in_range(name, index, input.shape[dim] if input.dim() else 1, error)
    view = _itself if input.dim() else (lambda t: t.reshape(1))
    source = source if input.dim() else source.reshape(-1)
    return _scattered(input, view, source, index, dim, reduce, include_self, alpha, in_place)


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float, in_place: bool) -> Tensor:
    if not _is_float("index_add", input, source, "source"):
        torchs = torch.Tensor.index_add_ if in_place else torch.index_add
        return torchs(input, dim, index, source, alpha=alpha)
    if isinstance(alpha, (complex, Tensor)):
        raise TypeError(f"index_add(): argument 'alpha' must be a number, got {kind_of(alpha)}")
    return _by_rows("index_add", input, dim, index, source, "sum", True, float(alpha), in_place)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Return input with alpha times the rows of source added at the indices along dim.

    Row k of the result is input[k] plus alpha times the sum of the rows i of source with index[i] = k, in ascending
    order of i. index has one dim.

    >>> import torch, torchreduce
    >>> torchreduce.index_add(torch.zeros(3), 0, torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([2., 0., 4.])
    """
    return _index_add(input, dim, index, source, alpha, False)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Compute index_add in place.

    >>> import torch, torchreduce
    >>> x = torch.ones(2)
    >>> torchreduce.index_add_(x, 0, torch.tensor([1, 1]), torch.tensor([1.0, 2.0])) is x, x
    (True, tensor([1., 4.]))
    """
    return _index_add(input, dim, index, source, alpha, True)


def _index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool, in_place: bool
) -> Tensor:
    if not _is_float("index_reduce", input, source, "source"):
        torchs = torch.Tensor.index_reduce_ if in_place else torch.index_reduce
        return torchs(input, dim, index, source, reduce, include_self=include_self)
    _check_reduce("index_reduce", reduce, _REDUCES[1:])
    check_bool("index_reduce", "include_self", include_self)
    return _by_rows("index_reduce", input, dim, index, source, reduce, include_self, 1.0, in_place)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return input with the rows of source reduced into it at the indices along dim.

    reduce is "prod", "mean", "amax" or "amin". Without include_self, an element of input that a row of source meets is
    replaced.

    >>> import torch, torchreduce
    >>> x, index = torch.tensor([[5.0], [1.0]]), torch.tensor([1, 1])
    >>> torchreduce.index_reduce(x, 0, index, torch.tensor([[2.0], [3.0]]), "mean")
    tensor([[5.],
            [2.]])
    """
    return _index_reduce(input, dim, index, source, reduce, include_self, False)


def index_reduce_(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Compute index_reduce in place.

    >>> import torch, torchreduce
    >>> torchreduce.index_reduce_(torch.ones(2), 0, torch.tensor([1, 1]), torch.tensor([4.0, 2.0]), "amax")
    tensor([1., 4.])
    """
    return _index_reduce(input, dim, index, source, reduce, include_self, True)


# ---- one index an element --------------------------------------------------------------------------------------------


def _is_one_a_row(index: Tensor, dim: int) -> bool:
    """Whether index is the same for all elements of a row, as its strides say."""
    return all(index.stride(d) == 0 and index.shape[d] > 0 for d in range(index.dim()) if d != dim)


def _scatter(
    name: str, input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool, in_place: bool
) -> Tensor:
    """dim is not negative; no tensor is 0-d; index has src's shape."""
    for d, size in enumerate(index.shape):
        if d == dim or decided(input.shape[d] == size, True):
            continue
        part = input.narrow(d, 0, size)  # no index for the rest, which keeps its bits
        if in_place:
            _scatter(name, part, dim, index, src, reduce, include_self, True)
            return input
        part = _scatter(name, part, dim, index, src, reduce, include_self, False)
        return torch.slice_scatter(input, part, d, 0, size)
    if _is_one_a_row(index, dim):
        rows = index[tuple(slice(None) if d == dim else 0 for d in range(index.dim()))]
        return _scattered(input, _itself, src, rows, dim, reduce, include_self, 1.0, in_place)
    written = _written(input, _itself, src, index, dim, reduce, include_self, 1.0, in_place)
    if written is not None:
        return written
    size, inner = input.shape[dim], math.prod(input.shape[dim + 1 :])
    index = index.long()
    columns = torch.arange(inner, device=index.device).reshape(input.shape[dim + 1 :])
    blocks = torch.arange(math.prod(input.shape[:dim]), device=index.device)
    blocks = blocks.reshape(*input.shape[:dim], *[1] * (input.dim() - dim))
    places = (blocks * size + index) * inner + columns
    places = torch.where((index < 0) | (index >= size), -1, places)
    return _scattered(input, lambda t: t.reshape(-1), src.reshape(-1), places.reshape(-1), 0, reduce, include_self, 1.0,
                      in_place)  # fmt: skip


def _by_elements(
    name: str, input: Tensor, dim: Any, index: Any, src: Tensor, reduce: str, include_self: bool, in_place: bool
) -> Tensor:
    check_index(name, "index", index, None)
    dim = check_dim(name, dim, input.dim()) % max(input.dim(), 1)
    if decided(index.numel() == 0, False):
        return input if in_place else input.clone()
    ranks = [max(t.dim(), 1) for t in (input, index, src)]
    if len(set(ranks)) > 1:
        raise RuntimeError(f"{name}(): index and src must have as many dims as input, {input.dim()}, got {index.dim()} "
                           f"and {src.dim()}")  # fmt: skip
    whole = input if input.dim() else input.reshape(1)
    index, src = (t if t.dim() else t.reshape(1) for t in (index, src))
    for d, size in enumerate(index.shape):
        if not decided(size <= src.shape[d], True) or (d != dim and not decided(size <= whole.shape[d], True)):
            raise RuntimeError(
                f"{name}(): index must not be larger than src, nor than input but along dim {dim}: got the shapes "
                f"{tuple(index.shape)}, {tuple(src.shape)} and {tuple(input.shape)}"
            )
        src = src.narrow(d, 0, size)
    check_in_range(name, index, whole.shape[dim], RuntimeError)
    result = _scatter(name, whole, dim, index, src, reduce, include_self, in_place)
    return input if in_place else result.reshape(input.shape)


def _scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, in_place: bool) -> Tensor:
    if not _is_float("scatter_add", input, src, "src"):
        return (torch.Tensor.scatter_add_ if in_place else torch.scatter_add)(input, dim, index, src)
    return _by_elements("scatter_add", input, dim, index, src, "sum", True, in_place)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return input with the elements of src added at the indices along dim.

    Element (i, j) of src is added to element (index[i, j], j) of input if dim is 0, and so on for other dims. Elements
    that meet are added in ascending order along dim. index may be smaller than src, and than input in other dims.

    >>> import torch, torchreduce
    >>> index = torch.tensor([[0, 1], [0, 0]])
    >>> torchreduce.scatter_add(torch.zeros(2, 2), 0, index, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[4., 4.],
            [0., 2.]])
    """
    return _scatter_add(input, dim, index, src, False)


def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Compute scatter_add in place.

    >>> import torch, torchreduce
    >>> torchreduce.scatter_add_(torch.ones(2), 0, torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
    tensor([1., 4.])
    """
    return _scatter_add(input, dim, index, src, True)


def _scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool, in_place: bool
) -> Tensor:
    if not _is_float("scatter_reduce", input, src, "src"):
        torchs = torch.Tensor.scatter_reduce_ if in_place else torch.scatter_reduce
        return torchs(input, dim, index, src, reduce, include_self=include_self)
    _check_reduce("scatter_reduce", reduce, _REDUCES)
    check_bool("scatter_reduce", "include_self", include_self)
    return _by_elements("scatter_reduce", input, dim, index, src, reduce, include_self, in_place)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return input with the elements of src reduced into it at the indices along dim.

    reduce is "sum", "prod", "mean", "amax" or "amin". Otherwise as scatter_add. Without include_self, an element of
    input that an element of src meets is replaced.

    >>> import torch, torchreduce
    >>> x, index = torch.tensor([1.0, 9.0, 5.0]), torch.tensor([0, 0, 1])
    >>> torchreduce.scatter_reduce(x, 0, index, torch.tensor([2.0, 6.0, 7.0]), "mean")
    tensor([3., 8., 5.])
    >>> torchreduce.scatter_reduce(x, 0, index, torch.tensor([2.0, 6.0, 7.0]), "amax", include_self=False)
    tensor([6., 7., 5.])
    """
    return _scatter_reduce(input, dim, index, src, reduce, include_self, False)


def scatter_reduce_(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Compute scatter_reduce in place.

    >>> import torch, torchreduce
    >>> torchreduce.scatter_reduce_(torch.ones(2), 0, torch.tensor([1, 1]), torch.tensor([3.0, 2.0]), "prod")
    tensor([1., 6.])
    """
    return _scatter_reduce(input, dim, index, src, reduce, include_self, True)


# ---- any indices -----------------------------------------------------------------------------------------------------


def _numbers(input: Tensor, indices: Any) -> list[Tensor | None]:
    """The indices of index_put, one for each dim; a mask is as many as it has dims."""
    numbers: list[Tensor | None] = []
    for index in indices:
        if index is not None and not isinstance(index, Tensor):
            raise TypeError(f"index_put(): argument 'indices' must be a tuple of Tensors, got {kind_of(index)}")
        if index is None or index.dtype in (torch.int32, torch.int64):
            numbers.append(index)
        elif index.dtype in (torch.bool, torch.uint8) and index.dim():
            shape = tuple(input.shape[len(numbers) : len(numbers) + index.dim()])
            if tuple(index.shape) != shape:
                raise IndexError(
                    f"index_put(): the shape of the mask {tuple(index.shape)} at index {len(numbers)} does not match "
                    f"the shape of the indexed tensor {tuple(input.shape)}"
                )
            numbers += index.nonzero(as_tuple=True)
        else:
            raise IndexError(
                f"index_put(): indices must be int32, int64, or masks of at least 1 dim, got {index.dtype}"
            )
    if len(numbers) > input.dim():
        raise IndexError(f"index_put(): too many indices for tensor of dimension {input.dim()} (got {len(numbers)})")
    return numbers + [None] * (input.dim() - len(numbers))


def _index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool, in_place: bool) -> Tensor:
    if not _is_float("index_put", input, values, "values"):
        return (torch.Tensor.index_put_ if in_place else torch.index_put)(input, indices, values, accumulate)
    if accumulate is not True:
        raise NotImplementedError("index_put(): not implemented without accumulate=True: use torch.index_put")
    numbers = _numbers(input, indices)
    along = [d for d, index in enumerate(numbers) if index is not None]
    if not along:
        result = input + values
        if result.shape != input.shape:
            raise RuntimeError(
                f"index_put(): values of shape {tuple(values.shape)} do not broadcast to {tuple(input.shape)}"
            )
        return input.copy_(result) if in_place else result
    # As torch lays out the indexed result: the indexed dims stand where the first one was, if they were neighbours.
    kept = [d for d in range(input.dim()) if d not in along]
    front = along[0] if along[-1] - along[0] == len(along) - 1 else 0
    given = torch.broadcast_tensors(*(numbers[d] for d in along))
    place = torch.zeros((), dtype=torch.int64, device=input.device)
    outside: Any = False
    for d, index in zip(along, given, strict=True):
        size = input.shape[d]
        wrapped = torch.where(index < 0, index + size, index)
        check_in_range("index_put", wrapped, size)
        outside = outside | (wrapped < 0) | (wrapped >= size)
        place = place * size + wrapped
    place = torch.where(outside, -1, place)
    shape = [*(input.shape[d] for d in kept[:front]), *place.shape, *(input.shape[d] for d in kept[front:])]
    try:
        values = values.expand(shape)
    except RuntimeError:
        raise RuntimeError(
            f"index_put(): shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing "
            f"result of shape {shape}"
        ) from None
    values = values.permute(
        [*range(front, front + place.dim()), *range(front), *range(front + place.dim(), len(shape))]
    )
    rest = [input.shape[d] for d in kept]
    values, numbered = values.reshape(-1, *rest), math.prod([input.shape[d] for d in along])
    order = along + kept
    if order == list(range(input.dim())):
        return _scattered(input, lambda t: t.reshape(numbered, *rest), values, place.reshape(-1), 0, "sum", True, 1.0,
                          in_place)  # fmt: skip
    moved = input.permute(order)
    result = _scattered(moved, lambda t: t.reshape(numbered, *rest), values, place.reshape(-1), 0, "sum", True, 1.0,
                        False)  # fmt: skip
    result = result.permute([order.index(d) for d in range(len(order))])
    return input.copy_(result) if in_place else result.contiguous()


def index_put(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Return input with values added at the indices.

    accumulate must be True: raises NotImplementedError otherwise. indices are as torch's: tensors that broadcast
    against each other, masks, or None for all of a dim; negative ones count from the end. values broadcast to
    input[indices]. Elements that meet are added in row-major order of input[indices].

    >>> import torch, torchreduce
    >>> rows, columns = torch.tensor([0, 1, 0]), torch.tensor([1, -1, 1])
    >>> torchreduce.index_put(torch.zeros(2, 2), (rows, columns), torch.tensor([1.0, 2.0, 3.0]), accumulate=True)
    tensor([[0., 4.],
            [0., 2.]])
    """
    return _index_put(input, indices, values, accumulate, False)


def index_put_(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Compute index_put in place.

    >>> import torch, torchreduce
    >>> torchreduce.index_put_(torch.ones(2), (torch.tensor([1, 1]),), torch.tensor([1.0, 2.0]), accumulate=True)
    tensor([1., 4.])
    """
    return _index_put(input, indices, values, accumulate, True)


def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool, in_place: bool) -> Tensor:
    if not _is_float("put", input, source, "source"):
        torchs = torch.Tensor.put_ if in_place else torch.Tensor.put
        return torchs(input, index, source, accumulate)
    if accumulate is not True:
        raise NotImplementedError("put(): not implemented without accumulate=True: use torch.Tensor.put")
    check_index("put", "index", index, None)
    if not same_shape([index.numel()], [source.numel()]):
        raise RuntimeError(
            f"put(): index and source must have as many elements, got {index.numel()} and {source.numel()}"
        )
    if decided(input.numel() == 0, False):
        check_in_range("put", index, 0)
        return input if in_place else input.clone()
    numbers = torch.where(index < 0, index + input.numel(), index).reshape(-1)
    check_in_range("put", numbers, input.numel())
    return _scattered(input, lambda t: t.reshape(-1), source.reshape(-1), numbers, 0, "sum", True, 1.0, in_place)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return input with the elements of source added at places of input, counted in row-major order.

    accumulate must be True: raises NotImplementedError otherwise. index and source have as many elements each, and any
    shapes; negative places count from the end. Elements that meet are added in the order in which they stand in source.

    >>> import torch, torchreduce
    >>> index, source = torch.tensor([3, 0, -1]), torch.tensor([1.0, 2.0, 3.0])
    >>> torchreduce.put(torch.zeros(2, 2), index, source, accumulate=True)
    tensor([[2., 0.],
            [0., 4.]])
    """
    return _put(input, index, source, accumulate, False)


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Compute put in place.

    >>> import torch, torchreduce
    >>> torchreduce.put_(torch.ones(2), torch.tensor([1, 1]), torch.tensor([1.0, 2.0]), accumulate=True)
    tensor([1., 4.])
    """
    return _put(input, index, source, accumulate, True)
