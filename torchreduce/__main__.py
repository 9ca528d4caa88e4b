"""python -m torchreduce: demo, bench, verify, ladder and info."""

import argparse
import importlib.util
import os
import platform
import signal
import sys
from pathlib import Path

import torch

import torchreduce

from . import _C
from .ladder import command as ladder
from .testing import CONTRACT_VERSION


def info() -> str:
    """Return what a bug report needs, one fact per line."""
    build = _C.build_info()
    toolkit = f"CUDA {build['cuda']}" if build["cuda"] else f"HIP {build['hip']}"
    gpu = f"{toolkit} for {';'.join(build['archs'])}, {build['kernels']} kernels" if build["archs"] else "none"
    cuda, hip = f"CUDA {torch.version.cuda or 'none'}", f"HIP {torch.version.hip}"
    lines = {
        "torchreduce": torchreduce.__version__,
        "contract": f"version {CONTRACT_VERSION}",
        "torch": f"{torch.__version__}, {hip if torch.version.hip else cuda}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "compiler": build["compiler"],
        "flags": build["flags"],
        "GPU part": gpu,
        "CPU": f"{_C.instruction_set()} of {', '.join(_C.instruction_sets())}; {torch.get_num_threads()} threads of "
        f"{os.cpu_count()} cores",
        "determinism": torchreduce.get_determinism(),
    }
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        kind = facts.gcnArchName if torch.version.hip else f"compute capability {facts.major}.{facts.minor}"
        lines[f"GPU {i}"] = (
            f"{facts.name}, {kind}, {facts.multi_processor_count} multiprocessors, {facts.total_memory / 2**30:.0f} GiB"
        )
    if torch.cuda.device_count() == 0:
        lines["GPU"] = "none that torch sees"
    return "\n".join(f"{key:12} {value}" for key, value in lines.items())


def main() -> int:
    """Run the command line. Return the exit status: 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m torchreduce",
        description="Deterministic, batch-invariant reductions, scans, softmax and norms for PyTorch.",
    )
    parser.add_argument("--version", action="version", version=f"torchreduce {torchreduce.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser(
        "demo",
        help="run every function of one tensor on a dozen shapes, compare with torch, and check bits; under a minute",
        description="Run every function of one tensor on a dozen shapes, on the CPU and on the GPU if there is one. "
        "Print a line for each function: whether results are bitwise identical from run to run, for a row alone and in "
        "a batch, and on CPU and GPU; on how many shapes the largest error against float64 is at most torch's; and the "
        "speed relative to torch. Exit with 1 if a check fails.",
    )
    shown.add_argument("--table", action="store_true", help="also print the errors and times of each call")
    verified = commands.add_parser(
        "verify",
        help="compute the golden bits with every kernel variant, and print a report to paste; under a minute",
        description="Compute the golden bits with each instruction set of the CPU and, if there is a GPU, with the "
        "planned kernels and with each kernel variant. Print a report to paste: versions, devices and build flags, how "
        "many golden bits matched, each failure, and the memory bandwidth. Exit with 1 if any failed.",
    )
    verified.add_argument(
        "--products",
        action="store_true",
        help="instead compare rows of matrix products and of attention with those of other batches, under "
        "enable(products=True); needs an NVIDIA GPU of compute capability 9.0 or later",
    )
    for command in (shown, verified):
        command.add_argument("--device", choices=("cpu", "cuda"), help="only this one (default: all there are)")
    timed = commands.add_parser(
        "bench",
        help="time functions, compared with torch's; takes seconds by default",
        description="Time functions and torch's over one row or over --rows rows. Print median times and the "
        "bandwidth, counting inputs and results once. On a GPU small sizes are timed by replaying a CUDA graph. "
        "benchmarks/ in the source tree has all cases and more peers.",
    )
    timed.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    timed.add_argument("--op", nargs="+", default=["sum", "argmax", "cumsum"], help="default: sum argmax cumsum")
    timed.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], help="default: float32 bfloat16")
    timed.add_argument(
        "--sizes",
        nargs="+",
        type=ladder.size,
        metavar="N",
        help="elements per row, as 1000 or 2^20; default: 2^10 to 2^20 (CPU) or 2^28 (GPU)",
    )
    timed.add_argument("--rows", type=int, default=1, help="default: 1")
    timed.add_argument("--plot", type=Path, metavar="FILE", help="bandwidth over n as .png, .svg or .pdf")
    ladder.add_to(commands)
    commands.add_parser("info", help="print versions, devices and build flags, for a bug report")
    arguments = parser.parse_args()
    if arguments.command == "info":
        print(info())
        return 0
    if arguments.command == "ladder":
        return ladder.run(arguments)
    from ._tools import bench, demo, verify, verify_products  # need rich, which info does not
    from .override import products  # need rich, which info does not

    if arguments.device == "cuda" and not demo.gpu_usable():
        parser.error("--device cuda: torch sees no GPU, or torchreduce was built without a GPU part")
    if arguments.command == "demo":
        return demo.run(arguments.device, arguments.table)
    if arguments.command == "verify":
        if not arguments.products:
            return verify.run(info(), arguments.device)
        if not demo.gpu_usable() or not products.is_served_on(torch.device("cuda", torch.cuda.current_device())):
            parser.error("--products: needs an NVIDIA GPU of compute capability 9.0 or later")
        return verify_products.run(info())
    device = arguments.device or ("cuda" if demo.gpu_usable() else "cpu")
    offered = bench.operations()
    for op in arguments.op:
        if op not in offered:
            parser.error(f"--op: must be one of {', '.join(offered)}, got {op!r}")
        for dtype in set(arguments.dtype) - set(offered[op]):
            parser.error(f"--dtype: {op} supports {', '.join(offered[op])}, got {dtype!r}")
    if arguments.rows < 1:
        parser.error("--rows: must be positive")
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot: needs matplotlib, which is not installed")
    sizes = arguments.sizes or [1 << e for e in ((10, 14, 17, 20, 22, 24, 28) if device == "cuda" else (10, 15, 20))]
    bench.run(arguments.op, arguments.dtype, sizes, arguments.rows, device, arguments.plot)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # as a shell says of who is interrupted
