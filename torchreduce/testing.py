"""Test that results are bitwise identical, on any machine: reproducible inputs, golden bits, bitwise comparison, and
forced kernel variants."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchreduce

from . import _C
from .table import FLOATS, INTEGERS

CONTRACT_VERSION = 1
GOLDEN_FILE = Path(__file__).with_name("golden.json")


# ---- plans -----------------------------------------------------------------------------------------------------------


@contextmanager
def force_plan(**fields: Any) -> Iterator[None]:
    """Context manager that forces fields of the plan for every call of the process.

    The fields are those of torchreduce.explain: family, lanes, warps, leaves, rows, vector_loads. The planner chooses
    the fields that are left out. A call raises ValueError if its plan cannot have these fields.

    >>> import torch, torchreduce
    >>> with force_plan(family="columns"):
    ...     print(torchreduce.explain("sum", torch.ones(4, 100), dim=1).family)
    columns
    """
    before = _C.forced_plan()
    _C.force_plan(fields)
    try:
        yield
    finally:
        _C.force_plan(before)


Numbers = np.ndarray[Any, np.dtype[np.uint64]]


# ---- inputs ----------------------------------------------------------------------------------------------------------

# Of each float dtype: bits, bits of the fraction, bias of the exponent.
_LAYOUT = {
    torch.float16: (16, 10, 15),
    torch.bfloat16: (16, 7, 127),
    torch.float32: (32, 23, 127),
    torch.float64: (64, 52, 1023),
}


def _mixed(z: Numbers) -> Numbers:
    """The finalizer of splitmix64, on uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Numbers = z ^ (z >> np.uint64(31))
    return mixed


def splitmix64(n: int, seed: int) -> Numbers:
    """Return the first n numbers of splitmix64 (Steele, Lea and Flood 2014), seeded with seed, as uint64."""
    step = np.uint64(0x9E3779B97F4A7C15)
    return _mixed(np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * step)


def make_input(shape: Sequence[int], dtype: torch.dtype, seed: int, hostile: bool = False) -> Tensor:
    """Return a pseudorandom CPU tensor that is bitwise identical on every machine.

    It is computed by integer arithmetic. Element i, row-major, is made of h, number i of splitmix64(seed). Integers:
    the low bits of h, as many as fit.
    bool: bit 0. Floats: the sign is bit 63, the exponent from -8 to 7 is bits 52 to 55 less 8, the fraction the low
    bits. With `hostile` a float is replaced according to the low 10 bits u of the finalizer of h: u < 2 NaN (sign and
    fraction kept, bit 0 set), u < 4 an infinity, u < 64 a zero, u < 128 a subnormal, u < 136 the greatest exponent,
    signs kept.
    """
    h = splitmix64(math.prod(shape), seed)
    one = np.uint64(1)
    if dtype == torch.bool:
        bits, pattern = 8, h & one
    elif not dtype.is_floating_point:
        bits, pattern = torch.iinfo(dtype).bits, h
    else:
        bits, fraction_bits, bias = _LAYOUT[dtype]
        sign = (h >> np.uint64(63)) << np.uint64(bits - 1)
        fraction = h & ((one << np.uint64(fraction_bits)) - one)
        exponent = ((h >> np.uint64(52)) & np.uint64(15)) + np.uint64(bias - 8)
        if hostile:
            u = _mixed(h) & np.uint64(1023)
            top = np.uint64(2 * bias + 1)
            exponent = np.select([u < 4, u < 128, u < 136], [top, np.uint64(0), top - one], exponent)
            fraction = np.select([u < 2, u < 64], [fraction | one, np.uint64(0)], fraction)
        pattern = sign | (exponent << np.uint64(fraction_bits)) | fraction
    return torch.from_numpy(pattern.astype(f"uint{bits}").view(f"int{bits}")).view(dtype).reshape(tuple(shape))


