"""Derivatives of cumprod and prod, as autograd.py has those of the other ops.

They are sums of products of a row's elements without some of them. A product on the way may leave the range of the
dtype although the derivative does not. So rows are multiplied by powers of two first, exactly, by which the result is
divided at the end. Nothing is divided by an element, so zeros and infinities need no case of their own. First gradients
of dtypes narrower than float64, whose range is enough for these, are divided by the elements.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.dispatch import LIBRARY, Rule, Saved, differentiable, save
from .._fake.reductions import decided, dims_of, reduced_shape
from .reductions import OfInput, Reduction, _round, broadcasting, define, each
from .scans import _canonical, _of_exclusive, _of_inclusive, _scan, _shifted, along_rows

_ops = torch.ops.torchreduce
_WIDE = torch.float64
_NONE = -(1 << 60)  # less than every exponent
_APART = 1 << 45  # exponents of what has another number of zeros or infinities as factors differ by more than others do
_LEVELS = 8  # so many zeros are told apart


# ---- powers of two ---------------------------------------------------------------------------------------------------


def _scaled(x: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor:
    """By two powers, since one may be out of range; by one between dtypes of smaller ranges."""
    if _WIDE in (x.dtype, dtype):
        k = k.clamp(-2040, 2040)
        half = k >> 1
        parts: tuple[Tensor, ...] = half, k.sub_(half)
    else:
        parts = (k.clamp(-1022, 1022),)
    powers = (part.add_(1023).bitwise_left_shift_(52).view(_WIDE).expand(x.shape) for part in parts)
    product = x * next(powers)
    for power in powers:
        product.mul_(power)
    return _round(product, dtype)


define(
    "scaled(Tensor x, Tensor k, ScalarType dtype) -> Tensor", _scaled,
    lambda x, k, dtype: x.new_empty(x.shape, dtype=dtype), broadcasting("scaled"),
)  # fmt: skip


def scaled(x: Tensor, k: Tensor, dtype: torch.dtype = _WIDE) -> Tensor:
    """x * 2^k in dtype, rounded once where it is normal. k are integers, of which those beyond +-2040 are taken for
    these, and broadcast to x."""
    return _ops.scaled.default(x, k, dtype)  # type: ignore[no-any-return]


@differentiable("scaled")
class Scaled(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, k, ctx.to = inputs
        ctx.dtype = x.dtype
        save(ctx, k)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        return scaled(grad, saved[0], ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        return scaled(t, saved[0], ctx.to)


def _product_exponents(x: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    size = x.abs().to(_WIDE).log2_().nan_to_num_(0, 0, 0)
    exponents: Tensor = _ops.cumsum.raw(size, dim, _WIDE, False, reverse, level)
    return exponents.floor_().to(torch.int64)


# floor(log2) of the product of the magnitudes up to each, about; a zero, inf or NaN counts as 1. No bit of a derivative
# depends on it, since what is made of it are powers of two that cancel.
define(
    "product_exponents(Tensor x, int dim, bool reverse, int level) -> Tensor", _product_exponents,
    lambda x, *_: x.new_empty(x.shape, dtype=torch.int64), along_rows("product_exponents", 1),
)  # fmt: skip
LIBRARY.impl("product_exponents", torch.library.fallthrough_kernel, "Autograd")


def _scales(t: Tensor, k: Tensor, apart: Tensor, within: Tensor, greatest: Callable[[Tensor], Tensor]) -> Tensor:
    """The exponents of the greatest of terms t, of about 2^k. Those that a factor of 0 takes away, or that a factor of
    inf puts above others, are told by `apart`, which is `within` where they count. Terms of 0 count as 2^k if there are
    no others, so that their change is not lost."""
    every, others = (greatest(of + apart) - within for of in (k, k.masked_fill(t == 0, _NONE)))
    return torch.where(others < -_APART // 2, every, others)


class Products:
    """Of rows x along dim. x is y * 2^steps, so that the product of any neighbours in y is near 1 (or 0, inf or NaN);
    that of the elements up to each is the same of y times 2^exponents."""

    def __init__(self, x: Tensor, dim: int, reverse: bool, level: int, dtype: torch.dtype = _WIDE) -> None:
        self.x, self.dim, self.reverse, self.level, self.dtype = x, dim, reverse, level, dtype
        self.exponents = _ops.product_exponents.default(x, dim, reverse, level)
        self.steps = self.exponents - self.behind(self.exponents)
        self.y = scaled(x, -self.steps, self.dtype)
        self.before = self.of_others(reverse)

    def behind(self, t: Tensor) -> Tensor:
        """Each one position further on, in the order of the products."""
        return _shifted(t, self.dim, not self.reverse)

    def ahead(self, t: Tensor) -> Tensor:
        return _shifted(t, self.dim, self.reverse)

    def of_others(self, reverse: bool) -> Tensor:
        """The products of the elements of y before each, from the end that is said."""
        return _ops.cumprod.default(self.y, self.dim, self.dtype, True, reverse, self.level)  # type: ignore[no-any-return]

    def size(self, t: Tensor) -> Tensor:
        """floor(log2) of each magnitude, about; that of 0 is 0."""
        size: Tensor = _ops.product_exponents.default(each(t), -1, False, self.level)
        return size.reshape(t.shape)

    def special(self) -> Tensor:
        """1 for infinities, -1 for zeros."""
        return self.x.isinf().to(torch.int64) - (self.x == 0).to(torch.int64)

    def greatest(self, k: Tensor, reverse: bool) -> Tensor:
        return _ops.cummax.default(k, self.dim, reverse, self.level)[0]  # type: ignore[no-any-return]

    def changed(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """How the products up to each change with t: C and k, for C * 2^(k + exponents). By the product rule, one
        element after the other: each multiplies the change so far, and its own change the product so far."""
        size, apart = self.size(t), -_APART * self.special()
        own = size - self.steps
        k = _scales(t, own, apart, self.greatest(apart, self.reverse), lambda k: self.greatest(k, self.reverse))
        terms = scaled(scaled(t, -size, self.dtype) * self.before, own - k, self.dtype)
        factors = scaled(self.x, self.behind(k) - k - self.steps, self.dtype)
        return _scan(factors, terms, self.dim, self.reverse, False, self.level), k

    def rest(self, g: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of each g (times 2^k, if there is a k) plus the rest of the next one times the next element: R and k, for
        R * 2^(k - exponents)."""
        dim, reverse, level = self.dim, self.reverse, self.level
        apart = _ops.cumsum.default(self.special(), dim, None, False, reverse, level)
        apart = _APART * apart.clamp(-_LEVELS, _LEVELS)
        own = self.exponents if k is None else self.exponents + k
        k = _scales(g, self.size(g) + own, apart, apart, lambda k: self.greatest(k, not reverse))
        factors = scaled(self.x, k - self.behind(k) - self.steps, self.dtype)
        return _scan(factors, scaled(g, own - k, self.dtype), dim, not reverse, True, level), k

    def gradient(self, g: Tensor, k: Tensor | None, to: torch.dtype) -> Tensor:
        """Of x, given those of the products up to each, g * 2^k: element i is the product before it, times the rest."""
        rest, k = self.rest(g, k)
        return scaled(self.before * rest, k - self.steps, to)


