"""KerasTuner on private models, with the cost of all trials: `python examples/tuning.py`.

Trials are compared by held-out data. The statement covers all of them together.
"""

import tempfile

import keras
import numpy as np

import tfdp

try:
    import keras_tuner
except ImportError:
    raise SystemExit("pip install keras-tuner") from None

rng = np.random.default_rng(0)
x = rng.normal(size=(1500, 8)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
ledgers = []


def build(trial):
    """Makes a private model for a trial."""
    model = tfdp.make_private(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
    rate = trial.Float("learning_rate", 0.05, 2.0, sampling="log")
    model.compile(
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=3.0, learning_rate=rate),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    ledgers.append(model.privacy.ledger)
    return model


tuner = keras_tuner.RandomSearch(
    build, objective="val_loss", max_trials=3, directory=tempfile.mkdtemp(), seed=1
)
data = dict(x=x[:1200], y=y[:1200], validation_data=(x[1200:], y[1200:]))
tuner.search(**data, batch_size=120, epochs=3, verbose=0)
print("best:", tuner.get_best_hyperparameters()[0].values)
spent = [ledger for ledger in ledgers if ledger.runs]
print(tfdp.accounting.Statement.of_search(spent, delta=1e-4).text())