def make_factors(x: Tensor) -> Tensor:
    """x as multipliers of a linear recurrence: what is from 2^-8 to 2^8 becomes 1 - m / 64, where m is its mantissa in
    [1/2, 1), rounded once, with its sign; the rest stays."""
    wide = x.double()
    ordinary = (wide.abs() >= 2.0**-8) & (wide.abs() < 2.0**8)
    near_one = torch.copysign(1 - torch.frexp(wide).mantissa.abs() / 64, wide)
    return torch.where(ordinary, near_one.to(x.dtype), x)


# ---- golden bits -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Golden:
    """A call whose result's bits are part of the contract, with its key in golden.json."""

    function: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    seed: int
    hostile: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its key in golden.json."""
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        kind = " hostile" if self.hostile else ""
        return f"{self.function}({self.dtype} {self.shape}{kind} seed {self.seed}; {options or 'all dims'})"

    def input(self) -> Tensor:
        """Return the input, on the CPU. For linear_scan: a and b, stacked."""
        if self.function != "linear_scan":
            return make_input(self.shape, self.dtype, self.seed, self.hostile)
        a, b = make_input((2, *self.shape), self.dtype, self.seed, self.hostile)
        return torch.stack([make_factors(a), b])

    def result(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the results of the call on x; for row-wise functions and norms over channels also the gradients of all
        inputs."""
        if self.function in (*ROWWISE, *CHANNELS):
            return self._with_gradients(x)
        inputs, options = self.arguments(x)
        out = getattr(torchreduce, self.function)(*inputs, **options)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def arguments(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a function that is not row-wise, and the options. Those of a scatter are (self, 0,
        index, x); self, and an index of `size` numbers, are made of the seed, too: numbers 1 and 2 million on. So is
        the index of segments."""
        options = self._with_segments(x)
        if self.function == "linear_scan":
            return x.unbind(), options
        if self.function not in SCATTERS:
            return (x,), options
        if self.function == "embedding_bag":
            return self._bags(x, options)
        size = options.pop("size")
        if self.function == "bincount":
            return (self._index(x.shape, x, size), x), options
        index = self._index(x.shape[:1] if self.function.startswith("index") else x.shape, x, size)
        own = self._made((size, *x.shape[1:]), x, 1)
        if self.function in ("index_put", "put"):
            places = self._index(x.shape, x, own.numel()) if self.function == "put" else (index,)
            return (own, places, x, True), options
        return (own, 0, index, x, *([options.pop("reduce")] if "reduce" in options else [])), options

    def _with_segments(self, x: Tensor) -> dict[str, Any]:
        """Return the options; segments, which says how many, as an index of the elements along dim 0."""
        options = dict(self.options)
        if "segments" in options:
            size, n = options["segments"], self.shape[0]
            options["segments"] = torchreduce.segments(self._index((n,), x, size), size)
        return options

    def _bags(self, weight: Tensor, options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        places = options.pop("places")
        ends = self._index((8,), weight, places).sort()[0]
        indices = self._made((places,), weight, 5, torch.int64) % weight.shape[0]
        if "per_sample_weights" in options:
            options["per_sample_weights"] = self._made((places,), weight, 1)
        return (indices, weight, torch.cat([ends.new_zeros(1), ends])), options

    def _index(self, shape: Sequence[int], x: Tensor, size: int) -> Tensor:
        return self._made(shape, x, 2, torch.int64) % size

    def beside(self, x: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the other arguments and the options of a row-wise function. Weights and labels are made of the seed,
        too: numbers 1 and 2 million on."""
        arguments: list[Tensor] = []
        options = self._with_segments(x)
        if self.function in ("rms_norm", "layer_norm"):
            options["normalized_shape"] = x.shape[-1:]
            options["weight"] = self._made(x.shape[-1:], x, 1).requires_grad_()
            if self.function == "layer_norm":
                options["bias"] = self._made(x.shape[-1:], x, 2).requires_grad_()
            if "residual" in options:
                options["residual"] = self._made(x.shape, x, 4).requires_grad_()
        elif self.function in CHANNELS:
            options["weight"] = self._made(x.shape[1:2], x, 1).requires_grad_()
            options["bias"] = self._made(x.shape[1:2], x, 2).requires_grad_()
            if self.function == "batch_norm":
                options.update(running_mean=None, running_var=None, training=True)
        elif self.function == "cross_entropy":
            arguments = [self._made(x.shape[:1], x, 1, torch.int64) % x.shape[1]]
            arguments[0][::5] = -100
            if options.pop("target", "labels") == "probabilities":  # which need not sum to 1
                arguments = [self._made(x.shape, x, 4).abs()]
            options.setdefault("weight", self._made(x.shape[1:], x, 2).abs())
        return arguments, options

    def gradients(self, *results: Tensor) -> list[Tensor]:
        """Of results, from the seed 3 million on."""
        return [self._made(t.shape, t, 3) for t in results]

    def _made(self, shape: Sequence[int], like: Tensor, number: int, dtype: torch.dtype | None = None) -> Tensor:
        return make_input(shape, dtype or like.dtype, self.seed + number * 10**6).to(like.device)

    def _with_gradients(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        arguments, options = self.beside(x)
        out = getattr(torchreduce, self.function)(x, *arguments, **options)
        inputs = [x, *(t for t in options.values() if isinstance(t, Tensor) and t.requires_grad)]
        outs = (out,) if isinstance(out, Tensor) else tuple(out)
        return (*(t.detach() for t in outs), *torch.autograd.grad(outs, inputs, self.gradients(*outs)))


SCATTERS = (
    "index_add",
    "scatter_add",
    "scatter_reduce",
    "index_reduce",
    "index_put",
    "put",
    "embedding_bag",
    "bincount",
)
ROWWISE = (
    "softmax",
    "log_softmax",
    "logsumexp",
    "entropy",
    "var",
    "std_mean",
    "rms_norm",
    "layer_norm",
    "cross_entropy",
)

CHANNELS = ("batch_norm", "group_norm", "instance_norm")

# The lengths cross a leaf, several leaves, a block tile, and superblocks.
_REDUCED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((5, 300), {"dim": 1}),
    ((3, 8193), {"dim": 1}),
    ((2051, 7), {"dim": 0}),
    ((9, 20, 11), {"dim": (2, 0)}),
    ((300001,), {}),
]
_SCANNED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((5, 300), {"dim": 1}),
    ((8200, 3), {"dim": 0}),
    ((600001,), {"dim": 0}),
]


