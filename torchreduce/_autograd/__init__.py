"""Derivatives of the ops, by kind."""
