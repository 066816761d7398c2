"""The settings of texts: how words become numbers, and what is known of their vectors.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses

from tfdp.experiments.conditions import DRAWN_EMBEDDINGS, WORD_MODELS
from tfdp.experiments.setting import WORDS, Need, setting

_WORDS = Need(
    "model", tuple(WORD_MODELS), said=" or ".join(f"--model={name}" for name in WORD_MODELS)
)
_DRAWN = Need("embeddings", DRAWN_EMBEDDINGS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordSettings:
    """The fields of `Experiment` that only models of words use."""

    text_features: str | None = setting(
        None,
        "The features that are joined to one text, such as title,description; without it those that "
        "are usual, or the only one.",
        group=WORDS,
        needs=(_WORDS,),
    )
    vocabulary: str | None = setting(
        None,
        "A file of words, one in each line, from PUBLIC text; words that are not in it share one "
        "vector. Without it every word has one of --vocabulary_size buckets, by a fixed public hash. "
        "Nothing is ever taken from the private text.",
        group=WORDS,
        needs=(_WORDS, _DRAWN),
    )
    vocabulary_size: int | None = setting(
        None,
        "How many ids the hash has, without it 10,000; of a file, how many words are used, without it "
        "all. Padding and unknown words come on top of a file's words.",
        group=WORDS,
        at_least=2,
        needs=(_WORDS,),
    )
    sequence_length: int = setting(
        64,
        "How many words of a text are used; shorter ones are padded. The papers have 20 and 64.",
        group=WORDS,
        at_least=1,
        needs=(_WORDS,),
    )
    embeddings: str = setting(
        "trained",
        "The vectors of the words: trained, from random ones; frozen at random ones; or a file of "
        "public vectors in GloVe's text format, frozen, whose words are the vocabulary and where a "
        "word that is not in it has a vector of zeros.",
        group=WORDS,
        needs=(_WORDS,),
    )
    embedding_width: int | None = setting(
        None,
        "The length of the vectors; without it 100, or 64 for the transformer, which has no other.",
        group=WORDS,
        at_least=1,
        needs=(_WORDS, _DRAWN),
    )
