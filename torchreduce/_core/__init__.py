"""What public functions share: checks of arguments, and the choice of a path to the kernels."""
