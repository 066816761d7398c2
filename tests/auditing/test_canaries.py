"""Dirac canaries: one reserved direction each, at the whole clip norm, and nothing for null records."""

import keras
import numpy as np
import pytest
from helpers import LOSS, data, plain, sgd
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tfdp.auditing import DiracCanaries

COUNT, CLIP = 12, 0.5


def world(seed=0, **options):
    return DiracCanaries(COUNT, blanks=3).world(seed, **options)


def sums(model, x, y, engine):
    """The bounded sum of a lot with one step without noise."""
    made = tfdp.make_private(model, engine=engine)
    made.compile(sgd(noise=0.0, clip=CLIP, rate=1.0), LOSS)
    before = [v.numpy() for v in made.trainable_variables]
    rows = len(y)
    made.fit(x, y, batch_size=rows, shuffle=False, verbose=0)
    moved = [b - v.numpy() for b, v in zip(before, made.trainable_variables, strict=True)]
    return dict(zip([v.path for v in made.trainable_variables], moved, strict=True)), rows


def test_canaries_move_their_own_weight_by_the_clip_norm():
    drawn = world()
    x, y = data(24)
    moved, rows = sums(drawn.model(plain()), *drawn.data(x, y), engine="ghost")
    (own,) = (value for path, value in moved.items() if "canary_weights" in path)
    own = -own[:, 0] * rows
    assert_close(own[:COUNT], CLIP * drawn.included, terms_of(plain(), 24 + COUNT))
    assert np.all(own[COUNT:] == 0.0)


def test_the_rest_of_the_model_trains_as_without_canaries():
    drawn = world()
    x, y = data(24)
    with_canaries, rows = sums(drawn.model(plain()), *drawn.data(x, y), engine="ghost")
    alone, fewer = sums(plain(), x, y, engine="ghost")
    rest = [value * rows for path, value in with_canaries.items() if "canary" not in path]
    for a, b in zip(rest, (value * fewer for value in alone.values()), strict=True):
        assert_close(a, b, terms_of(plain(), 24 + COUNT))


def test_a_model_of_several_inputs_takes_canaries():
    one, other = keras.Input((2,), name="one"), keras.Input((3,), name="other")
    hidden = layers.Concatenate()([one, other])
    model = keras.Model({"one": one, "other": other}, layers.Dense(1, activation="sigmoid")(hidden))
    rng, drawn = np.random.default_rng(0), world()
    x = {"one": rng.normal(size=(10, 2)), "other": rng.normal(size=(10, 3))}
    made = tfdp.make_private(drawn.model(model))
    made.compile(sgd(noise=0.0, clip=CLIP, rate=1.0), "mae")
    made.fit(*drawn.data(x, np.ones((10, 1))), batch_size=10 + COUNT, shuffle=False, verbose=0)
    seen = drawn.observed(made)
    assert seen.shape == (1, COUNT + 3)
    assert_close(seen[0, :COUNT] * (10 + COUNT), CLIP * drawn.included, terms_of(made, 10 + COUNT))
    np.testing.assert_array_equal(
        made.predict(drawn.inputs(x), verbose=0), model.predict(x, verbose=0)
    )


def test_rows_of_weight_zero_count_nothing_even_if_they_are_canaries():
    drawn = world(included=np.ones(COUNT, bool))
    x, y = data(8)
    x, y, weight = drawn.data(x, y, np.ones(8, "float32"))
    weight[:5] = 0.0
    made = tfdp.make_private(drawn.model(plain()))
    made.compile(sgd(noise=0.0, clip=CLIP, rate=1.0), LOSS)
    made.fit(x, y, sample_weight=weight, batch_size=8 + COUNT, shuffle=False, verbose=0)
    own = drawn.observed(made)[-1, :COUNT]
    assert np.all(own[5:] > 0) and np.all(own[:5] == 0)


def test_worlds_differ_in_their_coins_only():
    first, same, other = world(1), world(1), world(2)
    assert np.array_equal(first.included, same.included)
    assert not np.array_equal(first.included, other.included)
    x, y = data(8)
    (a, _), (b, _) = first.data(x, y), other.data(x, y)
    changed = (a[1] != b[1]).any(axis=1)
    assert np.array_equal(changed[:COUNT], first.included != other.included)
    assert not changed[COUNT:].any()
    with pytest.raises(ValueError, match="12 booleans"):
        world(included=[True])


def test_the_released_weights_of_every_step_are_seen():
    drawn = world()
    made = tfdp.make_private(drawn.model(plain()))
    made.compile(sgd(noise=1.0), LOSS)
    x, y = data(20)
    made.fit(*drawn.data(x, y), batch_size=8, epochs=2, verbose=0, callbacks=drawn.callbacks)
    seen = drawn.observed(made)
    assert len(seen) == made.privacy.steps_taken and np.all(np.diff(seen, axis=0) != 0)
