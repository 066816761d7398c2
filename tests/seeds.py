"""Seeds of initial weights and of Keras' random layers."""

from unittest import mock

import keras


def seed_keras(seed: int) -> None:
    """`keras.utils.set_random_seed` without the seed of `tf.random`, which Keras does not draw from.

    Setting that one clears TensorFlow's eager kernels, and making them anew takes a sixth of a training
    test.
    """
    with mock.patch("tensorflow.random.set_seed"):
        keras.utils.set_random_seed(seed)
