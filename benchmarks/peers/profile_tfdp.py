"""Shows where the time of a step goes on a GPU: `python profile_tfdp.py MODEL LOT SUBJECT`.

SUBJECT is one of those of `run_tfdp.py`, such as keras_tf, tfdp or tfdp_xla. TensorFlow's profiler
records several steps. The times of the GPU's kernels are added for each operation that started them.
"""

import collections
import os
import re
import sys
import tempfile
from pathlib import Path

import protocol
import run_tfdp

WARM, STEPS, LINES = 2, 8, 14


def main(model, lot, subject):
    """Prints milliseconds of a step by kernel and by operation."""
    import keras
    import tensorflow as tf

    turn = protocol.Turn(os.environ.get("BENCHMARK_TURNS"))
    turn.prepare()
    spec = {"model": model, "lot": int(lot), "subject": subject, "device": "gpu"}
    spec["examples"] = STEPS * spec["lot"]
    made = run_tfdp.compiled(spec)
    x, y = protocol.data(spec)
    with tempfile.TemporaryDirectory() as folder:

        class Profile(keras.callbacks.Callback):
            # The profile excludes the beginning and end of `fit`, which take as long as some steps.
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == WARM:
                    turn.time()
                    tf.profiler.experimental.start(folder)

            def on_epoch_end(self, epoch, logs=None):
                float(logs["loss"])
                if epoch == WARM:
                    tf.profiler.experimental.stop()

        rest = {"batch_size": spec["lot"], "epochs": WARM + 1, "verbose": 0}
        made.fit(x, y, callbacks=[Profile()], **rest)
        (path,) = Path(folder).rglob("*.xplane.pb")
        events = list(_kernels(path.read_bytes()))
    _show(f"{model} {lot} {subject}", events)


def _kernels(content):
    """Yields (stream, start in s, seconds, kernel, operation) of each kernel that ran on the GPU."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(content)
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        names = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                kernel = plane.event_metadata[event.metadata_id].name
                said = {names[s.metadata_id]: s for s in event.stats}
                operation = ""
                for key in ("tf_op", "hlo_op", "name"):
                    if key in said:
                        stat = said[key]
                        operation = stat.str_value or names.get(stat.ref_value, "")
                        break
                start = (line.timestamp_ns * 1e3 + event.offset_ps) / 1e12
                yield line.name, start, event.duration_ps / 1e12, kernel, operation


def _show(title, events):
    if not events:
        print(f"{title}: the profiler saw no kernel")
        return
    begin = min(start for _, start, *_ in events)
    end = max(start + seconds for _, start, seconds, *_ in events)
    busy, until = 0.0, begin
    for _, start, seconds, *_ in sorted(events, key=lambda event: event[1]):
        busy += max(0.0, start + seconds - max(until, start))
        until = max(until, start + seconds)
    each = 1000 / STEPS
    print(
        f"== {title}: {(end - begin) * each:.2f} ms a step, the GPU busy {busy * each:.2f}, "
        f"{len(events) / STEPS:.0f} kernels and copies a step"
    )
    for words, key in (
        ("kernel", lambda e: e[3][:90]),
        ("operation", lambda e: re.sub(r"_\d+", "", e[4])[-90:]),
    ):
        sums, counts = collections.Counter(), collections.Counter()
        for event in events:
            sums[key(event)] += event[2]
            counts[key(event)] += 1
        print(f"   {'ms':>8} {'times':>6}  {words}")
        for name, seconds in sums.most_common(LINES):
            print(f"   {seconds * each:8.3f} {counts[name] / STEPS:6.1f}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
