"""A declaration about batches that users make themselves."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class OncePerEpoch:
    """A declaration that your own batches contain each example at most once per epoch.

    Wrap batches in it before you pass them to `fit`: an example then counts once per epoch instead of
    once per step, which gives a smaller epsilon. The declaration is true of a pipeline that reads each
    example once, shuffles without replacement and does not repeat. Keras restarts it in every epoch.

    tfdp cannot check the declaration, so the privacy statement lists it as an assumption. There is no
    amplification by sampling. Lots that tfdp draws (`make_lots`, or arrays in `fit`) have a smaller
    epsilon.

    The number of batches must be known. An epoch with more or fewer batches raises an error.

    Attributes:
        batches: A `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or an iterable of
            batches with a length, such as a data loader.

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
