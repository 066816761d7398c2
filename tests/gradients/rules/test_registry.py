"""The registry finds rules for layers that have nothing of their own, and a wrong rule is noticed."""

import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients import rules
from tfdp.gradients.rules import Instantiated, Rule, register, rule_for
from tfdp.gradients.testing import check_rule


class Scale(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:])

    def call(self, inputs):
        return inputs * self.factor


class ScaleRule(Rule):
    def variables(self):
        return [self.layer.factor]

    def call(self, record, inputs):
        return record(inputs * self.layer.factor, inputs=inputs)

    def gradients(self, calls):
        (call,) = calls
        return [(self.layer.factor, Instantiated(call.gradient * call["inputs"]))]


class WrongRule(ScaleRule):
    def gradients(self, calls):
        (call,) = calls
        inputs = tf.roll(call["inputs"], 1, axis=0)
        return [(self.layer.factor, Instantiated(call.gradient * inputs))]


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(rules, "_REGISTRY", dict(rules._REGISTRY))


def test_a_rule_of_ones_own(registry):
    assert rule_for(Scale()) is None
    register(Scale)(ScaleRule)
    check_rule(Scale(), (7,))


def test_a_wrong_rule_is_noticed(registry):
    register(Scale)(WrongRule)
    with pytest.raises(AssertionError, match="relative difference"):
        check_rule(Scale(), (7,))


def test_a_subclass_with_a_call_of_its_own_has_no_rule():
    class Doubled(layers.Dense):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    assert rule_for(Doubled(3)) is None
    with pytest.raises(AssertionError, match="Doubled"):
        check_rule(Doubled(3), (4,))


def test_an_instance_with_a_call_of_its_own_has_no_rule():
    layer = layers.Dense(3)
    assert rule_for(layer) is not None
    object.__setattr__(layer, "call", lambda inputs: inputs)
    assert rule_for(layer) is None


def test_batch_normalization_has_no_rule():
    assert rule_for(layers.BatchNormalization()) is None
