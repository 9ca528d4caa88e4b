"""Every function in every form that differs in shape, result or gradient, for what autograd and compile do to them."""

import math

import torch
from cases import generator, values

import torchreduce as tr


def tie_free(shape, dtype=torch.float64, device="cpu", seed=0):
    """Distinct values, far enough apart for a numeric gradient."""
    n = torch.Size(shape).numel()
    x = (torch.randperm(n, generator=generator(seed)) + 1).to(dtype) / 8
    return x.reshape(shape).to(device)


def signed(x):
    """x with elements of both signs: exactly, by whatever compiles it."""
    return x * (x > 3).to(x.dtype).mul(2).sub(1)


FORMS = {
    "sum": lambda x: tr.sum(x),
    "sum dim": lambda x: tr.sum(x, 1),
    "sum dims keepdim": lambda x: tr.sum(x, (0, -1), keepdim=True),
    "sum dtype": lambda x: tr.sum(x, 0, dtype=torch.float64),
    "mean": lambda x: tr.mean(x),
    "mean dims": lambda x: tr.mean(x, (0, 2)),
    "mean keepdim": lambda x: tr.mean(x, 1, keepdim=True),
    "amax": lambda x: tr.amax(x, (0, 1)),
    "amax keepdim": lambda x: tr.amax(x, 2, keepdim=True),
    "amin": lambda x: tr.amin(x),
    "max all": lambda x: tr.max(x),
    "min all keepdim": lambda x: tr.min(x, keepdim=True),
    "max": lambda x: tr.max(x, 1).values,
    "max dims": lambda x: tr.max(x, (2, 0), keepdim=True).values,
    "min": lambda x: tr.min(x, -1, keepdim=True)[0],
    "min dims": lambda x: tr.min(x, (1, 2)).values,
    "nansum": lambda x: tr.nansum(x, 1),
    "nanmean": lambda x: tr.nanmean(x, (0, 2)),
    "prod": lambda x: tr.prod(x, 1),
    "prod dims keepdim": lambda x: tr.prod(x / 4, (0, 2), keepdim=True),
    "prod dtype": lambda x: tr.prod(x, -1, dtype=torch.float64),
    "norm 1": lambda x: tr.vector_norm(signed(x), 1, 1),
    "norm 2": lambda x: tr.vector_norm(x, 2, (0, 1)),
    "norm 2 keepdim dtype": lambda x: tr.norm(signed(x), dim=2, keepdim=True, dtype=torch.float64),
    "norm inf": lambda x: tr.vector_norm(signed(x), math.inf, (0, 2), keepdim=True),
    "norm -inf": lambda x: tr.vector_norm(signed(x), -math.inf),
    "aminmax": lambda x: torch.stack(tuple(tr.aminmax(x, dim=1))),
    "cumsum": lambda x: tr.cumsum(x, 1),
    "cumsum exclusive": lambda x: tr.cumsum(x, 0, exclusive=True),
    "cumsum reverse": lambda x: tr.cumsum(x, -1, reverse=True),
    "cumsum both dtype": lambda x: tr.cumsum(x, 1, exclusive=True, reverse=True, dtype=torch.float64),
    "cumprod": lambda x: tr.cumprod(x, 1),
    "cumprod exclusive": lambda x: tr.cumprod(x, -1, exclusive=True),
    "cumprod reverse": lambda x: tr.cumprod(x, 0, reverse=True),
    "cumprod both dtype": lambda x: tr.cumprod(x, 1, exclusive=True, reverse=True, dtype=torch.float64),
    "logcumsumexp": lambda x: tr.logcumsumexp(x, 1),
    "logcumsumexp exclusive": lambda x: tr.logcumsumexp(x, 2, exclusive=True)[..., 1:],  # without the start, -inf
    "logcumsumexp reverse": lambda x: tr.logcumsumexp(x, 0, reverse=True),
    "logcumsumexp both": lambda x: tr.logcumsumexp(x, 1, exclusive=True, reverse=True)[:, :-1],
    "cummax": lambda x: tr.cummax(x, 1).values,
    "cummax reverse": lambda x: tr.cummax(x, -1, reverse=True).values,
    "cummin": lambda x: tr.cummin(x, 0)[0],
}


