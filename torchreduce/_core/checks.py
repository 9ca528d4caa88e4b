"""Argument checks before an op runs. Errors have torch's types, and name the function, the rule and the value."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _autograd  # noqa: F401  registers the derivatives
from .._fake.reductions import decided
from ..table import BY_NAME, DEVICES, DTYPES, FLOATS, Op
from . import direct, dispatch

GivenDims = int | Sequence[int]
Dims = GivenDims | None

_DTYPES = frozenset(DTYPES)
_STRIDED = torch.strided
_PYTHON_TYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


@dataclass(frozen=True)
class Overloads:
    """The overloads of the op that a public function calls."""

    name: str  # of the public function
    row: Op
    default: Callable[..., Any]  # these as dispatch.py has them
    raw: Callable[..., Any]
    out: Callable[..., Any]
    raw_out: Callable[..., Any]
    derivative: Callable[..., Any]  # raw, by way of autograd
    plain: Callable[..., Any]  # raw, without checks: as direct.py has it

    @property
    def supported(self) -> Sequence[torch.dtype]:
        """The supported input dtypes, including those that need dtype=."""
        return DTYPES if self.row.results else self.row.inputs


def overloads(name: str) -> Overloads:
    row, op = BY_NAME[name], getattr(torch.ops.torchreduce, name)
    raw = direct.raw(name)
    derivative = dispatch.derivatives.get(name, raw)
    return Overloads(row.function, row, op.default, raw, op.out, op.raw_out, derivative, direct.plain(name))


@dataclass(frozen=True)
class RowwiseOverloads:
    """The overloads of a row-wise op, as Overloads has them."""

    name: str
    default: Callable[..., Any]
    raw: Callable[..., Any]
    out: Callable[..., Any] | None  # of softmax and log_softmax alone
    raw_out: Callable[..., Any] | None
    derivative: Callable[..., Any]
    plain: Callable[..., Any]


def rowwise_overloads(name: str, first: bool = False) -> RowwiseOverloads:
    """`first`: `plain` returns the first result alone."""
    op = getattr(torch.ops.torchreduce, name)
    out, raw_out = (getattr(op, overload, None) for overload in ("out", "raw_out"))
    derivative = dispatch.derivatives[name]
    return RowwiseOverloads(name, op.default, direct.raw(name), out, raw_out, derivative, direct.plain(name, first))


def listed(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def kind_of(value: Any) -> str:
    """Return the name of the type, with its module unless it is Python's or torch's."""
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__name__}"


def check_bool(name: str, argument: str, value: Any) -> None:
    if type(value) is not bool:
        raise TypeError(f"{name}(): argument {argument!r} must be a bool, got {kind_of(value)}")


def check_input(name: str, input: Tensor, argument: str = "input", supported: Sequence[torch.dtype] = DTYPES) -> None:
    """Check that input is a supported tensor; `supported` are the function's dtypes, for the message."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument {argument!r} must be a Tensor, got {kind_of(input)}")
    if input.dtype not in _DTYPES:
        raise NotImplementedError(f"{name}(): {_of(argument, input)} Supported are {listed(supported)}")
    if not (input.is_cuda or input.is_cpu or input.is_meta):
        raise NotImplementedError(
            f"{name}(): not implemented for the device {str(input.device)!r}. Supported are {', '.join(DEVICES)}"
        )
    check_layout(name, input, argument)


def check_layout(name: str, t: Tensor, argument: str) -> None:
    if t.layout is not _STRIDED or t.is_nested:
        kind = "strided tensors" + " that are not nested" * t.is_nested
        layout = f"{'nested tensors of ' * t.is_nested}the layout {t.layout}"
        raise NotImplementedError(f"{name}(): not implemented for {argument} of {layout}. Supported are {kind}")


def _of(argument: str, t: Tensor) -> str:
    return f"not implemented for {'' if argument == 'input' else f'{argument} of '}{t.dtype}."


def check_floats(name: str, input: Tensor, argument: str = "input") -> None:
    check_input(name, input, argument, FLOATS)
    if not input.is_floating_point():
        raise NotImplementedError(f"{name}(): {_of(argument, input)} Supported are {listed(FLOATS)}")


def as_dtype(dtype: Any) -> Any:
    """Return the torch.dtype for float, int or bool; anything else unchanged."""
    return _PYTHON_TYPES.get(dtype, dtype) if isinstance(dtype, type) else dtype


