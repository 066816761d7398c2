"""Data from a store of your own: `python examples/own_source.py`.

Anything with a length and one example for an index is a source; a row is read when it is drawn.
Here the store is a SQLite file.
"""

import os
import sqlite3
import tempfile

import keras
import numpy as np

import tfdp

path = os.path.join(tempfile.mkdtemp(), "people.db")
with sqlite3.connect(path) as connection:  # made-up people
    connection.execute("CREATE TABLE people (age REAL, income REAL, moved INTEGER)")
    rng = np.random.default_rng(0)
    rows = [
        (a, i, int(a < 40))
        for a, i in zip(rng.uniform(18, 90, 1500), rng.random(1500), strict=True)
    ]
    connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)


class People:
    """The rows of the table; a connection for each call, since threads read them."""

    def __len__(self):
        with sqlite3.connect(path) as connection:
            return connection.execute("SELECT COUNT(*) FROM people").fetchone()[0]

    def __getitems__(self, indices):
        """Returns several rows at once, which is faster than `__getitem__` for each."""
        places = ",".join(str(index + 1) for index in indices)
        with sqlite3.connect(path) as connection:
            found = connection.execute(
                f"SELECT * FROM people WHERE rowid IN ({places}) ORDER BY rowid"
            )
            return [
                (np.array([age / 100, income], "float32"), np.array([moved], "float32"))
                for age, income, moved in found
            ]

    def __getitem__(self, index):
        return self.__getitems__([index])[0]


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
model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
history = model.fit(lots, epochs=8, validation_data=source[1200:], verbose=0)
print(f"held-out accuracy {history.history['val_binary_accuracy'][-1]:.1%}")
print(model.privacy.spent())