# ---- cumprod ---------------------------------------------------------------------------------------------------------


@differentiable("cumprod")
class CumProd(Rule):
    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        x, ctx.dim, ctx.to, ctx.exclusive, ctx.reverse, ctx.level = inputs
        ctx.result = output.dtype
        save(ctx, x)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        (x,) = saved
        grad = _of_inclusive(grad, ctx.dim, ctx.exclusive, ctx.reverse)
        return _ops.cumprod_gradient.default(grad, x, ctx.dim, ctx.reverse, ctx.level)  # type: ignore[no-any-return]

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        products = Products(saved[0], ctx.dim, ctx.reverse, ctx.level)
        changed, k = products.changed(t)
        tangent = scaled(changed, products.exponents + k, ctx.result)
        return _of_exclusive(tangent, ctx.dim, ctx.exclusive, ctx.reverse)


def _cumprod_gradient(g: Tensor, x: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    """Element k: the sum over j from k on of g[j] times the product of the elements up to j but for k."""
    if _WIDE in (g.dtype, x.dtype):
        return Products(x, dim, reverse, level).gradient(g, None, x.dtype)
    return _sums_by_division(g, x, dim, reverse, level)


def _sums_by_division(g: Tensor, x: Tensor, dim: int, reverse: bool, level: int) -> Tensor:
    """In float64, as _by_division. Before a row's first zero the products are divided by the element; at it they leave
    it out; after it all are 0."""

    def sums(factors: Tensor) -> Tensor:
        product = _ops.cumprod.raw(factors, dim, _WIDE, False, reverse, level)
        product = product.mul_(g).masked_fill_(g == 0, 0)  # be the product infinite
        result: Tensor = _ops.cumsum.raw(product, dim, _WIDE, False, not reverse, level)
        return result

    zero = (x == 0).contiguous()
    unbroken = _ops.cumprod.raw(~zero, dim, torch.uint8, True, reverse, level).bool()  # no zero before it
    first = zero & unbroken
    back = _ops.divide.default(sums(x), x.masked_fill(zero, 1), _WIDE).masked_fill_(~unbroken, 0)
    return _round(torch.where(first, sums(x.masked_fill(first, 1)), back), x.dtype)


define(
    "cumprod_gradient(Tensor g, Tensor x, int dim, bool reverse, int level) -> Tensor", _cumprod_gradient,
    lambda g, x, *_: x.new_empty(x.shape), along_rows("cumprod_gradient", 2),
)  # fmt: skip


@differentiable("cumprod_gradient")
class CumProdGradient(Rule):
    """Products.gradient, in float64."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, ctx.dim, ctx.reverse, ctx.level = inputs
        save(ctx, g, x)

    @staticmethod
    def by_x(products: Products, g: Tensor, t: Tensor, changed: Tensor, k: Tensor) -> Tensor:
        """How the gradient changes with x: with its change t, or the transposed of it, which is the same. An element is
        in the rest of those before it, and in the products before those behind it. changed, k: products.changed(t)."""
        rest, of_rest = products.rest(g)
        through = scaled(products.behind(changed) * rest, products.behind(k) + of_rest - products.steps)
        size = products.size(t)
        before = products.ahead(scaled(t, -size) * rest), products.ahead(size + of_rest - products.exponents)
        return through + products.gradient(*before, _WIDE)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x = saved
        products = Products(x, ctx.dim, ctx.reverse, ctx.level)
        changed, k = products.changed(grad)
        to_x = CumProdGradient.by_x(products, g, grad, changed, k)
        return scaled(changed, products.exponents + k, g.dtype), _canonical(to_x, x.dtype)

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        g, x = saved
        products = Products(x, ctx.dim, ctx.reverse, ctx.level)
        tangent = torch.zeros_like(products.y) if to_g is None else products.gradient(to_g, None, _WIDE)
        if to_x is not None:
            tangent = tangent + CumProdGradient.by_x(products, g, to_x, *products.changed(to_x))
        return _canonical(tangent, x.dtype)


# ---- prod ------------------------------------------------------------------------------------------------------------


class Rows:
    """x as rows of the elements along dims. The product of all others is, for each element, others * 2^exponents."""

    def __init__(self, x: Tensor, dims: Sequence[int] | None, level: int, dtype: torch.dtype = _WIDE) -> None:
        self.shape, self.along, self.level = x.shape, dims_of(x.dim(), dims), level
        self.kept = [d for d in range(x.dim()) if d not in self.along]
        self.products = products = Products(self.flat(x), -1, False, level, dtype)
        self.dtype, self.behind = products.dtype, products.of_others(True)
        self.others = products.before * self.behind
        self.total = products.exponents.narrow(-1, products.exponents.shape[-1] - 1, 1)
        self.exponents = self.total - products.steps

    def flat(self, t: Tensor) -> Tensor:
        """What has the shape of x, or size 1 along dims."""
        count: Any = 1
        for d in self.along:
            count = count * t.shape[d]
        return t.permute(self.kept + self.along).reshape([*(t.shape[d] for d in self.kept), count])

    def restored(self, t: Tensor) -> Tensor:
        """No view, which tangents may not be."""
        order = self.kept + self.along
        return (
            t.reshape([self.shape[d] for d in order])
            .permute([order.index(d) for d in range(len(order))])
            .clone(memory_format=torch.contiguous_format)
        )

    def greatest(self, k: Tensor) -> Tensor:
        return _ops.amax.default(k, [-1], True, self.level)  # type: ignore[no-any-return]

    def summed(self, t: Tensor, to: torch.dtype) -> Tensor:
        """How the product of each row changes with t, with size 1 along the rows."""
        t = self.flat(t)
        size, apart = self.products.size(t), -_APART * self.products.special()
        own = size - self.products.steps
        k = _scales(t, own, apart, self.greatest(apart), self.greatest)
        terms = scaled(scaled(t, -size, self.dtype) * self.others, own - k, self.dtype)
        return scaled(_ops.sum.default(terms, [-1], True, self.dtype, self.level), self.total + k, to)

    def relative(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Changes t of the elements as changes * 2^k of those of y, the greatest of each row being near 1."""
        t, steps = self.flat(t), self.products.steps
        none = torch.zeros_like(steps)
        k = _scales(t, self.products.size(t) - steps, none, none, self.greatest)
        return scaled(t, -steps - k, self.dtype), k

    def changed(self, changes: Tensor) -> Tensor:
        """How `others` change."""
        y, before, behind, level = self.products.y, self.products.before, self.behind, self.level
        to_before = _shifted(_scan(y, changes * before, -1, False, False, level), -1, True)
        to_behind = _shifted(_scan(y, changes * behind, -1, True, False, level), -1, False)
        return to_before * behind + before * to_behind

    def times(self, g: Tensor, others: Tensor, k: Tensor, to: torch.dtype) -> Tensor:
        """g * others * 2^k in the shape of x. g has size 1 along dims."""
        g = self.flat(g)
        size = self.products.size(g)
        return self.restored(scaled(scaled(g, -size, self.dtype) * others, k + size, to))


def _prod_gradient(g: Tensor, x: Tensor, dims: Sequence[int] | None, level: int) -> Tensor:
    """g times the product of all other elements. g has the shape of x, with size 1 along dims."""
    if x.numel() == 0:
        return torch.empty_like(x)
    if _WIDE not in (g.dtype, x.dtype):
        return _by_division(g, x, dims, level)
    rows = Rows(x, dims, level)
    return rows.times(g, rows.others, rows.exponents, x.dtype)


def _by_division(g: Tensor, x: Tensor, dims: Sequence[int] | None, level: int) -> Tensor:
    """In float64, the product of all divided by each: where that leaves float64's range, the result leaves that of
    narrower dtypes, too. At the only 0 of a row the product of the rest."""
    zero = x == 0
    zeros = _ops.sum.raw(zero, dims, True, None, level)
    factors = x.masked_fill(zero, 1)
    product = g.to(_WIDE) * _ops.prod.raw(factors, dims, True, _WIDE, level)
    back = _ops.divide.default(product.expand(x.shape), factors, x.dtype)
    return back.masked_fill(~((zeros == 0) | (zero & (zeros == 1))), 0)  # type: ignore[no-any-return]


def _prod_gradient_batched(
    info: Any, in_dims: Any, g: Tensor, x: Tensor, dims: Sequence[int] | None, level: int
) -> tuple[Tensor, int]:
    g, x = (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((g, x), in_dims, strict=False)
    )
    along = [1 + d for d in dims_of(x.dim() - 1, dims)]
    if not along:  # a batch of 0-d tensors
        return _ops.prod_gradient.default(g.unsqueeze(1), x.unsqueeze(1), [1], level).squeeze(1), 0
    return _ops.prod_gradient.default(g, x, along, level), 0


define(
    "prod_gradient(Tensor g, Tensor x, int[]? dims, int level) -> Tensor", _prod_gradient,
    lambda g, x, *_: x.new_empty(x.shape), _prod_gradient_batched,
)  # fmt: skip


@differentiable("prod_gradient")
class ProdGradient(Rule):
    """In float64."""

    @staticmethod
    def save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        g, x, ctx.dims, ctx.level = inputs
        save(ctx, g, x)

    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Any:
        g, x = saved
        if decided(x.numel() == 0, False):
            return torch.zeros_like(g), torch.zeros_like(x)
        rows = Rows(x, ctx.dims, ctx.level)
        changes, k = rows.relative(grad)
        return rows.summed(grad, g.dtype).reshape(g.shape), rows.times(
            g, rows.changed(changes), rows.exponents + k, x.dtype
        )

    @staticmethod
    def tangent(ctx: Any, saved: Saved, to_g: Tensor | None, to_x: Tensor | None, *_: Any) -> Tensor:
        g, x = saved
        if decided(x.numel() == 0, False):
            return torch.zeros_like(x)
        rows = Rows(x, ctx.dims, ctx.level)
        tangent = torch.zeros(x.shape, dtype=_WIDE, device=x.device)
        if to_g is not None:
            tangent = rows.times(to_g, rows.others, rows.exponents, _WIDE)
        if to_x is not None:
            changes, k = rows.relative(to_x)
            tangent = tangent + rows.times(g, rows.changed(changes), rows.exponents + k, _WIDE)
        return _canonical(tangent, x.dtype)


@differentiable("prod")
class Prod(OfInput):
    @staticmethod
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> Tensor:
        back: Tensor = _ops.prod_gradient.default(Reduction.kept(ctx, grad), *saved, ctx.dims, ctx.level)
        return back

    @staticmethod
    def tangent(ctx: Any, saved: Saved, t: Tensor, *_: Any) -> Tensor:
        (x,) = saved
        shape = reduced_shape(ctx.shape, ctx.dims, ctx.keepdim)
        to = ctx.to or ctx.dtype
        if decided(x.numel() == 0, False):
            return t.new_zeros(shape, dtype=to)
        rows = Rows(x, ctx.dims, ctx.level)
        return rows.summed(t, to).reshape(shape)
