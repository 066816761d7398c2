"""Every check of arguments, on valid and invalid values."""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp import _validate as check

NAN, INF = math.nan, math.inf
# Values that no check accepts as a number.
NO_NUMBERS = [
    None, True, np.True_, "", "1", 1j, [1], {}, np.array([1]), np.array("1"), object(), len, NAN,
    np.float32("nan"),
]  # fmt: skip


def refused(call, *args, says="", **kwargs):
    with pytest.raises(ValueError, match=f"Expected NAME.*{says}"):
        call("NAME", *args, **kwargs)


def same(found, expected):
    assert found == expected and type(found) is type(expected)
    assert math.copysign(1, found) == math.copysign(1, expected)


class TestWhole:
    def test_good(self):
        for value in (1, 9, np.int64(9), np.uint8(1), np.array(5), tf.constant(5)):
            same(check.whole("NAME", value, 1, 9), int(value))
        same(check.whole("NAME", 10**300, 1), 10**300)
        same(check.whole("NAME", -3, -3), -3)

    @pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 10, np.int8(-1), 2.0, np.array(2.0), INF])
    def test_bad(self, value):
        refused(check.whole, value, 1, 9, says="1 to 9")


class TestNumbers:
    def test_finite_numbers_become_floats(self):
        for value in (2, 1e-320, np.float16(0.5), np.int32(3), np.array(0.25), tf.constant(0.25)):
            same(check.finite("NAME", value, 0), float(value))
        same(check.finite("NAME", fractions.Fraction(1, 2)), 0.5)
        same(check.finite("NAME", np.float32(-0.0)), 0.0)
        same(check.finite("NAME", -7), -7.0)

    @pytest.mark.parametrize("value", [*NO_NUMBERS, INF, -INF])
    def test_others_are_neither_finite_nor_positive_nor_a_fraction(self, value):
        refused(check.finite, value)
        refused(check.finite, value, -2.5)
        refused(check.positive, value)
        refused(check.fraction, value, zero=True, one=True)

    def test_limits(self):
        refused(check.finite, -1e-300, 0, says="at least 0")
        same(check.positive("NAME", 5e-324), 5e-324)
        for value in (0, -0.0, -1):
            refused(check.positive, value, says="above 0")
        for value in (-1e-9, 1.000001):
            refused(check.fraction, value, zero=True, one=True, says="1]")

    @pytest.mark.parametrize(("end", "option"), [(0, "zero"), (-0.0, "zero"), (1, "one")])
    def test_the_ends_of_a_fraction(self, end, option):
        same(check.fraction("NAME", end, **{option: True}), abs(float(end)))
        refused(check.fraction, end, **{"one" if option == "zero" else "zero": True})


class TestOthers:
    @pytest.mark.parametrize("choices", [("a", "b"), {"a": 1, "b": 2}, iter("ab")])
    def test_one_of(self, choices):
        assert check.one_of("NAME", "b", choices) == "b"

    @pytest.mark.parametrize("value", ["c", "", "A", None, 1, NAN, b"a", ["a"], {"a"}])
    def test_none_of(self, value):
        refused(check.one_of, value, ("a", "b"), says="'a', 'b'")

    def test_the_nearest_is_named(self):
        with pytest.raises(ValueError, match="Did you mean 'ghost'"):
            check.one_of("engine", "gohst", ("auto", "ghost"))

    def test_text(self):
        assert check.text("NAME", "text") == "text"
        for value in ("", "\n", None, 3, b"text"):
            refused(check.text, value)

    def test_flag(self):
        for value in (True, np.True_):
            assert check.flag("NAME", value) is True and check.flag("NAME", not value) is False
        for value in (0, 1.0, None, "True", [True], np.array([True])):
            refused(check.flag, value)

    def test_instances(self):
        assert check.instance("NAME", 3, int, remedy="Pass one.") == 3
        assert check.instance("NAME", None, int, remedy="Pass one.", optional=True) is None
        refused(check.instance, "3", int, remedy="Pass one.", optional=True)
        assert check.instances("NAME", (1, 2), int, remedy="Pass some.") == [1, 2]
        for values in (3, None):
            refused(check.instances, values, int, remedy="Pass some.")


class TestSchedule:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1.0),
            (np.array(2), 2.0),
            ([], ()),
            ((1, 2.5), (1.0, 2.5)),
            ((-0.0, 1e300), (0.0, 1e300)),
            (range(3), (0.0, 1.0, 2.0)),
            (tf.constant([1.0, 2.0]), (1.0, 2.0)),
        ],
    )
    def test_good(self, value, expected):
        found = check.schedule("NAME", value)
        assert found == expected and type(found) is type(expected)
        for number in found if isinstance(found, tuple) else (found,):
            assert type(number) is float and math.copysign(1, number) == 1

    def test_whole_numbers(self):
        assert check.schedule("NAME", [1, 2.0], integer=True, minimum=1) == (1, 2)
        assert type(check.schedule("NAME", 3.0, integer=True)) is int
        refused(check.schedule, 1.5, integer=True)

    @pytest.mark.parametrize(
        "value",
        [
            None, True, "1", 1j, [None], [[1.0]], np.ones((2, 2)),
            np.array([True]), {1.0: 2.0}, object(), NAN, INF, -1e-9,
        ],
    )  # fmt: skip
    def test_bad(self, value):
        refused(check.schedule, value)

    def test_the_first_bad_step_is_named(self):
        refused(check.schedule, [1.0, 2.0, NAN, -5.0], says="step 2")


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (check.whole, (1,)),
        (check.finite, ()),
        (check.positive, ()),
        (check.fraction, ()),
        (check.one_of, (("a",),)),
        (check.schedule, ()),
    ],
)
def test_none_passes_only_where_it_may(function, more):
    assert function("NAME", None, *more, optional=True) is None
    refused(function, None, *more)
    refused(function, "something else", *more, optional=True, says="or None")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("dpsdg", "'dpsgd'"), ("DPSGD", "'dpsgd'"), ("dense", "'Dense'"), ("zzz", "")],
)
def test_the_closest_name_is_offered(name, meant):
    found = check.did_you_mean(name, ["dpsgd", "si_dpsgd", "Dense"])
    assert meant in found and bool(found) == bool(meant)
