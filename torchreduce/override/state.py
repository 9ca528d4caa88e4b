"""Whose calls are overridden, now. Set by enable() and disable(), for the process."""

# Devices; and of matrix products, which are asked for by themselves, those of 16 bits, or also those of float32. As in
# csrc/binding/aten.cpp.
GPU, CPU, PRODUCTS, FLOAT32_PRODUCTS = 1, 2, 4, 8

eager = 0  # in eager mode
compiled = 0  # by torch.compile, whose graphs are guarded by it
excluded = ""  # the scatters that are torch's, joined by commas
