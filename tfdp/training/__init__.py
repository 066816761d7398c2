"""Keras models that train privately: their classes, their training step, and its data."""

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
