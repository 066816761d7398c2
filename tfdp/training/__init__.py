"""Keras models that train privately: what `make_private` adds to a model, and what feeds its steps."""

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
