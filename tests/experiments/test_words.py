"""Texts become rows of ids by public words only, and networks get a table for these ids."""

import keras
import numpy as np
import pytest

from tfdp import data, models
from tfdp.experiments import Experiment, network
from tfdp.experiments.facts import announcement
from tfdp.experiments.rules import WORD_MODELS
from tfdp.experiments.start import begin
from tfdp.experiments.vocabulary import hash_tokens
from tfdp.experiments.words import in_words, with_words, words_of


def experiment(**settings):
    base = {"dataset": "glue/sst2", "model": "bilstm", "noise_multiplier": 1.0}
    return Experiment(**{**base, **settings})


def reviews(*texts):
    labels = np.zeros(len(texts), np.int32)
    texts = np.array(texts)
    return data.Dataset("reviews", texts, labels, texts[:1], labels[:1], 2, (), "here", "none")


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\nfilm 4 5 6\n")
    return str(path)


class TestVocabularies:
    def test_hashed_words(self):
        words = words_of(experiment(sequence_length=3))
        assert (words.size, words.width, words.trainable, words.table) == (10_000, 100, True, None)
        made = in_words(reviews("A fine film", "fine"), words)
        expected = hash_tokens(["A fine film", "fine"], num_buckets=10_000, length=3)
        np.testing.assert_array_equal(made.x_train, expected)
        assert made.input_shape == (3,) and made.x_test.shape == (1, 3)

    def test_public_vectors(self, vectors):
        words = words_of(experiment(embeddings=vectors, sequence_length=3))
        assert (words.size, words.width, words.trainable) == (4, 3, False)
        expected = [[0, 0, 0], [0, 0, 0], [1, 2, 3], [4, 5, 6]]
        np.testing.assert_array_equal(words.table, expected)
        np.testing.assert_array_equal(words.rows(["odd film the"]), [[1, 3, 2]])
        assert "2 words of glove.txt (SHA-256 " in words.note
        with pytest.raises(ValueError, match="vectors of 64 numbers with --model=transformer"):
            words_of(experiment(embeddings=vectors, model="transformer"))


class TestTables:
    @pytest.mark.parametrize(
        ("name", "embeddings"),
        [(name, ("trained", "frozen")[i % 2]) for i, name in enumerate(WORD_MODELS)],
    )
    def test_a_network_has_the_table_of_its_words(self, name, embeddings, tmp_path):
        words = words_of(experiment(model=name, embeddings=embeddings, sequence_length=6))
        model = with_words(models.build(name, (6,), 3), words)
        table = model.get_layer("embedding")
        assert table.embeddings.shape == (10_000, WORD_MODELS[name] or 100)
        assert table.trainable == (embeddings == "trained")
        rows = words.rows(["a fine film", "odd"])
        logits = model(rows)
        assert logits.shape == (2, 3)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(again(rows), logits, rtol=1e-5, atol=1e-6)
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def test_the_vectors_of_a_file_are_in_the_network(self, vectors):
        words = words_of(experiment(embeddings=vectors, sequence_length=6))
        model = with_words(models.build("bilstm", (6,), 3), words)
        np.testing.assert_array_equal(model.get_layer("embedding").embeddings, words.table)
        assert "embedding" not in {v.path.split("/")[0] for v in model.trainable_variables}
        assert model.get_layer("embedding").mask_zero

    def test_the_weights_are_drawn_anew_for_each_seed(self):
        words = words_of(experiment(embeddings="frozen"))
        drawn = []
        for seed in (1, 1, 2):
            keras.utils.set_random_seed(seed)
            drawn.append(with_words(models.build("bilstm", (6,), 3), words).get_weights())
        for one, same, other in zip(*drawn, strict=True):
            np.testing.assert_array_equal(one, same)
            assert not np.any(one) or np.ptp(one) == 1 or not np.array_equal(one, other)
        assert 0.9 < np.std(drawn[0][0]) < 1.1


class TestStart:
    @pytest.fixture
    def news(self, monkeypatch):
        """Texts in place of the data set that an experiment names."""
        texts, labels = np.array(["a fine film", "odd", "the end"] * 16), np.arange(48) % 3
        made = data.Dataset("news", texts, labels, texts, labels, 3, (), "here", "none")
        monkeypatch.setattr(data, "load", lambda *_, **__: made)
        parts = {"train_split": "test[:48]", "test_split": "test[48:]"}
        return {"dataset": "ag_news_subset", **parts, "sequence_length": 3, "batch_size": 16}

    def test_public_vectors_are_declared_public_and_another_split_is_told(self, news, vectors):
        settings = experiment(**news, embeddings=vectors)
        dataset, words = network.load(settings)
        model, _, _ = network.build(settings, dataset, words)
        assert dataset.x_train.shape == (48, 3) and settings.starts_public
        table = model.get_layer("embedding").embeddings.numpy()
        np.testing.assert_array_equal(table[2:], [[1, 2, 3], [4, 5, 6]])
        said = "trained on test[:48] and tested on test[48:]"
        assert said in announcement(settings)

    def test_vectors_of_a_file_stay_those_of_the_file(self, vectors, tmp_path):
        """Initial weights hold a table, too, and the card names the file of the vectors."""
        made = words_of(experiment(embeddings=vectors, sequence_length=4))
        model = with_words(models.build("bilstm", (4,), 2), made)
        model.get_layer("embedding").embeddings.assign(np.full((4, 3), 9.0))
        model.save(tmp_path / "a.keras")
        fresh = with_words(models.build("bilstm", (4,), 2), made)
        begin(
            experiment(
                embeddings=vectors,
                sequence_length=4,
                initial_weights=str(tmp_path / "a.keras"),
            ),
            fresh,
        )
        np.testing.assert_array_equal(fresh.get_layer("embedding").embeddings, made.table)
        for one, other in zip(fresh.weights[1:], model.weights[1:], strict=True):
            np.testing.assert_array_equal(one, other)
