"""A custom training loop: `python examples/own_loop.py`.

`model.privacy.steps` draws the lots, adds the noise and counts the steps. The loop does the rest.
"""

import keras
import numpy as np

import tfdp

rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 8)).astype("float32")
y = (x[:, :1] > 0).astype("float32")

model = tfdp.make_private(
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]),
    budget=tfdp.PrivacyBudget(epsilon=4.0, delta=1e-4),
)
optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.5, learning_rate=0.5)
model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))

steps = model.privacy.steps(x[:800], y[:800], batch_size=80, epochs=10)
for number, logs in enumerate(steps, start=1):
    if number % 20 == 0:
        optimizer.learning_rate.assign(0.7 * optimizer.learning_rate)
        spent = model.privacy.spent().epsilon
        print(f"step {number}: loss {logs['loss']:.3f}, epsilon {spent:.2f}")  # the loss: for you

accuracy = np.mean((model.predict(x[800:], verbose=0) > 0) == y[800:])
print(f"accuracy {accuracy:.1%}, {model.privacy.steps_left} more steps fit into the budget")
