"""One example, whatever it is, moves the bounded sum by at most the declared sensitivity."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients import chunks as chunking
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.rules import UnsupportedModelError

CLIP = 0.5
EXTREMES = [0.0, 1e4, 1e18, 3e38, np.inf, -np.inf, np.nan]


class NoClip(GlobalL2Clip):
    """A broken bound, which declares a sensitivity but does not clip."""

    def scales(self, square_norms):
        return tf.ones_like(square_norms)


def model():
    made = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(3)]
    )
    made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def summer(engine, bound, microbatch_size=1):
    made = model()
    forward, chosen, declared = Forward(made), choose_engine(engine, made), {}

    @tf.function(autograph=False)
    def step(x, y, weight):
        lot = bounded_sum(chosen, forward, bound, x, y, weight, microbatch_size=microbatch_size)
        declared["sensitivity"] = lot.sensitivity
        return lot.sums

    def total(x, y, weight):
        sums = step(*(tf.constant(a) for a in (x, y, weight)))
        return np.concatenate([s.numpy().ravel() for s in sums]).astype(float)

    return total, declared


def largest_move(total):
    """The largest moves of the sum when one example is zeroed out or replaced by an extreme one."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 4)).astype("float32"), draw.integers(0, 3, 6)
    weight = np.ones(6, np.float32)
    base, removed, replaced = total(x, y, weight), 0.0, 0.0
    for extreme in EXTREMES:
        for columns in (slice(None), slice(0, 1)):
            other = x.copy()
            other[2, columns] = extreme
            null = weight.copy()
            null[2] = 0.0
            moved, gone = total(other, y, weight), total(other, y, null)
            assert np.all(np.isfinite(moved)) and np.all(np.isfinite(gone))
            removed = max(removed, np.linalg.norm(moved - gone))
            for label in range(3):
                other_y = y.copy()
                other_y[2] = label
                replaced = max(replaced, np.linalg.norm(total(other, other_y, weight) - base))
    return removed, replaced


@pytest.mark.parametrize("microbatch_size", [1, 3])
@pytest.mark.parametrize("engine", ["vectorized", "ghost"])
def test_the_sum_moves_by_at_most_the_sensitivity(engine, microbatch_size):
    total, declared = summer(engine, GlobalL2Clip(CLIP), microbatch_size)
    removed, replaced = largest_move(total)
    assert declared["sensitivity"] == CLIP * (1 if microbatch_size == 1 else 2)
    assert 0.3 * CLIP < removed <= declared["sensitivity"] * (1 + 1e-5)
    assert replaced <= 2 * CLIP * (1 + 1e-5)


@pytest.mark.parametrize("engine", ["vectorized", "ghost"])
def test_the_same_check_catches_a_bound_that_does_not_clip(engine):
    total, declared = summer(engine, NoClip(CLIP))
    with np.errstate(all="ignore"):
        try:
            removed, _ = largest_move(total)
        except AssertionError:  # a sum is not finite
            return
    assert removed > declared["sensitivity"] * 1.5


def test_choice_of_the_engine(monkeypatch):
    from tfdp.gradients.engines import exact, ghost

    assert choose_engine("ghost", model()) is ghost.bounded_sum
    assert choose_engine("vectorized", model()) is exact.bounded_sum
    with pytest.raises(ValueError, match="Expected engine to be one of"):
        choose_engine("fast", model())

    class InALoop(layers.Dense):
        def call(self, inputs):
            step = super().call
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, step(x)), [0, inputs])[1]

    x = keras.Input((4,))
    beyond = keras.Model(x, InALoop(4)(x))
    beyond.compile("sgd", "mse")
    auto = choose_engine("auto", beyond)
    monkeypatch.setattr(exact, "bounded_sum", lambda forward, *arguments: arguments[1])
    forward, bound, rows = Forward(beyond), GlobalL2Clip(1.0), tf.ones([2, 4])
    traced = tf.function(lambda x: auto(forward, bound, x, x, x[:, 0], tf.constant(0)))
    np.testing.assert_array_equal(traced(rows), rows)  # what the exact engine was given
    with pytest.raises(ValueError, match="not exact"):
        choose_engine("ghost", beyond)


