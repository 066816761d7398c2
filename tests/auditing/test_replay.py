"""Record and replay: sound trainings pass, each planted fault is found, and the step is named."""

import json

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tests.auditing.faults import FAULTS, L, N, examples, network, sgd, si_dpsgd, usual
from tfdp.accounting import Strategy
from tfdp.auditing import record, replay


def recorded(training, folder):
    model, train = training()
    with record(model, folder):
        train()
    return model


def trained(optimizer, model=None, sampling="poisson", epochs=3, lot_size=L, **options):
    def training():
        made = tfdp.make_private(network() if model is None else model, **options)
        made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = examples()
        lots = tfdp.data.make_lots(sampling, x, y, lot_size=lot_size)
        return made, lambda: made.fit(lots, epochs=epochs, verbose=0)

    return training


def langevin(kind, **options):
    return kind(learning_rate=0.3, l2_norm_clip=0.1, noise_multiplier=1.0, **options)


def adamw():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)
    optimizer = tfdp.optimizers.DPKerasAdamWOptimizer(
        schedule, weight_decay=0.1, global_clipnorm=1.0, use_ema=True, l2_norm_clip=0.1,
        noise_multiplier=1.0,
    )  # fmt: skip
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def matrix():
    return tfdp.MatrixDPSGDOptimizer(
        learning_rate=0.3, l2_norm_clip=0.1, noise_multiplier=1.0,
        strategy=Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.3)),
    )  # fmt: skip


def discrete(**options):
    return tfdp.DiscreteSGDOptimizer(
        learning_rate=0.3, l2_norm_clip=0.1, noise_multiplier=1.0, denoise=False, **options
    )


