"""train.py as a newcomer runs it: the main job, every flag file, and bad input."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from absl.testing import flagsaver

from tfdp.experiments import ResultFolder, check

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEYS = {
    "mechanism", "dataset", "model", "normalization", "seed_of_initial_weights", "num_examples",
    "lot_size", "steps",
    "sampling", "l2_norm_clip", "noise_multiplier", "learning_rate", "test_accuracy", "claimed",
    "proven", "seconds_per_step",
}  # fmt: skip


DIVERGES = ["--model=mlp", "--normalization=none", "--learning_rate=1e38", "--noise_multiplier=1"]
ONE_STEP = ["--mechanism=none", "--model=linear", "--normalization=none", "--steps=1"]


def train(*arguments, expect=0):
    environment = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == expect, done.stderr[-2000:]
    return done


@pytest.fixture(scope="session")  # flags can be defined once in a process
def script():
    """train.py as a module, with its flags parsed."""
    spec = importlib.util.spec_from_file_location("train_script", ROOT / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FLAGS(["train.py"])
    return module


def call(script, *arguments):
    """Runs main() in this process, on flags that are put back afterwards."""
    argv = ["train.py", *arguments]
    with flagsaver.flagsaver(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        patch.delenv("TFDS_DATA_DIR", raising=False)
        return script.main(script.FLAGS(argv))


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("main") / "result"
    done = train("--mechanism=si_dpsgd", "--epsilon=2", f"--model_dir={folder}")
    return folder, done.stdout, json.loads((folder / "run.json").read_text())


def test_main_job_keeps_its_proven_budget_and_learns(main_job):
    _, _, record = main_job
    assert record.keys() >= KEYS
    assert 1.9 < record["proven"]["epsilon"] <= 2.0
    assert record["proven"]["adjacency"] == "zero_out"
    assert record["proven"]["assumptions"]
    assert record["claimed"]["epsilon"] < record["proven"]["epsilon"]
    assert record["test_accuracy"] > 0.75  # chance is 0.10; ten runs lay between 0.83 and 0.88


def test_main_job_prints_one_table_with_both_guarantees_and_advice(main_job):
    _, output, record = main_job
    for words in ("Test accuracy", "Claimed", "Proven", "adjacency: zero_out", "Better still"):
        assert words in output
    assert f"{100 * record['test_accuracy']:.2f}%" in output
    assert "epsilon: " in output  # in the progress bar


def test_the_result_is_one_whole_folder(main_job):
    folder, output, record = main_job
    assert check(folder) == record
    assert "While it trains: tensorboard --logdir" in output
    assert [p.name for p in folder.parent.iterdir()] == ["result"]
    assert {p.name for p in folder.iterdir()} == {
        "model.keras", "run.json", "model_card.md", "tensorboard",
    }  # fmt: skip
    assert folder.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask():
    value = os.umask(0)
    os.umask(value)
    return value


def test_release_loads_without_tfdp(main_job):
    folder, _, _ = main_job
    code = (
        "import sys, json; sys.modules['tfdp'] = None\n"
        "import keras, numpy as np\n"
        f"model = keras.models.load_model({str(folder / 'model.keras')!r})\n"
        "assert not model.compiled\n"
        "print(model.predict(np.zeros((1, 8, 8, 1)), verbose=0).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(1, 10)" in done.stdout


def test_tensorboard_log_holds_the_named_scalars(main_job):
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, record = main_job
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["tensors"])
    assert {
        "training/loss", "training/accuracy", "privacy/epsilon_claimed", "privacy/epsilon_proven",
        "gradients/fraction_clipped", "gradients/median_gradient_norm", "gradients/noise_to_signal",
    } <= tags  # fmt: skip
    last = tf.make_ndarray(events.Tensors("privacy/epsilon_proven")[-1].tensor_proto)
    assert float(last) == pytest.approx(record["proven"]["epsilon"], rel=1e-5)


def test_command_line_wins_over_the_recipe_and_its_rivals(tmp_path):
    train(
        "--mechanism=dpsgd", "--noise_multiplier=4", "--epochs=2", "--batch_size=128", "--seed=3",
        f"--model_dir={tmp_path / 'r'}",
    )  # fmt: skip
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record["noise_multiplier"] == 4.0
    assert record["steps"] == 2 * (1437 // 128)
    assert record["seed_of_initial_weights"] == 3
    assert record["sampling"] == "poisson"


def test_claimed_calibration_shows_the_proven_figure_too(tmp_path):
    train("--guarantee=claimed", "--epsilon=0.5", f"--model_dir={tmp_path / 'r'}")
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record["claimed"]["epsilon"] <= 0.5
    assert record["proven"]["epsilon"] > record["claimed"]["epsilon"]


def test_releasing_the_means_has_no_finite_proven_epsilon(tmp_path):
    train("--release=mu", "--guarantee=claimed", "--epsilon=2", f"--model_dir={tmp_path / 'r'}")
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record["proven"]["epsilon"] == "inf"
    assert record["proven"]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon=-1"], "epsilon"),
        (["--epsilon=nan"], "epsilon"),
        (["--delta=0"], "delta"),
        (["--delta=1.5"], "delta"),
        (["--batch_size=5000"], "1437"),
        (["--dataset=nonsense"], "digits"),
        (["--model=nonsense"], "lenet5"),
        (["--dataset=mnist", "--data_dir=/nonexistent"], "--data_dir"),
        (["--statistics=batch"], "--normalization=batch"),
        (
            ["--model=mlp", "--normalization=batch", "--statistics=batch", "--sampling=poisson"],
            "lots",
        ),
        (["--optimizer=adam"], "--guarantee=claimed"),
        (["--release=mu"], "means"),
        (["--noise_multiplier=1", "--epsilon=2"], "both"),
        (DIVERGES, "not a finite number"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, capsys, script, arguments, words):
    assert call(script, *arguments, f"--model_dir={tmp_path / 'r'}") == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("train.py: error: ")
    assert words in last
    assert not list(tmp_path.iterdir())


def earlier_result(folder):
    """A result as a run leaves it, without the time that one takes."""
    with ResultFolder(folder) as made:
        made.commit({}, "card", lambda path: pathlib.Path(path).write_text("model"))


def test_a_failed_run_leaves_an_earlier_result_as_it_was(tmp_path, script):
    folder = tmp_path / "r"
    earlier_result(folder)
    assert call(script, *DIVERGES, "--overwrite", f"--model_dir={folder}") == 2
    check(folder)
    assert (folder / "model.keras").read_text() == "model"
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_an_earlier_result_is_replaced_with_overwrite_only(tmp_path, capsys, script):
    folder = tmp_path / "r"
    earlier_result(folder)
    assert call(script, *ONE_STEP, f"--model_dir={folder}") == 2
    output = capsys.readouterr()
    assert "finished one" in output.err and "loss" not in output.out
    assert (folder / "model.keras").read_text() == "model"
    assert call(script, *ONE_STEP, "--overwrite", f"--model_dir={folder}") == 0
    assert check(folder)["mechanism"] == "none"
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_without_a_folder_every_run_gets_a_new_one(tmp_path, capsys, script, monkeypatch):
    monkeypatch.setattr(script, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    for number in ("001", "002"):
        assert call(script, *ONE_STEP) == 0
        output = capsys.readouterr().out
        name = f"runs/digits_none_{number}"
        assert f"While it trains: tensorboard --logdir {name}.partial/result/tensorboard" in output
        assert f"tensorboard --logdir {name})" in output
        assert check(tmp_path / name)["steps"] == 1
    assert call(script, *ONE_STEP, "--overwrite") == 2
    assert "always new" in capsys.readouterr().err


def test_a_model_that_does_not_fit_on_the_disk_is_not_trained(
    tmp_path, capsys, script, monkeypatch
):
    usage = shutil.disk_usage(tmp_path)
    # The weights of the linear model take 2,600 bytes; everything else is allowed 1 MiB.
    for spare, status in ((2599, 2), (2600, 0)):
        left = usage._replace(free=2**20 + spare)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, left=left: left)
        assert call(script, *ONE_STEP, f"--model_dir={tmp_path / 'r'}") == status
        output = capsys.readouterr()
        assert ("free space" in output.err) == (status == 2)
        assert ("loss" in output.out) == (status == 0)
        assert (tmp_path / "r").exists() == (status == 0)


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path, capsys, script, monkeypatch):
    import tensorflow as tf

    def full(folder):
        message = f"{folder}/events.v2; No space left on device\n\tFailed to flush 1 events"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(tf.summary, "create_file_writer", full)
    arguments = ("--mechanism=dpsgd", "--model=linear", "--steps=1", "--noise_multiplier=1")
    assert call(script, *arguments, f"--model_dir={tmp_path / 'r'}") == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("train.py: error: ") and "No space left on device" in last
    assert not list(tmp_path.iterdir())


def test_bad_input_ends_with_a_status_and_no_traceback(tmp_path):
    done = train("--epsilon=nan", f"--model_dir={tmp_path / 'r'}", expect=2)
    assert "Traceback" not in done.stderr


def test_unknown_mechanism_lists_the_known_ones():
    done = train("--mechanism=nonsense", expect=1)
    assert "none|dpsgd|si_dpsgd" in done.stderr


def test_help_names_the_flags_without_importing_tensorflow():
    done = train("--help", expect=1)  # absl's exit status for help
    for flag in ("--mechanism", "--epsilon", "--guarantee", "--sampling", "--microbatches"):
        assert flag in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "flags").glob("*.cfg")), ids=lambda p: p.stem)
def test_every_flag_file_describes_an_experiment(script, path):
    from tfdp.experiments import Experiment

    with flagsaver.flagsaver():
        script.FLAGS(["train.py", f"--flagfile={path}"])
        experiment = Experiment(**script.settings())
    assert experiment.mechanism in path.stem or path.stem == "mnist_tutorial"


DIGITS = sorted(p for p in (ROOT / "flags").glob("digits_*.cfg") if p.stem != "digits_si_dpsgd")


@pytest.mark.parametrize("path", DIGITS, ids=lambda p: p.stem)
def test_every_recipe_for_digits_trains_in_two_minutes_with_both_guarantees(tmp_path, path):
    done = train(f"--flagfile={path}", "--seed=1", f"--model_dir={tmp_path / 'run'}")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["seconds"] < 120
    assert record["test_accuracy"] > 0.8  # chance is 0.10; the weakest, SGLD, is at 0.86
    assert "Claimed" in done.stdout and "Proven" in done.stdout
    if record["mechanism"] != "none":
        assert 1.9 < record["proven"]["epsilon"] <= 2.0
        assert record["claimed"]["epsilon"] > 0