def test_chunks_are_told_apart_and_their_sums_add_up():
    seen = []

    def fake(forward, bound, x, y, weight, chunk, microbatch_size):
        seen.append(x.shape)
        rows = tf.shape(weight)[0]
        return BoundedSum(
            sums=[tf.reduce_sum(x) + 1000.0 * tf.cast(chunk, tf.float32)],
            norms=weight,
            present=weight > 0,
            clipped=weight,
            non_finite=tf.constant(1),
            losses=x[:, 0],
            output_losses=x[:, :2],
            outputs=x,
            state=[rows],
            sensitivity=1.0,
            l2_norm_clip=1.0,
            relative_sensitivity=1.0,
        )

    x = tf.reshape(tf.range(10.0), (5, 2))
    forward = Forward(model())
    lot = bounded_sum(fake, forward, None, x, x, tf.ones(5), physical_batch_size=2)
    # Chunks 0, 1 and 2; the sum leaves a millionth of itself as room for rounding.
    assert float(lot.sums[0]) == pytest.approx(45.0 + 3000.0, rel=2e-6)
    assert int(lot.non_finite) == 3
    np.testing.assert_array_equal(lot.outputs, x)
    np.testing.assert_array_equal(lot.present, [True] * 5 + [False])
    assert set(seen) == {(2, 2)}
    assert dataclasses.is_dataclass(lot)


@pytest.mark.parametrize("microbatch_size", [1, 3])
def test_a_cpu_takes_large_lots_of_images_in_chunks_of_equal_result(monkeypatch, microbatch_size):
    made = keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(2)]
    )
    made.compile(loss="mse")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(600, 6, 6, 1)).astype("float32"), draw.normal(size=(600, 2))
    seen = []

    def spied(forward, bound, x, *rest):
        seen.append(x.shape[0])
        return choose_engine("ghost", made)(forward, bound, x, *rest)

    def sums():
        arguments = (Forward(made), GlobalL2Clip(0.5), *map(tf.constant, (x, y)), tf.ones(600))
        lot = bounded_sum(spied, *arguments, microbatch_size=microbatch_size)
        assert lot.outputs.shape[0] == lot.losses.shape[0] == 600
        return [s.numpy() for s in lot.sums]

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [])
    in_chunks = sums()
    assert set(seen) == {300}
    seen.clear()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    for ours, whole in zip(in_chunks, sums(), strict=True):
        np.testing.assert_allclose(ours, whole, rtol=1e-5, atol=1e-6)
    assert set(seen) == {600}


