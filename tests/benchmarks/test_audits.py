"""The page of audits: its figures are those of the records."""

from benchmarks import audits
from benchmarks.audits_report import write_plot, write_text
from tfdp.accounting import mechanism_names
from tfdp.experiments import Experiment


def record(bound, **changes):
    return {
        "bound": bound, "ceiling": 3.0, "claimed": 0.05, "proven": 2.0, "seconds": 1.0,
    } | changes  # fmt: skip


RECORDS = {
    "sound": {str(s): record(0.1 * s, claimed=2.5) for s in range(5)},
    "false": {str(s): record(1.0 + 0.1 * s) for s in range(10)},
    "not yet": {},
}


def test_the_table_counts_what_is_above(tmp_path):
    write_text(RECORDS, 500, tmp_path / "a.md")
    sound, false = (
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in (tmp_path / "a.md").read_text().splitlines()
        if line.startswith(("| sound", "| false"))
    )
    assert sound[1:8] == ["5", "2.5", "2", "0.2 (0.4)", "0", "0", "0.10"]
    assert false[1:5] == ["10", "0.05", "2", "1.45 (1.9)"]
    assert "refuted" in false[5] and false[6] == "0"
    assert "not yet" not in (tmp_path / "a.md").read_text()


def test_the_plot_is_drawn(tmp_path):
    write_plot(RECORDS, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_every_mechanism_is_audited():
    found = {Experiment(**case).mechanism for case in audits.CASES.values()}
    assert found == {*mechanism_names()} - {"none"}
