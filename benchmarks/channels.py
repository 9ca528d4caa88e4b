"""Cases of norms over channels: ResNet-50's batch norms, a diffusion U-Net's group norms, and instance norms, forward
and backward. torch chooses between its own kernels and cuDNN's. Weights are float32, beside 16 bits, too, but for
group_norm, where torch has none of that on a GPU."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

import torchreduce as tr

from . import cases
from .cases import Case, Inputs, Run
from .rowwise import gradients

# (images, channels, height, width)
RESNET = tuple((256, *shape) for shape in ((64, 112, 112), (64, 56, 56), (256, 56, 56), (128, 28, 28), (512, 28, 28),
                                           (256, 14, 14), (1024, 14, 14), (512, 7, 7), (2048, 7, 7)))  # fmt: skip
UNET = tuple((16, *shape) for shape in ((320, 64, 64), (640, 64, 64), (640, 32, 32), (1280, 16, 16), (1920, 16, 16),
                                        (2560, 8, 8)))  # fmt: skip
STYLE = ((16, 64, 256, 256), (16, 128, 128, 128))
FORMS = ("", "channels_last")


def of_channels(dtypes: tuple[str, ...]) -> Iterator["ChannelCase"]:
    ops = {"batch_norm": RESNET, "batch_norm given": RESNET[2:7:2], "group_norm": UNET, "instance_norm": STYLE}
    for dtype in dtypes:
        for op, shapes in ops.items():
            for backward in ("",) if op.endswith("given") else ("", " backward"):
                forms = FORMS if op != "instance_norm" else FORMS[:1]
                yield from (
                    ChannelCase("channels", op + backward, dtype, shape, 1, f) for shape in shapes for f in forms
                )


class ChannelCase(Case):
    @property
    def nbytes(self) -> int:
        """Input and result; backward the gradient of the result, the input and its gradient."""
        return (3 if "backward" in self.op else 2) * self.elements * int(getattr(torch, self.dtype).itemsize)

    def inputs(self) -> Inputs:
        x = torch.randn(self.shape, device=cases.DEVICE, dtype=getattr(torch, self.dtype))
        return (x.contiguous(memory_format=torch.channels_last) if self.form else x,)

    def run(self, provider: str) -> Run | None:
        if provider == "torchreduce":
            return self._call(tr)
        return self._call(F) if provider == "torch" else None

    def _call(self, module: Any) -> Run:
        name, *rest = self.op.split()
        function = getattr(module, name)
        own = name == "group_norm" and cases.DEVICE != "cpu"
        dtype = getattr(torch, self.dtype) if own else torch.float32
        sides = [torch.ones(self.shape[1], device=cases.DEVICE, dtype=dtype) for _ in range(2)]
        running = [torch.ones(self.shape[1], device=cases.DEVICE) for _ in range(2)]

        def forward(x: Inputs) -> Any:
            if name == "group_norm":
                return function(x[0], min(32, self.shape[1]), *sides)
            if name == "instance_norm":
                return function(x[0], None, None, *sides)
            return function(x[0], *running, *sides, "given" not in rest)

        return gradients(forward, sides) if self.backward else forward
