"""Numerical upper bounds on privacy losses; rounding and truncation never understate a loss."""
