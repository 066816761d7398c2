"""Every setting is declared once, with a help text, and checked by its declaration."""

import dataclasses
import subprocess
import sys

import pytest

from tfdp.accounting import mechanism_names
from tfdp.accounting.mechanisms.dp_dropout import READINGS
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.experiments import SETTINGS, Experiment, conditions
from tfdp.experiments.setting import Setting
from tfdp.experiments.settings import GROUPS

TEXTS = {"dataset": "glue/sst2", "model": "bilstm"}


def experiment(**changes):
    return Experiment(**({"epsilon": 2.0} | changes))


def test_settings_are_the_fields():
    fields = {field.name: field.default for field in dataclasses.fields(Experiment)}
    assert {name: known.default for name, known in SETTINGS.items()} == fields
    assert all(known.name == name for name, known in SETTINGS.items())


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_said_of_a_setting_is_whole(name):
    known = SETTINGS[name]
    assert known.help[0].isupper() and known.help.endswith(".")
    assert len(known.help.split()) >= 3
    assert known.group in GROUPS
    assert known.kind in (bool, int, float, str)
    assert known.optional == (known.default is None)
    assert known.default is None or isinstance(known.default, known.kind)
    assert not known.own or known.default is None
    assert not known.own or any(name in mechanism_class(m).settings for m in mechanism_names())
    assert all(need.name in SETTINGS for need in known.needs)
    if known.rival:
        assert SETTINGS[known.rival].rival == name


