"""Addition of floats is commutative, but not associative: what a sum is depends on where the brackets are.

A kernel whose order depends on which block comes first gives one of many sums; torchreduce's order is fixed by the
positions alone, so that there is one.
"""

from functools import reduce
from operator import add

import torch

import torchreduce as tr

numbers = [1e-20] * 10 + [1e20, -1e20]

left = reduce(add, numbers)  # not sum(), which makes up for what is lost from Python 3.12 on
right = reduce(add, reversed(numbers))
print("from the left: ", left)
print("from the right:", right)
assert left == 0.0 and round(right / 1e-19, 9) == 1.0

# Left to right, the small ones add up to 1e-19, which 1e20 then swallows; from the right, the large ones cancel first.
# As a tree the pair of large ones cancels in the first step, beside the small ones:
x = torch.tensor(numbers, dtype=torch.float64)
print("torchreduce:   ", tr.sum(x).item(), "in a batch, on any device, in every run")
assert tr.sum(x).item() == tr.sum(x.repeat(3, 1), 1)[1].item()

# from the left:  0.0
# from the right: 9.999999999999997e-20
# torchreduce:    1e-19 in a batch, on any device, in every run
