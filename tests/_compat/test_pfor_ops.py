"""Rules of the vectorizer for operations of Keras' layers equal a loop over the examples."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp._compat import pfor_repairs

DRAW = np.random.default_rng(0)
IMAGES = DRAW.uniform(size=(4, 2, 5, 6, 3)).astype("float32")
VOLUMES = DRAW.normal(size=(4, 2, 4, 5, 3, 4)).astype("float32")
ANGLES = DRAW.normal(size=(4, 2, 8)).astype("float32")
DEPTHWISE = tf.constant(DRAW.normal(size=(2, 2, 3, 2)), tf.float32)


def transform(images, transforms):
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[4, 4],
        fill_value=0.0,
        interpolation="BILINEAR",
    )


def gradient_of(function):
    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            outputs = function(*inputs)
            total = tf.reduce_sum(outputs * outputs)
        return tf.convert_to_tensor(tape.gradient(total, inputs[0]))

    return both


def resized(method):
    return lambda images: tf.image.resize(images, (7, 3), method=method)


def depthwise(images):
    return tf.nn.depthwise_conv2d(images, DEPTHWISE, [1, 1, 1, 1], "SAME")


def crop(images, start):
    return images[:, start : start + 2]


def counts(images):
    return tf.math.bincount(tf.cast(10 * images[0, 0, 0], tf.int32), minlength=9, maxlength=9)


FUNCTIONS = {
    "transform": (transform, IMAGES, ANGLES),
    "gradient of transform": (gradient_of(transform), IMAGES, ANGLES),
    **{f"resize {m}": (resized(m), IMAGES) for m in ("bilinear", "nearest", "bicubic", "area")},
    **{
        f"gradient of resize {m}": (gradient_of(resized(m)), IMAGES)
        for m in ("bilinear", "nearest", "bicubic")
    },
    "colours": (lambda x: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(x)), IMAGES),
    "depthwise with a shared filter": (depthwise, IMAGES),
    "its gradient": (gradient_of(depthwise), IMAGES),
    "crop": (crop, IMAGES, np.array([0, 3, 1, 2], "int32")),
    "gradient of crop": (gradient_of(crop), IMAGES, np.array([0, 3, 1, 2], "int32")),
    "gradient of sorting": (gradient_of(lambda x: tf.sort(x, axis=2)), IMAGES),
    "gradient of the largest": (gradient_of(lambda x: tf.math.top_k(x, 2).values), IMAGES),
    "scatter to places of each row": (
        lambda places, x: tf.scatter_nd(places[:, tf.newaxis], x, [5]),
        DRAW.integers(0, 5, (4, 3)),
        DRAW.normal(size=(4, 3)),
    ),
    "scatter of shared updates": (
        lambda places: tf.scatter_nd(places[:, tf.newaxis], tf.constant([1.0, 2.0, 3.0]), [5]),
        DRAW.integers(0, 5, (4, 3)),
    ),
    "counts": (
        lambda x: tf.math.bincount(tf.cast(10 * x[0, 0, 0], tf.int32), minlength=9, maxlength=9),
        IMAGES,
    ),
}


def assert_vectorized(function, *inputs):
    pfor_repairs.register()
    inputs = tuple(map(tf.constant, inputs))

    @tf.function
    def run():
        return tf.vectorized_map(lambda row: function(*row), inputs, fallback_to_while_loop=False)

    expected = [function(*(value[row] for value in inputs)) for row in range(len(inputs[0]))]
    for ours, row in zip(run(), expected, strict=True):
        np.testing.assert_allclose(ours, row, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(expected[0], expected[1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_equals_a_loop_over_the_examples(name):
    assert_vectorized(*FUNCTIONS[name])


@pytest.mark.parametrize("data_format", ["NDHWC", "NCDHW"])
@pytest.mark.parametrize("groups", [1, 2])
def test_volume_convolutions(groups, data_format):
    kernel = np.random.default_rng(1).normal(size=(2, 1, 2, 4 // groups, 6))
    kernel = tf.constant(kernel, tf.float32)
    first = data_format == "NCDHW"
    volumes = np.moveaxis(VOLUMES, -1, 2) if first else VOLUMES
    strides = [1, 1, 2, 1, 1] if first else [1, 2, 1, 1, 1]

    @tf.function(jit_compile=True)  # as Keras does, since a CPU has neither groups nor NCDHW
    def convolution(x, kernel):
        return tf.nn.convolution(
            x, kernel, strides[2:] if first else strides[1:-1], "SAME", data_format=data_format
        )

    def all_of(x):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            outputs = convolution(x, kernel)
            total = tf.reduce_sum(outputs * outputs)
        return tf.concat([tf.reshape(t, [-1]) for t in tape.gradient(total, [x, kernel])], 0)

    assert_vectorized(lambda x: convolution(x, kernel), volumes)
    assert_vectorized(all_of, volumes)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_index_that_does_not_exist_stays_in_its_row(jit_compile):
    pfor_repairs.register()
    tables = tf.reshape(tf.range(24.0), [3, 2, 4])
    indices = tf.constant([[[0], [3]], [[1], [9]], [[2], [-1]]])
    targets = tf.constant([[0, 1], [2, 7], [1, 1]])

    def one(row):
        table, index, target = row
        with tf.GradientTape() as tape:
            tape.watch(table)
            gathered = tf.gather_nd(table, index, batch_dims=1)
            total = tf.reduce_sum(gathered**2)
        scattered = tf.scatter_nd(target[:, tf.newaxis], gathered, [4])
        segments = tf.math.unsorted_segment_sum(gathered, target, 4)
        return gathered, tape.gradient(total, table), scattered, segments

    @tf.function(jit_compile=jit_compile)
    def run(indices, targets):
        rows = (tables, indices, targets)
        return tf.vectorized_map(one, rows, fallback_to_while_loop=False)

    found = run(indices, targets)
    good = run(tf.constant([[[0], [3]], [[1], [0]], [[2], [0]]]), tf.constant([[0, 1]] * 3))
    for part, expected in zip(found, good, strict=True):
        np.testing.assert_array_equal(part[0], expected[0])
    assert np.all(np.isnan(found[0][1:]).any(axis=1)) and np.all(
        np.isnan(found[1][1:]).any(axis=(1, 2))
    )
    assert np.isnan(found[2][1]).all()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_segment_that_does_not_exist_is_none_of_the_next_row(jit_compile):
    pfor_repairs.register()
    targets = tf.constant([[0, 1], [2, 7], [1, -3]])

    @tf.function(jit_compile=jit_compile)
    def run(targets):
        def one(target):
            return tf.math.unsorted_segment_sum(tf.ones([2]), target, 4)

        return tf.vectorized_map(one, targets, fallback_to_while_loop=False)

    np.testing.assert_array_equal(run(targets), [[1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])
