"""Classifiers of rows of token ids."""

from keras import initializers, layers, ops

from tfdp.layers import NormalizedLSTM
from tfdp.models import NUM_TOKENS
from tfdp.models.blocks import EPSILON, block, through

_WIDTH = 64
_HEADS = 4
_BLOCKS = 2


def bilstm(inputs, num_classes, activation):
    """Makes embeddings of width 64, a bidirectional LSTM of 64 units each way, and a dense layer of 64.

    Padding (id 0) is masked. It has 714,954 weights for 10,000 tokens and ten classes.
    """
    x = layers.Embedding(NUM_TOKENS, _WIDTH, mask_zero=True, name="embedding")(inputs)
    x = layers.Bidirectional(layers.LSTM(_WIDTH, name="lstm"), name="bilstm")(x)
    x = layers.Dense(64, activation=activation, name="dense_1")(x)
    return layers.Dense(num_classes, name="logits")(x)


def bilstm_dl(inputs, num_classes, normalization, activation, output_normalization):
    """Makes frozen embeddings of width 100, a bidirectional LSTM of 32 units each way, and logits.

    "BiLSTM-DL" in SI-DPSGD, Table 3, where texts have 20 tokens. The embeddings are drawn from
    N(0, 0.4^2), about as wide as GloVe's, and are not trained; public vectors may be assigned to the
    layer "embedding". Padding (id 0) is masked. 34,308 trainable weights for four classes.

    With normalization "layer" or "layer_affine", and with normalized logits, this is LN-BiLSTM-DL.
    Its LSTM is a `NormalizedLSTM`, without or with a scale and an offset for each of its
    normalizations, which has 34,052 or 35,204 trainable weights. Normalized logits have neither
    scale nor offset.
    """
    del activation  # the LSTM has its own
    if normalization == "none":
        lstm = layers.LSTM(32, name="lstm")
    else:
        affine = normalization == "layer_affine"
        lstm = NormalizedLSTM(32, affine=affine, epsilon=EPSILON, name="lstm")
    spread = initializers.RandomNormal(stddev=0.4)
    embedding = layers.Embedding(
        NUM_TOKENS, 100, spread, mask_zero=True, trainable=False, name="embedding"
    )
    x = layers.Bidirectional(lstm, name="bilstm")(embedding(inputs))
    logits = layers.Dense(num_classes, name="logits")
    return through(block(logits, "none" if output_normalization == "none" else "layer"), x)


def transformer(inputs, num_classes, activation):
    """Makes a Transformer: two blocks of four-headed attention (width 64) and dense layers of 128.

    Positions are learned. Layer normalization comes before attention and before the dense layers
    (Xiong et al. 2020), so that training needs no warm-up. The logits are computed from the mean over
    tokens. Padding (id 0) is a token like any other.
    It has 711,818 weights for rows of 64 tokens out of 10,000, and ten classes.
    """
    length = inputs.shape[1]
    # The positions are computed from the inputs, because a functional model lacks a layer that is
    # called on constants only.
    positions = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    x = layers.Embedding(NUM_TOKENS, _WIDTH, name="embedding")(inputs)
    x = layers.Add(name="embed")([x, layers.Embedding(length, _WIDTH, name="position")(positions)])
    for number in range(1, _BLOCKS + 1):
        x = _block(x, activation, f"block_{number}")
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return layers.Dense(num_classes, name="logits")(x)


def _block(x, activation, name):
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_1")(x)
    attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, name=f"{name}_attention")
    x = layers.Add(name=f"{name}_add_1")([x, attention(y, y)])
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_2")(x)
    y = layers.Dense(2 * _WIDTH, activation=activation, name=f"{name}_dense_1")(y)
    y = layers.Dense(_WIDTH, name=f"{name}_dense_2")(y)
    return layers.Add(name=f"{name}_add_2")([x, y])
