"""A private LSTM that classifies sequences: `python examples/lstm.py`.

Recurrent layers need no change. Early stopping by held-out data counts all planned epochs.
"""

import keras
import numpy as np

import tfdp

rng = np.random.default_rng(0)
x = rng.normal(size=(1200, 20, 3)).astype("float32")  # made-up measurements
y = (x[:, -5:, 0].mean(axis=1) > 0).astype("float32")[:, None]
held_out = (x[1000:], y[1000:])

network = keras.Sequential(
    [keras.Input((20, 3)), keras.layers.LSTM(16), keras.layers.Dense(1, "sigmoid")]
)
model, optimizer, lots = tfdp.make_private_with_epsilon(
    network,
    keras.optimizers.Adam(0.02),
    (x[:1000], y[:1000]),
    batch_size=100,
    epochs=10,
    epsilon=3.0,
    delta=1e-4,
)
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
history = model.fit(lots, epochs=10, validation_data=held_out, callbacks=[stop], verbose=0)

print(f"held-out accuracy {max(history.history['val_accuracy']):.1%}")
print(model.privacy.spent())  # of all planned epochs, whenever it stopped
