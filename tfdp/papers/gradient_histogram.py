"""Figure 1 of the encoding paper: how the entries of gradients are distributed.

The histogram is released without noise, so it has no guarantee, and neither has the training, which
is not private. This is for public data only.
"""

import numpy as np

# The histogram reaches this many standard deviations to both sides, in bins of a tenth of one.
_REACH, _BINS = 8.0, 160


def compute(
    *,
    dataset: str,
    model: str,
    normalization: str,
    batch_size: int,
    learning_rate: float,
    epochs: int,
    examples: int,
    seed: int,
    train_split: str | None = None,
    data_dir: str | None = None,
) -> dict:
    """Trains without privacy, and measures the gradients of single training examples.

    Args:
        dataset, train_split, data_dir: the data.
        model, normalization: the network.
        batch_size, learning_rate, epochs, seed: the training, by gradient descent. The seed is that of
            the initial weights; lots are drawn anew each time.
        examples: how many gradients are measured: those of the first training examples.

    Returns:
        What `summary` returns, and "test_accuracy" in percent.
    """
    # These import Keras, which the catalogue's other commands do without.
    from tfdp.experiments import network
    from tfdp.experiments.experiment import run
    from tfdp.experiments.rules import NONE
    from tfdp.experiments.settings import Experiment

    experiment = Experiment(
        mechanism=NONE,
        dataset=dataset,
        model=model,
        normalization=normalization,
        sampling="shuffle",
        batch_size=batch_size,
        learning_rate=learning_rate,
        epochs=epochs,
        seed=seed,
        train_split=train_split,
        data_dir=data_dir,
    )
    result = run(experiment, verbose=0)
    data, _ = network.load(experiment)
    entries = gradients(result.model, data.x_train[:examples], data.y_train[:examples])
    return summary(entries) | {"test_accuracy": 100 * result.test_accuracy}


def gradients(model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns [examples, weights]: the gradient of the cross-entropy of each example.

    Args:
        model: a Keras model that returns logits.
        x: inputs.
        y: class indices.
    """
    import tensorflow as tf

    @tf.function
    def gradient(one, label):
        with tf.GradientTape() as tape:
            logits = model(one[None], training=False)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(label[None], logits)
        weights = [variable.value for variable in model.trainable_variables]
        parts = tape.gradient(loss, weights)
        return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)

    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    return np.stack([gradient(x[i], y[i]).numpy() for i in range(len(x))])


def summary(entries: np.ndarray) -> dict:
    """Returns the histogram of numbers, and how close they are to the fitted Gaussian.

    Args:
        entries: numbers, any shape.

    Returns:
        "mean" and "deviation" of the fitted Gaussian; "within_one", the percentage of entries within
        one deviation of the mean (68.27 for a Gaussian); "kurtosis", the excess kurtosis (0);
        "zeros", the percentage of entries that are exactly 0; "nonzero_within_one" and
        "nonzero_kurtosis", of a Gaussian that is fitted to the others; "count"; and "edges" and
        "density", the histogram over (entry - mean) / deviation.
    """
    entries = np.asarray(entries, float).reshape(-1)
    mean, deviation, standard, within_one, kurtosis = _fitted(entries)
    *_, nonzero_within_one, nonzero_kurtosis = _fitted(entries[entries != 0])
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(standard, edges)
    return {
        "mean": mean,
        "deviation": deviation,
        "within_one": within_one,
        "kurtosis": kurtosis,
        "zeros": 100 * float(np.mean(entries == 0)),
        "nonzero_within_one": nonzero_within_one,
        "nonzero_kurtosis": nonzero_kurtosis,
        "count": len(entries),
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "density": [float(f"{value:.6g}") for value in counts / len(entries) / np.diff(edges)],
    }


def _fitted(entries):
    """(mean, deviation, standardized entries, percentage within one deviation, excess kurtosis)."""
    mean, deviation = float(entries.mean()), float(entries.std())
    standard = (entries - mean) / deviation
    within = 100 * float(np.mean(np.abs(standard) <= 1))
    return mean, deviation, standard, within, float(np.mean(standard**4)) - 3
