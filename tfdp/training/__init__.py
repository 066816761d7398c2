"""Keras models that train privately: what `make_private` adds to a model, and what feeds its steps."""
