"""Trainings on a user's own folder or CSV file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.experiments.result_helpers import Crash, after_step
from tests.rounding import FUNCTION, assert_close, terms_of
from tfdp.experiments import (
    Experiment,
    RunFolder,
    command,
    network,
    own_data,
    read_record,
    run,
    run_into,
)

COLUMNS = """
# A public description.
age: number 0 100
job: category teacher, "cook, baker"
id: ignore
income: category low, high
"""


@pytest.fixture
def table(tmp_path):
    """The settings of a training on 100 people, of whom the old earn more."""
    rows = ["id,age,job,income"]
    for i in range(100):
        job = "" if i == 1 else ["teacher", '"cook, baker"', "pilot"][i % 3]
        rows.append(f"{i},{'?' if i == 0 else 2 * i},{job},{'high' if i > 25 else 'low'}")
    (tmp_path / "people.csv").write_text("\n".join(rows))
    (tmp_path / "columns.cfg").write_text(COLUMNS)
    return {
        "dataset": f"csv:{tmp_path}/people.csv",
        "label": "income",
        "columns": f"{tmp_path}/columns.cfg",
        "noise_multiplier": 1.0,
        "batch_size": 20,
        "steps": 7,
        "seed": 1,
    }


def test_columns_are_encoded_as_declared(table, caplog):
    found = own_data.load(Experiment(**table))
    assert found.num_classes == 2 and found.input_shape == (6,)
    assert len(found.y_train) == 80 and len(found.y_test) == 20
    x = found.x_train
    np.testing.assert_allclose(x[0], [0, 1, 0, 0, 1, 0])  # the age is missing
    assert_close(x[1], [-0.96, 0, 1, 0, 0, 0], 2 * FUNCTION)  # the job is missing
    assert_close(x[2], [-0.92, 0, 0, 1, 0, 0], 2 * FUNCTION)  # the job is not declared
    np.testing.assert_allclose(x[-1], [1, 0, 0, 1, 0, 0])  # 196 years are clipped
    assert found.y_train[0] == 0 and found.y_train[-1] == 1
    assert "33 in 'job'" in caplog.text and "pilot" not in caplog.text


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (COLUMNS.replace("age: number 0 100\n", ""), "age: number LOW HIGH"),
        (COLUMNS.replace("category low, high", "number 0 1"), "classes for the label"),
        (COLUMNS.replace("low, high", "low, middle"), "row 26"),
        (COLUMNS.replace("0 100", "100 0"), "line 3"),
        (COLUMNS.replace("0 100", "LOW HIGH"), "lowest"),
        (COLUMNS + "age: ignore", "twice"),
        (COLUMNS.replace("id: ignore", "id: ignore\nzip: ignore"), "no column 'zip'"),
        (COLUMNS.replace("job: category teacher,", "job: number 0 1 #"), "highest"),
    ],
)
def test_columns_that_do_not_fit_are_refused(table, tmp_path, columns, message):
    (tmp_path / "columns.cfg").write_text(columns)
    with pytest.raises(ValueError, match=message):
        own_data.load(Experiment(**table))


def test_nothing_is_learned_from_undeclared_columns(table):
    with pytest.raises(ValueError, match="public knowledge") as refused:
        own_data.load(Experiment(**table | {"columns": None}))
    assert str(refused.value).endswith(
        "id: number LOW HIGH\nage: number LOW HIGH\njob: category A, B\nincome: category A, B"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, "--label"),
        ({"image_size": 8}, "--image_size has no effect"),
        ({"train_split": "train[:9]"}, "--train_split has no effect"),
        ({"model": "lenet5"}, "--model=lenet5 does not fit"),
        ({"adjacency": "add_or_remove_one", "nominal_examples": 80}, "needs --test"),
    ],
)
def test_settings_that_do_not_fit_are_refused(table, changes, message):
    with pytest.raises(ValueError, match=message):
        Experiment(**table | changes)


def test_missing_files_are_named_before_anything_is_trained(table):
    with pytest.raises(ValueError, match="--test: none"):
        command.points(
            ["train.py", "--dataset=" + table["dataset"], "--label=income", "--test=none.csv"]
        )


def test_other_rows_may_be_the_test_examples(table, tmp_path):
    (tmp_path / "test.csv").write_text("income,id,job,age\nhigh,7,pilot,50\n")
    found = own_data.load(Experiment(**table | {"test": f"{tmp_path}/test.csv"}))
    assert len(found.y_train) == 100
    np.testing.assert_allclose(found.x_test, [[0, 0, 0, 1, 0, 0]])
    result = run(Experiment(**table | {"test": f"{tmp_path}/test.csv", "steps": 1}), verbose=0)
    assert any("most frequent class" in note and "100.00%" in note for note in result.notes)


def test_a_training_on_a_table_resumes_in_the_middle_of_an_epoch(table, tmp_path):
    experiment = Experiment(**table)  # four lots in an epoch
    with RunFolder(tmp_path / "r", experiment) as folder, pytest.raises(Crash), after_step(6):
        run_into(folder, verbose=0, checkpoint_every=1)
    with RunFolder(tmp_path / "r", experiment) as folder:
        result = run_into(folder, verbose=0, checkpoint_every=1)
    record = read_record(tmp_path / "r")
    assert record["training"]["restarts"] == 1 and record["steps"] == result.run.steps == 7
    assert result.run.sampling.num_examples == 80
    assert Experiment(**record["settings"]) == experiment
    assert "public" in (tmp_path / "r" / "model_card.md").read_text()
    columns = {
        "age": tf.constant([np.nan, 4.0, 196.0]),
        "job": tf.constant(["teacher", "pilot", ""]),
    }
    release = keras.models.load_model(tmp_path / "r" / "model.keras")
    encoded = np.array([[0, 1, 0, 0, 1, 0], [-0.92, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]])
    found, wanted = (
        f.predict(g, verbose=0) for f, g in ((release, columns), (result.model, encoded))
    )
    assert_close(found, wanted, terms_of(result.model, 6))


def test_a_lot_is_no_larger_than_the_data(table):
    with pytest.raises(ValueError, match=r"--batch_size=81 is more than the 80 .* --batch_size=8"):
        run(Experiment(**table | {"batch_size": 81}), verbose=0)


def test_a_name_of_tensorflow_datasets_may_have_a_prefix():
    assert Experiment(dataset="tfds:mnist") == Experiment(dataset="mnist")
    (point,) = command.points(["train.py", "--dataset=tfds:digits"])
    assert point.experiment.dataset == "digits"


def test_a_folder_of_images(tmp_path):
    for name, value in (("black", 0.0), ("white", 255.0)):
        (tmp_path / name).mkdir()
        for i in range(5):
            image = np.full((8, 8 + i, 3), value)
            keras.utils.save_img(tmp_path / name / f"{i}.png", image, scale=False)
    experiment = Experiment(dataset=f"folder:{tmp_path}", image_size=4)
    dataset = network.load(experiment)
    assert dataset.x_train.shape == (8, 4, 4, 3) and dataset.x_test.shape == (2, 4, 4, 3)
    assert [*dataset.y_test] == [0, 1] and dataset.num_classes == 2
    assert (dataset.x_test[0] == -1).all() and (dataset.x_test[1] == 1).all()


def test_a_folder_of_texts(tmp_path):
    for name in ("no", "yes"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / f"{i}.txt").write_text(f"{name} {i}")
    experiment = Experiment(dataset=f"folder:{tmp_path}", model="bilstm", sequence_length=3)
    assert network.load(experiment).x_train.shape == (8, 3)
    with pytest.raises(ValueError, match="bilstm"):
        Experiment(dataset=f"folder:{tmp_path}")


def test_a_path_without_its_kind_is_recognized(table, tmp_path):
    for path, label, meant in (
        (str(tmp_path), None, "folder:"),
        (table["dataset"].removeprefix("csv:"), table["label"], "csv:"),
    ):
        with pytest.raises(ValueError, match=f"Did you mean {meant}"):
            Experiment(dataset=path, label=label)
