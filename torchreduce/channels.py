"""The public norms over channels: batch_norm, group_norm, instance_norm.

They have the arguments, shapes, memory formats and errors of torch.nn.functional's functions. What rowwise.py says is
common to its functions holds for these: dtypes, accumulators, one rounding, the same bits on every device.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._core.checks import check_floats, rowwise_overloads
from ._core.dispatch import has_tangent, is_bare, serving
from ._fake.reductions import same_shape
from .determinism import level_code
from .rowwise import _is_autocast, _number

_CHANNEL_NORM, _CHANNEL_NORM_GIVEN = (rowwise_overloads(name) for name in ("channel_norm", "channel_norm_given"))
_ops = torch.ops.torchreduce


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Apply group normalization, as torch.nn.functional.group_norm.

    input has the shape (samples, channels, ...). Each group of channels of a sample becomes
    (x - mean) / sqrt(var + eps), multiplied by weight and increased by bias, which have an element for each channel and
    any float dtype. A sample's result does not depend on the other samples.

    >>> import torch, torchreduce
    >>> torchreduce.group_norm(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), 2, eps=0.001)
    tensor([[-0.9995,  0.9995,  0.0000,  0.0000]])
    """
    name = "group_norm"
    check_floats(name, input)
    if _is_autocast(input):
        input, weight, bias = input.float(), *(None if t is None else t.float() for t in (weight, bias))
    if input.dim() < 2:
        raise RuntimeError(f"{name}(): expected at least 2 dims, but got an input of {input.dim()}")
    if isinstance(num_groups, bool) or not isinstance(num_groups, int):
        raise TypeError(f"{name}(): argument 'num_groups' must be an int, got {type(num_groups).__name__}")
    if num_groups < 1 or input.shape[1] % num_groups:
        raise RuntimeError(
            f"{name}(): expected the number of channels to be divisible by num_groups, but got an input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    weight, bias = _of_channels(name, input, weight=weight, bias=bias)
    _check_more_than_one([input.shape[0] * input.shape[1] // num_groups, num_groups, *input.shape[2:]], input.shape)
    more = [t for t in (weight, bias) if t is not None]
    rest = (num_groups, _number(name, "eps", eps), level_code())
    return serving(_CHANNEL_NORM, input, *more)(input, weight, bias, *rest)[0]  # type: ignore[no-any-return]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Apply batch normalization, as torch.nn.functional.batch_norm.

    input has the shape (samples, channels, ...). With training=True a channel is normalized by its own mean and
    variance over all samples, and running_mean and running_var, where given, become
    (1 - momentum) * running + momentum * value, in place, with the mean and the unbiased variance. With training=False
    it is normalized by running_mean and running_var. weight and bias have an element for each channel and any float
    dtype. The result of a channels-last input is channels-last, and bitwise identical to that of a contiguous one.

    >>> import torch, torchreduce
    >>> mean, var = torch.zeros(1), torch.ones(1)
    >>> torchreduce.batch_norm(torch.tensor([[1.0], [3.0]]), mean, var, training=True, momentum=0.5, eps=0)
    tensor([[-1.],
            [ 1.]])
    >>> mean, var
    (tensor([1.]), tensor([1.5000]))
    """
    name = "batch_norm"
    check_floats(name, input)
    if input.dim() < 2:
        raise RuntimeError(f"{name}(): expected at least 2 dims, but got an input of {input.dim()}")
    weight, bias = _of_channels(name, input, weight=weight, bias=bias)
    _check_running(name, input, running_mean=running_mean, running_var=running_var)
    if _flag(name, "training", training):
        _check_more_than_one(input.shape, input.shape)
        return _of_batch(name, input, running_mean, running_var, weight, bias, momentum, eps)
    if running_mean is None or running_var is None:
        raise RuntimeError(f"{name}(): expected running_mean and running_var to be defined when training=False")
    if running_mean.dtype != running_var.dtype:
        running_mean, running_var = running_mean.double(), running_var.double()
    more = [t for t in (weight, bias) if t is not None]
    rest = (running_mean, running_var, weight, bias, _number(name, "eps", eps), level_code())
    return serving(_CHANNEL_NORM_GIVEN, input, *more)(input, *rest)  # type: ignore[no-any-return]


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Apply instance normalization, as torch.nn.functional.instance_norm.

    Each channel of each sample is normalized by its own mean and variance, as by batch_norm of the shape
    (1, samples * channels, ...) with repeated weights. running_mean and running_var, where given, move by the means of
    these over the samples; with use_input_stats=False they are used instead.

    >>> import torch, torchreduce
    >>> torchreduce.instance_norm(torch.tensor([[[1.0, 3.0], [2.0, 2.0]]]), eps=0.001)
    tensor([[[-0.9995,  0.9995],
             [ 0.0000,  0.0000]]])
    """
    name = "instance_norm"
    check_floats(name, input)
    if input.dim() < 2:
        raise RuntimeError(f"{name}(): expected at least 2 dims, but got an input of {input.dim()}")
    weight, bias = _of_channels(name, input, weight=weight, bias=bias)
    _check_running(name, input, running_mean=running_mean, running_var=running_var)
    if not _flag(name, "use_input_stats", use_input_stats):
        if running_mean is None or running_var is None:
            raise RuntimeError(
                f"{name}(): expected running_mean and running_var to be defined when use_input_stats=False"
            )
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    samples, channels, *rest = input.shape
    elements = 1
    for size in rest:
        elements *= size
    if elements == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {torch.Size(input.shape)}"
        )
    weight, bias = (None if t is None else _ops.repeated.default(t, samples) for t in (weight, bias))
    rows = input.reshape(1, samples * channels, *rest)
    mean, var = (None if t is None else t.repeat(samples) for t in (running_mean, running_var))
    result = _of_batch(name, rows, mean, var, weight, bias, momentum, eps)
    for running, moved in ((running_mean, mean), (running_var, var)):
        if running is not None and moved is not None:
            running.copy_(_ops.mean.default(moved.reshape(samples, channels), [0], False, None, level_code()))
    return result.reshape(input.shape)


def _flag(name: str, argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}(): argument {argument!r} must be a bool, got {type(value).__name__}")
    return value


def _of_batch(
    name: str, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    more = [t for t in (weight, bias) if t is not None]
    rest = (weight, bias, 0, _number(name, "eps", eps), level_code())
    result, _, moments = serving(_CHANNEL_NORM, input, *more)(input, *rest)
    _move((running_mean, running_var), moments, _number(name, "momentum", momentum))
    return result  # type: ignore[no-any-return]


def _move(running: tuple[Tensor | None, Tensor | None], moments: Tensor, momentum: float) -> None:
    given = [t for t in running if t is not None]
    if not given:
        return
    is_one_call = all(t.is_contiguous() and not t.is_meta for t in given) and len({t.dtype for t in given}) == 1
    if is_one_call and is_bare(*given):
        _ops.channel_move.raw(moments, *running, momentum, 0)
        for t in given:
            torch.autograd.graph.increment_version(t)
        return
    for own, value in zip(running, moments, strict=True):
        if own is not None:
            own.copy_(_ops.moved.default(own, value, momentum))


def _check_more_than_one(sizes: Sequence[int], shape: Sequence[int]) -> None:
    """As torch.nn.functional does before it normalizes a batch."""
    count = 1
    for d, size in enumerate(sizes):
        count *= 1 if d == 1 else size
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {torch.Size(shape)}")


def _check_channels(name: str, input: Tensor, **tensors: Tensor | None) -> None:
    for key, t in tensors.items():
        if t is None:
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}(): argument {key!r} must be a Tensor, got {type(t).__name__}")
        check_floats(name, t, key)
        if not same_shape(t.shape, input.shape[1:2]):
            raise RuntimeError(
                f"{name}(): expected {key} to have an element for each of {input.shape[1]} channels, but got shape "
                f"{list(t.shape)}"
            )
        if t.device != input.device:
            raise RuntimeError(f"{name}(): expected {key} to be on {input.device}, but it is on {t.device}")


def _check_running(name: str, input: Tensor, **running: Tensor | None) -> None:
    _check_channels(name, input, **running)
    for key, t in running.items():
        if t is not None and ((torch.is_grad_enabled() and t.requires_grad) or has_tangent(t)):
            raise RuntimeError(f"{name}(): not differentiable with respect to argument {key!r}")


def _of_channels(name: str, input: Tensor, **weights: Tensor | None) -> list[Tensor | None]:
    """Return the weights, all in the input's dtype or all in the accumulator's."""
    _check_channels(name, input, **weights)
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    dtypes = {t.dtype for t in weights.values() if t is not None}
    if len(dtypes) > 1 or not dtypes <= {input.dtype, wide}:
        return [None if t is None else t.to(wide) for t in weights.values()]
    return list(weights.values())
