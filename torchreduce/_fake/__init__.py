"""Fake kernels and batching rules of the ops, by kind."""
