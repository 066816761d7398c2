"""A user's program, for type checkers: mypy and pyright read it, and nobody runs it.

Both report a `type: ignore` that is not needed, so every planted error has to be found, and no other.
`mypy` and `pyright` without arguments check this file (mypy.ini, pyproject.toml).
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import keras
import numpy as np

import tfdp
from tfdp.data import make_lots

x, y = np.zeros((1000, 4), "float32"), np.zeros(1000, "int32")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


# What is right.
optimizer = tfdp.DPKerasSGDOptimizer(
    l2_norm_clip=1.0, noise_multiplier=1.1, learning_rate=0.15, momentum=0.9, weight_decay=1e-4
)
model = tfdp.make_private(network(), budget=tfdp.PrivacyBudget(epsilon=2.0, delta=1e-4))
model.compile(optimizer, loss, metrics=["accuracy"])
lots = make_lots("poisson", x, y, lot_size=100)
model.fit(lots, epochs=2, callbacks=[tfdp.callbacks.PrivacyProgress(), keras.callbacks.History()])
model.summary()
model.evaluate(x, y, verbose=0)
model.get_layer("dense").trainable = False
epsilon: float = model.privacy.spent(delta=1e-5).epsilon
text: str = model.privacy.statement()
for logs in model.privacy.steps(x, y, batch_size=100):
    print(logs["loss"], optimizer.learning_rate, optimizer.iterations)
model.privacy.release("released.keras")
made = tfdp.make_private_with_epsilon(
    network(), "adam", (x, y), epsilon=2.0, delta=1e-4, epochs=3, batch_size=100
)
made.model.compile(made.optimizer, loss)
made.model.fit(made.data, epochs=3)
private, noisy, data = made
planned: int = private.privacy.ledger.runs[0].steps
tfdp.VectorizedDPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1, beta_1=0.8)
tfdp.SGLDOptimizer(0.1, num_examples=1000, l2_norm_clip=1.0, noise_multiplier=1.1, momentum=0.5)
tfdp.SIDPSGDOptimizer(
    keras.optimizers.schedules.CosineDecay(0.5, 100), l2_norm_clip=1.0, noise_multiplier=8.0
)
tfdp.MatrixDPSGDOptimizer(0.1, l2_norm_clip=1.0, noise_multiplier=[1.0, 2.0], bands=4, steps=20)
tfdp.optimizers.DPKerasLionOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1)
tfdp.optimizers.make_matrix_optimizer_class(keras.optimizers.Adam)
tfdp.layers.NoisyDense(3, noise_stddev=0.1)
tfdp.layers.PublicBatchNormalization(momentum=0.9)
tfdp.callbacks.BackupAndRestore("backup", save_freq="epoch")
run = tfdp.accounting.describe(
    "dpsgd", num_examples=60000, lot_size=256, steps=10, sampling="poisson", noise_multiplier=1.1
)
epsilon = tfdp.accounting.proven(run, delta=1e-5).epsilon

# What is wrong.
tfdp.make_private_with_epsilon(network(), "adam", x, epsilon=2, delta=1e-4, epoch=3)  # type: ignore[call-arg]
tfdp.optimizers.NoisySGD(0.1, update_nois=0.5)  # type: ignore[call-arg]
tfdp.DPKerasSGDOptimizer(l2_norm_clipp=1.0, noise_multiplier=1.1)  # type: ignore[call-arg]
tfdp.DPKerasSGDOptimizer(noise_multiplier=1.1)  # type: ignore[call-arg]
tfdp.DPKerasAdamOptimizer(1e-3, l2_norm_clip=1.0, noise_multiplier=1.1, beta1=0.9)  # type: ignore[call-arg]
tfdp.DPDropoutOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1, sigma=2.0)  # type: ignore[call-arg]
tfdp.SGLDOptimizer(0.1, l2_norm_clip=1.0, noise_multiplier=1.1)  # type: ignore[call-arg]
tfdp.SIDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=8.0, weight_decay=0.1)  # type: ignore[call-arg]
tfdp.MatrixDPSGDOptimizer(0.1, l2_norm_clip=1.0, noise_multiplier=1.0, band=4)  # type: ignore[call-arg]
tfdp.DiscreteSGDOptimizer(l2_norm_clip=1.0, noise_multiplier="1")  # type: ignore[arg-type]
tfdp.make_private(modle=network())  # type: ignore[call-arg]
tfdp.make_private(network(), engine=3)  # type: ignore[arg-type]
tfdp.PrivacyBudget(epsilon=2.0)  # type: ignore[call-arg]
tfdp.callbacks.BackupAndRestore("backup", save_frequency="epoch")  # type: ignore[call-arg]
tfdp.callbacks.PrivacyProgress(detla=1e-5)  # type: ignore[call-arg]
tfdp.layers.NoisyDense(3, noise_sttdev=0.1)  # type: ignore[call-arg]
model.privacy.spent(detla=1e-5)  # type: ignore[call-arg]
model.fit(x, y, epoch=3)  # type: ignore[call-arg]
model.privacy.spend(1e-5)  # type: ignore[attr-defined]
make_lots("poisson", x, y, lots_size=100)  # type: ignore[call-arg]
tfdp.make_privat(network())  # type: ignore[attr-defined]
