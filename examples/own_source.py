"""Data from your own store: `python examples/own_source.py`.

Anything with a length that returns an example by its index is a source. A row is read only when it is
drawn. Here the store is a SQLite file.
"""

import os
import sqlite3
import tempfile

import keras
import numpy as np

import tfdp

path = os.path.join(tempfile.mkdtemp(), "people.db")
with sqlite3.connect(path) as connection:  # made-up people
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age REAL, visits INTEGER)")
    rng = np.random.default_rng(0)
    rows = zip(range(1500), rng.uniform(18, 90, 1500), rng.poisson(3, 1500).tolist(), strict=True)
    connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)


class People:
    """The rows of the table, by their ids."""

    def __init__(self):
        self.connection = sqlite3.connect(path, check_same_thread=False)

    def __len__(self):
        return self.connection.execute("SELECT COUNT(*) FROM people").fetchone()[0]

    def __getitem__(self, index):
        query = "SELECT age, visits FROM people WHERE id = ?"
        age, visits = self.connection.execute(query, (int(index),)).fetchone()
        x = np.array([age / 100, visits / 10], "float32")  # public constants
        return x, np.array([age > 60], "float32")


source = tfdp.data.as_source(People())
model, optimizer, lots = tfdp.make_private_with_epsilon(
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]),
    keras.optimizers.Adam(0.05),
    source[:1200],
    batch_size=120,
    epochs=8,
    epsilon=2.0,
    delta=1e-4,
)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="hits")])
history = model.fit(lots, epochs=8, validation_data=source[1200:], verbose=0)
print(f"held-out accuracy {history.history['val_hits'][-1]:.1%}")
print(model.privacy.spent())
