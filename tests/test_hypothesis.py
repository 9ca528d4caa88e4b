"""Every op over whatever shapes, strides, dtypes and dims hypothesis thinks of: the reference's bits."""

import reference
import torch
from cases import DTYPES, EXTREMES, LAYOUTS, OURS, ROWS, SCANS, hostile, needed, scan_options, serves, ties, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchreduce.testing import assert_bitwise_equal

# Deterministic, so that a failure seen once is seen again; fixtures give no state that an example could change.
SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip

SIZES = st.one_of(st.integers(0, 9), st.sampled_from([31, 32, 33, 255, 256, 257, 600, 2047, 2048, 2049, 8193]))


@st.composite
def tensors(draw, least=0):
    """A tensor of at most 4 dims, in some layout, then perhaps sliced, permuted or expanded."""
    sizes = SIZES.map(lambda size: max(size, least))
    shape = draw(st.lists(sizes, max_size=4).filter(lambda s: torch.Size(s).numel() <= 60_000))
    x = draw(st.sampled_from((values, ties, hostile)))(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
    x = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)
    if x.dim():
        x = x.permute(draw(st.permutations(range(x.dim()))))
        d = draw(st.integers(0, x.dim() - 1))
        start = draw(st.integers(0, max(0, x.shape[d] - 1)))
        step = draw(st.integers(1, 3))
        if x.shape[d] > start:
            x = x[(slice(None),) * d + (slice(start, None, step),)]
        if draw(st.booleans()) and x.shape[d] == 1:
            x = x.expand(*x.shape[:d], draw(st.integers(1, 300)), *x.shape[d + 1 :])
    return x


def dims_of(x):
    if x.dim() == 0:
        return st.sampled_from((None, 0, -1, ()))
    one = st.integers(-x.dim(), x.dim() - 1)
    several = st.lists(st.integers(0, x.dim() - 1), unique=True).map(tuple)
    return st.one_of(st.none(), one, several)


def placed(x, device):
    """x on the device with its strides."""
    return x if device == "cpu" else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)


def check(name, x, device, dim, **options):
    if any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
        view = x.to(device)  # expanded: copying into overlapping memory is not allowed
    else:
        view = placed(x, device)
    options = {**needed(name, x.dtype), **options}
    assert_bitwise_equal(getattr(OURS, name)(view, dim, **options), reference.apply(name, x, dim, **options))


@SETTINGS
@given(st.data())
def test_sums(device, data):
    x = data.draw(tensors())
    name = data.draw(st.sampled_from(("sum", "mean")))
    dtype = data.draw(st.sampled_from((None, None, *ROWS[name].results)))
    options = {} if dtype is None else {"dtype": dtype}
    check(name, x, device, data.draw(dims_of(x)), keepdim=data.draw(st.booleans()), **options)


@SETTINGS
@given(st.data())
def test_extremes(device, data):
    x = data.draw(tensors(least=1))
    name = data.draw(st.sampled_from(EXTREMES))
    check(name, x, device, data.draw(dims_of(x)), keepdim=data.draw(st.booleans()))


@SETTINGS
@given(st.data())
def test_scans(device, data):
    x = data.draw(tensors())
    name = data.draw(st.sampled_from([name for name in SCANS if serves(name, x.dtype)]))
    dim = data.draw(st.integers(-max(1, x.dim()), max(1, x.dim()) - 1))
    dtype = data.draw(st.sampled_from((None, None, *ROWS[name].results)))
    options = {} if dtype is None else {"dtype": dtype}
    check(name, x, device, dim, **data.draw(st.sampled_from(scan_options(name))), **options)