def test_large_passes_work_in_turn_with_equal_results(monkeypatch):
    made = keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(2)]
    )
    made.compile(loss="mse")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 6, 6, 1)).astype("float32"), draw.normal(size=(6, 2))

    def traced():
        forward = Forward(made)

        @tf.function(autograph=False)
        def sums(x, y):
            arguments = (forward, GlobalL2Clip(0.5), x, y, tf.ones(6))
            lot = bounded_sum(choose_engine("ghost", made), *arguments, physical_batch_size=3)
            return lot.sums

        graph = sums.get_concrete_function(tf.constant(x), tf.constant(y)).graph
        (loop,) = [o for o in graph.get_operations() if o.type in ("While", "StatelessWhile")]
        late = [
            node
            for function in graph.as_graph_def().library.function
            for node in function.node_def
            if node.op == "Identity" and any(name.startswith("^") for name in node.input)
        ]
        parallel = loop.get_attr("parallel_iterations")
        return sums(tf.constant(x), tf.constant(y)), parallel, len(late)

    at_once, parallel, identities = traced()
    assert parallel == 2
    monkeypatch.setattr(chunking, "_LARGE_BYTES", 0)
    in_turn, parallel, late = traced()
    assert parallel == 1
    assert late == identities + 2  # the inputs of the two layers
    for ours, theirs in zip(in_turn, at_once, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_the_model_is_traced_once_for_all_chunks():
    traces = []

    @keras.saving.register_keras_serializable("test_lot")
    class Counted(layers.Dense):
        def call(self, inputs):
            traces.append(self)
            return super().call(inputs)

    made = keras.Sequential([keras.Input((3,)), Counted(2)])
    made.compile(loss="mse")
    forward = Forward(made)
    x, y = tf.ones([6, 3]), tf.ones([6, 2])

    def operations(physical_batch_size):
        @tf.function(autograph=False)
        def sums(x, y):
            arguments = (forward, GlobalL2Clip(0.5), x, y, tf.ones(6))
            engine = choose_engine("vectorized", made)
            return bounded_sum(engine, *arguments, physical_batch_size=physical_batch_size).sums

        traces.clear()
        sums.get_concrete_function(x, y)
        return len(traces)

    assert forward.row_bytes  # traces the model, too
    assert operations(2) == operations(6) > 0


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(0, 5000), st.integers(1, 300), st.integers(1, 7))
def test_chunks_are_few_and_of_one_size(rows, limit, multiple):
    limit = -(-limit // multiple) * multiple
    chunks, size = chunking.balanced(rows, limit, multiple)
    assert size % multiple == 0 and 0 < size <= limit
    assert chunks * size >= rows > (chunks - 1) * limit or (rows, chunks) == (0, 1)
    assert chunks * size - rows < chunks * multiple or rows == 0
    as_tensors = chunking.balanced(tf.constant(rows), limit, multiple)
    assert [int(t) for t in as_tensors] == [chunks, size]


def images(side, filters):
    return Forward(
        keras.Sequential(
            [keras.Input((side, side, 1)), layers.Conv2D(filters, 3), layers.Flatten()]
        )
    )


def test_bytes_of_a_row_are_those_of_the_pass_and_not_of_the_weights():
    # Outputs of the convolution with and without bias; inputs and two reshaped copies come on top.
    least = 4 * 8 * 30 * 30 * 2
    assert 2 * least <= images(32, 8).row_bytes <= 2.1 * least
    subclassed = type("Own", (keras.Model,), {"call": lambda self, x: self.layer(x)})()
    subclassed.layer = layers.Dense(2)
    subclassed(tf.ones((2, 3)))
    assert Forward(subclassed).row_bytes is None


def test_images_and_sequences_are_chunked_and_large_images_in_smaller_chunks(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [])

    def limit(made, rows=1024, microbatch_size=1):
        return chunking.suitable_rows(made, rows, None, microbatch_size)

    assert limit(images(8, 2)) == 342
    assert limit(images(8, 2), rows=512) == 256
    large = images(128, 8)
    wanted = 2**27 / large.row_bytes
    assert 32 < wanted < 200
    assert abs(limit(large) / wanted - 1) < 0.1
    assert limit(images(128, 200)) == 32
    assert limit(images(128, 200), microbatch_size=5) == 35
    assert limit(images(8, 2), rows=384) is None
    assert limit(Forward(model())) is None
    sequences = keras.Sequential([keras.Input((9, 2)), layers.Bidirectional(layers.GRU(2))])
    assert limit(Forward(sequences)) == 342
    # Most Poisson lots with nominal size 1,024 are processed in three chunks.
    assert chunking.suitable_rows(images(8, 2), None, 1024, 1) == 363


def test_few_rows_are_taken_whole_whatever_was_expected(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [])
    assert chunking.suitable_rows(images(8, 2), 100, 1024, 1) is None
    assert chunking.suitable_rows(images(8, 2), 47, 1024, 1) is None
    assert chunking.suitable_rows(images(8, 2), None, None, 1) is None


def test_auto_takes_the_ghost_engine_and_falls_back_where_it_refuses_late(monkeypatch):
    from tfdp.gradients.engines import exact, ghost

    calls = []
    monkeypatch.setattr(exact, "bounded_sum", lambda *a: calls.append("vectorized"))
    monkeypatch.setattr(ghost, "bounded_sum", lambda *a: calls.append("ghost"))
    choose_engine("auto", model())()

    def refuse(*arguments):
        raise UnsupportedModelError("layer 'twice' is called twice")

    monkeypatch.setattr(ghost, "bounded_sum", refuse)
    choose_engine("auto", model())()
    assert calls == ["ghost", "vectorized"]


def test_expected_rows_decide_between_ways_of_equal_result():
    made = keras.Sequential(
        [keras.Input((9, 9, 6)), layers.Conv2D(600, 3), layers.GlobalAveragePooling2D()]
    )
    made.compile(loss="mse")
    seen = []

    def run(expected):
        def step(x, y, weight):
            lot = bounded_sum(
                choose_engine("ghost", made),
                Forward(made),
                GlobalL2Clip(CLIP),
                x,
                y,
                weight,
                expected_rows=expected,
            )
            seen.append(tf.compat.v1.get_default_graph().as_graph_def())
            return lot.sums

        shapes = ((None, 9, 9, 6), (None, 600), (None,))
        signature = [tf.TensorSpec(shape) for shape in shapes]
        return tf.function(step, input_signature=signature)(x, y, tf.ones([4]))

    draw = np.random.default_rng(0)
    x = tf.constant(draw.normal(size=(4, 9, 9, 6)), tf.float32)
    y = tf.constant(draw.normal(size=(4, 600)), tf.float32)
    few, many = run(4), run(1_200)
    # Few rows: the graph instantiates gradients. Many rows: it uses Gram matrices.
    assert len(seen[0].node) != len(seen[1].node)
    for a, b in zip(few, many, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
