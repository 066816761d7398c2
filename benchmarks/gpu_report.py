"""Writes the measurements on a GPU as a section of the report."""

from benchmarks.gpu import LOTS, MODELS
from benchmarks.summary import Spread, reason_of, spread

# Goals: the largest ratio of a private step to a plain step of the same kind.
GOALS = {name: 1.5 if name in ("tutorial_cnn", "resnet18") else 1.2 for name in MODELS}
_PRECISIONS = {
    "tensor_float_32": "float32, products in TensorFloat-32 (TensorFlow's default)",
    "mixed_bfloat16": "bfloat16 between layers (mixed_bfloat16)",
    "float32": "float32",
}
_TIMES = (
    "| model | lot | plain, ms | tfdp, ms | over | XLA: plain | tfdp | over | goal | vectorized, ms "
    "| over | Opacus, ms | over | jax-privacy, ms | over |"
)
_MEMORY = (
    "| model | lot | plain | tfdp | over | XLA: plain | tfdp | over | vectorized | over | Opacus "
    "| over | jax-privacy | over |"
)
_PAIRS = (
    ("tfdp", "keras_tf"),
    ("tfdp_xla", "keras_tf_xla"),
    ("tfdp_vectorized", "keras_tf"),
    ("opacus_ghost", "pytorch"),
    ("jax_privacy", "keras_jax"),
)
_WITH_PLAIN = ("tfdp", "tfdp_xla")


def lines(content: dict) -> list[str]:
    """Returns the lines of the report's section, none if nothing was measured."""
    found = _cells(content)
    if not found:
        return []
    device = content["machine"].get("gpu", "a GPU")
    text = [
        "## On a GPU",
        "",
        f"{device}, {content['date']}: `fit` with lots in the memory of the host, medians over rounds "
        "and their range. *Over*: relative to the same framework without privacy in the same precision "
        "and kind of step; jax-privacy's are compiled by XLA. Opacus: ghost clipping. Whatever the "
        "precision, tfdp computes the products of norms and sums to 20 binary digits.",
        "",
    ]
    for precision, words in _PRECISIONS.items():
        for title, head, name in (("step", _TIMES, "step_ms"), ("peak, MiB", _MEMORY, "peak_mib")):
            rows = [
                _row(found, precision, model, lot, name)
                for model in MODELS
                for lot in LOTS
                if (precision, model, lot, "tfdp") in found
            ]
            if rows:
                rule = "| --- |" + " ---: |" * (head.count("|") - 2)
                text += [f"### {words}: {title}", "", head, rule, *rows, ""]
    return [*text, *_others(found)]


def _cells(content):
    cells = {}
    for record in content.get("gpu", []):
        key = (record["precision"], record["model"], record["lot"], record["subject"])
        cells.setdefault(key, []).append(record)
    return cells


def _shown(records, name):
    value = Spread.of_key(records, name)
    if value is not None:
        return f"{value.median:,.0f}" if name == "peak_mib" else spread(value)
    return reason_of(records[0]) if records and name == "step_ms" else ""


def _row(found, precision, model, lot, name):
    cells = [model, f"{lot:,}"]
    for subject, baseline in _PAIRS:
        mine, plain = (found.get((precision, model, lot, s), []) for s in (subject, baseline))
        if subject in _WITH_PLAIN:
            cells.append(_shown(plain, name))
        cells += [_shown(mine, name), spread(Spread.of_key(mine, name, plain))]
        if subject == "tfdp_xla" and name == "step_ms":
            cells.append(f"{GOALS[model]:g}")
    return f"| {' | '.join(cells)} |"


def _others(found):
    """Returns lines on microbatches, whose mean gradients are bounded instead of those of examples."""
    rows = []
    for (precision, model, lot, subject), records in found.items():
        if subject == "tfdp_vectorized_microbatches":
            plain = found.get((precision, model, lot, "keras_tf"), [])
            over = spread(Spread.of_key(records, "step_ms", plain))
            rows.append(f"| {model} | {lot:,} | {_shown(records, 'step_ms')} | {over} |")
    if not rows:
        return []
    head = "| model | lot | vectorized engine, microbatches of 4, ms | over |"
    return [head, "| --- | ---: | ---: | ---: |", *rows, ""]
