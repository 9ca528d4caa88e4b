"""Sums of the same numbers by several rungs of the ladder: which give the same bits whatever the block size is?

Without a GPU the rungs run in the emulation; in a schedule that is always the same, so that atomics do not show what
they can do. `python -m torchreduce ladder` counts that, too.
"""

import torch

from torchreduce import ladder

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(device)


def results(rung):
    """The bits of its sums, by the sizes of a block that it has."""
    blocks = ladder.rungs()[rung].blocks
    return {ladder.run(rung, x, block=block).view(torch.int32).item() for block in blocks}


for rung in ("naive", "less_divergent", "conflict_free", "warps_first"):
    print(f"{rung:15} {len(results(rung))} of {len(ladder.rungs()[rung].blocks)}")
assert len(results("naive")) == len(results("less_divergent")) == 1 < len(results("conflict_free"))

# naive           1 of 5
# less_divergent  1 of 5
# conflict_free   3 of 5
# warps_first     3 of 3
