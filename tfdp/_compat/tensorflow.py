"""What is borrowed of TensorFlow: functions that are not public, each under one name here."""

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_util


def op_definition(name: str):
    """The `OpDef` that TensorFlow registered for an op, or None where it knows no such op."""
    return op_def_registry.get(name)


def inside_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA, which lacks some operations."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
