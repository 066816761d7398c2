"""Rules for layers with noisy weights: the mean's gradient is the gradient at the drawn kernel."""

from tfdp.gradients.rules import register
from tfdp.gradients.rules.conv import ConvRule
from tfdp.gradients.rules.dense import DenseRule
from tfdp.layers import noisy

register(noisy.NoisyDense)(DenseRule)
register(noisy.NoisyConv1D, noisy.NoisyConv2D, noisy.NoisyConv3D)(ConvRule)
