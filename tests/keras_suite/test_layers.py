"""Private gradients of Keras' layers are those of each example alone: a short form, and all cases."""

import keras
import numpy as np
import pytest

from tests.keras_suite import layers, layers_cases, layers_expected, layers_gradients
from tfdp.gradients.rules import Instantiated, Rule, register

# One case of every kind of layer.
SHORT = [
    "activations/relu_test.py::ReLUTest::test_relu#0",
    "convolutional/conv_test.py::ConvBasicTest::test_conv3d_basic1#0",
    "core/dense_test.py::DenseTest::test_quantize_dtype_argument_int8#0",
    "core/einsum_dense_test.py::EinsumDenseTest::test_einsum_dense_basics_3d_2_bias#0",
    "core/embedding_test.py::EmbeddingTest::test_embedding_basics#0",
    "merging/merging_test.py::MergingLayersTest::test_sparse_dot_2d#0",
    "normalization/batch_normalization_test.py::BatchNormalizationTest::test_bn_basics#0",
    "preprocessing/image_preprocessing/random_grayscale_test.py::RandomGrayscaleTest::test_layer#0",
    "regularization/dropout_test.py::DropoutTest::test_dropout_basics#0",
    "rnn/gru_test.py::GRUTest::test_basics#0",
]


def case_named(name):
    cases = layers_cases.cases_of(name.partition("::")[0])
    found = [case for case in cases if case.name == name]
    if not found and keras.__version__ != layers_expected.load().keras:
        pytest.skip(f"Keras {keras.__version__} has no case {name}")
    return found[0]


@pytest.mark.parametrize("name", SHORT)
def test_one_layer_of_every_kind(name):
    case = case_named(name)
    assert layers_expected.load().complaint(case, layers_gradients.check(case)) is None


@pytest.mark.slow
@pytest.mark.parametrize("file", layers_cases.files())
def test_all_cases(file):
    _, complaints = layers.run([f"{file}::"])
    assert not complaints, "\n".join(complaints)


# -- the list and the page ---------------------------------------------------------------------------


def test_every_group_has_a_reason():
    for group in layers_expected.load().groups:
        assert group["kind"] in layers_expected.KINDS[1:]
        assert group["reason"].endswith(".") and len(group["reason"].split()) > 5
        assert group["cases"]


def test_the_counts_on_the_page_are_those_of_the_list():
    listed = layers_expected.load()
    if keras.__version__ != listed.keras:
        pytest.skip(f"the page counts the cases of Keras {listed.keras}")
    cases = [case for file in layers_cases.files() for case in layers_cases.cases_of(file)]
    assert listed.stale(cases, layers_cases.files()) == []
    kinds = {case.name: listed.kind_of(case) for case in cases}
    assert layers_expected.table(kinds, listed.keras) == layers_expected.written()


# -- the check notices what is wrong -----------------------------------------------------------------


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.factor


@register(Scale)
class WrongRule(Rule):
    """Reports half of the gradient."""

    def variables(self):
        return [self.layer.factor]

    def call(self, record, inputs):
        return record(inputs * self.layer.factor, inputs=inputs)

    def gradients(self, calls):
        (call,) = calls
        return [(self.layer.factor, Instantiated(0.5 * call.gradient * call["inputs"]))]


class Mixing(keras.layers.Layer):
    """Random, and each row gets a part of the others: what the check of random layers has to find."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(0)

    def call(self, inputs):
        drawn = keras.random.uniform(keras.ops.shape(inputs), seed=self.seed_generator)
        return inputs * drawn + keras.ops.mean(inputs, axis=0, keepdims=True)


def own_case(layer_class):
    return layers_cases.Case("own::case#0", layer_class, {}, {"input_shape": (2, 3)})


def test_a_wrong_gradient_is_wrong():
    found = layers_gradients.check(own_case(Scale), engines=("auto",))
    assert found.kind == "wrong"
    assert layers_gradients.check(own_case(Scale), engines=("vectorized",)).kind == "equal"


def test_mixed_rows_are_wrong(monkeypatch):
    found = layers_gradients.check(own_case(Mixing), engines=("auto",))
    assert found.kind == "random"  # the engine runs each row alone
    monkeypatch.setattr("tfdp.gradients.engines.ghost.rows_are_separate", lambda *_: True)
    assert layers_gradients.check(own_case(Mixing), engines=("auto",)).kind == "wrong"


def test_an_error_of_tensorflow_is_no_refusal():
    def error_of(function):
        try:
            function()
        except Exception as error:
            return error

    assert not layers_gradients.is_sentence(error_of(lambda: np.zeros(2) @ np.zeros(3)))
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    refusal = error_of(lambda: layers_gradients.tfdp.make_private(model))
    assert layers_gradients.is_sentence(refusal)


def test_a_changed_case_is_red():
    case = case_named("core/dense_test.py::DenseTest::test_dense_basics#0")
    listed = layers_expected.Listed(keras.__version__, [])
    assert listed.complaint(case, layers_gradients.Outcome("equal")) is None
    assert "found refused" in listed.complaint(case, layers_gradients.Outcome("refused"))
    group = {"kind": "refused", "reason": "", "layers": ["Dense"], "cases": [case.name]}
    listed = layers_expected.Listed(keras.__version__, [group])
    assert "found equal" in listed.complaint(case, layers_gradients.Outcome("equal"))
    gone = layers_expected.Listed(keras.__version__, [group | {"cases": [case.name + "1"]}])
    assert gone.stale([case], ["core/dense_test.py"]) == [case.name + "1"]
    other = layers_expected.Listed("3.0.0", [group | {"cases": []}])
    assert other.complaint(case, layers_gradients.Outcome("refused")) is None
