"""A script of TensorFlow Privacy, migrated: `python examples/from_tensorflow_privacy.py`.

Changed lines have their old form as a comment.
"""

import keras  # from tensorflow import keras
import numpy as np

import tfdp  # import tensorflow_privacy

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 8)).astype("float32")
y = (x[:, 0] > 0).astype("int32")

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
model = tfdp.make_private(model)  # new
optimizer = tfdp.DPKerasSGDOptimizer(  # tensorflow_privacy.DPKerasSGDOptimizer
    l2_norm_clip=1.0,
    noise_multiplier=1.1,
    learning_rate=0.15,  # num_microbatches=200
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # reduction="none"
model.compile(optimizer, loss, metrics=["accuracy"])
model.fit(x, y, batch_size=200, epochs=5, verbose=0)

# tensorflow_privacy.compute_dp_sgd_privacy_statement(2000, 200, 5, 1.1, 1e-4)
print(model.privacy.statement(delta=1e-4))
