"""How many bits the accumulator has decides what a sum can see: a small term beside a large one may leave no trace."""

import torch

import torchreduce as tr

print("1000 + 0.001 in float32:", (torch.tensor(1000.0) + torch.tensor(0.001)).item())
print("1000 + 0.001 in float16:", (torch.tensor(1000.0).half() + torch.tensor(0.001).half()).item())

# The same many times over: the running sum in half stops where a term is less than half of its last place.
ones = torch.ones(10_000, dtype=torch.float16)
running = torch.tensor(0.0, dtype=torch.float16)
for term in ones:
    running = running + term
print("10000 ones, one after the other in float16:", running.item())
print("tr.sum of them, float32 inside, rounded once:", tr.sum(ones).item())
assert running.item() == 2048 and tr.sum(ones).item() == 10_000

# 1000 + 0.001 in float32: 1000.0009765625
# 1000 + 0.001 in float16: 1000.0
# 10000 ones, one after the other in float16: 2048.0
# tr.sum of them, float32 inside, rounded once: 10000.0
