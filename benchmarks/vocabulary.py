"""Measures time and memory against the size of an embedding: `python -m benchmarks --vocabulary`.

A plain step touches the rows of the embedding whose tokens are in the batch. A private one adds noise
to all rows, since which rows got none would tell which tokens the lot had. So its time and memory grow
with the vocabulary, whatever computes the gradients.
"""

from benchmarks.subjects import LABELS
from benchmarks.summary import Spread, number, spread

MODEL = "lstm"
WIDTH = 100  # of its embedding
LOT = 256
VOCABULARIES = (1_000, 10_000, 100_000, 1_000_000)
SUBJECTS = ("keras_tf", "tfdp")


def plan(repeats: int):
    """Yields (round, subject, vocabulary); odd rounds reverse the order of the subjects."""
    for round in range(repeats):
        for vocabulary in VOCABULARIES:
            for subject in SUBJECTS if round % 2 == 0 else reversed(SUBJECTS):
                yield round, subject, vocabulary


def spec(subject: str, vocabulary: int) -> dict:
    """Returns the part of the measured program's spec that depends on the point."""
    return {"model": MODEL, "lot": LOT, "subject": subject, "vocabulary": vocabulary}


def lines(content: dict) -> list[str]:
    """Returns the lines of the report's section; none if nothing was measured."""
    found = {}
    for record in content.get("vocabulary", []):
        if "step_ms" in record:
            key = (record["subject"], record["vocabulary"])
            found.setdefault(key, []).append(record)
    if not found:
        return []
    text = [
        "## Vocabularies",
        "",
        f"{MODEL}, lots of {LOT}, embeddings of {WIDTH} numbers a token. *Embedding*: what it takes "
        "once. *Growth*: peak over that of the smallest vocabulary, in embeddings. Noise is added to "
        "every row of an embedding, used or not, because the rows without noise would tell which "
        "tokens a lot has.",
        "",
        "| | vocabulary | step, ms | first step, s | peak, MiB | embedding, MiB | growth |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for subject in SUBJECTS:
        base = None
        for vocabulary in VOCABULARIES:
            records = found.get((subject, vocabulary), [])
            if not records:
                continue
            step, peak, first = (
                Spread.of(r[key] for r in records)
                for key in ("step_ms", "peak_mib", "first_step_seconds")
            )
            size = 4 * WIDTH * vocabulary / 2**20
            growth = "" if base is None else f"{(peak.median - base) / size:.1f}"
            base = peak.median if base is None else base
            text.append(
                f"| {LABELS[subject]} | {vocabulary:,} | {spread(step)} | {number(first.median)} "
                f"| {number(peak.median)} | {number(size)} | {growth} |"
            )
    return [*text, ""]
