"""Differentially private discrete SGD: encoded gradients, noise of any family, denoising.

Nasr, Shokri, Houmansadr 2020, Algorithm 1. Formal guarantee: an update depends on the lot's gradients
only through a sum of encoded (or clipped) gradients plus one fresh draw of noise. The bound on single
entries makes non-Gaussian noise accountable (`accounting.encoded_steps`). Denoising and the update rule
are post-processing.
"""

import functools
import math
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np

from tfdp._validate import flag, one_of, refuse
from tfdp.accounting.encoding import USUAL_DEGREES_OF_FREEDOM, USUAL_NOISE, Encoding
from tfdp.accounting.mechanisms import DiscreteSGD
from tfdp.gradients.encoding import Codebook, EncodedBound, Encoder
from tfdp.noise.denoising import denoise as denoised
from tfdp.noise.families import NoiseFamily
from tfdp.optimizers.arguments import DiscreteArguments, Rate
from tfdp.optimizers.dp_keras_optimizer import DPKerasOptimizer
from tfdp.optimizers.factory import make_class

# With these kinds of clipping, the clipped gradient has norm at most C, even if its scale depends on
# private data.
_CLIPPINGS = ("global", "per_layer", "automatic")

# A run is planned and trained by different optimizer objects; the cache gives both the same codebook.
_drawn_codebook = functools.lru_cache(maxsize=4)(Codebook.gaussian)


class DiscreteOptimizer(DPKerasOptimizer):
    """Base class of discrete SGD; `make_discrete_optimizer_class` adds a Keras update rule.

    Each example's gradient is encoded: its entries are cut at those of a vector of a public codebook.
    Noise of any family is added to the sum over the lot, the noisy sum is denoised, and Keras' update
    rule gets the mean (Nasr, Shokri and Houmansadr 2020, "Improving Deep Learning with Differential
    Privacy using Gradient Encoding and Denoising", Algorithm 1). Use it for noise that is not
    Gaussian, or to reproduce the paper.

    With Poisson lots of single examples, the guarantee is proven for every family of noise, with
    encoding or without it (a clipped gradient is a point of the unit ball, and the accounting assumes
    the worst point). Gaussian noise is accounted as in DP-SGD, for all lots.

    Args:
        noise_multiplier: z >= 0, the scale of the noise on the sum, in units of C; it is the standard
            deviation only for Gaussian noise. Or a sequence with one number for each step, which
            limits the number of steps.
        noise: Family of the noise: "gaussian", "student_t", "laplace", "sech", "variance_gamma" or
            "cauchy".
        degrees_of_freedom: Degrees of freedom of student_t, above 0; None takes 9, as in the paper.
            It must be None for the other families.
        encode: Whether gradients are encoded rather than clipped to `l2_norm_clip`.
        denoise: Whether the noisy sum is scaled by its Kolmogorov-Smirnov distance from the noise.
            The factor is at most 1, and small where noise prevails; a larger learning rate
            compensates.
        codebook_size: Number of vectors of the codebook.
        zero_below: Entries of the vectors with magnitudes below this become zero, before a vector is
            scaled to norm 1.
        codebook_seed: Public seed with which the vectors are drawn from the standard Gaussian.
        codebook: Array [vectors, weights] of your own vectors, instead of drawn ones. They are scaled
            to norm 1.
        private_codebook: Whether your vectors were fitted to private gradients. No finite epsilon is
            proven then.
        clipping: "global", "per_layer" or "automatic", as in DP-SGD; with `encode`, only "global".
        *args, **kwargs: Arguments of the Keras optimizer and of `DPKerasOptimizer`.

    Raises:
        ValueError: If an argument is invalid, or `clipping` is not "global" with `encode`.
    """

    mechanism = DiscreteSGD
    title = "discrete SGD (encoded gradients)"
    refused = (
        *DPKerasOptimizer.refused,
        "target_quantile",
        "quantile_learning_rate",
        "quantile_noise_multiplier",
    )

    accounted = (*DPKerasOptimizer.accounted, "family", "encode", "private_codebook")

    def __init__(
        self,
        *args,
        noise: str = USUAL_NOISE,
        degrees_of_freedom: float | None = None,
        encode: bool = True,
        denoise: bool = True,
        codebook_size: int = 1000,
        zero_below: float = 1e-5,
        codebook_seed: int = 0,
        codebook: np.ndarray | None = None,
        private_codebook: bool = False,
        **kwargs,
    ):
        if noise == "student_t" and degrees_of_freedom is None:
            degrees_of_freedom = USUAL_DEGREES_OF_FREEDOM
        family = NoiseFamily(noise, degrees_of_freedom)
        clipping = kwargs.get("clipping", "global")
        if encode and clipping != "global":
            remedy = "Encoding replaces clipping. Remove the argument, or pass encode=False."
            refuse("clipping", "'global' with encode=True", clipping, remedy)
        one_of("clipping", clipping, _CLIPPINGS)
        given = None if codebook is None else Codebook.of(codebook)
        super().__init__(*args, **kwargs)
        self.family = family
        self.encode = flag("encode", encode)
        self.denoise = flag("denoise", denoise)
        self.codebook_size = codebook_size
        self.zero_below = zero_below
        self.codebook_seed = codebook_seed
        self.private_codebook = flag("private_codebook", private_codebook)
        self._given = given  # a plain object, which Keras neither tracks nor saves
        self._encoder: Encoder | None = None

    def _encoder_for(self, variables) -> Encoder:
        """The encoder of gradients with respect to `variables`."""
        count = sum(math.prod(v.shape) for v in variables)
        if self._encoder is not None and self._encoder.codebook.num_weights == count:
            return self._encoder
        codebook = self._given or _drawn_codebook(
            self.codebook_size, count, zero_below=self.zero_below, seed=self.codebook_seed
        )
        if codebook.num_weights != count:
            raise ValueError(
                f"The vectors of the codebook have {codebook.num_weights} entries, but the model "
                f"has {count} trainable weights. Pass vectors with one entry for each weight."
            )
        self._encoder = encoder = Encoder(codebook, self.l2_norm_clip)
        return encoder

    def bound(self, variables, l2_norm_clip=None):
        if not self.encode:
            return super().bound(variables, l2_norm_clip)
        clip = self.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
        return EncodedBound(clip, encoder=self._encoder_for(variables))

    def mechanism_fields(self, variables) -> dict:
        # Without encoding, a clipped gradient is in the box below some vector of the unit ball, whose
        # entries are at most 1.
        largest = 1.0
        if self.encode:
            largest = self._encoder_for(variables).codebook.largest_entry
        encoding = Encoding(
            noise=self.family.name,
            degrees_of_freedom=self.family.degrees_of_freedom,
            num_weights=sum(math.prod(v.shape) for v in variables),
            largest_entry=largest,
            private_codebook=self.encode and self.private_codebook,
        )
        return super().mechanism_fields(variables) | {"encoding": encoding}

    def add_noise(self, bounded, session):
        """Adds noise to the bounded sums, and denoises them if `denoise` is set."""
        shapes = [total.shape for total in bounded.sums]
        scale = self._stddev(session.value("noise_multiplier"), bounded, session)
        encoding = session.run.mechanism.encoding
        family = NoiseFamily(encoding.noise, encoding.degrees_of_freedom)
        noise = family.sample(self._noise, session.place, scale, shapes)
        sums = [total + draw for total, draw in zip(bounded.sums, noise, strict=True)]
        # Denoising divides by the scale of the noise, so it needs noise.
        if self.denoise and np.min(session.run.mechanism.noise_multiplier) > 0:
            sums = denoised(sums, family, scale)
        return sums, family.standard_deviation(scale)

    def get_config(self):
        return super().get_config() | {
            "noise": self.family.name,
            "degrees_of_freedom": self.family.degrees_of_freedom,
            "encode": self.encode,
            "denoise": self.denoise,
            "codebook_size": self.codebook_size,
            "zero_below": self.zero_below,
            "codebook_seed": self.codebook_seed,
            "codebook": None if self._given is None else self._given.vectors().tolist(),
            "private_codebook": self.private_codebook,
        }


