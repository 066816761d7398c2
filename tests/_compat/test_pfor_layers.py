"""Rules of the vectorizer for operations of Keras' layers equal a loop over the examples."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp._compat.pfor_map import vectorized_map

DRAW = np.random.default_rng(0)
IMAGES = DRAW.uniform(size=(3, 2, 5, 6, 3)).astype("float32")
VOLUMES = DRAW.normal(size=(3, 2, 3, 4, 2, 4)).astype("float32")
SQUARES = DRAW.normal(size=(3, 2, 3, 3)).astype("float32")
DEPTHWISE = tf.constant(DRAW.normal(size=(2, 2, 3, 2)), tf.float32)
STARTS = np.array([0, 3, 1], "int32")
PLACES = np.array([[0, 4, 1], [2, 2, 3], [1, 0, 4]])


def transform(images, transforms):
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[4, 4],
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def with_gradient(function):
    """Returns a function that returns its gradient as well, with respect to the first input."""

    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            outputs = function(*inputs)
            total = tf.reduce_sum(outputs * outputs)
        gradient = tf.convert_to_tensor(tape.gradient(total, inputs[0]))
        return tf.concat([tf.reshape(outputs, [-1]), tf.reshape(gradient, [-1])], 0)

    return both


def resized(method):
    return with_gradient(lambda images: tf.image.resize(images, (7, 3), method=method))


def depthwise(images):
    return tf.nn.depthwise_conv2d(images, DEPTHWISE, [1, 1, 1, 1], "SAME")


def counts(images):
    return tf.math.bincount(tf.cast(10 * images[0, 0, 0], tf.int32), minlength=9, maxlength=9)


FUNCTIONS = {
    "transform": (with_gradient(transform), IMAGES, DRAW.normal(size=(3, 2, 8)).astype("float32")),
    "resize bilinear": (resized("bilinear"), IMAGES),
    "resize nearest": (resized("nearest"), IMAGES),
    "resize bicubic": (resized("bicubic"), IMAGES),
    "resize area": (lambda images: tf.image.resize(images, (7, 3), method="area"), IMAGES),
    "colours": (lambda x: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(x)), IMAGES),
    "depthwise with a shared filter": (with_gradient(depthwise), IMAGES),
    "crop": (with_gradient(lambda x, start: x[:, start : start + 2]), IMAGES, STARTS),
    "the largest": (with_gradient(lambda x: tf.math.top_k(x, 2).values), IMAGES),
    "bits": (lambda x: tf.bitcast(x, tf.int32), IMAGES),
    "scatter to places of each row": (
        lambda places, x: tf.scatter_nd(places[:, tf.newaxis], x, [5]),
        PLACES,
        DRAW.normal(size=(3, 3)),
    ),
    "scatter of shared updates": (
        lambda places: tf.scatter_nd(places[:, tf.newaxis], tf.constant([1.0, 2.0, 3.0]), [5]),
        PLACES,
    ),
    "counts": (counts, IMAGES),
    "one transform for all images": (
        with_gradient(transform),
        IMAGES,
        DRAW.normal(size=(3, 1, 8)).astype("float32"),
    ),
    "reflection": (
        with_gradient(lambda x: tf.pad(x, [[0, 0], [1, 2], [2, 1], [0, 0]], "REFLECT")),
        IMAGES,
    ),
    "patches of images": (
        with_gradient(
            lambda x: tf.image.extract_patches(x, [1, 2, 3, 1], [1, 2, 1, 1], [1, 1, 1, 1], "VALID")
        ),
        IMAGES,
    ),
    "determinants": (with_gradient(tf.linalg.det), SQUARES),
    "triangular factors": (with_gradient(lambda x: tf.linalg.qr(x)[1]), SQUARES),
}


def assert_vectorized(functions):
    """Compares functions, {name: (function, *inputs)}, in one map with a loop over the rows."""
    inputs = {name: tuple(map(tf.constant, given)) for name, (_, *given) in functions.items()}

    @tf.function
    def run():
        return vectorized_map(
            lambda row: {name: functions[name][0](*row[name]) for name in functions}, inputs
        )

    found = run()
    for name, (function, *given) in functions.items():
        expected = [function(*row) for row in zip(*inputs[name], strict=True)]
        for ours, row in zip(found[name], expected, strict=True):
            terms = sum(map(np.size, given)) + 4 * FUNCTION
            assert_close(ours, row, terms, message=name)
        assert not np.array_equal(expected[0], expected[1])


def test_it_equals_a_loop_over_the_examples():
    assert_vectorized(FUNCTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("strides", [1, 2])
def test_images_before_grouped_convolutions(strides):
    kernel = tf.constant(DRAW.normal(size=(2, 2, 2, 6)), tf.float32)

    @tf.function(jit_compile=True)  # as Keras does, since a CPU has no such gradient
    def convolution(x):
        return tf.nn.conv2d(x, kernel, strides, "SAME")

    assert_vectorized({"images": (with_gradient(convolution), VOLUMES[:, :, :, 0])})


@pytest.mark.parametrize(
    ("groups", "data_format"), [pytest.param(1, "NDHWC", marks=pytest.mark.slow), (2, "NCDHW")]
)
def test_volume_convolutions(groups, data_format):
    kernel = tf.constant(DRAW.normal(size=(2, 1, 2, 4 // groups, 6)), tf.float32)
    first = data_format == "NCDHW"
    volumes = np.moveaxis(VOLUMES, -1, 2) if first else VOLUMES

    @tf.function(jit_compile=True)  # as Keras does, since a CPU has neither groups nor NCDHW
    def convolution(x, kernel):
        return tf.nn.convolution(x, kernel, [1, 2, 1], "SAME", data_format=data_format)

    def all_of(x):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            outputs = convolution(x, kernel)
            total = tf.reduce_sum(outputs * outputs)
        parts = [outputs, *tape.gradient(total, [x, kernel])]
        return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)

    assert_vectorized({"volumes": (all_of, volumes)})


def pooled_with_gradient(pool, images):
    results = pool(images, 3, 2, "SAME")
    upstream = tf.reshape(tf.range(1.0, tf.size(results, tf.float32) + 1.0), tf.shape(results))
    return results, tf.gradients(results, images, upstream)[0]


@pytest.mark.parametrize("pool", [tf.nn.max_pool1d, tf.nn.max_pool2d, tf.nn.max_pool3d])
def test_ties_in_pools_go_where_tensorflow_sends_them(pool):
    rank = 3 if pool is tf.nn.max_pool1d else 4 if pool is tf.nn.max_pool2d else 5
    images = DRAW.integers(0, 2, (4, *[5] * (rank - 2), 3)).astype("float32")
    images[1], images[2] = 0.0, np.nan
    of_batch = tf.function(lambda x: pooled_with_gradient(pool, x), autograph=False)

    def of_row(row):
        return [found[0] for found in pooled_with_gradient(pool, row[tf.newaxis])]

    found = tf.function(lambda x: vectorized_map(of_row, x), autograph=False)(images)
    for place, image in enumerate(images):
        for ours, alone in zip(found, of_batch(image[np.newaxis]), strict=True):
            np.testing.assert_array_equal(ours[place], alone[0])


def test_operations_on_batches_are_neighbours():
    # TensorFlow looks at neighbours only: it merges a bias and an activation with a convolution, and
    # keeps the places of maxima for the gradient of a pool.
    kernel, bias = tf.ones([2, 2, 3, 4]), tf.ones([4])

    def of_row(image):
        seen = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, kernel, 1, "SAME"), bias))
        return tf.gradients(tf.nn.max_pool2d(seen, 2, 2, "VALID"), image)[0]

    spec = tf.TensorSpec([None, *IMAGES.shape[1:]])
    of_rows = tf.function(lambda x: vectorized_map(of_row, x), autograph=False)
    of_rows = of_rows.get_concrete_function(spec)
    made = [op for op in of_rows.graph.get_operations() if "/pfor/" in op.name]
    before = {op.type: [tensor.op.type for tensor in op.inputs] for op in made}
    assert before["BiasAdd"][0] == "Conv2D" and before["Relu"] == ["BiasAdd"]
    assert before["MaxPool"] == ["Relu"] and before["MaxPoolGrad"][:2] == ["Relu", "MaxPool"]
    assert before["ReluGrad"] == ["MaxPoolGrad", "Relu"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_index_that_does_not_exist_stays_in_its_row(jit_compile):
    tables = tf.reshape(tf.range(24.0), [3, 2, 4])

    def one(row):
        table, index, target = row
        with tf.GradientTape() as tape:
            tape.watch(table)
            gathered = tf.gather_nd(table, index, batch_dims=1)
            total = tf.reduce_sum(gathered**2)
        return gathered, tape.gradient(total, table), tf.scatter_nd(target, gathered, [4])

    @tf.function(jit_compile=jit_compile)
    def run(indices, targets):
        rows = (tables, indices, targets[..., tf.newaxis])
        return vectorized_map(one, rows)

    good = run(tf.constant([[[0], [3]], [[1], [0]], [[2], [0]]]), tf.constant([[0, 1]] * 3))
    bad = [[[0], [3]], [[1], [9]], [[2], [-1]]]
    found = run(tf.constant(bad), tf.constant([[0, 1], [2, 7], [1, 1]]))
    for part, expected in zip(found, good, strict=True):
        np.testing.assert_array_equal(part[0], expected[0])
        assert np.isnan(part[1]).any()
    assert np.isnan(found[0][2]).any() and np.isnan(found[1][2]).any()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_segment_that_does_not_exist_is_none_of_the_next_row(jit_compile):
    targets = tf.constant([[0, 1], [2, 7], [1, -3]])

    @tf.function(jit_compile=jit_compile)
    def run(targets):
        def one(target):
            return tf.math.unsorted_segment_sum(tf.ones([2]), target, 4)

        return vectorized_map(one, targets)

    np.testing.assert_array_equal(run(targets), [[1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_branch_that_does_not_exist_is_the_last_one(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def run(values, branches):
        def one(row):
            value, branch = row
            return tf.switch_case(branch, [lambda: value, lambda: 2.0 * value, lambda: 3.0 * value])

        return vectorized_map(one, (values, branches))

    found = run(tf.constant([1.0, 10.0, 100.0]), tf.constant([0, -1, 1]))
    np.testing.assert_array_equal(found, [1.0, 30.0, 200.0])
