"""`make_private_with_epsilon`, which computes the noise of a training from its budget."""

from collections.abc import Collection
from typing import NamedTuple

import keras
import tensorflow as tf

from tfdp._compat.tensorflow import Begun
from tfdp._validate import positive, refuse, whole
from tfdp.accounting import PrivacyBudget, noise_for
from tfdp.data import Lots, OncePerEpoch, as_source, make_lots
from tfdp.data.sources import is_source
from tfdp.optimizers import DPKerasOptimizer, make_dp_optimizer_class
from tfdp.training.batches import is_batches
from tfdp.training.building import build_for
from tfdp.training.cost_of_batches import warn_of_noise
from tfdp.training.describe import planned_run
from tfdp.training.dp_model import Private, make_private
from tfdp.training.feed import STATE_LENGTH, feed_of, refuse_arguments_of_arrays
from tfdp.training.preparing import prepared


class Calibrated(NamedTuple):
    """The private model, optimizer and data that `make_private_with_epsilon` returns.

    It is a tuple, so you can unpack it: `model, optimizer, data = ...`.

    Attributes:
        model: The model, private and with its budget, but not compiled.
        optimizer: A private optimizer with the computed noise multiplier, for `model.compile`.
        data: The training data for `model.fit`: `tfdp.data.Lots`, or the batches that were passed.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> x, y = np.zeros((1000, 4), "float32"), np.zeros(1000, "int32")
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> made = tfdp.make_private_with_epsilon(
        ...     model, keras.optimizers.Adam(), (x, y), batch_size=100, sampling="cyclic", epochs=2,
        ...     epsilon=2.0, delta=1e-4)
        >>> made.model is model, made.model.privacy.budget.epsilon, made.data.steps_per_epoch
        (True, 2.0, 10)
        >>> print(f"{made.optimizer.noise_multiplier:.3f}")
        2.453
    """

    model: Private
    optimizer: DPKerasOptimizer
    data: Lots | tf.data.Dataset | OncePerEpoch


