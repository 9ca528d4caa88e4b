"""What python -m torchreduce runs."""
