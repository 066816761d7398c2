"""Numerical bounds: privacy losses, and what they are computed from. Each errs on the safe side."""
