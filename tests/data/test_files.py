"""Files give the rows that Keras and pyarrow read from them."""

import keras
import numpy as np
import pytest

from tfdp import data


def rows_of(source):
    return source.rows(np.arange(len(source)))


@pytest.fixture
def images(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("dogs", "cats"):
        (tmp_path / name).mkdir()
        for number, kind in enumerate(("png", "jpg", "png")):
            pixels = draw.integers(0, 256, (9 + number, 12, 3))
            keras.utils.save_img(tmp_path / name / f"{number}.{kind}", pixels, scale=False)
    return tmp_path


class TestDirectories:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"label_mode": "categorical", "color_mode": "grayscale", "interpolation": "nearest"},
            {"label_mode": "binary", "class_names": ["dogs", "cats"], "crop_to_aspect_ratio": True},
            {"labels": [3, 4, 5, 0, 1, 2], "pad_to_aspect_ratio": True},
        ],
    )
    def test_images_are_those_of_keras(self, images, options):
        options = {"image_size": (8, 6)} | options
        source = data.images_from_directory(images, **options)
        wanted = keras.utils.image_dataset_from_directory(
            images, shuffle=False, batch_size=6, verbose=False, **options
        )
        assert source.class_names == wanted.class_names
        ((x, y),) = wanted.as_numpy_iterator()
        found, labels, _ = rows_of(source)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(labels, y)
        assert (found.dtype, labels.dtype) == (x.dtype, y.dtype)

    def test_texts_are_those_of_keras(self, tmp_path):
        for name in ("b", "a"):
            (tmp_path / name).mkdir()
            for number in range(2):
                (tmp_path / name / f"{number}.txt").write_text(f"{name} ä" * (number + 1))
        for options in ({"label_mode": None}, {"max_length": 3}, {"labels": [3, 1, 2, 0]}):
            source = data.texts_from_directory(tmp_path, **options)
            wanted = keras.utils.text_dataset_from_directory(
                tmp_path, shuffle=False, batch_size=None, verbose=False, **options
            )
            texts, labels, _ = rows_of(source)
            pairs = (
                zip(texts.tolist(), labels.tolist(), strict=True) if labels is not None else texts
            )
            assert [*pairs] == [*wanted.as_numpy_iterator()]

    def test_a_file_is_read_when_its_row_is_drawn(self, images):
        source = data.images_from_directory(images, image_size=(8, 6))
        (images / "dogs" / "0.png").unlink()
        assert len(rows_of(source[:3])[0]) == 3
        with pytest.raises(Exception, match=r"dogs/0\.png") as caught:
            rows_of(source)
        assert caught.value.__notes__ == ["(row 3 of the source)"]
        (images / "dogs" / "0.png").write_text("no image")
        with pytest.raises(ValueError, match=r"0\.png cannot be read: .* Repair"):
            rows_of(source)

    def test_a_seed_may_be_set_between_two_rows(self, images):
        source = data.images_from_directory(images, image_size=(8, 6))
        first = source[0][0]
        keras.utils.set_random_seed(1)
        np.testing.assert_array_equal(source[0][0], first)

    def test_a_model_trains_on_them(self, images):
        source = data.images_from_directory(images, image_size=(8, 6))
        lots = data.make_lots("cyclic", source, lot_size=3)
        ((x, _, weight),) = lots.as_dataset().take(1).as_numpy_iterator()
        np.testing.assert_array_equal(x[weight > 0], rows_of(source)[0][:3])

    def test_what_is_missing_is_named(self, tmp_path):
        with pytest.raises(ValueError, match="no directory"):
            data.images_from_directory(tmp_path / "none")
        for read in (data.images_from_directory, data.texts_from_directory):
            with pytest.raises(ValueError, match=r"No (images|text files) found"):
                read(tmp_path)
            with pytest.raises(ValueError, match="'batch_size' cannot be used"):
                read(tmp_path, batch_size=3)


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    """A function that writes columns and reads them as a source."""
    pyarrow = pytest.importorskip("pyarrow")
    importlib = pytest.importorskip(f"pyarrow.{request.param}")
    write = importlib.write_csv if request.param == "csv" else importlib.write_table
    read = data.from_csv if request.param == "csv" else data.from_parquet

    def source(columns, **options):
        write(pyarrow.table(columns), tmp_path / "rows")
        return read(tmp_path / "rows", **options)

    return source