def labels(x, dim=1):
    """A label for each row along dim, every third one the ignored one."""
    shape = [*x.shape[:dim], *x.shape[dim + 1 :]]
    i = torch.arange(torch.Size(shape).numel(), device=x.device)
    return torch.where(i % 3 == 2, -100, i * 7 % x.shape[dim]).reshape(shape)


def weights(x, dims):
    """One for each position of the last dims, of x."""
    return tr.sum(x, tuple(range(x.dim() - dims))).cos()


def normalized(x):
    weight = weights(x, 2)
    return tr.layer_norm(x, x.shape[-2:], weight, weight.sin())


# Row-wise ops.
ROWWISE_FORMS = {
    "softmax": lambda x: tr.softmax(x, 1),
    "softmax dtype": lambda x: tr.softmax(x, -1, dtype=torch.float64),
    "log_softmax": lambda x: tr.log_softmax(x, 0),
    "logsumexp": lambda x: tr.logsumexp(x, (0, 2)),
    "logsumexp keepdim": lambda x: tr.logsumexp(x, 1, keepdim=True),
    "entropy": lambda x: tr.entropy(x, 2),
    "var": lambda x: tr.var(x, (0, 1)),
    "std": lambda x: tr.std(x, correction=0, keepdim=True),
    "var_mean": lambda x: torch.stack(tr.var_mean(x, (1, 2), correction=0)),
    "std_mean": lambda x: tr.std_mean(x, (0, 1), keepdim=True)[1],
    "rms_norm": lambda x: tr.rms_norm(x, x.shape[-1:], weights(x, 1)),
    "layer_norm": normalized,
    "layer_norm plain": lambda x: tr.layer_norm(x, x.shape[-1:]),
    "cross_entropy": lambda x: tr.cross_entropy(x, labels(x)),
    "cross_entropy weight": lambda x: tr.cross_entropy(
        x, labels(x), torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype), reduction="none"
    ),
}

# linear_scan, of which all inputs depend on x.
LINEAR_FORMS = {
    "linear_scan": lambda x: tr.linear_scan(x.sin(), x, 1),
    "linear_scan initial reverse": lambda x: tr.linear_scan(x.cos(), x, -1, initial=x.select(-1, 0), reverse=True),
    "linear_scan broadcast": lambda x: tr.linear_scan(x[:1].sin(), x, 0, initial=x[0, 0, :1]),
    "linear_scan number": lambda x: tr.linear_scan(0.5, x, 1, initial=2, reverse=True),
}
DIFFERENTIABLE = {**FORMS, **LINEAR_FORMS, **ROWWISE_FORMS}


def everything(x):
    """One function of all the ops, for compile."""
    results = [f(x) for f in FORMS.values()]
    results += [
        tr.argmax(x),
        tr.argmin(x, 1),
        tr.argmax(x, (0, 2), keepdim=True),
        tr.any(x, 1),
        tr.all(x, (0, 2)),
        tr.count_nonzero(x),
        tr.vector_norm(x, 0, 1),
        tr.max(x, 0).indices,
        tr.min(x, 1)[1],
        tr.cummax(x, 1).indices,
        tr.cummin(x, 2, reverse=True)[1],
    ]
    return results


def gradient(f, x, seed=0):
    x = x.detach().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, values(y.shape, y.dtype, seed).to(x.device))[0]


class Recorder:
    """A backend that keeps the graphs it was given and runs them as they are."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward

    def levels(self):
        """The last argument of every op of this library."""
        nodes = [n for g in self.graphs for n in g.graph.nodes if "torchreduce" in str(n.target)]
        return [n.args[-1] for n in nodes]
