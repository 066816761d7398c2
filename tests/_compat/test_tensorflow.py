"""Each name borrowed from TensorFlow has the behaviour that tfdp relies on."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp._compat import pfor_random, pfor_repairs
from tfdp._compat import tensorflow as borrowed
from tfdp.gradients import op_effects

# -- ops and graphs ----------------------------------------------------------------------------------


def test_op_def_registry():
    assert borrowed.op_definition("NoSuchOp") is None
    assert not borrowed.op_definition("AddV2").is_stateful
    assert borrowed.op_definition("AssignVariableOp").is_stateful
    assert any(argument.is_ref for argument in borrowed.op_definition("Assign").input_arg)
    assert "func" in {a.type for a in borrowed.op_definition("StatefulPartitionedCall").attr}
    assert "list(func)" in {a.type for a in borrowed.op_definition("Case").attr}


@pytest.mark.parametrize(
    "op", sorted(op_effects._ALLOWED | op_effects._REFUSED | op_effects._PYTHON)
)
def test_listed_ops_are_tensorflows(op):
    assert borrowed.op_definition(op) is not None


@pytest.mark.parametrize("op", sorted(op_effects.GENERATORS))
def test_generators_say_how_far_they_move_in_that_input(op):
    name = borrowed.op_definition(op).input_arg[op_effects.GENERATORS[op]].name
    assert name in ("shape", "delta")


@pytest.mark.parametrize("compiled", [True, False])
def test_graph_or_parents_in_xla_context(compiled):
    found = []

    @tf.function(jit_compile=compiled)
    def run(x):
        found.append(borrowed.inside_xla())
        return tf.cond(x > 0, lambda: found.append(borrowed.inside_xla()) or x, lambda: x)

    run(tf.constant(1.0))
    assert len(found) >= 2 and set(found) == {compiled}
    assert not borrowed.inside_xla()


def test_captures():
    outside = tf.Variable(1.0, name="outside")
    pairs = []

    @tf.function
    def run():
        value = outside.read_value()
        pairs[:] = borrowed.captured(tf.compat.v1.get_default_graph())
        return value

    run()
    assert [outer is outside.handle for outer, _ in pairs] == [True]
    ((_, inner),) = pairs
    assert inner.dtype == tf.resource
    (reads,) = [
        o for o in run.get_concrete_function().graph.get_operations() if o.type == "ReadVariableOp"
    ]
    assert reads.inputs[0].op.type == inner.op.type == "Placeholder"
    assert borrowed.captured(tf.Graph()) == []


@pytest.mark.parametrize("name", ["outside", "layer/kernel"])
def test_resource_handles_say_the_name_of_their_variable(name):
    assert borrowed.variable_name(tf.Variable(1.0, name=name).handle) == name
    assert borrowed.variable_name(tf.constant(1.0)) is None


def test_the_value_of_a_keras_variable_is_a_variable():
    import keras

    assert isinstance(keras.Variable(1.0).value, tf.Variable)


# -- data sets ---------------------------------------------------------------------------------------


def test_dataset():
    dataset = tf.data.Dataset.range(3)
    assert borrowed.dataset_of(iter(dataset)) is dataset
    assert borrowed.dataset_of(iter([1, 2])) is None


def test_input_dataset():
    first = tf.data.Dataset.range(3)
    second = first.map(lambda x: x + 1)
    assert borrowed.dataset_before(second) is first
    assert borrowed.dataset_before(first) is None


def test_iterators_of_a_strategy():
    dataset = tf.data.Dataset.range(4).batch(2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    assert isinstance(iterator, tf.distribute.DistributedIterator)
    (found,) = borrowed.datasets_of_replicas(iterator)
    while found is not None and found is not dataset:
        found = borrowed.dataset_before(found)
    assert found is dataset


def test_an_iterator_is_its_resource():
    iterator = iter(tf.data.Dataset.range(3))
    spec = tf.type_spec_from_value(iterator)
    resource = borrowed.resource_of(iterator)
    assert resource.dtype == tf.resource

    @tf.function
    def following(resource):
        return borrowed.iterator_of(spec, resource).get_next()

    assert [int(following(resource)) for _ in range(2)] == [0, 1]
    assert int(next(iterator)) == 2


# -- the vectorizer ----------------------------------------------------------------------------------


def _pfor():
    from tensorflow.python.ops.parallel_for import pfor

    return pfor


@pytest.mark.parametrize("op", ["BatchMatMulV2", "Conv2DBackpropFilter", "PlaceholderWithDefault"])
def test_pfor_converter_registry(op):
    pfor_repairs.register()
    rule = _pfor()._pfor_converter_registry[op]
    assert rule.__module__ == pfor_repairs.__name__


@pytest.mark.parametrize(
    "op",
    [*pfor_random._SAMPLERS, "StatelessRandomGetKeyCounter"],
)
def test_register_pfor(op):
    pfor_random.register()
    converter = _pfor()._pfor_converter_registry[op]
    converter = getattr(converter, "func", converter)  # the function inside a functools.partial
    assert converter.__module__ == pfor_random.__name__


def test_wrap():
    wrapped = _pfor().wrap(tf.ones([2]), True)
    assert wrapped.is_stacked is True and tuple(wrapped.t.shape) == (2,)
    assert _pfor().wrap(tf.ones([2]), False).is_stacked is False


def test_pfor_input():
    pfor_repairs.register()
    rules = _pfor()._pfor_converter_registry
    matrix, own, seen = tf.ones([5, 4]), rules["BatchMatMulV2"], []

    def rule(pfor_input, *rest):
        stacked, shared = pfor_input.input(0), pfor_input.input(1)
        assert (stacked.is_stacked, shared.is_stacked) == (True, False)
        assert stacked.t.shape.rank == 4
        assert tuple(shared.t.shape) == tuple(pfor_input.unstacked_input(1).shape) == (5, 4)
        assert (pfor_input.get_attr("adj_x"), pfor_input.get_attr("adj_y")) == (False, True)
        seen.append(pfor_input.pfor.loop_len_vector)
        result = own(pfor_input, *rest)
        pfor_input.stack_inputs(stack_indices=[1])
        assert pfor_input.input(1).is_stacked and pfor_input.input(1).t.shape.rank == 3
        return result

    def product(row):
        return tf.raw_ops.BatchMatMulV2(x=row, y=matrix, adj_y=True)

    @tf.function
    def run(rows):
        tf.vectorized_map(product, rows, fallback_to_while_loop=False)
        return seen[-1]

    rules["BatchMatMulV2"] = rule
    try:
        assert [*run(tf.ones([3, 2, 6, 4]))] == [3]
    finally:
        rules["BatchMatMulV2"] = own


def test_the_length_of_a_batch_of_one_is_unknown_only_where_it_has_no_other_axis():
    shapes = []

    @tf.function
    def run(tree):
        one = pfor_repairs.batch_of_one(tree)
        shapes.extend(leaf.shape.as_list() for leaf in one)
        return one

    found = run((tf.constant([1.0, 2.0]), tf.constant(3.0)))
    np.testing.assert_array_equal(found[0], [[1.0, 2.0]])
    np.testing.assert_array_equal(found[1], [3.0])
    assert shapes == [[1, 2], [None]]


def test_products_with_a_shared_matrix_are_plain_products():
    pfor_repairs.register()
    draw = np.random.default_rng(0).normal
    rows = tf.constant(draw(size=(3, 2, 6, 5)), tf.float32)
    matrix = tf.constant(draw(size=(4, 5)), tf.float32)

    def product(row):
        return tf.matmul(row, matrix, transpose_b=True)

    found = tf.vectorized_map(product, rows, fallback_to_while_loop=False)
    np.testing.assert_allclose(found, [product(row) for row in rows], rtol=1e-5, atol=1e-6)