def check_dtype(op: Overloads, input: Tensor, dtype: Any) -> Any:
    """Check dtype=, and return it as the ops take it."""
    dtype = as_dtype(dtype)
    if dtype is None:
        if input.dtype not in op.row.inputs:
            if not op.row.results:
                raise NotImplementedError(
                    f"{op.name}(): not implemented for {input.dtype}. Supported are {listed(op.row.inputs)}"
                )
            raise RuntimeError(
                f"{op.name}(): the dtype of the result cannot be inferred from {input.dtype}: the input must be one of "
                f"{listed(op.row.inputs)}, or dtype= must be given"
            )
    elif not isinstance(dtype, torch.dtype):
        raise TypeError(f"{op.name}(): argument 'dtype' must be a torch.dtype, got {type(dtype).__name__}")
    elif dtype not in op.row.results:
        message = f"{op.name}(): not implemented for dtype={dtype}. Supported are {listed(op.row.results)}"
        floats_alone = op.name in ("mean", "nanmean", "vector_norm", "norm") and dtype in _DTYPES
        raise RuntimeError(message) if floats_alone else NotImplementedError(message)
    return dtype


def check_dim(name: str, dim: Any, ndim: int, several: bool = False) -> int:
    """Return dim as an int in range; a 0-d tensor has the dims 0 and -1. `several`: a sequence is allowed, too."""
    kinds = "an int or ints" if several else "an int"
    of_two = isinstance(dim, Tensor) and name in ("max", "min")  # torch's max(input, other)
    number = isinstance(dim, Tensor) and dim.dim() == 0 and not (dim.is_floating_point() or dim.is_complex())
    if of_two or isinstance(dim, bool) or not (number or isinstance(dim, int) or hasattr(dim, "__index__")):
        hint = f"; of two tensors: torch.{name}imum" if of_two else ""
        raise TypeError(f"{name}(): argument 'dim' must be {kinds}, got {type(dim).__name__}{hint}")
    try:
        index, bound = operator.index(dim), ndim or 1
    except TypeError:  # for example an array of several elements
        raise TypeError(f"{name}(): argument 'dim' must be {kinds}, got {dim!r}") from None
    if not -bound <= index < bound:
        raise IndexError(
            f"{name}(): dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {index})"
        )
    return index


def either(name: str, dim: Dims, axis: Dims) -> Dims:
    """Return dim, given as dim or as axis."""
    if axis is None:
        return dim
    if dim is not None and dim != ():
        raise TypeError(f"{name}(): 'axis' is another name of 'dim': give one of them, got dim={dim} and axis={axis}")
    return axis


def either_keepdim(name: str, keepdim: bool, keepdims: bool) -> bool:
    """Return keepdim, given as keepdims."""
    if keepdim is not False:
        raise TypeError(f"{name}(): 'keepdims' is another name of 'keepdim': give one of them")
    return keepdims


def _listed_dims(name: str, input: Tensor, dim: Dims, keepdim: bool) -> list[int]:
    check_bool(name, "keepdim", keepdim)
    ndim = input.ndim
    if type(dim) is int and -ndim <= dim < ndim:
        return [dim]
    if not isinstance(dim, (tuple, list)):
        return [] if dim is None else [check_dim(name, dim, ndim, several=True)]
    dims = [check_dim(name, d, ndim, several=True) for d in dim]
    if len({d % (ndim or 1) for d in dims}) < len(dims):
        raise RuntimeError(f"{name}(): a dim appears multiple times in dim={tuple(dim)}")
    return dims


def check_row_dims(
    name: str, input: Tensor, dim: Dims, keepdim: bool, axis: Dims, keepdims: bool | None
) -> tuple[list[int] | None, bool]:
    """Check the input and dims of a row-wise op. Return its dims, and keepdim by either name."""
    check_floats(name, input)
    if axis is not None:
        dim = either(name, dim, axis)
    if keepdims is not None:
        keepdim = either_keepdim(name, keepdim, keepdims)
    return _listed_dims(name, input, dim, keepdim) or None, keepdim


def check_dims(op: Overloads, input: Tensor, dim: Dims, keepdim: bool, axis: Dims) -> list[int] | None:
    """Check input, dim and keepdim. Return the dims as the ops take them; None for all of them."""
    check_input(op.name, input, "input", op.supported)
    if axis is not None:
        dim = either(op.name, dim, axis)
    dims = _listed_dims(op.name, input, dim, keepdim)
    if op.row.empty is None and decided(input.numel() == 0, False):
        _check_not_empty(op, input, dims)
    return dims or None


def _check_not_empty(op: Overloads, input: Tensor, dims: list[int]) -> None:
    """For an input without elements: raise if a reduced dim has size 0, even if the result has no elements."""
    shape = tuple(input.shape)
    if not dims:
        error: type[Exception] = IndexError if op.row.returns == ("indices",) else RuntimeError
        raise error(f"{op.name}(): no elements to reduce in shape {shape}: give a dim of non-zero size")
    for d in dims:
        if decided(shape[d] == 0, False):
            error = RuntimeError if op.row.function == "vector_norm" else IndexError
            raise error(f"{op.name}(): expected reduction dim {d} to have non-zero size, got shape {shape}")
