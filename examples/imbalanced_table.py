"""A rare event in a table: `python examples/imbalanced_table.py`.

Class weights are public constants, the metric suits rare events, and the lot is large.
"""

import keras
import numpy as np

import tfdp

rng = np.random.default_rng(0)
x = rng.normal(size=(8000, 10)).astype("float32")
y = (x[:, 0] + x[:, 1] + rng.logistic(size=8000) > 4.5).astype("float32")[:, None]
print(f"{y.mean():.1%} of the rows are positive")  # of made-up rows; yours would reveal something

stack = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(1, "sigmoid")]
model, optimizer, lots = tfdp.make_private_with_epsilon(
    keras.Sequential([keras.Input((10,)), *stack]),
    keras.optimizers.Adam(0.02),
    (x[:6000], y[:6000]),
    batch_size=600,
    epochs=15,
    epsilon=1.0,
    delta=1e-5,
)
area = keras.metrics.AUC(curve="PR", name="area")
model.compile(optimizer, "binary_crossentropy", weighted_metrics=[area])
model.fit(lots, epochs=15, class_weight={0: 1.0, 1: 8.0}, verbose=0)

results = model.evaluate(x[6000:], y[6000:], return_dict=True, verbose=0)
print(f"area under precision and recall {results['area']:.2f}; at random {y[6000:].mean():.2f}")
print(model.privacy.statement())
