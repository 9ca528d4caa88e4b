"""What runs in the processes of tests/test_distributed.py. Each function returns what the ranks then compare."""

import hashlib
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torchreduce as tr
import torchreduce.distributed as trd
from torchreduce.distributed import collectives, order

COUNT, SIZE, STEPS = 24, 4, 2  # micro-batches of a step, samples of each, steps


def here():
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def bits(*tensors):
    """A hash of the bytes."""
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def terms(count, n, dtype, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, n, generator=g, dtype=torch.float64)
    x = x * torch.exp2(torch.randint(-12, 12, (count, n), generator=g))
    return x.to(dtype).to(here())


def tree(rows):
    """The contract's order, in the plainest way; rounded once."""
    sums = [row.to(order.wide(rows.dtype)) for row in rows]
    while len(sums) > 1:
        sums = [sums[i] + sums[i + 1] if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0].to(rows.dtype)


def gathered(part):
    whole = part.new_empty(dist.get_world_size() * part.numel())
    collectives.gather(whole, part, None)
    return whole


def audited(is_exact):
    """The culprits of a step whose gradients are added by an all_reduce, and the variations' results."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 16).to(here())
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(4, 16, generator=generator)
    if is_exact:  # sums of small integers
        layer = layer.requires_grad_(False)
        layer.weight.copy_(torch.randint(3, (16, 16)))
        layer.bias.zero_()
        layer, x = layer.requires_grad_(True), torch.randint(3, (4, 16), generator=generator).float()

    def step(x):
        y = layer(x)
        y.square().sum().backward()
        for p in layer.parameters():
            dist.all_reduce(p.grad)
        return y

    with tr.enabled(cpu=True, compile=False, products="float32"):
        result = tr.audit(step, x.to(here()), vary=("repeat", "ranks"))
    return [(c.op, c.variations, "torchreduce.distributed" in c.mend) for c in result.culprits], result.variations


# ---- collectives -----------------------------------------------------------------------------------------------------


def collective(dtype, n):
    """Of each way: whether it has the bits of the tree; and of the backend's own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = terms(world, n, dtype)
    want, fine = tree(x), {}

    def all_reduced(group=None, **options):
        y = x[rank].clone()
        work = trd.all_reduce(y, group, **options)
        if work is not None:
            work.wait()
        return y

    fine["waits"] = torch.equal(all_reduced(), want)
    fine["one step"] = torch.equal(all_reduced(async_op=True), want)
    one_step, collectives.ONE_STEP = collectives.ONE_STEP, 0
    try:
        fine["two steps"] = torch.equal(all_reduced(async_op=True), want)
        if n % world == 0:
            part = torch.empty(n // world, dtype=dtype, device=x.device)
            trd.reduce_scatter(part, x[rank], async_op=True).wait()
            fine["reduce_scatter by all_to_all"] = torch.equal(gathered(part), want)
        if world in (4, 8):
            mesh = init_device_mesh(here(), (2, world // 2))
            fine["two levels"] = torch.equal(all_reduced(mesh), want)
    finally:
        collectives.ONE_STEP = one_step
    strided = x[rank].repeat_interleave(2)[::2]
    trd.all_reduce(strided)
    fine["strided"] = torch.equal(strided, want)
    if n % world == 0:
        out = torch.empty(n // world, dtype=dtype, device=x.device)
        trd.reduce_scatter(out, x[rank])
        fine["reduce_scatter"] = torch.equal(gathered(out), want)
        trd.reduce_scatter(out.zero_(), x[rank], async_op=True).wait()
        fine["reduce_scatter async_op"] = torch.equal(gathered(out), want)
        unrounded = torch.empty_like(out, dtype=order.wide(dtype))
        trd.reduce_scatter(unrounded, x[rank])
        fine["not rounded"] = torch.equal(gathered(unrounded.to(dtype)), want)
        if world in (4, 8):
            trd.reduce_scatter(out.zero_(), x[rank], mesh)
            fine["reduce_scatter two levels"] = torch.equal(gathered(out), want)
    theirs = x[rank].clone()
    dist.all_reduce(theirs)
    return fine, torch.equal(theirs, want), bits(want)


def many_terms(count, dtype):
    """The sum of `count` gradients: ours, and the backend's of what each rank has added."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = terms(count, 1001, dtype)
    run = trd.runs(count, world)[rank]
    p = torch.nn.Parameter(torch.zeros_like(x[0]))
    total = trd.GradientSum([p], count)
    for _ in range(2):  # a step's sum serves the next one
        for i in run:
            p.grad = x[i].clone()
            total.push()
        total.finish()
    theirs = sum((x[i] for i in run), torch.zeros_like(x[0]))
    dist.all_reduce(theirs)
    return bits(p.grad), bits(tree(x)), bits(theirs)


def sub_groups():
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4])]
    x = terms(5, 1000, torch.float32)
    members = [0, 1, 2] if rank < 3 else [3, 4]
    y = x[rank].clone()
    trd.all_reduce(y, groups[rank > 2])
    return torch.equal(y, tree(x[members]))


def specials():
    """NaN, infinities, zeros, overflow, subnormals; the bytes of torchreduce.sum."""
    world, rank = dist.get_world_size(), dist.get_rank()
    x = torch.zeros(world, 6)
    x[1, 0] = float("nan")
    x[0, 1], x[1, 1] = float("inf"), -float("inf")
    x[:, 2], x[:, 3], x[:, 4] = -0.0, 3e38, 1e-42
    y = x[rank].clone().to(here())
    trd.all_reduce(y)
    return y.view(torch.int32).tolist(), tr.sum(x, 0).view(torch.int32).tolist()


def nothing():
    """Of no elements."""
    x = torch.empty(0, device=here())
    trd.all_reduce(x)
    trd.reduce_scatter(x, torch.empty(0, device=here()))
    total = trd.sharded_sum(x, 0, 0)
    return [total.item(), math.copysign(1, total.item())]


def integers():
    x = torch.full((3,), 2**40 + dist.get_rank(), device=here())
    trd.all_reduce(x)
    return x.tolist()


def compiled():
    rank, world = dist.get_rank(), dist.get_world_size()
    x = terms(world, 4096, torch.float32)

    def f(y):
        y = y * 2
        trd.all_reduce(y)
        part = torch.empty(y.shape[0] // world, device=y.device)
        trd.reduce_scatter(part, y)
        return y + 1, part

    whole, part = torch.compile(f, backend="aot_eager")(x[rank])
    want = tree(x * 2)
    return torch.equal(whole, want + 1) and torch.equal(part, tree(want.expand(world, -1)).chunk(world)[rank])


def captured():
    """From a CUDA graph, of one piece and of several."""
    rank, world = dist.get_rank(), dist.get_world_size()
    fine = []
    for n in (1000, collectives.ONE_STEP):
        x = terms(world, n, torch.float32)
        y = x[rank].clone()
        trd.all_reduce(y)  # the setup of NCCL, and of the ranks' buffers
        y.copy_(x[rank])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trd.all_reduce(y)
        y.copy_(x[rank])
        graph.replay()
        torch.cuda.synchronize()
        fine.append(torch.equal(y, tree(x)))
    return fine


def in_flight():
    """How many of 48 sums are wrong, on two streams and in two groups, each behind work that the ranks end at other
    times; sizes vary, and nothing waits in between."""
    rank, world, cuda = dist.get_rank(), dist.get_world_size(), here() == "cuda"
    groups = [None, dist.new_group(list(range(world)))]
    streams = [torch.cuda.Stream() for _ in range(2)] if cuda else [None]
    x = torch.randn(world, 60 * world << (14 if cuda else 4), generator=torch.Generator().manual_seed(2)).to(here())
    made = []
    if cuda:
        torch.cuda.synchronize()
    for i in range(48):
        n = x.shape[1] >> i % 7
        with torch.cuda.stream(streams[i // 3 % len(streams)]):
            if cuda:
                torch.cuda._sleep(200_000 * ((i * 7 + rank * 5) % 4))
            mine, group = x[rank, :n] * (i + 1), groups[i // 2 % 2]
            if i % 3:
                trd.all_reduce(mine, group)
                made.append((i, mine, slice(0, n)))
            else:
                part = torch.empty(n // world, device=x.device)
                trd.reduce_scatter(part, mine, group)
                made.append((i, part, slice(rank * (n // world), (rank + 1) * (n // world))))
            del mine
    if cuda:
        torch.cuda.synchronize()
    return sum(not torch.equal(got, tree(x[:, at] * (i + 1))) for i, got, at in made)


# ---- wrong calls: what is raised, before any collective --------------------------------------------------------------


def wrong():
    """Each raises on all ranks, so that none waits."""
    world, rank = dist.get_world_size(), dist.get_rank()
    other = dist.new_group([0])
    model = torch.nn.Linear(2, 2)
    calls = {
        "shape": lambda: trd.reduce_scatter(torch.empty(3), torch.empty(3 * world + 1)),
        "dtype of the output": lambda: trd.reduce_scatter(torch.empty(3).half(), torch.empty(3 * world)),
        "dtype": lambda: trd.all_reduce(torch.zeros(3, dtype=torch.complex64)),
        "no tensor": lambda: trd.all_reduce([1.0]),
        "strides": lambda: trd.reduce_scatter(torch.empty(6)[::2], torch.empty(3 * world)),
        "few micro-batches": lambda: trd.GradientSum(model.parameters(), world - 1),
        "uneven": lambda: trd.DDPHook(model, world + 1),
        "no FSDP": lambda: trd.FSDPTree(model, world),
        "no parameters": lambda: trd.GradientSum([], world),
        "beyond": lambda: trd.sharded_sum(torch.zeros(3), 0, 2),
        "gap": lambda: trd.sharded_sum(torch.zeros(2), 2 * rank + (rank > 0), 2 * world + 1),
        "missing": lambda: trd.sharded_norm(torch.zeros(2), 2 * rank, 2 * world + 1),
        "not pushed": lambda: trd.GradientSum(model.parameters(), world).finish(),
        "nothing pushed": lambda: trd.Partials().total(),
        "mesh": lambda: trd.all_reduce(torch.zeros(3), init_device_mesh("cpu", (1, world))),
    }
    sharded = torch.nn.Linear(4, 4)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    calls["interleaved"] = lambda: trd.FSDPTree(sharded, world)
    calls["replicas"] = lambda: trd.FSDPTree(sharded, world, interleaved=False, replicas=dist.group.WORLD)
    calls["old torch"] = lambda: trd.FSDPTree(sharded, world)
    fsdp = sys.modules["torchreduce.distributed.fsdp"]
    if rank > 0:
        calls["not in the group"] = lambda: trd.all_reduce(torch.zeros(3), other)
        calls["no micro-batches outside"] = lambda: trd.GradientSum(model.parameters(), world, other)
    raised = {}
    for name, call in calls.items():
        needed = fsdp._CALLS
        try:
            fsdp._CALLS = (*needed, "set_tree") if name == "old torch" else needed
            call()
            raised[name] = None
        except Exception as error:
            raised[name] = (type(error).__name__, str(error))
        finally:
            fsdp._CALLS = needed
    return raised


def dying():
    """The last rank ends; the others' errors are the backend's own."""
    try:
        dist.barrier()  # all are connected
        if dist.get_rank() == dist.get_world_size() - 1:
            os._exit(0)
        trd.all_reduce(torch.ones(1 << 16))
    except Exception as error:
        return type(error).__name__


# ---- sharded tensors -------------------------------------------------------------------------------------------------


def sharded(cases):
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(5)
    wrong = []
    for case in range(cases):
        n = int(torch.randint(0, 40000, (), generator=g))
        dtype = (torch.float32, torch.bfloat16, torch.float64)[case % 3]
        x = (torch.randn(n, generator=g) * 100).to(dtype).to(here())
        cuts = [0, *sorted(torch.randint(0, n + 1, (world - 1,), generator=g).tolist()), n]
        local = x[cuts[rank] : cuts[rank + 1]]
        if not torch.equal(trd.sharded_sum(local, cuts[rank], n), tr.sum(x)):
            wrong.append(("sum", case))
        if not torch.equal(trd.sharded_norm(local, cuts[rank], n), tr.vector_norm(x)):
            wrong.append(("norm", case))
    return wrong


def sharded_classes(classes, dtype, scale, aligned):
    """The functions whose result, or gradient, is not that of whole rows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(3)
    x = (torch.randn(3, classes, generator=g) * scale).to(dtype).to(here())
    x[1, 7] = -float("inf")
    target, up = torch.tensor([classes - 1, 5, -100], device=here()), torch.rand(3, generator=g).to(dtype).to(here())
    target[0] = int(torch.randint(classes, (), generator=g))
    borders = [classes * r // world for r in range(world)] + [classes]
    if aligned:
        borders = [b // 2048 * 2048 for b in borders[:-1]] + [classes]
    a, b = borders[rank], borders[rank + 1]
    differ = []
    for name, ours, whole in (
        ("logsumexp", trd.sharded_logsumexp, lambda x: tr.logsumexp(x, 1)),
        ("entropy", trd.sharded_entropy, lambda x: tr.entropy(x, 1)),
        *(
            (
                f"cross_entropy, {way}",
                lambda x, *run, way=way: trd.sharded_cross_entropy(x, target, *run, reduction=way),
                lambda x, way=way: tr.cross_entropy(x, target, reduction=way),
            )
            for way in ("none", "sum", "mean")
        ),
    ):
        local, all_ = x[:, a:b].clone().requires_grad_(), x.clone().requires_grad_()
        got, want = ours(local, a, classes), whole(all_)
        upstream = up if got.ndim else up[0]
        (gradient,), (expected,) = (torch.autograd.grad(v, of, upstream) for v, of in ((got, local), (want, all_)))
        if bits(got, gradient) != bits(want, expected[:, a:b]):
            differ.append(name)
    return differ


# ---- training --------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(48), torch.nn.Linear(48, 80), torch.nn.Linear(80, 48)
        self.unused = torch.nn.Parameter(torch.ones(5))

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


def build(dtype):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 48), Block(), Block(), torch.nn.Linear(48, 10)).to(dtype).to(here())


def loss_of(model, step, i, dtype):
    """Of micro-batch i: all that is random is seeded by its number, never by the rank."""
    g = torch.Generator().manual_seed(1000 * step + i)
    x, y = torch.randn(SIZE, 32, generator=g), torch.randint(10, (SIZE,), generator=g)
    torch.manual_seed(7000 + 1000 * step + i)
    return F.cross_entropy(model(x.to(here(), dtype)).float(), y.to(here()), reduction="sum")


def train(kind, dtype, bucket_mb=0.01, count=COUNT):
    """The bits of weights and second moments, and the norms, after STEPS."""
    world = dist.get_world_size()
    model = build(dtype)
    parameters = list(model.parameters())
    fsdp, ours = kind.startswith("fsdp"), "default" not in kind
    run = trd.runs(count, world)[dist.get_rank()]
    if kind.startswith("ddp"):
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb, find_unused_parameters=True)
        if ours:
            state = trd.DDPHook(model, count)
            wrapped.register_comm_hook(state, trd.DDPHook.hook)
    elif fsdp:
        mesh, group, replicas = init_device_mesh(here(), (world,)), None, None
        if kind == "fsdp-replicas":
            both = init_device_mesh(here(), (2, world // 2), mesh_dim_names=("replicas", "shards"))
            mesh, group, replicas = both["shards"], both.get_group("shards"), both.get_group("replicas")
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        if kind == "fsdp-mixed":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (model[1], model[2], model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        parameters = list(model.parameters())
        if ours:
            state = trd.FSDPTree(model, count, group, interleaved="contiguous" not in kind, replicas=replicas)
    else:
        state = trd.GradientSum(parameters, count)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, foreach=False)
    norms = []
    for step in range(STEPS):
        if kind == "plain":
            for i in state.run:
                loss_of(model, step, i, dtype).backward()
                state.push()
            state.finish()
        elif kind.startswith("ddp"):
            for i in run[:-1]:
                with wrapped.no_sync():
                    loss_of(wrapped, step, i, dtype).backward()
                if ours:
                    state.push()
            loss_of(wrapped, step, run[-1], dtype).backward()
        else:
            for i in state.micro_batches() if ours else run:
                if not ours:
                    model.set_requires_gradient_sync(i == run[-1])
                loss_of(model, step, i, dtype).backward()
        scale = count * SIZE if ours else count * SIZE / world  # DDP and FSDP2 themselves take the mean over ranks
        for p in parameters:
            if p.grad is not None:
                (p.grad.to_local() if fsdp else p.grad).div_(scale)
        if ours:
            norms.append(trd.clip_grad_norm_(parameters, 0.5).item())
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            norms.append((norm.full_tensor() if fsdp else norm).item())
        optimizer.step()
        optimizer.zero_grad()
    used = [p for name, p in model.named_parameters() if "unused" not in name]
    tensors = used + [optimizer.state[p]["exp_avg_sq"] for p in used]
    return bits(*(t.full_tensor() if fsdp else t for t in tensors)), norms


def fsdp_divides_twice():
    """torch on one rank, with the sum forced and a divide factor: the gradient, which should be 1 / 4."""
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model.set_gradient_divide_factor(4.0)
    model.set_force_sum_reduction_for_comms(True)
    model(torch.ones(1, 4)).sum().backward()
    return model.weight.grad.full_tensor()[0, 0].item()


def clipped():
    """Of plain gradients: ours, and torch's with the override."""
    results = []
    for clip in (trd.clip_grad_norm_, torch.nn.utils.clip_grad_norm_):
        model = build(torch.float32)
        loss_of(model, 0, 0, torch.float32).backward()
        with tr.enabled(cpu=True, compile=False):
            used = [p for p in model.parameters() if p.grad is not None]
            results.append(bits(clip(used, 0.5), *(p.grad for p in used)))
    return results


def mesh_of(shape):
    return DeviceMesh(here(), torch.arange(dist.get_world_size()).view(shape))


# ---- DTensor ---------------------------------------------------------------------------------------------------------

LABELS, INDEX = torch.tensor([[1, 4, 9, 0, 2]] * 4), torch.tensor([0, 2, 2, 5, 1])
OFFSETS = torch.tensor([0, 3, 3, 8])


def functions():
    """A call of each public function, of a tensor of shape (4, 10, 5) and a weight of 5; rows are along dim 1 or 2."""
    calls = {
        name: lambda x, w, name=name: getattr(tr, name)(x, dim=1)
        for name in (
            *("sum", "mean", "nansum", "nanmean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any"),
            *("all", "count_nonzero", "vector_norm", "norm", "aminmax", "softmax", "log_softmax", "logsumexp"),
            *("entropy", "var", "std", "var_mean", "std_mean", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"),
        )
    }
    return calls | {
        "sum of all": lambda x, w: tr.sum(x),
        "sum, keepdim": lambda x, w: tr.sum(x, (0, 2), True),
        "max of all": lambda x, w: tr.max(x),
        "norm of order 3": lambda x, w: tr.vector_norm(x, 3, 1),
        "rms_norm": lambda x, w: tr.rms_norm(x, (5,), w),
        "rms_norm, residual": lambda x, w: tr.rms_norm(x, (5,), w, residual=x + 1),
        "layer_norm": lambda x, w: tr.layer_norm(x, (5,), w, w),
        "linear_scan": lambda x, w: tr.linear_scan(x * 0.5, x, 1),
        "cross_entropy": lambda x, w: tr.cross_entropy(x, like(x, LABELS), reduction="none"),
        "sum, segments": lambda x, w: tr.sum(x, 1, segments=like(x, OFFSETS)),
        "index_add": lambda x, w: tr.index_add(x, 1, like(x, INDEX), x[:, :5]),
    }


def like(x, values):
    """values, as a DTensor where x is one."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    mesh, values = x.device_mesh if isinstance(x, DTensor) else None, values.to(x.device)
    return distribute_tensor(values, mesh, [Replicate()] * mesh.ndim) if mesh else values


def dtensors(shape):
    """The functions whose result, or gradient, is not that of the whole; by placements."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    trd.register_dtensor()
    mesh = mesh_of(shape)
    x, w = torch.randn(4, 10, 5, generator=torch.Generator().manual_seed(0)), torch.linspace(0.5, 2, 5)
    x, w, differ = x.to(here()), w.to(here()), []

    def run(f, x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        results = f(x, w)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        after = [r for r in results if r.requires_grad]
        up = [torch.linspace(-1, 1, r.numel()).view(r.shape) for r in after]
        gradients = torch.autograd.grad(after, [x, w], [like(x, u) for u in up], allow_unused=True) if after else []
        return [t.full_tensor() if isinstance(t, DTensor) else t for t in (*results, *gradients) if t is not None]

    for name, f in functions().items():
        want = run(f, x, w)
        for d in (0, 1, 2):
            placements = [Shard(d), Shard((d + 1) % 3)][: mesh.ndim]
            replicated = distribute_tensor(w, mesh, [Replicate()] * mesh.ndim)
            try:
                got = run(f, distribute_tensor(x, mesh, placements), replicated)
                equal = len(got) == len(want) and all(map(torch.equal, got, want))
            except Exception as error:
                equal = f"{type(error).__name__}: {str(error)[:300]}"
            if equal is not True:
                differ.append((name, d, equal))
    return differ


def sums_of_dtensors():
    """Where sums meet as partial sums: placements, and whether the bits are the whole's."""
    from torch.distributed.tensor import Shard, distribute_tensor

    trd.register_dtensor()
    world = dist.get_world_size()
    mesh = mesh_of((world,))
    x = torch.randn(8, 2048 * 8, generator=torch.Generator().manual_seed(0)).to(here())
    whole = distribute_tensor(x, mesh, [Shard(1)])
    said = {}
    for name, call in {
        "rows": lambda v: tr.sum(v, 1),
        "columns": lambda v: tr.sum(v, 0),  # the cache of shardings knows dims apart
        "scaled": lambda v: tr.sum(v, 1) * 3 + 1,
        "to shards": lambda v: tr.sum(v, 1) if not hasattr(v, "mesh") else tr.sum(v, 1).redistribute(mesh, [Shard(0)]),
        "of 16 bits": lambda v: tr.sum(v.bfloat16(), 1),
        "of 16 bits, in float32": lambda v: tr.sum(v.bfloat16(), 1, dtype=torch.float32),
        "unaligned": lambda v: tr.sum(v[:, 1:], 1),
        "all": lambda v: tr.sum(v),
    }.items():
        got = call(whole)
        said[name] = (str(got.placements[0]), torch.equal(got.full_tensor(), call(x)))
    return said


def torchs_sums():
    """torch's own sum of a sharded dim, with the override: what docs/distributed.md says of it."""
    from torch.distributed.tensor import Shard, distribute_tensor

    trd.register_dtensor()
    mesh = mesh_of((dist.get_world_size(),))
    x = torch.randn(8, 2047, generator=torch.Generator().manual_seed(0)).to(here())
    whole = distribute_tensor(x, mesh, [Shard(1)])
    with tr.enabled(cpu=True, compile=False):
        return [
            torch.equal(whole.sum(1).full_tensor(), tr.sum(x, 1)),
            torch.equal(whole.softmax(1).full_tensor(), tr.softmax(x, 1)),
            torch.equal(tr.sum(whole, 1).full_tensor(), tr.sum(x, 1)),
        ]