def golden_cases() -> list[Golden]:
    """Return the golden cases: every function on every dtype, a few dozen calls. The seed is the case's number."""
    calls: list[tuple[str, torch.dtype, tuple[int, ...], bool, dict[str, Any]]] = []
    for dtype in FLOATS:
        calls += [("sum", dtype, shape, False, options) for shape, options in _REDUCED]
        calls += [("cumsum", dtype, shape, False, options) for shape, options in _SCANNED]
        calls += [("mean", dtype, (3, 2051), False, {"dim": 1})]
        calls += [("cumsum", dtype, (3, 2051), False, {"dim": 1, "exclusive": True, "reverse": True})]
        names = ("sum", "mean", "cumsum", "amax", "argmin", "max")
        calls += [(name, dtype, (64, 150), True, {"dim": 1}) for name in names]
    for dtype in (*INTEGERS, torch.bool):
        calls += [("sum", dtype, (5, 3000), False, {"dim": 1}), ("cumsum", dtype, (5, 3000), False, {"dim": 1})]
        calls += [("argmax", dtype, (5, 3000), False, {"dim": 1}), ("min", dtype, (5, 3000), False, {"dim": (0, 1)})]
    for given, dtype in ((torch.float32, torch.float64), (torch.float64, torch.bfloat16), (torch.int64, torch.float16)):
        calls += [("sum", given, (3, 5000), False, {"dim": 1, "dtype": dtype})]
        calls += [("cumsum", given, (3, 5000), False, {"dim": 1, "dtype": dtype})]
    calls += [("amin", torch.float32, (300001,), True, {}), ("max", torch.float16, (64, 150), True, {})]
    for name in ("cumprod", "logcumsumexp"):
        for dtype in FLOATS:
            calls += [(name, dtype, shape, False, options) for shape, options in _SCANNED]
            calls += [(name, dtype, (3, 2051), False, {"dim": 1, "exclusive": True, "reverse": True})]
            calls += [(name, dtype, (64, 150), True, {"dim": 1})]
    for dtype in (*INTEGERS, torch.bool):
        calls += [("cumprod", dtype, (5, 300), False, {"dim": 1}), ("cummax", dtype, (5, 3000), False, {"dim": 1})]
    for given, dtype in ((torch.float32, torch.float64), (torch.float64, torch.bfloat16), (torch.int64, torch.float16)):
        calls += [("cumprod", given, (3, 5000), False, {"dim": 1, "dtype": dtype})]
    for dtype in FLOATS:
        calls += [("cummax", dtype, (64, 150), True, {"dim": 1}), ("cummax", dtype, (300001,), False, {"dim": 0})]
        calls += [("cummin", dtype, (8200, 3), False, {"dim": 0, "reverse": True})]
    for dtype in FLOATS:
        calls += [("linear_scan", dtype, shape, False, options) for shape, options in _SCANNED]
        calls += [("linear_scan", dtype, (3, 2051), False, {"dim": 1, "reverse": True})]
        calls += [("linear_scan", dtype, (64, 150), True, {"dim": 1})]
    for dtype in FLOATS:
        for name, extra in (
            ("nansum", {}),
            *(("vector_norm", {"ord": order}) for order in (0, 1, 2, math.inf, -math.inf)),
        ):
            calls += [(name, dtype, shape, False, {**extra, **options}) for shape, options in _REDUCED[:3]]
            calls += [(name, dtype, (64, 150), True, {**extra, "dim": 1})]
        calls += [("prod", dtype, shape, False, options) for shape, options in _REDUCED]
        calls += [("prod", dtype, (64, 20), False, {"dim": 1}), ("prod", dtype, (64, 150), True, {"dim": 1})]
        calls += [(name, dtype, (64, 150), True, {"dim": 0}) for name in ("any", "all", "count_nonzero")]
    for dtype in (*INTEGERS, torch.bool):
        calls += [(name, dtype, (5, 3000), False, {"dim": 1}) for name in ("prod", "any", "all", "count_nonzero")]
    for given, dtype in ((torch.float32, torch.float64), (torch.float64, torch.bfloat16), (torch.int64, torch.float16)):
        calls += [("prod", given, (3, 5000), False, {"dim": 1, "dtype": dtype})]
    for dtype in FLOATS:
        for name in ("softmax", "log_softmax", "logsumexp", "entropy", "var", "std_mean"):
            shapes: list[tuple[tuple[int, ...], int]] = [((5, 300), 1), ((3, 8193), 1), ((2051, 7), 0)]
            calls += [(name, dtype, shape, False, {"dim": dim}) for shape, dim in shapes]
            calls += [(name, dtype, (64, 150), True, {"dim": 1})]
        for name in ("rms_norm", "layer_norm"):
            calls += [(name, dtype, shape, False, {}) for shape in ((7, 300), (3, 8193), (2051, 7))]
            calls += [(name, dtype, (64, 150), True, {})]
        calls += [("cross_entropy", dtype, (9, 300), False, {"reduction": kind}) for kind in ("none", "sum", "mean")]
        calls += [("cross_entropy", dtype, (6, 8193), False, {}), ("cross_entropy", dtype, (64, 150), True, {})]
    calls += [("softmax", torch.bfloat16, (5, 300), False, {"dim": 1, "dtype": torch.float32})]
    for dtype in FLOATS:
        for order in (3, -0.5):
            calls += [("vector_norm", dtype, (5, 300), False, {"ord": order, "dim": 1})]
            calls += [("vector_norm", dtype, (64, 150), True, {"ord": order, "dim": 1})]
        for name, shape in itertools.product(("rms_norm", "layer_norm"), ((7, 300), (3, 8193))):
            calls += [(name, dtype, shape, False, {"residual": "given"})]
        losses: list[dict[str, Any]] = [
            {"label_smoothing": 0.1, "weight": None},
            {"label_smoothing": 0.1},
            {"target": "probabilities"},
            {"return_logsumexp": True},
        ]
        calls += [("cross_entropy", dtype, (9, 300), False, options) for options in losses]
    calls += [("cross_entropy", torch.bfloat16, (9, 300), False, {"dtype": torch.float32})]
    for dtype in FLOATS:
        for name in ("sum", "mean", "prod", "amax", "argmin", "max"):
            calls += [(name, dtype, (5000, 3), name != "prod", {"dim": 0, "segments": 7})]
        calls += [("sum", dtype, (300, 40), False, {"dim": 0, "segments": 50})]
        calls += [("index_add", dtype, (5000, 3), False, {"size": 7, "alpha": alpha}) for alpha in (1, 0.5)]
        calls += [("scatter_add", dtype, (300, 40), True, {"size": 50})]
        for reduce in ("mean", "prod", "amax"):
            calls += [("scatter_reduce", dtype, (600, 5), False, {"size": 9, "reduce": reduce})]
            calls += [("index_reduce", dtype, (600, 5), True, {"size": 9, "reduce": reduce, "include_self": False})]
    for dtype in (*INTEGERS, torch.bool):
        calls += [(name, dtype, (600, 3), False, {"dim": 0, "segments": 7}) for name in ("sum", "prod", "min")]
    for dtype in FLOATS:
        calls += [(name, dtype, (600, 5), False, {"size": 7}) for name in ("index_put", "put")]
        calls += [("bincount", dtype, (5000,), False, {"size": 7})]
        bags: list[dict[str, Any]] = [{"mode": mode, "padding_idx": 3} for mode in ("sum", "mean", "max")]
        bags += [{"mode": "sum"}, {"mode": "sum", "per_sample_weights": "given"}]
        calls += [("embedding_bag", dtype, (40, 5), bag["mode"] == "max", {"places": 5000, **bag}) for bag in bags]
    for dtype in FLOATS:
        for of_channels in ((6, 8, 5, 7), (90, 4, 49), (700, 16)):
            calls += [("batch_norm", dtype, of_channels, False, {})]
            calls += [("group_norm", dtype, of_channels, False, {"num_groups": 2})]
        calls += [("batch_norm", dtype, (64, 15, 10), True, {}), ("instance_norm", dtype, (3, 4, 3000), False, {})]
    for dtype in FLOATS:
        for name in ("softmax", "log_softmax", "logsumexp"):
            calls += [(name, dtype, (5000, 3), hostile, {"dim": 0, "segments": 7}) for hostile in (False, True)]
        calls += [("cumsum", dtype, (20000,), False, {"dim": 0, "segments": 2, "reverse": r}) for r in (False, True)]
        calls += [("cumsum", dtype, (600, 3), True, {"dim": 0, "segments": 50, "exclusive": True})]
        calls += [
            ("linear_scan", dtype, (20000,), False, {"dim": 0, "segments": 2, "reverse": r}) for r in (False, True)
        ]
        calls += [("linear_scan", dtype, (600, 3), True, {"dim": 0, "segments": 50})]
    calls += [("cumsum", dtype, (600, 3), False, {"dim": 0, "segments": 7}) for dtype in (*INTEGERS, torch.bool)]
    return [
        Golden(name, dtype, shape, seed, hostile, options)
        for seed, (name, dtype, shape, hostile, options) in enumerate(calls)
    ]


