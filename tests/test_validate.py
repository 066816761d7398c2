"""Every check of arguments, on one table of valid and invalid values for each."""

import fractions
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfdp import _validate as check

NAN, INF = math.nan, math.inf
# Values that no check accepts as a number.
NO_NUMBERS = [
    None, True, False, np.True_, np.array(True), "", "1", b"1", "nan", 1j, np.complex64(1), [1], (1,),
    {}, np.array([1]), np.array([]), np.array("1"), np.array(None), object(), len, NAN, -NAN,
    np.float32("nan"), np.array(NAN),
]  # fmt: skip


def refused(expected, call, *args, **kwargs):
    """The message has the common form, with the argument, the rule and the value."""
    form = rf"^Expected NAME to be {expected}\. Received .+\. [A-Z].+\.$"
    with pytest.raises(ValueError, match=re.compile(form, re.DOTALL)):
        call("NAME", *args, **kwargs)


def same(found, expected):
    assert found == expected and type(found) is type(expected)
    assert math.copysign(1, found) == math.copysign(1, expected)


class TestWhole:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1),
            (9, 9),
            (np.int64(9), 9),
            (np.uint8(1), 1),
            (np.array(5), 5),
            (np.array(5, np.uint64), 5),
            (tf.constant(5), 5),
        ],
    )
    def test_good(self, value, expected):
        same(check.whole("NAME", value, 1, 9), expected)

    def test_good_without_a_maximum(self):
        same(check.whole("NAME", 10**300, 1), 10**300)
        same(check.whole("NAME", -3, -3), -3)
        same(check.whole("NAME", 0, 0), 0)

    @pytest.mark.parametrize(
        "value", [*NO_NUMBERS, 0, 10, -1, np.int8(-1), 2.0, np.float32(2), np.array(2.0), INF, -0.0]
    )
    def test_bad(self, value):
        refused("a whole number from 1 to 9", check.whole, value, 1, 9)

    def test_bad_without_a_maximum(self):
        refused("a whole number of at least 1", check.whole, 0, 1)
        refused("a whole number of at least 1, or None", check.whole, 0, 1, optional=True)

    def test_a_symbolic_tensor_has_no_value(self):
        @tf.function
        def traced(x):
            refused("a whole number of at least 1", check.whole, x, 1)
            refused("a finite number above 0", check.positive, x)
            refused(r"a finite number of at least 0, or .*", check.schedule, x)
            return x

        traced(tf.constant(3))


class TestFinite:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (0, 0.0),
            (-0.0, 0.0),
            (np.float32(-0.0), 0.0),
            (2, 2.0),
            (1e-320, 1e-320),
            (np.float32(0.5), 0.5),
            (np.float16(0.5), 0.5),
            (np.int32(3), 3.0),
            (np.array(0.25), 0.25),
            (tf.constant(0.25), 0.25),
            (fractions.Fraction(1, 2), 0.5),
        ],
    )
    def test_good(self, value, expected):
        same(check.finite("NAME", value, 0), expected)
        same(check.finite("NAME", value), expected)

    @pytest.mark.parametrize("value", [*NO_NUMBERS, INF, -INF, 10**400, np.float32("inf")])
    def test_bad(self, value):
        refused("a finite number", check.finite, value)
        refused("a finite number of at least 0", check.finite, value, 0)
        refused("a finite number of at least -2.5", check.finite, value, -2.5)

    def test_limits(self):
        assert check.finite("NAME", -7) == -7.0
        refused("a finite number of at least 0", check.finite, -1e-300, 0)
        refused("a finite number of at least 0, or None", check.finite, -1, 0, optional=True)


class TestPositive:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(1, 1.0), (5e-324, 5e-324), (np.float64(2), 2.0), (np.array(3), 3.0), (1e308, 1e308)],
    )
    def test_good(self, value, expected):
        same(check.positive("NAME", value), expected)

    @pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -0.0, -1, INF, -INF, 10**400])
    def test_bad(self, value):
        refused("a finite number above 0", check.positive, value)


class TestFraction:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0.5, 0.5), (np.float32(0.5), 0.5), (np.array(0.5), 0.5), (1e-320, 1e-320)],
    )
    def test_inside(self, value, expected):
        for zero in (False, True):
            for one in (False, True):
                same(check.fraction("NAME", value, zero=zero, one=one), expected)

    @pytest.mark.parametrize("value", [*NO_NUMBERS, -1e-9, 1.000001, 2, INF, -INF])
    def test_outside(self, value):
        refused(r"a number in \(0, 1\)", check.fraction, value)
        refused(r"a number in \[0, 1\]", check.fraction, value, zero=True, one=True)

    @pytest.mark.parametrize("zero", [0, 0.0, -0.0, np.int64(0)])
    def test_the_lower_end(self, zero):
        refused(r"a number in \(0, 1\]", check.fraction, zero, one=True)
        same(check.fraction("NAME", zero, zero=True), 0.0)

    @pytest.mark.parametrize("one", [1, 1.0, np.float32(1)])
    def test_the_upper_end(self, one):
        refused(r"a number in \[0, 1\)", check.fraction, one, zero=True)
        same(check.fraction("NAME", one, one=True), 1.0)


