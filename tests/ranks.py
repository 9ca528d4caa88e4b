"""Processes that tests of torch.distributed share: started once, each runs the functions that it is told.

A function runs on the first `world` of the processes, in a default process group of their own. It is named by its
module and name, and has the rank's results pickled back: plain numbers, strings, and lists of them.
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


def serve(rank, device, folder, pipe):
    """What a process does: initializes a group of the world size that a function needs, and runs it."""
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if device == "cuda":
        torch.cuda.set_device(rank)
    joined = None
    while (task := pipe.recv()) is not None:
        world, group, function, args = task
        try:
            if joined is not None and group != joined:
                dist.destroy_process_group()
                joined = None
            if function is not None and joined is None:
                joined = group
                store = dist.FileStore(f"{folder}/{group}", world)
                backend, on = ("gloo", None) if device == "cpu" else ("nccl", torch.device("cuda", rank))
                dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=WAIT, device_id=on)
            pipe.send((True, function and function(*args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    if joined is not None:
        dist.destroy_process_group()


def received(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return True, None


class Ranks:
    """`most` processes. run(world, function, *args) gives each rank's result; None of one that ended."""

    def __init__(self, most, device="cpu"):
        self.most, self.device = most, device
        self._groups, self._world = 0, 0
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products that are the same in every run
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")  # the server has imported torch, and started no thread
        context.set_forkserver_preload(PRELOADED)
        self._pipes, self._processes = [], []
        for rank in range(most):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, device, self._folder.name, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, world, function, *args):
        if world != self._world:
            self._groups += 1
            self._ask(self._world, None, ())  # all leave the former group: under NCCL they wait for each other there
            self._world = world
        results = self._ask(world, function, args)
        for rank, (fine, result) in enumerate(results):
            if not fine:
                self._world = 0  # the group may be broken: the next function has another
                raise AssertionError(f"rank {rank} of {world}:\n{result}")
        return [result for _, result in results]

    def _ask(self, world, function, args):
        for pipe in self._pipes[:world]:
            pipe.send((world, self._groups, function, args))
        return [received(pipe) for pipe in self._pipes[:world]]

    def stop(self):
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # of a process that has ended
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            process.kill()
        self._folder.cleanup()
