"""`make_lots`, which creates lots from data and the name of a sampling scheme."""

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
    """Creates lots, the batches of private training, by a named sampling scheme.

    `fit(x, y, batch_size=L)` of a private model makes lots itself. Call `make_lots` to choose among all
    sampling schemes, to augment or decode examples (`Lots.map`), or to protect people instead of single
    examples (`privacy_ids`).

    Args:
        sampling: How the examples of a lot are drawn: "poisson", "random_allocation", "cyclic",
            "shuffle", "with_replacement", "fixed_size" or "cyclic_poisson". The classes of
            `tfdp.data.schemes` describe them.
        x: Inputs in one of three forms. (1) An array, or a nested dict, tuple or list of arrays,
            with N rows. Arrays are not copied. A tuple without `y` is (x,), (x, y) or (x, y,
            sample_weight). None is an absent optional input. Floats become `keras.config.floatx()`,
            as in Keras. (2) A source, or any object that returns an example by its index; see
            `as_source`. (3) A `tf.data.Dataset` of single examples, which is read once; see
            `read_dataset`.
        y: Targets, arrays as for `x`. None if the loss needs none, or if `x` includes them.
        lot_size: L, the nominal number of examples in a lot, an integer from 1 to N.
        physical_batch_size: Largest number of rows in the network at the same time. By default the
            whole padded lot. It does not affect privacy.
        sample_weight: Finite weights of at least 0: an array of shape (N,) with a weight for each
            example, or (N, tokens, ...) with one for each token, or such an array for each target,
            in the structure of `y`. 1 by default. An example without a weight above 0 is absent.
        seed: An integer that makes the draws reproducible, for tests and debugging. Nothing finite is
            proven for random lots with a seed. By default the draws are secret, from the operating
            system's entropy.
        row_multiple: None pads all lots to one number of rows, so that XLA compiles once. With an
            integer, each lot is padded to the next multiple of it: less padding, but shapes that
            vary from lot to lot. See `row_multiple_for`.
        microbatch_size: m, a divisor of L, for an optimizer with `num_microbatches`, which clips the
            mean gradient of m examples. Lots are then drawn from whole groups of m neighbouring
            examples, which sampling amplifies. Set it only with `num_microbatches`. 1 by default.
        groups: Number of groups that take turns, for "cyclic_poisson" only, which requires it; see
            `schemes.CyclicPoisson`.
        nominal_examples: N, chosen without looking at the data, for "poisson" only; see
            `schemes.Poisson`. By default N is counted.
        shard_of: N, the number of examples on all machines, if the data are the shard that only this
            machine can read. For "poisson" and "random_allocation"; see `schemes.RandomAllocation`.
            L counts the examples of all machines, too.
        keep_last: Whether the last, partial lot of an epoch is kept, for "cyclic" only; see
            `schemes.Cyclic`.
        cache: Folder for the examples of a `tf.data.Dataset`; see `cached`. None keeps them in
            memory.
        augmentations: K, the number of views (such as augmented copies) of each example, which a
            function of `Lots.map` makes. Their gradients are averaged, and the average is clipped
            (De et al. 2022, section 3.2). Each view is a row. 1 by default.
        privacy_ids: The person of each example, one integer or text for each. Lots then draw people:
            N, L and `nominal_examples` count people, and the guarantee is for a person.
        examples_per_person: k, the largest number of a person's examples in a lot, chosen at random.
            They are averaged and clipped as one. Required with `privacy_ids`. Lots have k rows for
            each person, so a k above the usual number of examples costs time and memory.

    Returns:
        The `Lots`, for `fit`.

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
            f"`{foreign[0]}` cannot be used with sampling {sampling!r}. Remove it, or use sampling "
            f"'{_SAMPLING_OF[foreign[0]]}'."
        )
    if sampling == "cyclic_poisson" and groups is None:
        raise ValueError(
            "Sampling 'cyclic_poisson' requires `groups`, the number of groups. Pass it."
        )
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
