"""`make_lots`: lots of a named sampling scheme from arrays or any other source of examples."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from tfdp._validate import one_of
from tfdp.data.lots import Lots
from tfdp.data.people import People
from tfdp.data.reading import read_dataset
from tfdp.data.schemes import SCHEMES
from tfdp.data.sources import as_source


def make_lots(
    sampling: str,
    x: Any,
    y: Any = None,
    *,
    lot_size: int,
    physical_batch_size: int | None = None,
    sample_weight: Any = None,
    seed: int | None = None,
    row_multiple: int | None = None,
    microbatch_size: int = 1,
    groups: int | None = None,
    nominal_examples: int | None = None,
    shard_of: int | None = None,
    keep_last: bool = False,
    cache: str | os.PathLike | None = None,
    augmentations: int = 1,
    privacy_ids: Any = None,
    examples_per_person: int | None = None,
) -> Lots:
    """Creates lots that a sampling scheme draws from data.

    Args:
        sampling: "poisson", "random_allocation", "cyclic", "shuffle", "with_replacement",
            "fixed_size" or "cyclic_poisson"; see the classes of `tfdp.data.schemes`.
        x: Inputs, an array or a nested dict, tuple or list of arrays, first dimension N, which are
            not copied. Floats of any precision become `keras.config.floatx()`, as in Keras. None is
            an absent optional input. A tuple without `y` is (x,), (x, y) or (x, y, sample_weight).
            Or a source, or any object that returns an example by its index; see `as_source`. Or a
            `tf.data.Dataset` of single examples, which is read once; see `read_dataset`.
        y: Targets, in the same forms. None if the loss needs none, or with a source.
        lot_size: L, an integer from 1 to N.
        physical_batch_size: Number of rows in one chunk; the whole padded lot by default.
        sample_weight: Finite weights of at least 0; 1 by default. An array of shape (N,) with a
            weight for each example, or (N, tokens, ...) with one for each token; or such an array
            for each target, in the structure of `y`. An example without a weight above 0 is absent.
        seed: An integer that makes the draws reproducible, for tests and debugging. By default the
            draws come from the operating system's entropy.
        row_multiple: None gives every lot one fixed number of rows, so that XLA compiles once. With
            an integer, the number of rows is the next multiple of it: less padding, but shapes that
            vary from lot to lot.
        microbatch_size: m, a divisor of L, for an optimizer that clips the mean gradient of m
            examples: whole groups of m neighbours in the data are drawn, which sampling amplifies.
            Do not set it without `num_microbatches`.
        groups: See `schemes.CyclicPoisson`; required for "cyclic_poisson", and for no other scheme.
        nominal_examples: See `schemes.Poisson`; for "poisson" only.
        shard_of: N, if the examples here are the shard that only this machine can read; for
            "poisson" and "random_allocation", see `schemes.RandomAllocation`. L and N count all
            machines.
        keep_last: See `schemes.Cyclic`; for "cyclic" only.
        cache: Folder for the examples of a `tf.data.Dataset`; None keeps them in memory.
        augmentations: K, number of views of each example, which `Lots.map` makes: their gradients
            are averaged, and the average is clipped (De et al. 2022, section 3.2). A view is a row.
        privacy_ids: The person of each example, as integers or texts. Lots then draw people: N, L
            and `nominal_examples` count people, and the guarantee is for a person.
        examples_per_person: k, with `privacy_ids`: the largest number of a person's examples in a
            lot, chosen at random; they are averaged and clipped as one. Lots are padded to k rows
            for each person, so a k far above what people have costs time and memory.

    Returns:
        The `Lots`.

    Raises:
        ValueError: If the scheme is unknown, or an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> x, y = np.zeros((1000, 2), "float32"), np.zeros(1000, "float32")
        >>> lots = tfdp.data.make_lots("fixed_size", x, y, lot_size=250)
        >>> lots
        Lots('fixed_size', num_examples=1000, lot_size=250, padded_size=250, physical_batch_size=250,
        seeded=False)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> _ = model.fit(lots, epochs=2, verbose=0)
        >>> model.privacy.current_run.sampling.name, model.privacy.steps_taken
        ('fixed_size', 8)
    """
    one_of("sampling", sampling, SCHEMES)
    kind = SCHEMES[sampling]
    given = {
        "groups": groups,
        "nominal_examples": nominal_examples,
        "shard_of": shard_of,
        "keep_last": keep_last or None,
    }
    own = {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(own.keys() - {field.name for field in dataclasses.fields(kind)}):
        raise ValueError(
            f"Sampling {sampling!r} does not use `{foreign[0]}`. Remove it, or use sampling "
            f"'{_SAMPLING_OF[foreign[0]]}'."
        )
    if sampling == "cyclic_poisson" and groups is None:
        raise ValueError("Sampling 'cyclic_poisson' needs `groups`, the number of groups.")
    if isinstance(x, tf.data.Dataset):
        x = read_dataset(x, cache)
    elif cache is not None:
        raise ValueError("cache can only be used with a tf.data.Dataset. Remove it.")
    source = as_source(x, y, sample_weight)
    people = _people(privacy_ids, examples_per_person, len(source))
    available = len(source) if people is None else people.count
    scheme = kind(available=available, lot_size=lot_size, unit_size=microbatch_size, **own)
    return Lots(
        scheme,
        source,
        physical_batch_size=physical_batch_size,
        seed=seed,
        row_multiple=row_multiple,
        augmentations=augmentations,
        people=people,
    )


# The sampling scheme that a setting belongs to.
_SAMPLING_OF = {
    "groups": "cyclic_poisson",
    "nominal_examples": "poisson",
    "shard_of": "poisson",
    "keep_last": "cyclic",
}


def _people(privacy_ids, examples_per_person, rows) -> People | None:
    if (privacy_ids is None) != (examples_per_person is None):
        missing = "privacy_ids" if privacy_ids is None else "examples_per_person"
        raise ValueError(
            f"{missing} is missing. privacy_ids names the person of each example, and "
            "examples_per_person limits a person's examples in a lot. Pass both or neither."
        )
    if privacy_ids is None:
        return None
    people = People(privacy_ids, examples_per_person)
    if people.num_rows != rows:
        raise ValueError(
            f"Expected one id for each example. Received {people.num_rows} privacy_ids for {rows} "
            "examples."
        )
    return people
