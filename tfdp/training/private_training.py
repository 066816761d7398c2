"""The mixin that makes the training of a Keras model private.

Formal guarantee: the weights change only by `DPKerasOptimizer.update`, once per lot, from one bounded
sum of gradients; every step is counted before it is computed, and a step beyond the budget is
refused. Anything that would train another way raises.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfdp._compat.replicas import build_symbolically_once
from tfdp._validate import whole
from tfdp.accounting.sampling import Unknown
from tfdp.data import Lots
from tfdp.data.arrays import common_length, in_floatx
from tfdp.data.batches import SourceBatches, to_evaluate
from tfdp.data.sources import is_source
from tfdp.training.building import build_for
from tfdp.training.checks import check_optimizer, refuse_mixing_layers, refuse_own_train_step
from tfdp.training.cost_of_batches import warn_of_cost
from tfdp.training.data_checks import check_rows
from tfdp.training.feed import Feed, feed_for
from tfdp.training.files import SavedWithLedger
from tfdp.training.machines import check_agreement, with_key
from tfdp.training.model_privacy import ModelPrivacy
from tfdp.training.position import Position
from tfdp.training.preparing import past_preparation, prepared, prepared_validation
from tfdp.training.replicas import check_replicas, evaluate_share
from tfdp.training.scales import warn_of_lost_examples, warn_of_scales
from tfdp.training.steering import check_callbacks
from tfdp.training.step import private_step
from tfdp.training.train_function import step_function
from tfdp.training.training import Training


class PrivateTraining(SavedWithLedger):
    """The methods that `make_private` adds to a Keras model: private `fit`, `train_on_batch`, files."""

    stop_training: bool  # of Keras

    # -- configuration ---------------------------------------------------------------------------

    @property
    def privacy(self) -> ModelPrivacy:
        """The privacy spent on the weights, their budget, ledger, statement and release."""
        if "_tfdp_privacy" not in vars(self):
            # `vars` avoids Keras' attribute tracking, because none of it may be saved.
            vars(self)["_tfdp_privacy"] = ModelPrivacy(self)
        return vars(self)["_tfdp_privacy"]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles as `keras.Model.compile` or the user's class does, and checks the optimizer."""
        with self.distribute_strategy.scope():  # type: ignore[attr-defined]  # of Keras
            super().compile(*args, **kwargs)  # type: ignore[misc]  # of the Keras class beside
        check_optimizer(self, self.optimizer)

    # -- entry points ----------------------------------------------------------------------------

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ) -> keras.callbacks.History:
        """Trains with differential privacy. The arguments are those of `keras.Model.fit`.

        From arrays and sources, every step draws a Poisson lot: an epoch has about as many examples as
        the data, but not each example once. With `shuffle="epoch"`, every example is in one random lot
        of each epoch, which costs about as much privacy. With `shuffle=False`, epochs go through the
        data in order, which costs far more. `tfdp.data.Lots`, or a dataset made from them, keep their
        own sampling scheme. Any other `tf.data.Dataset`, `keras.utils.PyDataset`, generator or
        iterable of batches is accounted without amplification by sampling. No batch may be larger than
        the first.

        Args:
            x, y, sample_weight: Arrays, a source, `Lots` or batches. Weights must be at least 0.
            batch_size: Nominal lot size for arrays and sources. None means 32.
            epochs, initial_epoch, steps_per_epoch: They plan the number of steps. All planned steps
                count, whatever ends the training.
            class_weight: As in Keras. It must be chosen without looking at the private labels.
            validation_data, validation_split: Held-out examples, which the guarantee does not protect.
            verbose, callbacks, shuffle, validation_steps, validation_batch_size, validation_freq: As in
                Keras. Callbacks that act on training metrics are refused.

        Returns:
            The `keras.callbacks.History` of the training.

        Raises:
            BudgetExhausted: If the next step would exceed a budget.
            ValueError: If the data, a layer, a callback or another argument cannot be used.
        """
        _check_numbers_of_validation(validation_steps, validation_batch_size, validation_freq)
        feed = self._feed(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            shuffle=shuffle,
            class_weight=class_weight,
            validation_split=validation_split,
            validation_data=prepared_validation(self, validation_data),
            validation_batch_size=validation_batch_size,
            steps_per_epoch=steps_per_epoch,
        )
        backup, flat = check_callbacks(callbacks, self.optimizer, feed.holds_out)
        warn_of_cost(self, x, feed, epochs - initial_epoch, flat)
        warn_of_scales(self, feed, class_weight)
        feed = with_key(self, feed)
        account, start = self.privacy.account, Position(initial_epoch, until=epochs)
        safe = contextlib.nullcontext(start)
        if backup is not None:
            safe = backup.attached(self, account, feed, start)
        with safe as position:
            check_agreement(self, feed, position)
            feed = feed.at(position, account.next_turn, self)
            with self._training(feed, position, epochs, backup) as training:
                history = past_preparation(self, PrivateTraining, "fit")(
                    feed.dataset if feed.adapter is None else feed.adapter,
                    shuffle=False,  # the lots are drawn already
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=feed.validation_data,
                    initial_epoch=position.epoch,
                    steps_per_epoch=feed.steps_per_epoch,
                    validation_steps=validation_steps,
                    validation_batch_size=validation_batch_size or batch_size,
                    validation_freq=validation_freq,
                )
                training.end(self.stop_training)
            warn_of_lost_examples(self)
            return history if backup is None else backup.with_earlier_epochs(history)

    def _feed(self, x, y, sample_weight, **arguments):
        """Returns the feed of a `fit` or a loop, with the arguments of `feed_for`."""
        check_optimizer(self, getattr(self, "optimizer", None))
        self._refuse_nested()
        x, y, sample_weight = prepared(self, x, y, sample_weight)
        feed = feed_for(self, x, y, sample_weight=sample_weight, **arguments)
        build_for(self, feed.inputs)
        self._maybe_symbolic_build(data_batch=feed.spec)
        return feed

    @contextlib.contextmanager
    def _training(self, feed, *arguments):
        """Context of a training, whose steps `train_function` may take; arguments as in `Training`."""
        account = self.privacy.account
        self._refuse_nested()
        check_optimizer(self, self.optimizer)
        refuse_own_train_step(self, PrivateTraining)
        self.optimizer.check_class()
        refuse_mixing_layers(self, self.privacy.public_preprocessing)
        check_replicas(self)
        training = account.training = Training(self, account, feed, *arguments)
        try:
            with _causes_of(feed.lots, feed.validation_data):
                yield training
        finally:
            account.training = None
            training.close()

    def evaluate(self, x=None, y=None, batch_size=None, *args, **kwargs) -> Any:
        """Evaluates as in Keras. `x` may also be a source of examples (`tfdp.data.as_source`)."""
        with self._reading("evaluate", x, batch_size, y) as (evaluate, x):
            return evaluate(x, y, batch_size, *args, **kwargs)

    def predict(self, x, batch_size=None, *args, **kwargs) -> Any:
        """Predicts as in Keras. `x` may also be a source of examples (`tfdp.data.as_source`)."""
        with self._reading("predict", x, batch_size) as (predict, x):
            return predict(x, batch_size, *args, **kwargs)

    @contextlib.contextmanager
    def _reading(self, name, x, batch_size, y=None):
        """Context that gives the method of Keras with this name, and data that it can read."""
        method = getattr(super(), name)
        if is_source(x):  # whose examples are prepared here
            x, method = prepared(self, x)[0], past_preparation(self, PrivateTraining, name)
        x = to_evaluate(x, batch_size, y)
        with _causes_of(x):
            yield method, x

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs) -> Any:
        """Takes one private step on one batch, as in Keras.

        It is accounted without amplification by sampling, since nothing is known about how the batch
        was drawn. In loops over your data, use `privacy.steps`, which draws lots.

        Args:
            x, y, sample_weight: Arrays of one batch.
            **kwargs: Further arguments of `keras.Model.train_on_batch`.
        """
        x, y, sample_weight = in_floatx(prepared(self, x, y, sample_weight))
        lot_size = common_length(x, y)
        build_for(self, x)
        check_rows(self, x, y)
        feed = Feed(
            Unknown(num_examples=lot_size, lot_size=lot_size),
            steps=1,
            physical_batch_size=self.privacy.physical_batch_size,
        )
        self._maybe_symbolic_build(data_batch=(x, y, sample_weight))
        feed = with_key(self, feed)
        check_agreement(self, feed, Position(), (x, y, sample_weight))
        with self._training(feed):
            train_on_batch = past_preparation(self, PrivateTraining, "train_on_batch")
            return train_on_batch(x, y, sample_weight=sample_weight, **kwargs)

    def _refuse_nested(self):
        running = self.privacy.account.training
        if running is not None:
            raise RuntimeError(
                f"Another training of these weights, by model '{running.model.name}', has not ended: a "
                "running fit(), or an iterator of privacy.steps() that was not exhausted. End it first "
                "(iterator.close()), and do not train from callbacks or other threads."
            )

    # -- the step --------------------------------------------------------------------------------

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        build_symbolically_once(self, iterator, data_batch)

    def test_step(self, data):
        """Runs `test_step` of Keras or of the user's class, also on a replica without rows."""
        return evaluate_share(self, super().test_step, data)

    def make_train_function(self, force=False):
        """Makes the function that Keras calls to take steps, which authorizes the steps first."""
        if self.train_function is not None and not force:
            return
        take = step_function(self)

        def train_function(iterator):
            return self._running_training().execute(iterator, take)

        self.train_function = train_function

    def _running_training(self) -> Training:
        training = self.privacy.account.training
        if training is None or training.model is not self:
            raise RuntimeError(
                "A training step ran outside of fit(), train_on_batch() and privacy.steps(), so it is "
                "unknown how its lot was drawn. Write custom loops with privacy.steps(...)."
            )
        return training

    def train_step(self, data):
        """Takes one private step on one lot. Raises RuntimeError outside of a training."""
        privacy = self.privacy
        self._running_training()
        # Checked again for each trace, since a callback may have unfrozen a layer.
        with tf.init_scope():  # the check reads values of layers, which a trace cannot
            refuse_mixing_layers(self, privacy.public_preprocessing)
        session = privacy.account.session
        with session.step():
            return private_step(self, session, data, privacy.engine, privacy.collected)


@contextlib.contextmanager
def _causes_of(*data):
    """Context that raises the original exception of a source in place of TensorFlow's error."""
    try:
        yield
    except tf.errors.OpError as error:
        for each in data:
            if isinstance(each, Lots | SourceBatches) and each.cause_of(error) is not error:
                raise each.cause_of(error) from None
        raise


def _check_numbers_of_validation(steps, batch_size, frequency):
    """Checks arguments of `fit` that Keras uses after the first epoch."""
    whole("validation_batch_size", batch_size, 1, optional=True)
    whole("validation_steps", steps, 1, optional=True)
    if not isinstance(frequency, list | tuple | set):  # a collection lists the epochs
        whole("validation_freq", frequency, 1)
