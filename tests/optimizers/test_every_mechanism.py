"""Every mechanism passes the suite of whole training steps."""

import pathlib
import re

import tensorflow as tf

from tests.optimizers.step_suite import CLIP, StepSuite, clipped_by_layer, flat
from tfdp.accounting import Strategy
from tfdp.gradients.encoding import Codebook, Encoder
from tfdp.optimizers import MECHANISMS


class TestDPSGD(StepSuite):
    mechanism = "dpsgd"
    physical_batch_size = 4


class TestSIDPSGD(StepSuite):
    mechanism = "si_dpsgd"


class TestMatrix(StepSuite):
    mechanism = "matrix"
    settings = {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5))}


class TestDPDropout(StepSuite):
    mechanism = "dp_dropout"
    settings = {"clipping": "each_layer", "learning_rate_exponent": 0.0}
    step_over_rate = 0.5

    def bounded(self, gradients):
        return clipped_by_layer(gradients)


class TestSGLD(StepSuite):
    mechanism = "sgld"
    # With so many examples, Langevin noise is negligible beside the private noise.
    settings = {"clipping": "each_layer", "learning_rate_exponent": 0.0, "num_examples": 10**18}
    step_over_rate = 0.5

    def bounded(self, gradients):
        return clipped_by_layer(gradients)


class TestDiscreteSGD(StepSuite):
    mechanism = "discrete_sgd"
    settings = {"noise": "gaussian", "denoise": False, "codebook_size": 10}
    attains_the_bound = False

    def bounded(self, gradients):
        whole = flat(gradients)
        encoder = Encoder(Codebook.gaussian(10, len(whole)), CLIP)
        return encoder.encode(tf.constant(whole[None])).numpy()[0]


def test_no_mechanism_is_left_out():
    """The subclass of a new mechanism may be in a test module of its own."""
    covered = set()
    for path in pathlib.Path(__file__).parents[1].rglob("test_*.py"):
        covered |= {*re.findall(r'\(StepSuite\):\n    mechanism = "(\w+)"', path.read_text())}
    assert covered == set(MECHANISMS)
