"""Processes that tests of torch.distributed share: started once, each runs the functions that it is told.

For every world size there are processes of their own, in one default process group from the start to the end: torch's
NCCL groups do not always survive that a process leaves one and joins another. A function is named by its module and
name, and has the rank's results pickled back: plain numbers, strings, and lists of them.
"""

import contextlib
import faulthandler
import os
import tempfile
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOADED = ["torch.distributed.fsdp", "torch.distributed.tensor", "torchreduce.distributed"]
WAIT = timedelta(seconds=60)


def serve(rank, world, device, file, pipe):
    """What a process does: joins the group of its world size, and runs what it is told."""
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    backend, on = "gloo", None
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend, on = "nccl", torch.device("cuda", rank)
    store = dist.FileStore(file, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=WAIT, device_id=on)
    while (task := pipe.recv()) is not None:
        function, args = task
        try:
            pipe.send((True, function(*args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """So many processes in one group."""

    def __init__(self, context, world, device, file):
        self.world, self.pipes, self.processes = world, [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, world, device, file, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, function, *args):
        """Each rank's (whether it returned, result); (True, None) of one that ended."""
        for pipe in self.pipes:
            pipe.send((function, args))
        return [self._received(pipe) for pipe in self.pipes]

    @staticmethod
    def _received(pipe):
        try:
            return pipe.recv()
        except EOFError:
            return True, None

    def stop(self, wait=20):
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):  # of a process that has ended
                pipe.send(None)
        for process in self.processes:
            process.join(wait)
            process.kill()


class Ranks:
    """run(world, function, *args) gives each rank's result; None of one that ended."""

    def __init__(self, most, device="cpu"):
        self.most, self.device = most, device
        self._worlds, self._started = {}, 0
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products that are the same in every run
        self._folder = tempfile.TemporaryDirectory()
        self._context = mp.get_context("forkserver")  # the server has imported torch, and started no thread
        self._context.set_forkserver_preload(PRELOADED)

    def run(self, world, function, *args):
        if world not in self._worlds:
            self._started += 1
            file = f"{self._folder.name}/{self._started}"
            self._worlds[world] = World(self._context, world, self.device, file)
        results = self._worlds[world].run(function, *args)
        if any(not fine or result is None for fine, result in results):
            self._worlds.pop(world).stop(0)  # the group may be broken: the next function has another
        for rank, (fine, result) in enumerate(results):
            if not fine:
                raise AssertionError(f"rank {rank} of {world}:\n{result}")
        return [result for _, result in results]

    def stop(self):
        for world in self._worlds.values():
            world.stop()
        self._folder.cleanup()