def _bits(t: Tensor) -> np.ndarray[Any, Any]:
    """Return the bit patterns of the elements, row-major."""
    flat = t.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
    return flat.view(torch.uint8).numpy().view(f"<u{t.element_size()}")


def hash_of(*tensors: Tensor) -> str:
    """Return the first 16 hex digits of the SHA-256 of the elements' bytes: row-major, little-endian, one tensor after
    another."""
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(_bits(t).tobytes())
    return digest.hexdigest()[:16]


def compute_golden(
    device: str | torch.device = "cpu", cases: Sequence[Golden] | None = None
) -> dict[str, dict[str, str]]:
    """Return the hashes of golden cases (by default all), computed on a device."""
    hashes = {}
    for case in golden_cases() if cases is None else cases:
        x = case.input()
        hashes[case.name] = {"input": hash_of(x), "result": hash_of(*case.result(x.to(device)))}
    return hashes


def check_golden(device: str | torch.device = "cpu", cases: Sequence[Golden] | None = None) -> list[str]:
    """Compare the results on a device with the golden bits, for golden cases (by default all).

    Returns a line for each difference; empty if all are bitwise identical."""
    golden = json.loads(GOLDEN_FILE.read_text())
    if golden["contract"] != CONTRACT_VERSION:
        return [f"golden.json is of contract {golden['contract']}, the package of {CONTRACT_VERSION}"]
    if {case.name for case in golden_cases()} != golden["cases"].keys():
        return ["golden.json does not have the cases of golden_cases()"]
    actual = compute_golden(device, cases)
    return [
        f"{name}: the {part} has the hash {hashes[part]}, not {golden['cases'][name][part]}"
        for name, hashes in actual.items()
        for part in ("input", "result")
        if hashes[part] != golden["cases"][name][part]
    ]


