"""Callbacks of a resumed training, which see only the steps that are taken.

Keras calls its function for every step of the epoch in which a training resumes. Those that an earlier
process took are passed by, and have no logs.
"""

import keras


class _Passing(keras.callbacks.CallbackList):
    """Callbacks that are not called for steps that are passed by.

    For an epoch whose steps are all passed by, only its beginning is called.
    """

    _quiet = _took_steps = False

    def __init__(self, callbacks, backup, training, **params):
        self._backup, self._training = backup, training
        super().__init__(callbacks, **params)

    def on_epoch_begin(self, epoch, logs=None):
        self._took_steps = False
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._took_steps:
            super().on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self._quiet = 0 < self._training.next_steps <= self._backup.behind
        if not self._quiet:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if not self._quiet:
            self._took_steps = True
            super().on_train_batch_end(batch, logs)


def past_steps_behind(callbacks, model, backup, training, **params):
    """The callbacks of a fit that begins at a place, which see only steps that are taken.

    Args:
        callbacks: a list of callbacks, or a `CallbackList`.
        model: a private model.
        backup: the backup among the callbacks, or None.
        training: the `Training`, for its `next_steps`.
        **params: what Keras tells callbacks.
    """
    if backup is None or not backup.behind:
        return callbacks
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks, params = callbacks.callbacks, callbacks.params
    else:
        params |= {"add_history": True, "add_progbar": params["verbose"] != 0}
    return _Passing(callbacks, backup, training, model=model, **params)
