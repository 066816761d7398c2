"""What goes around Keras with several replicas. Strategies of one replica show what they can."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, plain

from tfdp._compat import replicas
from tfdp._compat.keras import TFDatasetAdapter


class Strange:
    """A strategy of two machines that reduces as TensorFlow does."""

    num_replicas_in_sync = 2

    class extended:
        worker_devices = ("CPU:0",)

    def reduce(self, how, value, axis):
        if axis is not None and not value.shape.rank:
            raise ValueError("axis=0 of a scalar")
        return tf.reduce_mean([value, 3 * value], axis=0)


def test_scalar_logs_of_several_machines_are_reduced():
    from keras.src.backend.tensorflow import trainer

    logs = {"loss": tf.constant(1.0)}
    assert float(trainer.reduce_per_replica(logs, Strange(), "auto")["loss"]) == 2.0


def test_one_machine_has_its_devices():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    assert replicas.number_of_machines(mirrored) == 1
    assert replicas.number_of_machines(Strange()) == 2
    assert not replicas.several_machines(tf.distribute.get_strategy())


@pytest.mark.parametrize("metrics", [None, ["accuracy"]])
def test_metrics_are_built_without_reading_a_batch(metrics):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = plain()
        model.compile("sgd", LOSS, metrics=metrics)
    x, y = data(8)
    spec = tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None,), tf.int64)
    replicas.build_symbolically_once(model, data_batch=spec)
    replicas.build_symbolically_once(model, iterator=None)  # nothing is left to build
    assert model.optimizer.built and np.isfinite(model.evaluate(x, y, verbose=0)).all()
    assert isinstance(keras.tree.flatten(model.metrics)[0], keras.metrics.Mean)


def test_an_adapter_gives_keras_a_distributed_dataset_as_it_is():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    made = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(3))
    assert TFDatasetAdapter(made).get_tf_dataset() is made
