"""Writes what a sitting on a GPU measured, as a section of the report."""

from benchmarks.gpu import LARGEST, LARGEST_LOTS, LOTS, MODELS
from benchmarks.subjects import GOALS, LABELS
from benchmarks.summary import Spread, number, spread

_HEAD = (
    "| model | lot | plain, ms | TensorFloat-32 | tfdp, ms | over plain | goal | examples/s "
    "| peak, MiB | over | first step, s | over | XLA plain | XLA tfdp | over | peer, ms | peer "
    "| floor, ms |"
)
_RULE = "| --- |" + " ---: |" * 15 + " --- | ---: |"


def lines(content: dict) -> list[str]:
    """Returns the lines of the report's section; none if nothing was measured."""
    found = _cells(content)
    if not found:
        return []
    device = content["machine"].get("gpu", "a GPU")
    text = [
        "## On a GPU",
        "",
        f"{device}, {content['date']}: `fit` with lots in the memory of the host, medians over rounds "
        "and their range. Plain steps have the precision of their table, and TensorFloat-32 where it "
        "says so; tfdp turns TensorFloat-32 off, because it would understate norms. *Floor*: the "
        "longer of two times, of the operations of one forward and one backward pass at the rate of "
        "a large matrix product on this card, and of their bytes at the rate of a copy. *Peer*: the "
        "fastest private step of Opacus and jax-privacy in the same precision.",
        "",
        *_card(content),
    ]
    for precision in ("float32", "mixed_bfloat16"):
        rows = [
            _row(content, found, precision, model, lot)
            for model in MODELS
            for lot in LOTS
            if (precision, model, lot, "tfdp") in found
        ]
        if rows:
            text += [f"### {precision}", "", _HEAD, _RULE, *rows, ""]
    return [*text, *_largest(found)]


def _cells(content):
    cells = {}
    for record in content.get("gpu", []):
        key = (record["precision"], record["model"], record["lot"], record["subject"])
        cells.setdefault(key, {})[record["round"]] = record
    return cells


def _of(records, name):
    return Spread.of(r[name] for r in (records or {}).values() if name in r)


def _over(records, others, name):
    both = [
        r[name] / others[n][name]
        for n, r in (records or {}).items()
        if name in r and name in (others or {}).get(n, {})
    ]
    return Spread.of(both)


def _reason(records):
    for record in (records or {}).values():
        for kind in ("unsupported", "skipped", "failed"):
            if kind in record:
                return record[kind].replace("|", "/")
    return ""


def _row(content, found, precision, model, lot):
    def cell(subject, at=precision):
        return found.get((at, model, lot, subject))

    def time(subject, at=precision):
        return spread(_of(cell(subject, at), "step_ms")) or _reason(cell(subject, at))

    def middle(value, form="{:,.0f}"):
        return form.format(value.median) if value else ""

    mine, plain = cell("tfdp"), cell("keras_tf")
    step = _of(mine, "step_ms")
    peers = {s: _of(cell(s), "step_ms") for s in ("opacus_hooks", "opacus_ghost", "jax_privacy")}
    peers = {subject: value for subject, value in peers.items() if value}
    best = min(peers, key=lambda subject: peers[subject].median, default=None)
    floor = _floor_ms(content, precision, model, lot)
    cells = [
        model,
        f"{lot:,}",
        time("keras_tf"),
        time("keras_tf", "tensor_float_32") if precision == "float32" else "",
        time("tfdp"),
        spread(_over(mine, plain, "step_ms")),
        f"{GOALS[model]:g}",
        f"{1000 * lot / step.median:,.0f}" if step else "",
        middle(_of(mine, "peak_mib")),
        middle(_over(mine, plain, "peak_mib"), "{:.2f}"),
        middle(_of(mine, "first_step_seconds"), "{:.1f}"),
        middle(_over(mine, plain, "first_step_seconds"), "{:.1f}"),
        time("keras_tf_xla"),
        time("tfdp_xla"),
        spread(_over(cell("tfdp_xla"), cell("keras_tf_xla"), "step_ms")),
        number(peers[best].median) if best else "",
        LABELS[best] if best else "",
        number(floor) if floor else "",
    ]
    return f"| {' | '.join(cells)} |"


def _parts(content, subject, precision, model):
    for record in content.get("gpu_floor", []):
        if (record["subject"], record["precision"], record["model"]) == (subject, precision, model):
            return record["parts"]
    return None


def _floor_ms(content, precision, model, lot):
    rates, needs = (
        _parts(content, "device", precision, ""),
        _parts(content, "step", precision, model),
    )
    if not rates or not needs:
        return None
    share = lot / LOTS[1]
    # Operations: 1e9 over 1e12 a second; bytes: 1e9 over 1e9 a second.
    operations = needs["gflop"] * share / rates["tflop_per_s"]
    return max(operations, 1000 * needs["gbyte"] * share / rates["gb_per_s"])


def _card(content):
    found = {r["precision"]: r["parts"] for r in content.get("gpu_floor", []) if not r["lot"]}
    if not found:
        return []
    products = ", ".join(f"{k} {v['tflop_per_s']:,.0f}" for k, v in found.items())
    copies = max(v["gb_per_s"] for v in found.values())
    return [f"The card: TFLOP/s of a product: {products}; a copy {copies:,.0f} GB/s.", ""]


def _largest(found):
    words = []
    for subject in ("tfdp", "opacus_hooks"):
        fits = [
            lot
            for (precision, model, lot, who), records in found.items()
            if (precision, model, who) == ("float32", LARGEST, subject) and _of(records, "step_ms")
        ]
        if fits:
            words.append(f"{LABELS[subject]} {max(fits):,}")
    if not words:
        return []
    tried = sorted({*LOTS, *LARGEST_LOTS})
    return [f"Largest lot of {LARGEST} that fits, of {tried}: {'; '.join(words)}.", ""]
