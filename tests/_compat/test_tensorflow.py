"""Each name borrowed from TensorFlow has the behaviour that tfdp relies on."""

import numpy as np
import tensorflow as tf

from tfdp._compat import graphs
from tfdp._compat import tensorflow as borrowed
from tfdp._compat.pfor_map import batch_of_one

# -- ops and graphs ----------------------------------------------------------------------------------


def test_inside_xla():
    found = []

    def run(x):
        found.append(borrowed.inside_xla())
        return tf.cond(x > 0, lambda: found.append(borrowed.inside_xla()) or x, lambda: x)

    for compiled in (True, False):
        found.clear()
        tf.function(run, jit_compile=compiled).get_concrete_function(tf.constant(1.0))
        assert len(found) >= 2 and set(found) == {compiled}
    assert not borrowed.inside_xla()


def test_set_fresh_seed():
    tf.random.set_seed(5)
    drawn = [tf.random.normal([3], seed=1).numpy(), tf.random.normal([3]).numpy()]
    for set_seed in (borrowed.set_fresh_seed, tf.random.set_seed):
        set_seed(6)
        drawn += [tf.random.normal([3], seed=1).numpy(), tf.random.normal([3]).numpy()]
    np.testing.assert_array_equal(drawn[2:4], drawn[4:])
    assert not np.any(np.isclose(drawn[:2], drawn[2:4]))
    with tf.Graph().as_default() as graph:
        borrowed.set_fresh_seed(7)
    assert graph.seed == 7


def test_captures():
    outside = tf.Variable(1.0, name="outside")
    pairs = []

    @tf.function
    def run():
        value = outside.read_value()
        pairs[:] = graphs.captured(tf.compat.v1.get_default_graph())
        return value

    run()
    assert [outer is outside.handle for outer, _ in pairs] == [True]
    ((_, inner),) = pairs
    assert inner.dtype == tf.resource
    (reads,) = [
        o for o in run.get_concrete_function().graph.get_operations() if o.type == "ReadVariableOp"
    ]
    assert reads.inputs[0].op.type == inner.op.type == "Placeholder"
    assert graphs.captured(tf.Graph()) == []


def test_resource_handles_say_the_name_of_their_variable():
    for name in ("outside", "layer/kernel"):
        assert borrowed.variable_name(tf.Variable(1.0, name=name).handle) == name
    assert borrowed.variable_name(tf.constant(1.0)) is None


# -- data sets ---------------------------------------------------------------------------------------


def test_an_iterator_is_its_resource():
    iterator = iter(tf.data.Dataset.range(3))
    spec = tf.type_spec_from_value(iterator)
    (resource,) = tf.nest.flatten(iterator, expand_composites=True)
    assert resource.dtype == tf.resource

    @tf.function
    def following(resource):
        return tf.nest.pack_sequence_as(spec, [resource], expand_composites=True).get_next()

    assert [int(following(resource)) for _ in range(2)] == [0, 1]
    assert int(next(iterator)) == 2


def test_as_one_replica():
    seen = []

    @tf.function
    def run():
        with borrowed.as_one_replica():
            seen.append(tf.distribute.get_strategy())
        seen.append(tf.distribute.get_strategy())

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    strategy.run(run)
    assert seen[0].num_replicas_in_sync == 1 and seen[0] is not strategy and seen[1] is strategy


# -- the vectorizer ----------------------------------------------------------------------------------


def test_the_length_of_a_batch_of_one_is_unknown_only_where_it_has_no_other_axis():
    shapes = []

    @tf.function
    def run(tree):
        one = batch_of_one(tree)
        shapes.extend(leaf.shape.as_list() for leaf in one)
        return one

    found = run((tf.constant([1.0, 2.0]), tf.constant(3.0)))
    np.testing.assert_array_equal(found[0], [[1.0, 2.0]])
    np.testing.assert_array_equal(found[1], [3.0])
    assert shapes == [[1, 2], [None]]


def test_concrete_function():
    function = borrowed.concrete_function(tf.function(lambda x: 2 * x), tf.TensorSpec([]))
    assert float(function(tf.constant(3.0))) == 6.0


def test_datasets_that_repeat():
    rows = tf.data.Dataset.range(6)
    batches = rows.shuffle(6).repeat(2).batch(4).map(lambda x: x).prefetch(2)
    zipped = tf.data.Dataset.zip((rows, tf.data.Dataset.random().repeat()))
    mixed = tf.data.Dataset.sample_from_datasets([rows.repeat(), rows])
    for dataset, anywhere, before in (
        (rows.batch(2).repeat(), True, False),
        (batches, True, True),
        (batches.unbatch().padded_batch(2).repeat(1), True, True),
        (mixed.batch(2), True, True),
        (zipped.batch(2), False, False),
        (rows.repeat(1), False, False),
    ):
        assert (borrowed.repeats(dataset), borrowed.repeats(dataset, True)) == (anywhere, before)