def make_discrete_optimizer_class(base: type) -> type[DPKerasOptimizer]:
    """Creates an optimizer class that trains by discrete SGD with the update rule of a Keras optimizer.

    The class is called `Discrete<Base>Optimizer` and is registered for serialization under this name,
    as with `make_dp_optimizer_class`. `DiscreteSGDOptimizer` lists its arguments.

    Args:
        base: A subclass of `keras.optimizers.Optimizer`.

    Returns:
        The class.

    Raises:
        TypeError: If `base` is not such a class, or is already private.

    Example:
        >>> import keras, tfdp
        >>> DiscreteAdam = tfdp.optimizers.make_discrete_optimizer_class(keras.optimizers.Adam)
        >>> optimizer = DiscreteAdam(l2_norm_clip=1.0, noise_multiplier=2.0, noise="laplace")
        >>> optimizer.family
        NoiseFamily(name='laplace', degrees_of_freedom=None)
    """
    return make_class(DiscreteOptimizer, base, "Discrete{}Optimizer")


if TYPE_CHECKING:

    class DiscreteSGDOptimizer(DiscreteOptimizer, keras.optimizers.SGD):
        def __init__(
            self,
            learning_rate: Rate = 0.01,
            momentum: float = 0.0,
            nesterov: bool = False,
            *,
            noise: str = USUAL_NOISE,
            degrees_of_freedom: float | None = None,
            encode: bool = True,
            denoise: bool = True,
            codebook_size: int = 1000,
            zero_below: float = 1e-5,
            codebook_seed: int = 0,
            codebook: np.ndarray | None = None,
            private_codebook: bool = False,
            **kwargs: Unpack[DiscreteArguments],
        ): ...

else:
    DiscreteSGDOptimizer = make_discrete_optimizer_class(keras.optimizers.SGD)