def test_choices_are_those_of_the_code_that_takes_them():
    import keras

    from tfdp import data, layers, models
    from tfdp.gradients import bounds, lot

    assert set(SETTINGS["sampling"].allowed) == set(data.SAMPLINGS)
    assert set(SETTINGS["normalization"].allowed) <= set(models.NORMALIZATIONS)
    assert conditions.PRIVATE_BATCH == models.blocks.PRIVATE_BATCH
    assert SETTINGS["clipping"].allowed == bounds.CLIPPINGS
    assert SETTINGS["engine"].allowed == lot.ENGINES
    assert SETTINGS["statistics"].allowed == layers.public.STATISTICS
    assert set(SETTINGS["composition"].allowed) == set(READINGS)
    for name in data.DATASETS:
        assert name in SETTINGS["dataset"].help
    for name, width in conditions.WORD_MODELS.items():
        table = models.build(name, (5,), 2).get_layer("embedding")
        assert models.MODELS[name].takes_tokens and width in (None, table.output_dim)
    for name in conditions.TEXT_MODELS:
        assert models.MODELS[name].takes_tokens
    images = {name: known for name, known in models.MODELS.items() if not known.takes_tokens}
    assert {name: known.smallest_image for name, known in images.items()} == conditions.MODELS
    known = {name: models.MODELS[name] for name in SETTINGS["model"].allowed}
    own = {name for name, each in known.items() if each.normalizations == ("none",)}
    assert set(conditions.NORMALIZED) == own
    assert set(conditions.SCALED) == {name for name, each in known.items() if each.scales}
    for name in SETTINGS["activation"].allowed:
        assert callable(keras.activations.get(name))
    assert SETTINGS["mechanism"].allowed == mechanism_names()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": "magic"}, "--mechanism to be one of .*si_dpsgd.*'magic'"),
        ({"optimizer": "magic"}, "--optimizer to be one of sgd"),
        ({"sampling": "magic"}, "--sampling to be one of poisson"),
        ({"strategy": "magic"}, "--strategy to be one of identity"),
        ({"learning_rate": 0.0}, "--learning_rate to be a finite number above 0. Found 0"),
        ({"learning_rate": float("nan")}, "--learning_rate to be a finite number above 0"),
        ({"l2_norm_clip": float("inf")}, "--l2_norm_clip to be a finite number above 0"),
        ({"epochs": -1.0}, "--epochs"),
        ({"batch_size": 0}, "--batch_size to be at least 1. Found 0"),
        ({"batch_size": None}, "--batch_size to be set"),
        ({"steps": 0}, "--steps to be at least 1"),
        ({"public_examples": 1}, "--public_examples to be at least 2"),
        ({"noise_multiplier": -1.0}, "--noise_multiplier to be a finite number of at least 0"),
        ({"noise_multiplier": float("nan")}, "--noise_multiplier"),
        ({"epsilon": None}, "Found neither"),
        ({"epsilon": float("nan")}, "--epsilon to be a finite number above 0. Found nan"),
        ({"epsilon": -1.0}, "--epsilon to be a finite number above 0. Found -1"),
        ({"delta": 1.0}, "--delta to be a finite number above 0 and below 1. Found 1"),
        ({"seed": -1}, "--seed to be at least 0 and below 4294967296. Found -1"),
        ({"mechanism": "dpsdg"}, "Did you mean 'dpsgd'"),
        ({"dataset": "cifar1"}, "--dataset to be one of .*'cifar1'. Did you mean 'cifar10'"),
        ({"dataset": "glue/sst2"}, "Expected --model=bilstm or .* are texts. Found"),
        (
            {"model": "bilstm"},
            "with --dataset=digits, whose examples are images. Found --model=bil",
        ),
        ({"dataset": "imdb_reviews", "model": "tutorial_lstm"}, "images or texts"),
        ({"sequence_length": 20}, "--sequence_length with --model=bilstm or --model=bilstm_dl"),
        ({**TEXTS, "sequence_length": 0}, "--sequence_length to be at least 1"),
        ({**TEXTS, "vocabulary_size": 1}, "--vocabulary_size to be at least 2"),
        ({**TEXTS, "embeddings": "a.txt", "vocabulary": "b"}, "--vocabulary with --embeddings=tr"),
        ({**TEXTS, "embeddings": "a.txt", "embedding_width": 3}, "--embedding_width with --embed"),
        ({**TEXTS, "model": "transformer", "embedding_width": 100}, "--embedding_width=64 with"),
        ({"train_split": "test[:9]"}, "--train_split with a dataset of tensorflow_datasets only"),
        ({"test_split": "test[:9]"}, "--test_split with a dataset of tensorflow_datasets only"),
        ({"cache_features": False}, "--cache_features with --trainable_layers only"),
        ({"model": "tutorial_lstm"}, "with --dataset=digits, whose examples are images"),
        ({"dataset": "lm1b_characters"}, "Expected --model=tutorial_lstm .* rows of text"),
        ({"momentum": 1.0}, "--momentum to be a finite number of at least 0 and below 1"),
        ({"optimizer": "adam", "momentum": 0.9}, "--momentum with --optimizer=sgd only"),
        ({"optimizer": "adam", "nesterov": True}, "--nesterov with --optimizer=sgd only"),
        ({"nesterov": True}, "--nesterov with --momentum above 0 only"),
        ({"groups": 3}, "--groups with --sampling=cyclic_poisson only"),
        ({"target_quantile": 0.5}, "--target_quantile with --clipping=adaptive only"),
        ({"quantile_learning_rate": 0.5}, "with --clipping=adaptive only"),
        ({"quantile_noise_multiplier": 9.0}, "with --clipping=adaptive only"),
        ({"public_examples": 31}, "--normalization=batch only"),
        ({"truncation": 2.0}, "--normalization=private_batch only"),
        ({"moving_rate": 0.5}, "--normalization=private_batch only"),
        ({"normalization": "private_batch", "moving_rate": 1.0}, "--moving_rate to be"),
        ({"normalization": "private_batch", "optimizer": "adam"}, "this rule only.*adam"),
        ({"normalization": "private_batch", "momentum": 0.9}, "this rule only.*momentum=0.9"),
        ({"normalization": "private_batch", "statistics_share": 0.0}, "--statistics_share to be"),
        ({"normalize_output": True}, "--normalize_output with --normalization=layer or"),
        ({"model": "tutorial_lstm", "normalization": "layer"}, "normalization of its own"),
        ({"model": "linear", "width": 0.25}, "--width with --model=mlp or"),
        ({"model": "vgg16"}, "at least 32x32 pixels .* of 8x8"),
        ({"model": "tutorial_cnn"}, "at least 13x13 pixels .* of 8x8"),
        ({"mechanism": "none"}, "--epsilon with a private mechanism only"),
        ({"mechanism": "none", "epsilon": None, "l2_norm_clip": 2.0}, "--l2_norm_clip with a priv"),
        ({"release": "mu"}, "dpsgd has no --release. Expected it with --mechanism=si_dpsgd only"),
        ({"mechanism": "si_dpsgd", "noise": "laplace"}, "has no --noise"),
        ({"mechanism": "sgld", "momentum": 0.9}, "steps of its paper.* --momentum to be left out"),
        ({"mechanism": "dp_dropout", "optimizer": "adam"}, "--optimizer to be left out"),
        ({"mechanism": "si_dpsgd", "optimizer": "adam"}, "No finite epsilon can be proven"),
        ({"mechanism": "matrix", "clipping": "adaptive"}, "one clip norm for all steps"),
        ({"mechanism": "matrix", "strategy": "identity", "bands": 3}, "--bands with --strategy="),
        ({"mechanism": "matrix", "strategy": "prefix_sum", "objective": "max"}, "--objective"),
        (
            {"mechanism": "discrete_sgd", "noise": "laplace", "degrees_of_freedom": 9.0},
            "--degrees_of_freedom with --noise=student_t only",
        ),
        (
            {"mechanism": "discrete_sgd", "encode": False, "codebook_size": 9},
            "--codebook_size with --encode=True only",
        ),
        ({"microbatches": 3}, "--microbatches to divide --batch_size"),
        ({"statistics": "batch"}, "--normalization=batch or --normalization=private_batch only"),
        ({"batch_size": 1438}, "number of training examples, 1,437. Found 1,438"),
        ({"sampling": "cyclic_poisson"}, "Expected --groups with --sampling=cyclic_poisson"),
        (
            {"normalization": "batch", "public_data": "cifar100"},
            "Expected --public_data=strokes with --dataset=digits.*--public_data=cifar100",
        ),
        (
            {"normalization": "batch", "dataset": "kmnist"},
            "--normalization=batch with a dataset that has public examples",
        ),
        (
            {"normalization": "batch", "dataset": "cifar100"},
            "public examples from other data than --dataset=cifar100",
        ),
        ({"mechanism": "si_dpsgd", "release": "mu"}, "--release=mu: the un-noised means"),
        (
            {"mechanism": "discrete_sgd", "sampling": "shuffle"},
            "--noise=student_t and --sampling=shuffle. Expected --sampling=poisson",
        ),
        ({"adjacency": "add_or_remove_one"}, "--adjacency=zero_out or replace_one"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        experiment(**changes)


def test_numbers_on_their_bounds_are_allowed():
    made = experiment(noise_multiplier=0.0, steps=1, normalization="batch", public_examples=2)
    assert made.noise_multiplier == 0.0


def test_settings_that_have_an_effect_are_allowed():
    experiment(clipping="adaptive", target_quantile=0.5, momentum=0.9, nesterov=True)
    experiment(mechanism="matrix", sampling="cyclic_poisson", groups=3, bands=3, objective="max")
    experiment(mechanism="discrete_sgd", degrees_of_freedom=9.0, codebook_size=7)
    experiment(mechanism="si_dpsgd", optimizer="adam", guarantee="claimed", release="mu")
    experiment(mechanism="sgld", composition="ac", learning_rate_exponent=0.0)
    experiment(microbatches=64)
    experiment(**TEXTS, embeddings="vectors.txt", vocabulary_size=50, sequence_length=20)
    experiment(**TEXTS, embeddings="frozen", vocabulary="words.txt", embedding_width=7)
    experiment(dataset="imdb_reviews", model="transformer", text_features="text")
    experiment(**TEXTS | {"model": "bilstm_dl"}, normalization="layer_affine")
    experiment(trainable_layers="logits", cache_features=False, initial_weights="model.keras")
    experiment(batch_size=1437)
    experiment(batch_size=5000, dataset="mnist")
    experiment(dataset="mnist", normalization="batch", public_data="strokes")
    experiment(dataset="cifar100", normalization="batch", public_data="strokes")
    Experiment(mechanism="none", dataset="cifar100", normalization="batch", public_data="cifar100")
    experiment(mechanism="si_dpsgd", release="mu", noise_multiplier=1.0)
    experiment(mechanism="discrete_sgd", sampling="shuffle", noise="gaussian")
    experiment(mechanism="discrete_sgd", sampling="shuffle", guarantee="claimed")
    Experiment(mechanism="none", momentum=0.5)


def test_the_embedded_numbers_are_those_of_the_data():
    from tfdp import data

    assert all(len(data.load(n).y_train) == number for n, number in conditions.EMBEDDED.items())
    assert set(conditions.EMBEDDED) == {n for n, spec in data.DATASETS.items() if spec is None}


def test_recorded_settings_make_the_same_experiment():
    made = experiment(seed=3, insecure_seed=4, data_dir="/here", momentum=0.5)
    again = Experiment(**made.recorded())
    assert again == dataclasses.replace(made, insecure_seed=None, data_dir=None)


def test_a_choice_that_is_registered_later_is_allowed():
    names = ["a"]
    known = Setting(help="", group="", choices=lambda: tuple(names), name="x")
    with pytest.raises(ValueError, match="--x to be one of a"):
        known.check("b")
    names.append("b")
    known.check("b")


@pytest.mark.parametrize(
    "name",
    ["settings", "command_line", "sweep", "help_text", "console", "announcement", "result_folder"],
)
def test_settings_and_flags_need_no_tensorflow(name):
    code = (
        f"import sys, tfdp.experiments.{name}, tfdp.experiments as e\n"
        "e.Experiment(epsilon=2.0)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
