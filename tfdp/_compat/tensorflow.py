"""What is borrowed of TensorFlow: names that are not public, each under one name here.

All of it was seen in TensorFlow 2.18.1 and 2.21.0. The vectorizer's rules are in `pfor_random` and
`pfor_repairs`.
"""

import re

import tensorflow as tf

from tfdp._compat.versions import borrowed, borrowing

with borrowing("a name of tensorflow.python"):
    from tensorflow.python.framework import op_def_registry
    from tensorflow.python.ops import control_flow_util


def op_definition(name: str):
    """The `OpDef` that TensorFlow registered for an op, or None where it knows no such op."""
    return op_def_registry.get(name)


def inside_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA, which lacks some operations."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


# -- data sets ---------------------------------------------------------------------------------------


def dataset_of(iterator):
    """The dataset that `iter` was called on, or None for what is no iterator over a dataset.

    That is `_dataset` of TensorFlow's iterators.
    """
    return getattr(iterator, "_dataset", None)


def datasets_of_replicas(iterator: tf.distribute.DistributedIterator) -> list:
    """The dataset that each worker of a strategy iterates over (`_iterators`), or None."""
    return [dataset_of(part) for part in borrowed(iterator, "_iterators")]


def dataset_before(dataset):
    """The dataset that a transformation was applied to, or None at a source (`_input_dataset`)."""
    return getattr(dataset, "_input_dataset", None)


def resource_of(iterator: tf.data.Iterator) -> tf.Tensor:
    """The resource that is all there is to an iterator: its only component as a composite tensor."""
    (resource,) = tf.nest.flatten(iterator, expand_composites=True)
    return resource


def iterator_of(spec: tf.TypeSpec, resource: tf.Tensor) -> tf.data.Iterator:
    """The iterator of a type whose resource is given."""
    return tf.nest.pack_sequence_as(spec, [resource], expand_composites=True)


# -- graphs ------------------------------------------------------------------------------------------


def captured(graph: tf.Graph) -> list:
    """(tensor outside, tensor inside) of what a function's graph takes from outside.

    That is `FuncGraph.captures`; a graph of the first TensorFlow has none.
    """
    return list(getattr(graph, "captures", []))


def variable_name(handle) -> str | None:
    """The name of the variable that an eager resource handle belongs to, or None if it does not say.

    It stands in the `repr` of the handle, between quotes and before a number.
    """
    found = re.search(r'ResourceHandle\(name="([^"]+?)(/\d+)?"', repr(handle))
    return found[1] if found else None