def make_private_with_epsilon(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | str,
    data,
    y=None,
    *,
    epsilon: float,
    delta: float,
    epochs: float,
    batch_size: int | None = None,
    sampling: str = "poisson",
    l2_norm_clip: float | None = None,
    kind: str = "proven",
    adjacency: str = "zero_out",
    engine: str = "auto",
    physical_batch_size: int | None = None,
    seed: int | None = None,
    start: str | None = None,
    public_preprocessing: bool | Collection = (),
) -> Calibrated:
    """Makes a model private for a given epsilon, with the least noise that stays within it.

    Use it if you know epsilon, delta and the number of epochs. If you know the noise multiplier, use
    `make_private` and a private optimizer. The budget is set on the model: a step beyond it raises
    `BudgetExhausted`, so more epochs than planned are refused rather than spent.

    Args:
        model: A Keras model whose weights have spent no privacy yet. It is built for the shapes of
            the data if it is not built.
        optimizer: A Keras optimizer or its name, such as "adam", which is made private with DP-SGD's
            noise; or a private optimizer of any mechanism. It is not changed: the result has a new
            optimizer with the computed noise multiplier, and without a seed.
        data: Arrays (x,), (x, y) or (x, y, sample_weight), or another source of examples, as in
            `tfdp.data.as_source`; `tfdp.data.Lots`; or a `tf.data.Dataset` of batches, which is
            accounted without amplification by sampling, or `tfdp.data.OncePerEpoch` of batches.
        y: The targets, if `data` are the inputs only.
        epsilon: The largest epsilon that may be spent, above 0.
        delta: Delta of the guarantee, a probability in (0, 1). `fit` warns if it is not below 1/N.
        epochs: Planned number of passes over the data, above 0. It is rounded to whole steps.
        batch_size: Nominal lot size. Required for arrays, and only for them.
        sampling: How lots are drawn from arrays, as in `tfdp.data.make_lots`.
        l2_norm_clip: The clip norm. None keeps the clip norm of a private optimizer, and means 1.0
            for a Keras optimizer.
        kind: The guarantee that must stay within the budget: "proven" or "claimed".
        adjacency: Neighbouring relation of the guarantee: "zero_out", "replace_one" or
            "add_or_remove_one".
        engine: How per-example gradients are computed, as in `make_private`.
        physical_batch_size: Largest number of rows in the network at the same time, as in
            `make_private`.
        seed: Insecure seed of the lots that are drawn from arrays, as in `make_private`. None draws
            secret lots.
        start: "public" declares that the weights do not depend on the private data. None declares
            nothing.
        public_preprocessing: Layers, or their names, that were adapted to public data. True means
            all.

    Returns:
        The tuple (model, optimizer, data), a `Calibrated`. Compile the model with the optimizer, and
        fit it on the data.

    Raises:
        ValueError: If the model is not built and cannot be built, its weights have spent privacy,
            the optimizer was used before, or the data and arguments do not fit.
        CalibrationError: If no noise gives a finite guarantee within the budget.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> x, y = np.zeros((1000, 4), "float32"), np.zeros(1000, "int32")
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> model, optimizer, lots = tfdp.make_private_with_epsilon(
        ...     model, keras.optimizers.SGD(0.1), (x, y), batch_size=100, epochs=2,
        ...     epsilon=2.0, delta=1e-4)
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> model.compile(optimizer, loss)
        >>> _ = model.fit(lots, epochs=2, class_weight={0: 2.0, 1: 1.0, 2: 1.0}, verbose=0)
        >>> 1.99 < model.privacy.spent().epsilon <= 2.0
        True
    """
    epochs = positive("epochs", epochs)
    budget = PrivacyBudget(epsilon, delta, kind, adjacency)
    data = data if y is None else (data, y)
    optimizer = _private(optimizer, l2_norm_clip, noise_multiplier=1.0)
    data = _lots(data, batch_size, sampling, physical_batch_size, optimizer)
    feed = feed_of(prepared(model, data)[0], physical_batch_size)
    if feed.steps is None:
        raise ValueError(f"The number of batches in an epoch is unknown. {STATE_LENGTH}")
    build_for(model, feed.inputs)
    private = make_private(
        model,
        engine=engine,
        physical_batch_size=physical_batch_size,
        seed=seed,
        start=start,
        public_preprocessing=public_preprocessing,
    )
    if private.privacy.ledger.runs:
        raise ValueError(
            f"The weights of model '{model.name}' have spent privacy already, so a training with the "
            "noise for the whole budget would exceed it. Use fresh weights, or compute the noise for "
            "the rest of the budget with tfdp.accounting.noise_for."
        )
    steps = max(1, round(epochs * feed.steps))
    run = planned_run(private, feed, steps, optimizer, private.privacy.account.start)
    noise = noise_for(budget.epsilon, budget.delta, run, kind, adjacency)
    warn_of_noise(data, run, noise, budget)
    private.privacy.ledger.add_budget(budget)
    if isinstance(feed.dataset, Begun):  # the size of its batches was unknown, so one was looked at
        data = OncePerEpoch(feed.dataset) if isinstance(data, OncePerEpoch) else feed.dataset
    return Calibrated(private, _private(optimizer, None, noise_multiplier=noise), data)


def _private(optimizer, l2_norm_clip, noise_multiplier) -> DPKerasOptimizer:
    """Returns a private optimizer with the configuration of another optimizer, without its seed."""
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built:
        raise ValueError(
            f"Expected an unused optimizer. Received {type(optimizer).__name__} after "
            f"{int(optimizer.iterations.numpy())} steps. Pass a new one."
        )
    config, kind = optimizer.get_config(), type(optimizer)
    if not isinstance(optimizer, DPKerasOptimizer):
        config["l2_norm_clip"], kind = 1.0, make_dp_optimizer_class(kind)
    if l2_norm_clip is not None:
        config["l2_norm_clip"] = l2_norm_clip
    return kind.from_config(config | {"noise_multiplier": noise_multiplier})


def _lots(data, batch_size, sampling, physical_batch_size, optimizer):
    """Returns lots drawn from arrays; lots, datasets and declarations are returned as they are."""
    data = getattr(data, "tfdp_lots", data)
    if isinstance(data, Lots | tf.data.Dataset | OncePerEpoch):
        refuse_arguments_of_arrays(batch_size=batch_size)
        return data
    if is_batches(data) and not is_source(data):
        remedy = "Pass your batches as a tf.data.Dataset."
        refuse("data", "arrays (x, y), Lots or a tf.data.Dataset", type(data).__name__, remedy)
    source = as_source(data)
    remedy = "Pass the size of a lot, at most the number of examples."
    batch_size = whole("batch_size", batch_size, 1, len(source), remedy=remedy)
    return make_lots(
        sampling,
        source,
        lot_size=batch_size,
        physical_batch_size=physical_batch_size,
        microbatch_size=optimizer.microbatch_size(batch_size),
    )
