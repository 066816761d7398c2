"""Lets `tf.vectorized_map` draw stateless random numbers per example.

`tf.vectorized_map` has no rule for the current stateless random ops when their seed differs from
example to example (a Keras Dropout layer inside a per-example function), and raises an error. The
engines give every example of a chunk the *same* seed value, marked as per-example. From that seed the
rules below draw one tensor with a leading example axis, so that examples get independent numbers at
the price of one op. The rules are registered through a TensorFlow module that is not public API;
`register()` raises a clear error if a future TensorFlow moves that module.
"""

import functools

import tensorflow as tf

from tfdp._compat.versions import borrowing

_SAMPLERS = ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2")
_GAMMAS = ("StatelessRandomGammaV3",)
_INTEGERS = ("StatelessRandomUniformIntV2",)


def _first(pfor_input, index):
    value = pfor_input.input(index)
    return value.t[0] if value.is_stacked else value.t


def _batched_shape(pfor_input):
    shape = pfor_input.unstacked_input(0)
    rows = tf.cast(tf.reshape(pfor_input.pfor.loop_len_vector, [1]), shape.dtype)
    return tf.concat([rows, shape], axis=0)


@functools.cache
def register() -> None:
    """Registers the rules once per process, except for ops that already have a rule."""
    with borrowing("rules for tf.vectorized_map, for random layers in the exact engine"):
        from tensorflow.python.ops.parallel_for.pfor import RegisterPFor, wrap

    def convert_sampler(name, pfor_input):
        op = getattr(tf.raw_ops, name)
        key, counter, alg = (_first(pfor_input, i) for i in (1, 2, 3))
        shape = _batched_shape(pfor_input)
        dtype = pfor_input.get_attr("dtype")
        return wrap(op(shape=shape, key=key, counter=counter, alg=alg, dtype=dtype), True)

    def convert_integers(name, pfor_input):
        op = getattr(tf.raw_ops, name)
        key, counter, alg, low, high = (_first(pfor_input, i) for i in (1, 2, 3, 4, 5))
        shape = _batched_shape(pfor_input)
        drawn = op(shape=shape, key=key, counter=counter, alg=alg, minval=low, maxval=high)
        return wrap(drawn, True)

    def convert_gamma(name, pfor_input):
        op = getattr(tf.raw_ops, name)
        key, counter, alg = (_first(pfor_input, i) for i in (1, 2, 3))
        alpha = pfor_input.unstacked_input(4)
        shape = _batched_shape(pfor_input)
        return wrap(op(shape=shape, key=key, counter=counter, alg=alg, alpha=alpha), True)

    def convert_key(pfor_input):
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_first(pfor_input, 0))
        rows = pfor_input.pfor.loop_len_vector[0]
        return (
            wrap(tf.broadcast_to(key, tf.stack([rows, 1])), True),
            wrap(tf.broadcast_to(counter, tf.stack([rows, 2])), True),
        )

    rules = {name: functools.partial(convert_sampler, name) for name in _SAMPLERS}
    rules |= {name: functools.partial(convert_integers, name) for name in _INTEGERS}
    rules |= {name: functools.partial(convert_gamma, name) for name in _GAMMAS}
    rules["StatelessRandomGetKeyCounter"] = convert_key
    for name, rule in rules.items():
        try:
            RegisterPFor(name)(rule)
        except (KeyError, ValueError):  # this version of TensorFlow has a rule of its own
            continue