class TestTexts:
    @pytest.mark.parametrize("choices", [("a", "b"), {"a": 1, "b": 2}, ["a", "b"], iter("ab")])
    def test_one_of(self, choices):
        assert check.one_of("NAME", "b", choices) == "b"
        assert check.one_of("NAME", np.str_("a"), "ab") == "a"

    @pytest.mark.parametrize(
        "value", ["c", "", "A", "ab", None, 1, NAN, True, b"a", ["a"], {"a"}, np.array(["a", "b"])]
    )
    def test_none_of(self, value):
        refused("one of 'a', 'b'", check.one_of, value, ("a", "b"))

    @pytest.mark.parametrize("value", ["", " ", "\n", None, 3, NAN, True, b"text", ["text"]])
    def test_no_text(self, value):
        refused("a text that is not empty", check.text, value)
        assert check.text("NAME", "text") == "text"


class TestFlag:
    @pytest.mark.parametrize("value", [True, np.True_, np.array(True)])
    def test_good(self, value):
        assert check.flag("NAME", value) is True
        assert check.flag("NAME", not value) is False

    @pytest.mark.parametrize(
        "value", [0, 1, 1.0, NAN, None, "True", "", [], [True], np.array([True]), np.int64(1)]
    )
    def test_bad(self, value):
        refused("True or False", check.flag, value)


def test_instance():
    assert check.instance("NAME", 3, int, remedy="Pass one.") == 3
    assert check.instance("NAME", None, int, remedy="Pass one.", optional=True) is None
    refused("an instance of int", check.instance, None, int, remedy="Pass one.")
    refused("an instance of int", check.instance, "3", int, remedy="Pass one.")
    refused("an instance of int, or None", check.instance, "3", int, remedy="Go.", optional=True)


class TestSchedule:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1.0),
            (-0.0, 0.0),
            (np.float32(0.5), 0.5),
            (np.array(2), 2.0),
            ([], ()),
            ((1, 2.5), (1.0, 2.5)),
            ([0, 1], (0.0, 1.0)),
            ((-0.0, 1e300), (0.0, 1e300)),
            (np.array([1, 2]), (1.0, 2.0)),
            ([np.float32(0.5), 1], (0.5, 1.0)),
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
        found = check.schedule("NAME", 3.0, integer=True)
        assert found == 3 and type(found) is int
        refused("a whole number of at least 1", lambda name, value: check.schedule(
            name, value, integer=True, minimum=1), 1.5)  # fmt: skip

    @pytest.mark.parametrize(
        "value",
        [
            None, True, np.True_, "1", b"1", "abc", 1j, [True, 2.0], (1, np.True_), [None], ["1"],
            [[1.0]], [[1], [1, 2]], np.ones((2, 2)), np.array([True]), {1.0: 2.0}, object(), len,
        ],
    )  # fmt: skip
    def test_no_numbers(self, value):
        refused("a finite number of at least 0, or a flat sequence of them", check.schedule, value)

    @pytest.mark.parametrize("value", [NAN, INF, -INF, -1e-9, -1])
    def test_bad_numbers(self, value):
        refused("a finite number of at least 0", check.schedule, value)
        refused("a finite number of at least 0, or None", check.schedule, value, optional=True)
        with pytest.raises(ValueError, match=r"^Expected NAME of step 2 to be .* Received"):
            check.schedule("NAME", [1.0, 2.0, value, -5.0])


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
    with pytest.raises(ValueError, match=r"Received None\."):
        function("NAME", None, *more)
    with pytest.raises(ValueError, match=r", or None\. Received"):
        function("NAME", "something else", *more, optional=True)


def test_the_message_says_what_was_received_and_what_to_do():
    with pytest.raises(ValueError, match=r"^Expected lot_size to be a whole number from 1 to 5\. "):
        check.whole("lot_size", 6, 1, 5)
    with pytest.raises(ValueError, match=r"Received 'pois'\. Did you mean 'poisson'\? Use the"):
        check.one_of("sampling", "pois", ["poisson"], remedy="Use the other one.")


def test_a_long_value_is_shortened():
    with pytest.raises(ValueError) as error:
        check.positive("NAME", np.arange(100_000))
    assert len(str(error.value)) < 400


def test_only_numpy_is_imported():
    code = (
        "import sys; import tfdp._validate;"
        "assert not {'tensorflow', 'keras', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("dpsdg", " Did you mean 'dpsgd'?"),
            ("si_dpsg", " Did you mean 'si_dpsgd'?"),
            ("zzz", ""),
            ("DPSGD", " Did you mean 'dpsgd'?"),
            ("Si_dpsgd", " Did you mean 'si_dpsgd'?"),
        ],
    )
    def test_the_closest_name_is_offered(self, name, hint):
        assert check.did_you_mean(name, ["dpsgd", "si_dpsgd", "matrix"]) == hint

    def test_a_name_in_capitals_is_offered_for_one_in_small_letters(self):
        assert check.did_you_mean("dense", ["Dense", "Conv2D"]) == " Did you mean 'Dense'?"

    def test_a_known_keyword_is_accepted(self):
        check.refuse_unknown("call", ["a"], ["a", "b"])

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("l2_norm_clipp", "call has no argument 'l2_norm_clipp'. Did you mean 'l2_norm_clip'?"),
            ("max_grad_norm", "call has no argument 'max_grad_norm'. Pass l2_norm_clip."),
            ("zzz", "call has no argument 'zzz'."),
        ],
    )
    def test_an_unknown_keyword_is_refused(self, name, message):
        with pytest.raises(TypeError) as caught:
            check.refuse_unknown(
                "call", [name], ["l2_norm_clip"], {"max_grad_norm": "Pass l2_norm_clip."}
            )
        assert str(caught.value) == message
