"""An error in a row reaches the caller of fit as it is, and a process ends while rows are read."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.training.small import small
from tfdp import data


class Rows:
    """Examples; `read` is called for each index before it is read."""

    def __init__(self, read=lambda index: None):
        self.read = read

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.read(index)
        return np.zeros(4, np.float32), index % 3


class Broken(Exception):
    pass


def broken(index):
    if index == 7:
        raise Broken("disk")


def ended(index):
    if index == 7:
        raise StopIteration


def broken_in_tensorflow(row):
    x, y = row
    tf.debugging.assert_less(y, tf.constant(2, y.dtype), "no label")
    return x, y


def broken_in_python(row):
    broken(7 if row[1] == 1 else 0)
    return row


KINDS = {
    "in __getitem__": (lambda: Rows(broken), Broken, "row 7"),
    "as at the end of an iterator": (lambda: Rows(ended), RuntimeError, "Row 7"),
    "in a function of the source": (
        lambda: data.as_source(Rows()).map(broken_in_python, python=True),
        Broken,
        "row 1 ",
    ),
    "in TensorFlow": (
        lambda: data.as_source(Rows()).map(broken_in_tensorflow),
        tf.errors.InvalidArgumentError,
        "row 2 ",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_row_is_raised_as_it_is_and_names_the_row(kind):
    source, error, says = KINDS[kind]
    lots, model = data.make_lots("cyclic", source(), lot_size=5), small()
    with pytest.raises(error) as caught:
        model.fit(lots, epochs=2, verbose=0)
    assert says in "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    if kind == "in __getitem__":
        with pytest.raises(Broken):
            [*model.privacy.steps(lots)]


def test_errors_of_tensorflow_itself_stay():
    lots = data.make_lots("cyclic", Rows(), lot_size=5)
    error = tf.errors.ResourceExhaustedError(None, None, "no memory")
    assert lots.cause_of(error) is error


_ALIVE = """
import time
import numpy as np, tfdp

class Slow:
    wait = 0

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(self.wait)
        return np.zeros(4, np.float32), index % 3

source = Slow()
iterator = iter(tfdp.data.make_lots("shuffle", source, lot_size=20_000).as_dataset())
next(iterator)
source.wait = 0.1  # the lots that are read ahead would take minutes
time.sleep(0.2)
print("end")
"""


@pytest.mark.parametrize(
    "end", ["raise KeyboardInterrupt", pytest.param("", marks=pytest.mark.slow)]
)
def test_a_process_ends_while_rows_are_read(end):
    command = [sys.executable, "-c", _ALIVE + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "end\n" and done.returncode == (-2 if end else 0), done.stderr
    assert "Exception ignored" not in done.stderr and "Fatal" not in done.stderr
