"""python -m torchreduce: demo, verify and info."""

import argparse
import os
import platform
import sys

import torch

import torchreduce

from . import _C


def info() -> str:
    """What a bug report needs: a fact a line."""
    build = _C.build_info()
    toolkit = f"CUDA {build['cuda']}" if build["cuda"] else f"HIP {build['hip']}"
    gpu = f"{toolkit} for {';'.join(build['archs'])}, {build['kernels']} kernels" if build["archs"] else "none"
    cuda, hip = f"CUDA {torch.version.cuda or 'none'}", f"HIP {torch.version.hip}"
    lines = {
        "torchreduce": torchreduce.__version__,
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
    """The exit status: 1 if a bit check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m torchreduce",
        description="Reductions and scans for PyTorch whose bits depend on the data alone.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser(
        "demo",
        help="run every function on a dozen shapes, beside torch, and compare bits; less than a minute",
        description="Runs every function on a dozen shapes, on the CPU and on the GPU if there is one. Shows the "
        "largest error against float64 and the time, beside torch's, and whether the bits are the same from run to "
        "run, for a row alone and in a batch, and on CPU and GPU. Exits with 1 if any are not.",
    )
    verified = commands.add_parser(
        "verify",
        help="compute the golden bits with every kernel family, and print a report to paste; less than a minute",
        description="Computes the golden bits with each instruction set of the CPU and, where there is a GPU, with the "
        "kernels that are planned and with each kernel family. Prints a report to paste: versions, devices and build "
        "flags, how many golden bits matched, each failure, and the memory bandwidth. Exits with 1 if any failed.",
    )
    for command in (shown, verified):
        command.add_argument("--device", choices=("cpu", "cuda"), help="only this one (default: all there are)")
    commands.add_parser("info", help="print versions, devices and build flags, for a bug report")
    arguments = parser.parse_args()
    if arguments.command == "info":
        print(info())
        return 0
    from . import demo, verify  # need rich, which info does not

    if arguments.device == "cuda" and not demo.gpu_usable():
        parser.error("--device cuda: torch sees no GPU, or torchreduce was built without a GPU part")
    return demo.run(arguments.device) if arguments.command == "demo" else verify.run(info(), arguments.device)


if __name__ == "__main__":
    sys.exit(main())
