"""Sums of gradients over micro-batches in DistributedDataParallel, by its communication hook."""

import torch
import torch.distributed as dist
from torch import Tensor

from .collectives import Group, all_reduce
from .gradients import Shares, taken, trained
from .order import Partials


class DDPHook:
    """The sum of the gradients of a step's `count` micro-batches, in place of DistributedDataParallel's mean.

        state = DDPHook(model, count=8)
        model.register_comm_hook(state, DDPHook.hook)
        for i in state.run[:-1]:             # all but the last micro-batch of this rank
            with model.no_sync():
                loss(model(batch(i))).backward()
            state.push()
        loss(model(batch(state.run[-1]))).backward()  # sums bucket by bucket, while backward goes on

    The result does not depend on the number of ranks, nor on the buckets. Nothing is divided. Raises ValueError if the
    number of ranks does not divide count: the hook is called once on each rank.
    """

    def __init__(self, model: torch.nn.Module, count: int, group: Group = None) -> None:
        self._shares = Shares("DDPHook", count, group)
        if count % self._shares.world:
            raise ValueError(f"DDPHook(): expected a count that {self._shares.world} ranks divide, but got {count}")
        self._parameters = trained("DDPHook", model.parameters())
        self._places = {p: i for i, p in enumerate(self._parameters)}
        self._partials = Partials(self.run.start)
        self._stream: torch.cuda.Stream | None = None

    @property
    def run(self) -> range:
        """The micro-batches of this rank."""
        return self._shares.run

    def push(self) -> None:
        """Take the gradients of the next micro-batch of the run; not of its last one."""
        self._partials.push(taken(self._parameters))

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """What register_comm_hook takes."""
        buffer = bucket.buffer()
        if not buffer.is_cuda:
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(self._sum(bucket))
            return done
        # On a stream of its own, so that the kernels of backward do not wait. Everything is queued in the same order on
        # each rank. The future records this stream's event, for which DDP makes its own stream wait.
        self._stream = self._stream or torch.cuda.Stream(buffer.device)
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
        with torch.cuda.stream(self._stream):
            done = torch.futures.Future(devices=[buffer.device])
            done.set_result(self._sum(bucket))
        buffer.record_stream(self._stream)
        return done

    def _sum(self, bucket: dist.GradBucket) -> Tensor:  # type: ignore[name-defined]
        shares = self._shares
        buffer: Tensor = bucket.buffer()
        if shares.count == shares.world:  # the bucket is this rank's term
            all_reduce(buffer, shares.group)
            return buffer
        parameters = bucket.parameters()
        partials = self._partials.some([self._places[p] for p in parameters])
        if bucket.is_last():
            self._partials = Partials(shares.run.start)
        if self._stream:
            partials.record_stream(self._stream)
        partials.push(bucket.gradients())
        parts = partials.parts(shares.run, shares.count)
        flats = [shares.flat(buffer.numel(), buffer) for _ in parts]
        sizes = [p.numel() for p in parameters]
        for flat, part in zip(flats, parts, strict=True):
            torch._foreach_copy_(flat[: buffer.numel()].split(sizes), [gradient.reshape(-1) for gradient in part])
        shares.sum(flats, buffer)
        return buffer
