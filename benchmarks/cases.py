"""A case: one op on one tensor. It knows its inputs, its bytes and how each provider calls it.

Forms, beside the plain contiguous one, "":
- "reverse", "exclusive": cumsum's options
- "in+I out+O": one dim; input and result begin I and O elements past an allocation
- "transposed": two dims; the strides of a transposed tensor
- "all dims": without a dim
- "transposed all dims": two dims, all of them; the strides of a transposed tensor
- "permuted 0 2 1 3": made of a contiguous tensor by permuting its dims so; "of 256": a window, which begins rows of so
  many elements; "over 0 2": along several dims, of which dim is the first; also two of these, in this order
- "reset 200": of linear_scan, a is 0 at every 200th element
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

import torchreduce as tr

from . import peers
from .bars import Shape

DEVICE = "cuda"  # the tests of the framework run it on the CPU
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear_scan")
TO_VALUES = ("logsumexp", "var", "cross_entropy")  # row-wise ops whose results are small
LEVELS = {"torchreduce": "invariant", "torchreduce fast": "fast"}
PROVIDERS = (*LEVELS, "torch", "torch.compile", "cub", "cub float32", "liger")

Inputs = tuple[torch.Tensor, ...]
Run = Callable[[Inputs], Any]


def is_copy(part: str, op: str) -> bool:
    """As much is written as read, so that the ceiling is a copy; else a read."""
    return op in SCANS or part == "channels" or (part == "rowwise" and op not in TO_VALUES)


@dataclass(frozen=True)
class Case:
    part: str
    op: str
    dtype: str
    shape: Shape
    dim: int
    form: str = ""

    @property
    def name(self) -> str:
        """What --case is matched with."""
        shape = "x".join(map(str, self.shape))
        return f"{self.op} {self.dtype} {shape} dim {self.dim}{self.form and ' ' + self.form}"

    @property
    def scans(self) -> bool:
        return self.op in SCANS

    @property
    def backward(self) -> bool:
        return self.op.endswith(" backward")

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Each input once and each result once."""
        item = getattr(torch, self.dtype).itemsize
        read = self.elements * item * (2 if self.op == "linear_scan" else 1)
        whole = self.form.endswith("all dims")
        reduced = prod(self.shape[d] for d in self.dims)
        written = self.elements if self.scans else 1 if whole else self.elements // reduced
        results = {
            "cummax": item + 8,
            "cummin": item + 8,
            "argmax": 8,
            "argmin": 8,
            "count_nonzero": 8,
            "any": 1,
            "all": 1,
            "aminmax": 2 * item,
        }
        if self.op == "sum" and not getattr(torch, self.dtype).is_floating_point:
            item = 8
        return read + written * results.get(self.op, item)

    @property
    def offsets(self) -> tuple[int, int]:
        found = re.fullmatch(r"in\+(\d+) out\+(\d+)", self.form)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def dims(self) -> tuple[int, ...]:
        """Those that are worked along."""
        return self._numbers("over") or (self.dim,)

    def _numbers(self, word: str) -> tuple[int, ...]:
        """What follows a word of the form."""
        found = re.search(rf"\b{word}((?: \d+)+)", self.form)
        return tuple(map(int, found[1].split())) if found else ()

    def inputs(self) -> Inputs:
        """Fresh and random; of products near 1, so that they stay finite."""
        dtype = getattr(torch, self.dtype)
        turned = self.form.startswith("transposed")
        order, pitch = self._numbers("permuted"), self._numbers("of")
        shape = self.shape[::-1] if turned else self.shape
        if order:
            shape = tuple(self.shape[order.index(d)] for d in range(len(order)))
        if pitch:
            shape = (*shape[:-1], *pitch)

        def random(make: Callable[..., torch.Tensor]) -> torch.Tensor:
            return make(shape, device=DEVICE, dtype=dtype)

        if dtype == torch.bool:
            return (torch.randint(2, shape, device=DEVICE, dtype=dtype),)
        if not dtype.is_floating_point:
            return (torch.randint(-100, 100, shape, device=DEVICE, dtype=dtype),)
        if self.op == "linear_scan":
            a = random(torch.rand).mul_(0.1).add_(0.9)
            if self.form == "reset 200":
                a.view(-1)[::200] = 0
            return a, random(torch.randn)
        x = random(torch.randn)
        if self.op in ("cumprod", "prod"):
            x.mul_(0.01).add_(1)
        offset = self.offsets[0]
        if offset:
            x = torch.empty(x.numel() + offset, device=DEVICE, dtype=dtype)[offset:].view(x.shape).copy_(x)
        if order:
            x = x.permute(order)
        return (x.t() if turned else x[..., : self.shape[-1]],)

    def run(self, provider: str) -> Run | None:
        """The provider's way of computing it; None where it has none."""
        if provider in LEVELS:
            return self._ours(LEVELS[provider])
        if provider == "torch":
            return self._torchs()
        if provider == "torch.compile":
            return self._compiled()
        return self._cubs(wide=provider == "cub float32") if provider.startswith("cub") else None

    def _out(self) -> dict[str, torch.Tensor]:
        """out= where the case is about the result's address; else results are allocated by the call."""
        if not self.offsets[1]:
            return {}
        size = self.elements + self.offsets[1]
        return {"out": torch.empty(size, device=DEVICE, dtype=getattr(torch, self.dtype))[self.offsets[1] :]}

    def _options(self) -> dict[str, Any]:
        """Sums of int32 stay int32."""
        dtype = getattr(torch, self.dtype)
        return {} if dtype.is_floating_point or self.op != "cumsum" else {"dtype": dtype}

    def _order(self) -> tuple[int, ...]:
        return (2,) if self.op == "vector_norm" else ()

    def _ours(self, level: str) -> Run | None:
        function = getattr(tr, self.op, None)
        if function is None:
            return None
        options = {**self._options(), **self._out()}
        if self.form in ("reverse", "exclusive"):
            options[self.form] = True

        if not self.form.endswith("all dims"):
            options["dim"] = self.dims if len(self.dims) > 1 else self.dim

        def run(x: Inputs) -> Any:
            with tr.determinism(level):
                return function(*x, *self._order(), **options)

        return run

    def _torchs(self) -> Run | None:
        """What a user of torch writes."""
        if self.op == "linear_scan":
            return None
        function = torch.linalg.vector_norm if self.op == "vector_norm" else getattr(torch, self.op)
        options, dim = {**self._options(), **self._out()}, self.dims if len(self.dims) > 1 else self.dim
        if self.form.endswith("all dims"):
            return lambda x: function(*x, **options)
        if self.form == "reverse":
            return lambda x: function(x[0].flip(dim), dim, **options).flip(dim)
        if self.form == "exclusive":
            return lambda x: function(x[0], dim, **options) - x[0]
        return lambda x: function(*x, *self._order(), dim=dim, **options)

    def _compiled(self) -> Run | None:
        """linear_scan is torch's associative_scan, which does not compile over the last dim."""
        if self.op == "linear_scan":
            from torch._higher_order_ops.associative_scan import associative_scan

            def combine(left: Inputs, right: Inputs) -> Inputs:
                return left[0] * right[0], left[1] * right[0] + right[1]

            return torch.compile(lambda x: associative_scan(combine, x, self.dim)[1])
        return torch.compile(self._torchs())

    def _cubs(self, wide: bool) -> Run | None:
        """wide: 16-bit elements combined in float32. CUB serves contiguous tensors, scans only of one dim."""
        several = self.op == "sum" and len(self.shape) > 1 and self.dim == len(self.shape) - 1
        directed = self.form and not self.form.startswith("in+")
        if directed or not (len(self.shape) == 1 or several) or not peers.offers(self.op, self.dtype, wide):
            return None
        count = 1 if self.dim == 0 else self.elements // self.shape[-1]
        given = self._out().get("out")
        return lambda x: peers.cub(self.op, x[0], count, wide, given)
