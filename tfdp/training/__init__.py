"""Keras models that train privately: their classes, their training step, and the lots it is fed."""
