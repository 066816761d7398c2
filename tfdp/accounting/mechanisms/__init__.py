"""Mechanisms, one file each: their noise, their proof and their paper's claim; and a registry."""