COLUMNS = {"age": [30, 40, 50], "income": [1.5, 2.5, 3.5], "city": ["Rome", "", "Oslo"]}


class TestTables:
    def test_columns_are_inputs_and_targets(self, table):
        source = table(COLUMNS, label="income")
        x, y, weight = rows_of(source)
        assert x["age"].tolist() == [30, 40, 50] and x["age"].dtype == np.int64
        assert x["city"].tolist() == [b"Rome", b"", b"Oslo"] and x.keys() == {"age", "city"}
        assert y.tolist() == [1.5, 2.5, 3.5] and weight is None
        assert source.in_memory() is not None
        x, y, weight = rows_of(table(COLUMNS, keys=("age", {"a": "city"}, "income")))
        assert (x.tolist(), [*y], weight.tolist()) == ([30, 40, 50], ["a"], [1.5, 2.5, 3.5])

    def test_another_separator(self, tmp_path):
        (tmp_path / "rows.csv").write_text("age;income\n30;1.5\n")
        with pytest.raises(ValueError, match="separator"):
            data.from_csv(tmp_path / "rows.csv", label="income")
        assert (
            rows_of(data.from_csv(tmp_path / "rows.csv", label="income", separator=";"))[1] == 1.5
        )

    def test_constants_and_types_of_columns(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("age,city,income\n30,Rome,1\n,,2\n")
        filled = data.from_csv(
            path, label="income", missing={"age": 0.5, "city": "?"}, types={"age": "float64"}
        )
        found = filled.rows(np.arange(2))[0]
        assert (found["age"].tolist(), found["city"].tolist()) == ([30, 0.5], [b"Rome", b"?"])
        for missing, message in (({"age": 0.5}, "type int64"), ({"agee": 1}, "agee")):
            with pytest.raises(ValueError, match=message):
                data.from_csv(path, label="income", missing=missing)
        path.write_text("born,income\n2001-01-31,1\n")
        with pytest.raises(ValueError, match=r"'born' .* date"):
            data.from_csv(path, label="income")

    def test_what_is_missing_is_named(self, table, tmp_path):
        with pytest.raises(ValueError, match="incme"):
            table(COLUMNS, label="incme")
        with pytest.raises(ValueError, match="'age' has no value in row 1"):
            table(COLUMNS | {"age": [30, None, 50]}, label="income")
        gaps = table(COLUMNS | {"age": [30, None, 50]}, label="income", missing={"age": 40})
        assert rows_of(gaps)[0]["age"].tolist() == [30, 40, 50]
        for read in (data.from_csv, data.from_parquet):
            with pytest.raises(FileNotFoundError):
                read(tmp_path / "none")


class TestParquet:
    def write(self, path, columns):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(columns), path, row_group_size=2)

    def test_groups_of_rows_become_arrays(self, tmp_path):
        x, path = np.arange(30.0).reshape(5, 2, 3), tmp_path / "rows"
        self.write(path, {"x": x.tolist(), "y": [*range(5)]})
        for _ in range(2):
            for cache in (None, tmp_path / "cache"):
                source = data.from_parquet(path, keys=("x", "y"), cache=cache)
                np.testing.assert_array_equal(rows_of(source)[0], x)
                assert (source.in_memory() is None) == (cache is not None)

    def test_what_cannot_be_an_array_is_named(self, tmp_path):
        self.write(tmp_path / "rows", {"x": [[1], [2], [3], [4, 5]], "y": ["a", "b", "c", "d"]})
        with pytest.raises(ValueError, match=r"'x' .*row 3"):
            data.from_parquet(tmp_path / "rows", keys="x")
