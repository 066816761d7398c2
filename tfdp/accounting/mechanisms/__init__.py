"""Mechanisms: what noise is added around what, one file each, and the registry of their names."""
