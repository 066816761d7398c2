"""Times every kind of layer with and without privacy: `python -m benchmarks.layers [--names=Conv1D]`.

Each layer is trained in its own model, with as few other layers as it needs, by `fit` with and without
tfdp, in turns, in one process. The times are processor times, which other programs change least, and
the shortest epoch counts. The table has the slowest private steps first. A layer far above the others
has a rule that is worth a look.
"""

import argparse
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp

_LINE, _IMAGE, _BLOCK = (64, 32), (32, 32, 16), (8, 16, 16, 8)
_TOKENS = 64
_STEPS, _EPOCHS, _TURNS = 16, 5, 2  # steps of an epoch, epochs of a fit, fits of a model


class Shift(layers.Layer):
    """Adds a weight for each channel. Before a layer, it makes the gradient pass through that layer."""

    def build(self, shape):
        self.bias = self.add_weight(shape=shape[-1:])

    def call(self, x):
        return x + self.bias


def _flat(make):
    """Returns a model of one layer on inputs of its rank, and a dense layer of ten outputs."""

    def model(shape):
        x = keras.Input(shape)
        return keras.Model(x, layers.Dense(10)(layers.Flatten()(make()(Shift()(x)))))

    return model


def _attention(shape):
    x = keras.Input(shape)
    attended = layers.MultiHeadAttention(4, 8)(x, x)
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling1D()(attended)))


def _embeddings(count, look_ups):
    def model(shape):
        tokens = keras.Input(shape, dtype="int32")
        columns = [tokens[:, i * look_ups : (i + 1) * look_ups] for i in range(count)]
        found = [layers.Flatten()(layers.Embedding(1000, 16)(column)) for column in columns]
        x = layers.Concatenate()(found) if count > 1 else found[0]
        return keras.Model(tokens, layers.Dense(10)(x))

    return model


def _looked_up(layer, dtype):
    """Returns a model of one look-up of several columns in tables, and an embedding of the results."""

    def model(shape):
        x = keras.Input(shape, dtype=dtype)
        return keras.Model(
            x, layers.Dense(10)(layers.Flatten()(layers.Embedding(1002, 16)(layer()(x))))
        )

    return model


def _first(layer):
    """Returns a model whose first layer is `layer`, for images of few channels."""
    return lambda shape: keras.Sequential(
        [keras.Input(shape), layer(), layers.Flatten(), layers.Dense(10)]
    )


# {name: (shape of a row, function of the shape that makes a model)}; tokens have one axis.
CASES: dict = {
    "Dense": (_LINE, _flat(lambda: layers.Dense(64))),
    "EinsumDense": (_LINE, _flat(lambda: layers.EinsumDense("btc,cd->btd", (64, 64)))),
    "Embedding": ((_TOKENS,), _embeddings(1, _TOKENS)),
    "Embedding, 16 of 20 look-ups": ((320,), _embeddings(16, 20)),
    "MultiHeadAttention": (_LINE, _attention),
    "IntegerLookup": (
        (8,),
        _looked_up(lambda: layers.IntegerLookup(vocabulary=[*range(1000)]), "int64"),
    ),
    "StringLookup": (
        (8,),
        _looked_up(lambda: layers.StringLookup(vocabulary=[*map(str, range(1000))]), "string"),
    ),
}
for _name, _options in {
    "AveragePooling": {"pool_size": 2},
    "MaxPooling": {},
    "GlobalAveragePooling": {},
    "GlobalMaxPooling": {},
    "UpSampling": {},
    "Cropping": {},
    "ZeroPadding": {},
    "Conv": {"filters": 16, "kernel_size": 3},
    "ConvTranspose": {"filters": 16, "kernel_size": 3, "strides": 2},
    "DepthwiseConv": {"kernel_size": 3},
    "SeparableConv": {"filters": 16, "kernel_size": 3},
    "SpatialDropout": {"rate": 0.2},
}.items():
    for _rank, _shape in ((1, _LINE), (2, _IMAGE), (3, _BLOCK)):
        _kind = (
            f"{_name.removesuffix('Transpose')}{_rank}D{'Transpose' * _name.endswith('Transpose')}"
        )
        if hasattr(layers, _kind):
            CASES[_kind] = (_shape, _flat(lambda k=_kind, o=_options: getattr(layers, k)(**o)))
