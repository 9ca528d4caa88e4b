"""Which devices the suite runs on, and how it shares a machine between workers.

Every test that takes `device` runs on the CPU and, where there is one, on a GPU: without one the suite has no such
cases. Tests that need a GPU carry the marker `gpu` (the fixture adds it), those that need two `gpus`, those that need
NVIDIA's Hopper or later `gpu_hopper`, and are deselected without: that is decided and said here and nowhere else.
TORCHREDUCE_REQUIRE_GPU=1 makes a missing GPU an error. Tests marked `slow` are run with --slow alone: by the full run's
`make test-slow`, and on GPU machines.
"""

import gc
import os

import pytest
import torch

import torchreduce
from torchreduce import _C

MARKERS = (
    "gpu: needs a GPU",
    "gpus: needs two GPUs",
    "gpu_hopper: needs an NVIDIA GPU of compute capability 9.0 or later",
    "big: 2^31 elements and more; run by one worker at a time",
    "sanitize: small enough for compute-sanitizer",
    "slow: half a minute and more; run with --slow",
    "long: ten seconds and more; started first, so that no worker has one left when the others are done",
)


def why_no_gpu():
    """None if GPU kernels can run here."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if not _C.build_info()["archs"]:
        return "torchreduce was built without a GPU part"
    return None


NO_GPU = why_no_gpu()


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if NO_GPU and os.environ.get("TORCHREDUCE_REQUIRE_GPU") == "1":
        raise pytest.UsageError(f"TORCHREDUCE_REQUIRE_GPU=1, but {NO_GPU}")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))  # workers that fight for cores spin


def pytest_report_header():
    if NO_GPU:
        return f"no GPU tests: {NO_GPU}"
    return f"{torch.cuda.device_count()} GPU: {torch.cuda.get_device_name()}, torch {torch.__version__}"


def deselect(config, items, marker):
    out = {item for item in items if item.get_closest_marker(marker)}
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("big"):
            item.add_marker(pytest.mark.xdist_group("big"))
    if NO_GPU:
        deselect(config, items, "gpu")
    if NO_GPU or torch.cuda.device_count() < 2:
        deselect(config, items, "gpus")
    if NO_GPU or torch.version.hip or torch.cuda.get_device_capability() < (9, 0):
        deselect(config, items, "gpu_hopper")
    if not config.getoption("--slow"):
        deselect(config, items, "slow")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def devices(marker):
    """Of a fixture: thousands of cases that no GPU is there for would take every worker seconds to collect."""
    return ["cpu"] if NO_GPU else ["cpu", pytest.param("cuda", marks=marker)]


@pytest.fixture(params=devices(pytest.mark.gpu))
def device(request):
    return request.param


@pytest.fixture(params=devices(pytest.mark.gpu_hopper))
def device_of_products(request):
    """Those that matrix products are overridden on."""
    return request.param


@pytest.fixture
def quick_seeds(monkeypatch):
    """torch.manual_seed keeps a note, with a stack trace, for each kind of device that is not there: most of the time
    of tests by OpInfo, whose samples are seeded, too."""
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            monkeypatch.setattr(kind, "manual_seed_all", lambda seed: None)


@pytest.fixture(autouse=True)
def give_memory_back():
    """Eight workers share one GPU: none keeps more than a GiB of cache."""
    yield
    if not NO_GPU and torch.cuda.memory_reserved() > 2**30:
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def defaults_restored():
    """A test that leaves a forced plan, a level, an instruction set or a thread count behind would mislead the next."""
    threads, instructions = torch.get_num_threads(), _C.instruction_set()
    yield
    state = _C.forced_plan(), torchreduce.get_determinism(), _C.instruction_set(), torch.get_num_threads()
    assert state == ({}, "invariant", instructions, threads)
