"""One reduce(data, identity, op) for all: whatever is associative can be a tree, on a GPU if there is one.

What needs more than one number a step carries a tuple: argmax a value and its index, the mean a sum and a count, the
number of unique elements of sorted data the first and the last element of a run and how many there are in it.
"""

import torch

from torchreduce.ladder import reduce

device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], device=device)
zero, one, infinity = (torch.tensor(value, device=device) for value in (0.0, 1.0, torch.inf))
index, count = torch.arange(len(data), device=device), torch.ones_like(data, dtype=torch.int64)
none = torch.tensor(0, device=device)


def add(a, b):
    return a + b


def multiply(a, b):
    return a * b


def later_if_greater(a, b):
    """The value and the index of the greater one; of equal ones those of the first."""
    greater = b[0] > a[0]
    return torch.where(greater, b[0], a[0]), torch.where(greater, b[1], a[1])


def add_both(a, b):
    return a[0] + b[0], a[1] + b[1]


def join_runs(a, b):
    """Two runs of a sorted row, each its first and last element and how many different ones it has (0: an empty run).
    Where one ends with what the other begins with, that is one element, not two."""
    first = torch.where(a[2] > 0, a[0], b[0])
    last = torch.where(b[2] > 0, b[1], a[1])
    shared = (a[2] > 0) & (b[2] > 0) & (a[1] == b[0])
    return first, last, a[2] + b[2] - shared.to(torch.int64)


print("sum     ", reduce(data, zero, add).item())
print("product ", reduce(data, one, multiply).item())
print("least   ", reduce(data, infinity, torch.minimum).item())
print("greatest", reduce(data, -infinity, torch.maximum).item())
print("argmax  ", reduce((data, index), (-infinity, none), later_if_greater)[1].item())
print("norm    ", round(reduce(data * data, zero, add).sqrt().item(), 4))
total, number = reduce((data, count), (zero, none), add_both)
print("mean    ", (total / number).item())
ordered = data.sort().values
print("unique  ", reduce((ordered, ordered, count), (zero, zero, none), join_runs)[2].item())

# sum      31.0
# product  6480.0
# least    1.0
# greatest 9.0
# argmax   5
# norm     13.1529
# mean     3.875
# unique   7