for _name, _options in {
    "LayerNormalization": {},
    "GroupNormalization": {"groups": 4},
    "RMSNormalization": {},
    "UnitNormalization": {},
    "Dropout": {"rate": 0.2},
    "GaussianNoise": {"stddev": 0.2},
    "Softmax": {},
    "PReLU": {},
    "Resizing": {"height": 48, "width": 48, "interpolation": "bilinear"},
}.items():
    if hasattr(layers, _name):
        CASES[_name] = (_IMAGE, _flat(lambda k=_name, o=_options: getattr(layers, k)(**o)))
for _name in ("LSTM", "GRU", "SimpleRNN"):
    CASES[_name] = (_LINE, _flat(lambda k=_name: getattr(layers, k)(32)))
for _shape, _kernel in (((28, 28, 1), 8), ((32, 32, 3), 3), ((64, 64, 3), 7)):
    _kind = f"Conv2D, first, {_shape[0]}x{_shape[1]}x{_shape[2]}, kernel {_kernel}"
    CASES[_kind] = (_shape, _first(lambda k=_kernel: layers.Conv2D(16, k, strides=2)))
CASES["Conv1D, first, 1 channel"] = ((256, 1), _first(lambda: layers.Conv1D(16, 5)))


class _Epochs(keras.callbacks.Callback):
    """Records the processor time of every epoch except the first, in milliseconds."""

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.process_time()
        if epoch == 0:
            self.found = []

    def on_epoch_end(self, epoch, logs=None):
        if epoch:
            self.found.append(1000 * (time.process_time() - self._began))


def over_plain(name: str, lot: int = 64) -> tuple[float, float]:
    """Trains a model with and without privacy, in turns.

    Args:
        name: Name of a layer, one of `CASES`.
        lot: Number of examples in a lot.

    Returns:
        The milliseconds of processor time of a private step, and their ratio to a step without privacy.
    """
    shape, make = CASES[name]
    rng = np.random.default_rng(0)
    if len(shape) == 1:
        x = rng.integers(0, 1000, (lot * _STEPS, *shape), np.int32)
        if make(shape).input.dtype == "string":
            x = tf.constant(x.astype(str))
    else:
        x = rng.normal(size=(lot * _STEPS, *shape)).astype(np.float32)
    y = rng.integers(0, 10, lot * _STEPS)
    models, times = {}, {True: [], False: []}
    for private in times:
        keras.utils.set_random_seed(0)
        model = models[private] = make(shape)
        if private:
            tfdp.make_private(model)
        rates = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0} if private else {}
        optimizer = tfdp.DPKerasSGDOptimizer if private else keras.optimizers.SGD
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(0.01, **rates), loss)
    for _ in range(_TURNS):
        for private, model in models.items():
            epochs = _Epochs()
            model.fit(x, y, lot, _EPOCHS, verbose=0, shuffle=False, callbacks=[epochs])
            times[private] += epochs.found
    private, plain = (min(found) / _STEPS for found in times.values())
    return private, private / plain


def main(arguments=None) -> int:
    """Prints the table, the slowest layers first. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.add_argument("--names", default="", help="only cases with one of these words, by commas")
    parser.add_argument("--lot", type=int, default=64, help="size of a lot")
    parser.add_argument("--rows", type=int, default=10, help="how many of the slowest are printed")
    flags = parser.parse_args(arguments)
    chosen = [n for n in CASES if any(word in n for word in flags.names.split(","))]
    found = []
    for name in chosen:
        found.append((*over_plain(name, flags.lot), name))
        print(f"{name}: {found[-1][1]:.2f}", file=sys.stderr)
    print("| layer | private step, ms of processor time | over no privacy |\n| --- | ---: | ---: |")
    for private, ratio, name in sorted(found, key=lambda row: -row[1])[: flags.rows]:
        print(f"| {name} | {private:.2f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