def write_golden() -> None:
    """Replace the golden bits by those the CPU computes now: a new contract version, unless nothing changes."""
    golden = {"contract": CONTRACT_VERSION, "cases": compute_golden("cpu")}
    GOLDEN_FILE.write_text(json.dumps(golden, indent=1) + "\n")


# ---- comparison ------------------------------------------------------------------------------------------------------


def assert_bitwise_equal(actual: Any, expected: Any) -> None:
    """Raise AssertionError unless two tensors (or tuples of tensors) are bitwise identical.

    They must have the same dtype, shape and bits; devices may differ. NaN are compared by their bits. The error names
    the first differing element, row-major, with both values and bit patterns.

    >>> import torch
    >>> assert_bitwise_equal(torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]))
    Traceback (most recent call last):
        ...
    AssertionError: 1 of 2 elements differ, first at (1,): -0.0 (0x80000000), expected 0.0 (0x00000000)
    """
    if isinstance(actual, tuple) and isinstance(expected, tuple):
        assert len(actual) == len(expected), f"{len(actual)} tensors, expected {len(expected)}"
        for a, e in zip(actual, expected, strict=True):
            assert_bitwise_equal(a, e)
        return
    assert actual.dtype == expected.dtype, f"the dtype is {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"the shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    patterns = [_bits(t) for t in (actual, expected)]
    differing = np.flatnonzero(patterns[0] != patterns[1])
    if differing.size:
        first = int(differing[0])
        where = tuple(int(i) for i in np.unravel_index(first, tuple(actual.shape))) if actual.dim() else ()
        digits = 2 * actual.element_size()
        got, wanted = (
            f"{t[where].item()} (0x{int(p[first]):0{digits}x})"
            for t, p in zip((actual, expected), patterns, strict=True)
        )
        count = f"{differing.size} of {actual.numel()} elements differ"
        raise AssertionError(f"{count}, first at {where}: {got}, expected {wanted}")
