"""A reduction step by step: from left to right, one combination after the other; and as a tree, all pairs at once."""

from torchreduce import ladder

VALUES = [5, 2, 8, 1, 1, 9, 3, 7]

print("serial max: as many steps as there are pairs")
print(ladder.steps(VALUES, max, tree=False))
print("\ntree max: each step halves what is left")
print(ladder.steps(VALUES, max))
print("\ntree sum of a number of elements that is no power of two: who has no neighbour waits")
print(ladder.steps([3, 1, 4, 1, 5], lambda a, b: a + b))

# serial max: as many steps as there are pairs
# start  | 5 | 2 | 8 | 1 | 1 | 9 | 3 | 7 |
# step 1 | 5     | 8 | 1 | 1 | 9 | 3 | 7 |
# step 2 | 8         | 1 | 1 | 9 | 3 | 7 |
# step 3 | 8             | 1 | 9 | 3 | 7 |
# step 4 | 8                 | 9 | 3 | 7 |
# step 5 | 9                     | 3 | 7 |
# step 6 | 9                         | 7 |
# step 7 | 9                             |
#
# tree max: each step halves what is left
# start  | 5 | 2 | 8 | 1 | 1 | 9 | 3 | 7 |
# step 1 | 5     | 8     | 9     | 7     |
# step 2 | 8             | 9             |
# step 3 | 9                             |
#
# tree sum of a number of elements that is no power of two: who has no neighbour waits
# start  | 3  | 1  | 4  | 1  | 5  |
# step 1 | 4       | 5       | 5  |
# step 2 | 9                 | 5  |
# step 3 | 14                     |
