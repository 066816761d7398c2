"""Batches of a user with a declaration of how they are drawn."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class OncePerEpoch:
    """Declares that batches of your own hold each example at most once in an epoch.

    This holds if a pipeline reads each example once, shuffles without replacement and does not repeat;
    Keras restarts it in every epoch. `fit` takes it in place of the batches. An example then counts
    once an epoch, and not once a step. tfdp cannot check this, so the privacy statement names it as an
    assumption. Nothing is amplified by sampling: with lots that tfdp draws, epsilon is smaller still.

    The number of batches has to be known; an epoch with more or fewer raises an error.

    Attributes:
        batches: a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or an iterable of batches
            with a length, such as a loader.

    Example:
        >>> import keras, numpy as np, tensorflow as tf, tfdp
        >>> x, y = np.zeros((100, 4), "float32"), np.zeros(100, "int32")
        >>> dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(20)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), loss)
        >>> _ = model.fit(tfdp.data.OncePerEpoch(dataset), epochs=3, verbose=0)
        >>> run = model.privacy.current_run
        >>> run.steps, run.sampling.participations(run.steps)
        (15, 3)
    """

    batches: Any