SOUND = {
    "dpsgd": lambda: trained(sgd()),
    "momentum": lambda: trained(sgd(momentum=0.9)),
    "adam": lambda: trained(tfdp.DPKerasAdamOptimizer(l2_norm_clip=0.1, noise_multiplier=1.0)),
    "per layer": lambda: trained(sgd(clipping="per_layer")),
    "automatic": lambda: trained(sgd(clipping="automatic")),
    "adaptive": lambda: trained(sgd(clipping="adaptive")),
    "microbatches": lambda: trained(sgd(num_microbatches=L // 2)),
    "cyclic": lambda: trained(sgd(), sampling="cyclic"),
    "shuffle": lambda: trained(sgd(), sampling="shuffle"),
    "fixed size": lambda: trained(sgd(), sampling="fixed_size"),
    "si_dpsgd": lambda: trained(si_dpsgd(), sampling="cyclic"),
    "dp_dropout": lambda: trained(langevin(tfdp.DPDropoutOptimizer)),
    "sgld": lambda: trained(langevin(tfdp.SGLDOptimizer, num_examples=N)),
    "matrix": lambda: trained(matrix(), sampling="cyclic"),
    "student_t": lambda: trained(discrete(noise="student_t", encode=False)),
    "encoded": lambda: trained(discrete(noise="gaussian", encode=True)),
    "dropout": lambda: trained(sgd(), network(layers.Dropout(0.5))),
    "private statistics": lambda: trained(sgd(), network(tfdp.layers.PrivateBatchNormalization())),
    "chunks": lambda: trained(sgd(), physical_batch_size=8),
    "loop": lambda: trained(sgd(), engine="loop"),
    "decayed": lambda: trained(adamw()),
}
# Where the order of lots is not checked, the clip norm moves, or no row can be clipped by another way.
INCOMPLETE = (
    "shuffle", "adaptive", "dropout", "encoded", "automatic", "per layer", "microbatches",
    "dp_dropout", "sgld", "decayed",
)  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_passes(name, tmp_path):
    model = recorded(SOUND[name](), tmp_path / "r")
    found = replay(tmp_path / "r", significance=1e-6)
    assert found.passed, str(found)
    assert found.steps == model.privacy.steps_taken
    assert str(found).startswith("pass, incomplete" if name in INCOMPLETE else "pass:"), str(found)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, seed, tmp_path):
    keras.utils.set_random_seed(seed)
    fault = FAULTS[name]
    with fault.planted():
        recorded(fault.training, tmp_path / "r")
        found = replay(tmp_path / "r")
    assert not found.passed and found.p_value < 1e-6, str(found)
    assert found.failures and "FAIL" in str(found)


def test_recording_changes_nothing_that_is_trained(tmp_path):
    x, y = examples()
    made = []
    for recording in (False, True):
        keras.utils.set_random_seed(0)
        model = tfdp.make_private(network())
        model.compile(sgd(seed=1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        lots = tfdp.data.make_lots("cyclic", x, y, lot_size=L)
        if recording:
            with record(model, tmp_path / "r"):
                model.fit(lots, epochs=1, verbose=0)
        else:
            model.fit(lots, epochs=1, verbose=0)
        made.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    np.testing.assert_allclose(*made, atol=1e-6)
    before = len(list((tmp_path / "r").iterdir()))
    model.fit(lots, epochs=1, verbose=0)  # nothing is recorded any more
    assert len(list((tmp_path / "r").iterdir())) == before


def test_a_second_session_of_si_dpsgd_starts_at_its_weights(tmp_path):
    made, train = usual(optimizer=si_dpsgd(), epochs=1)
    with record(made, tmp_path / "r"):
        train()
        made.set_weights([w + 1.0 for w in made.get_weights()])
        train()
    found = replay(tmp_path / "r", significance=1e-6)
    assert found.passed and len(made.privacy.ledger.runs) == 2, str(found)


def test_lots_in_an_unknown_order_may_repeat(tmp_path):
    made, _ = usual()
    x, y = examples()
    with record(made, tmp_path / "r"):
        for _ in range(25):
            made.train_on_batch(x[:L], y[:L])
    found = replay(tmp_path / "r", significance=1e-6)
    assert found.passed and "unknown order" in str(found), str(found)


def test_another_compilation_ends_the_recording(tmp_path):
    made, train = usual(epochs=1)
    with pytest.raises(RuntimeError, match="compiled anew"), record(made, tmp_path / "r"):
        train()
        made.compile(sgd(), "mse")
    with pytest.raises(ValueError, match="did not end"):
        replay(tmp_path / "r")


@pytest.mark.parametrize("name", ["adam", "decayed", "momentum"])
def test_steps_that_are_not_the_update_rules_are_named(name, tmp_path):
    """A file of the recording is edited: what the rule was given would not have made these weights."""
    recorded(SOUND[name](), tmp_path / "r")
    path = tmp_path / "r" / "step_000007.npz"
    with np.load(path) as file:
        content = dict(file)
    rate = next(key for key in content if key.endswith(".rate"))
    content[rate] = 1.01 * content[rate]
    np.savez(path, **content)
    failed = replay(tmp_path / "r").failures
    assert [(f.name, f.step) for f in failed] == [("update", 7)]


def test_a_recording_is_a_secret(tmp_path):
    recorded(usual, tmp_path / "r")
    assert (tmp_path / "r").stat().st_mode & 0o077 == 0


def test_what_cannot_be_recorded_is_refused(tmp_path):
    plain = network()
    with pytest.raises(ValueError, match="private model"), record(plain, tmp_path / "a"):
        pass
    made, _ = usual()
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "file").write_text("x")
    with pytest.raises(ValueError, match="empty folder"), record(made, tmp_path / "b"):
        pass
    made.compile(sgd(), "mse", jit_compile=True)
    with pytest.raises(ValueError, match="XLA"), record(made, tmp_path / "c"):
        pass
    with pytest.raises(ValueError, match="recording"):
        replay(tmp_path / "nowhere")


def test_weights_that_others_moved_are_named(tmp_path):
    """A file of the recording is edited: the weights before a step are not those after the last."""
    recorded(usual, tmp_path / "r")
    path = tmp_path / "r" / "step_000005.npz"
    with np.load(path) as file:
        content = dict(file)
    name = next(key for key in content if key.endswith(".before"))
    content[name] = content[name] + 1.0
    np.savez(path, **content)
    found = replay(tmp_path / "r")
    assert not found.passed
    assert any(f.name in ("weights", "update") and f.step == 5 for f in found.failures)


class Unregistered(layers.Dense):
    pass


def test_a_model_that_cannot_be_loaded_is_given(tmp_path):
    def network():
        return keras.Sequential([keras.Input((6,)), Unregistered(4)])

    made, train = usual(network())
    with record(made, tmp_path / "r"):
        train()
    with pytest.raises(ValueError, match="registered"):
        replay(tmp_path / "r")
    again, _ = usual(network())
    assert replay(tmp_path / "r", again, significance=1e-6).passed
    other, _ = usual(keras.Sequential([keras.Input((6,)), layers.Dense(5)]))
    with pytest.raises(ValueError, match="shapes"):
        replay(tmp_path / "r", other)
    with pytest.raises(ValueError, match="compiled"):
        replay(tmp_path / "r", network())


def test_an_exception_is_part_of_the_verdict(tmp_path):
    made, train = usual(epochs=1)
    with pytest.raises(KeyError), record(made, tmp_path / "r"):
        train()
        raise KeyError
    assert "exception" in str(replay(tmp_path / "r", significance=1e-6))


def test_lots_of_everybody(tmp_path):
    x, y = examples()
    made, _ = usual()
    with record(made, tmp_path / "r"):
        made.fit(tfdp.data.make_lots("poisson", x, y, lot_size=N), epochs=3, verbose=0)
    found = replay(tmp_path / "r", significance=1e-6)
    assert found.passed and "nan" not in str(found)


def with_lots(make, epochs=4):
    def training():
        made, _ = usual()
        return made, lambda: made.fit(make(*examples()), epochs=epochs, verbose=0)

    return training


def blank(x):
    x = x.copy()
    x[:150] = 0.0
    return x


LOTS = {
    "keep_last": lambda x, y: tfdp.data.CyclicLots(x, y, 70, keep_last=True),
    "nominal": lambda x, y: tfdp.data.PoissonLots(x, y, L, nominal_examples=400),
    "groups": lambda x, y: tfdp.data.make_lots("cyclic_poisson", x, y, lot_size=L, groups=4),
    "with replacement": lambda x, y: tfdp.data.make_lots("with_replacement", x, y, lot_size=L),
    "equal records": lambda x, y: tfdp.data.make_lots(
        "poisson", np.repeat(x[:30], 10, 0), np.repeat(y[:30], 10), lot_size=L
    ),
    "equal records in order": lambda x, y: tfdp.data.make_lots(
        "cyclic", np.tile(x[:15], (20, 1)), np.tile(y[:15], 20), lot_size=L
    ),
    "records of zeros": lambda x, y: tfdp.data.make_lots("poisson", blank(x), y, lot_size=L),
    "only zeros": lambda x, y: tfdp.data.make_lots("cyclic", 0 * x, 0 * y, lot_size=L),
    "records of zeros without weight": lambda x, y: tfdp.data.make_lots(
        "poisson", blank(x), y, lot_size=L, sample_weight=x[:, 0] > 0
    ),
    "few of many": lambda x, y: tfdp.data.make_lots(
        "poisson", np.random.default_rng(1).normal(size=(9000, 6)).astype("float32"),
        np.tile(y, 30), lot_size=90,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOTS)
def test_sound_lots_pass(name, tmp_path):
    recorded(with_lots(LOTS[name], 1 if name == "few of many" else 4), tmp_path / "r")
    found = replay(tmp_path / "r", steps=2, significance=1e-6)
    assert found.passed, str(found)


@pytest.mark.parametrize("what", ["weights", "averages", "adam"])
def test_what_happens_between_two_fits_is_no_fault(what, tmp_path):
    optimizer = sgd(use_ema=True) if what == "averages" else None
    if what == "adam":
        optimizer = tfdp.DPKerasAdamOptimizer(l2_norm_clip=0.1, noise_multiplier=1.0)
    made, train = usual(optimizer=optimizer, epochs=1)
    with record(made, tmp_path / "r"):
        train()
        if what != "averages":
            made.set_weights([w + 1.0 for w in made.get_weights()])
        train()
    found = replay(tmp_path / "r", significance=1e-6)
    assert found.passed and "between two fits" in str(found), str(found)


def test_other_trainable_variables_are_named(tmp_path):
    made, train = usual(epochs=1)
    with record(made, tmp_path / "r"):
        train()
        made.layers[0].trainable = False
        train()
    with pytest.raises(ValueError, match="trainable variables in all steps"):
        replay(tmp_path / "r")


def test_one_recording_at_a_time(tmp_path):
    made, _ = usual()
    with (
        record(made, tmp_path / "r"),
        pytest.raises(ValueError, match="one recording"),
        record(made, tmp_path / "s"),
    ):
        pass


def test_a_run_that_the_ledger_lost_is_a_fault(tmp_path):
    recorded(usual, tmp_path / "r")
    path = tmp_path / "r" / "about.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"runs": {}}))
    assert not replay(tmp_path / "r").passed
