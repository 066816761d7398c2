"""Texts become rows of ids by a public hash only, and networks get the vectors that are asked for."""

import numpy as np
import pytest

from tests.seeds import seed_keras
from tfdp import data, models
from tfdp.experiments import Experiment, network
from tfdp.experiments.network import hash_tokens
from tfdp.experiments.settings import WORD_MODELS


def test_the_hash_has_known_values():
    # CRC-32 of "cat" is 0x9e5e43a8: the ids must never change, or saved models break.
    rows = hash_tokens(["Cat, cat!", "cat"], 4, num_buckets=1001)
    cat = 1 + 0x9E5E43A8 % 1000
    assert rows.dtype == np.int32 and rows[0, 0] == rows[0, 2] == cat
    np.testing.assert_array_equal(rows[1], [cat, 0, 0, 0])


def test_rows_are_cut_and_padded_to_the_length():
    rows = hash_tokens(["a b c d", "", "é"], 3, num_buckets=50)
    assert rows.shape == (3, 3) and 0 <= rows.min() <= rows.max() < 50
    np.testing.assert_array_equal((rows > 0).sum(axis=1), [3, 0, 1])


@pytest.mark.parametrize("name", WORD_MODELS)
@pytest.mark.parametrize("embeddings", ["trained", "frozen"])
def test_an_experiment_with_texts_has_ids_and_vectors(name, embeddings, monkeypatch):
    texts, labels = np.array(["a fine film", "odd", "the end"]), np.arange(3) % 2
    reviews = data.Dataset("reviews", texts, labels, texts, labels, 2, (), "here", "none")
    monkeypatch.setattr(data, "load", lambda *_, **__: reviews)
    settings = Experiment(
        dataset="glue/sst2", model=name, embeddings=embeddings, noise_multiplier=1.0,
        sequence_length=3, batch_size=2,
    )  # fmt: skip
    dataset = network.load(settings)
    np.testing.assert_array_equal(dataset.x_train, hash_tokens(texts, 3))
    drawn = []
    for seed in (1, 1, 2):
        seed_keras(seed)
        model, notes = network.build(settings, dataset)
        drawn.append(model.get_layer("embedding").embeddings.numpy())
    assert model(dataset.x_train).shape == (3, 2) and "public hash" in notes[0]
    frozen = "embedding" not in {v.path.split("/")[0] for v in model.trainable_variables}
    assert frozen == (embeddings == "frozen")
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    assert not frozen or 0.98 < np.std(drawn[0]) < 1.02
    assert drawn[0].shape[0] == models.NUM_TOKENS
