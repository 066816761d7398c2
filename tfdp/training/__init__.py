"""Keras models that train privately: their classes, their training step, and the lots it is fed."""

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
