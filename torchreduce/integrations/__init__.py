"""Adapters for frameworks: transformers, trl, verl, TorchTitan (docs/integrations.md).

Each is a module of its own, which imports its framework when it is imported itself. enable() overrides the functions of
torch that a framework calls; an adapter replaces what the framework makes of several of them.
"""
