"""Makes every model of Keras' tests private at `compile`, as a user of these tests would by hand.

What a user would write by hand is this, and nothing more is done:

* `model = tfdp.make_private(model)` before `model.compile`.
* The private optimizer of the same class with the same arguments, noise multiplier 0 and a clip norm
  that no gradient of a test reaches, instead of the plain one. The optimizer object of the test turns
  into the private one, since some tests look at it later; `compile(optimizer=None)` and
  `compile("sgd")` get one of their own. Without noise nothing random is added, so that the numbers that
  tests expect can be compared.
* `fit(..., shuffle=False)` instead of the default for arrays, so that the lots are the batches of plain
  Keras in the given order. Poisson lots have random sizes, which no test of plain Keras expects.

Formal guarantee: none, of course; without noise nothing is private.
"""

import contextlib
import functools
from unittest import mock

import keras
from keras.src.trainers.trainer import Trainer

import tfdp
from tfdp.training.private_training import PrivateTraining

# Gradients in the tests are far below.
_CLIP_NORM = 1e9


@contextlib.contextmanager
def private_models():
    """Context manager in which every call of `compile` makes its model private."""
    with (
        mock.patch.object(Trainer, "compile", _private_compile(Trainer.compile)),
        mock.patch.object(PrivateTraining, "compile", _compile_again(PrivateTraining.compile)),
        mock.patch.object(PrivateTraining, "fit", _in_order(PrivateTraining.fit)),
    ):
        yield


def _private_compile(plain_compile):
    @functools.wraps(plain_compile)
    def compile(self, *args, **kwargs):
        if isinstance(self, PrivateTraining):
            return plain_compile(self, *args, **kwargs)
        return tfdp.make_private(self).compile(*args, **kwargs)

    return compile


def _compile_again(private_compile):
    """`compile` of a model that is private already, with a plain optimizer."""

    @functools.wraps(private_compile)
    def compile(self, optimizer="rmsprop", *args, **kwargs):
        return private_compile(self, private_optimizer(optimizer), *args, **kwargs)

    return compile


def private_optimizer(optimizer):
    """Returns the private optimizer of the same class with the same arguments.

    Args:
        optimizer: what `compile` takes. An optimizer object turns into the private one.
    """
    optimizer = keras.optimizers.get(optimizer)
    if optimizer is None or isinstance(optimizer, tfdp.DPKerasOptimizer):
        return optimizer
    kind = tfdp.make_dp_optimizer_class(type(optimizer))
    made = kind(
        l2_norm_clip=_CLIP_NORM,
        noise_multiplier=0.0,
        **_arguments(optimizer, optimizer.get_config()),
    )
    own = {name: value for name, value in vars(made).items() if name not in vars(optimizer)}
    optimizer.__class__ = kind
    for name, value in own.items():
        # Not by assignment: Keras would track what these attributes hold a second time.
        object.__setattr__(optimizer, name, value)
    return optimizer


def _arguments(optimizer, config):
    rate = config.get("learning_rate")
    if isinstance(rate, dict):
        config["learning_rate"] = optimizer._learning_rate
    return config


def _in_order(plain_fit):
    @functools.wraps(plain_fit)
    def fit(self, *args, **kwargs):
        return plain_fit(self, *args, **kwargs | {"shuffle": False})

    return fit
