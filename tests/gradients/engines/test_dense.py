"""Rules of Dense and EinsumDense: their gradients are those of batches of one."""

from keras import layers

from tests.gradients.checking import beside, check_engines, check_layers, side_by_side


def test_dense():
    check_layers((4,), layers.Dense(3), layers.Dense(1, use_bias=False, activation="relu"))
    longer = [
        side_by_side((5, 4), layers.Dense(3, activation="softmax")),
        side_by_side((2, 3, 4), layers.Dense(3, activation="tanh")),
        side_by_side((40, 2), layers.Dense(3)),
    ]
    check_engines(beside(*longer), engines=["ghost"])


def test_einsum_dense():
    layer = layers.EinsumDense("abcd,cde->abe", (5, 4), bias_axes="e")
    others = side_by_side(
        (5, 3),
        layers.EinsumDense("...x,xy->...y", 4, bias_axes="y", activation="tanh"),
        layers.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de"),
        layers.EinsumDense("abc,dce->abde", (5, 2, 3), bias_axes="e"),
        layers.EinsumDense("abc,bcd->abd", (5, 4), bias_axes="bd"),  # one kernel per position
        layers.EinsumDense("abc,cd->ad", 4),  # sums over positions
        layers.EinsumDense("abc,bd->adc", (4, 3), bias_axes="d"),
    )
    check_engines(beside(side_by_side((5, 2, 3), layer), others), engines=["ghost"])


def test_a_bias_that_keras_adds_along_another_axis():
    layer = layers.EinsumDense("abc,cd->abd", (5, 5), bias_axes="b")
    check_engines(side_by_side((5, 3), layer), engines=["ghost"])
