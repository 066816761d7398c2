"""Records are those of the catalogue's settings, and the pages and lists show only these."""

import json
import math
import shutil
import sys
from pathlib import Path

import pytest

from tests.papers.small_catalogue import CATALOGUE, STARTS, train_here
from tfdp.experiments import __main__ as command
from tfdp.experiments.partial_folder import ResultError
from tfdp.papers import catalogue, pages, records, running
from tfdp.papers.catalogue import cells
from tfdp.papers.computed import COMPUTATIONS

ROOT = Path(__file__).resolve().parents[2]


def test_records_of_other_settings_are_not_shown(small, monkeypatch):
    results, out = small / "results", small / "pages"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    (small / "paper.toml").write_text(
        CATALOGUE.replace("--noise_multiplier=4", "--noise_multiplier=5")
    )
    catalogue.tables.cache_clear()
    (cell,) = cells(["paper.T1.a.2"])
    assert records.measured(cell, records.read(out / "records.json")) is None
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 2  # it says so


def test_what_is_not_measured_yet_stands_there_with_its_cost(small, monkeypatch):
    train_here(monkeypatch)
    results, out = small / "results", small / "pages"
    pages.write_pages(results, out)
    page = (out / "README.md").read_text()
    assert "| not yet | not yet |" in page
    assert (
        "* Not measured yet: Row A at 2, 3. What they take was not measured.\n" in page
    )  # nothing is known of its cost
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    kept = records.read(out / "records.json")
    for record in kept["paper.T1.a.2"].values():
        record["seconds"] = 300.0
    records.write(out / "records.json", kept)
    pages.write_pages(small / "nothing", out)
    said = "* Not measured yet: Row A at 3. All of them, one seed each, take about 5 minutes.\n"
    assert said in (out / "README.md").read_text()


def test_the_page_of_findings_is_in_the_report(small):
    out = small / "pages"
    out.mkdir()
    (out / "findings.md").write_text(
        "# Found\n\nIn [the tables](README.md).\n\n## Of one\n\n* **It holds** (`paper.T1`).\n"
    )
    pages.write_pages(small / "none", out)
    html = (out / "index.html").read_text()
    assert '<a href="#findings">' in html and '<section id="findings">' in html
    assert "<h2>Found</h2>" in html and "<h3>Of one</h3>" in html
    assert '<a href="#overview">the tables</a>' in html and 'id="overview"' in html
    assert "<li><strong>It holds</strong> (<code>paper.T1</code>).</li>" in html


def test_the_recorded_pages_are_not_written_over(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 0
    (small / "docs").mkdir()
    (small / "docs" / "findings.md").write_text("Found.")
    monkeypatch.setattr(command, "_PAGES", str(small / "docs"))
    assert command.main(["report", f"--results={results}"]) == 0
    assert sorted(path.name for path in (small / "docs").iterdir()) == ["findings.md"]
    assert (results / "pages" / "findings.md").read_text() == "Found."
    assert "**Row A: paper**" in (results / "pages" / "README.md").read_text()


def test_records_that_no_cell_shows_are_told(small, monkeypatch, capsys):
    results, out = small / "results", small / "pages"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    path = out / "records.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "paper.T9.a.2": kept["paper.T1.a.2"]}))
    (small / "paper.toml").write_text(
        CATALOGUE.replace("--noise_multiplier=4", "--noise_multiplier=5")
    )
    catalogue.tables.cache_clear()
    monkeypatch.setattr(command, "_PAGES", str(out))
    capsys.readouterr()
    assert command.main(["report", f"--results={small / 'none'}", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("0 trainings of 0 cells:")
    assert (
        "paper.T1: 2 recorded trainings are not shown, as the catalogue has other settings" in said
    )
    assert "paper.T9: 2 recorded trainings are not shown, as the catalogue has no such cell" in said
    assert len(json.loads(path.read_text())) == 2  # and they stay recorded


def test_records_from_other_weights_that_are_not_kept_are_told(small, monkeypatch):
    results, out = small / "results", small / "pages"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out)
    shutil.rmtree(results / "paper/T1/a/2/seed=2")
    collect = pages.collect

    def from_others(*arguments):
        found, left = collect(*arguments)
        found["paper.T1.a.2"]["1"]["initial_weights_sha256"] = "other"
        return found, left

    monkeypatch.setattr(pages, "collect", from_others)
    said = pages.write_pages(results, out)
    assert any(line.startswith("paper.T1.a.2: the recorded seeds 2 started from") for line in said)


def fine_tuned(small, monkeypatch):
    """Trains a cell from the weights of another; returns the folders of results and of pages."""
    # Without privacy, since private training refuses weights that were trained on the same data.
    text = STARTS.replace("dpsgd --noise_multiplier=4", "none --learning_rate=0.3")
    (small / "paper.toml").write_text(text)
    catalogue.tables.cache_clear()
    train_here(monkeypatch)
    assert command.main(["run", "paper.T2", f"--results={small}/r"]) == 0
    monkeypatch.setattr(command, "_PAGES", str(small / "none"))
    return small / "r", small / "pages"


def test_what_started_from_weights_that_are_gone_is_no_result(small, monkeypatch, capsys):
    """Whatever the record says of its start, nothing shows it."""
    results, out = fine_tuned(small, monkeypatch)
    shutil.rmtree(results / "paper/T2/public")
    for arguments in (["list", "paper.T2"], ["compare", "paper.T2"], ["report", f"--out={out}"]):
        capsys.readouterr()
        assert command.main([*arguments, f"--results={results}"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "so that nothing shows from which ones seed 1 started" in said
    assert records.read(out / "records.json") == {}


def test_results_from_before_contents_were_noted_are_kept(small, monkeypatch):
    """The digest of the file says the same, as long as the file is the same."""
    results, out = fine_tuned(small, monkeypatch)
    path = results / "paper/T2/fine/-/seed=1/run.json"
    record = json.loads(path.read_text())
    del record["contents_of_settings"]
    path.write_text(json.dumps(record))
    pages.write_pages(results, out)
    kept = records.read(out / "records.json")
    fine, public = (kept[f"paper.T2.{row}.-"]["1"] for row in ("fine", "public"))
    assert fine["initial_weights_sha256"] == public["weights_sha256"]
    assert all(records.measured(cell, kept) for cell in cells(["paper.T2"]))


@pytest.mark.parametrize("value", [3, [], {}])
def test_a_start_of_another_type_is_told(small, monkeypatch, capsys, value):
    results, _ = fine_tuned(small, monkeypatch)
    path = results / "paper/T2/fine/-/seed=1/run.json"
    record = json.loads(path.read_text())
    record["settings"]["initial_weights"] = value
    path.write_text(json.dumps(record))
    capsys.readouterr()
    assert command.main(["compare", "paper.T2", f"--results={results}"]) == 0
    assert "Found something else" in " ".join(capsys.readouterr().out.split())


def test_a_folder_at_home_is_the_same_for_results_and_their_starts(small, monkeypatch):
    monkeypatch.setenv("HOME", str(small))
    assert command._parser().parse_args(["list", "--results=~/r"]).results == small / "r"
    assert command._parser().parse_args(["report", "--out=~/o"]).out == small / "o"


def test_an_interrupted_report_is_written_again(small, monkeypatch):
    (small / "docs").mkdir()
    (small / "docs" / "findings.md").write_text("Found.")
    monkeypatch.setattr(command, "_PAGES", str(small / "docs"))
    arguments = ["report", f"--results={small}/r", f"--out={small}/out"]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pages, "_section", interrupted)
        command.main(arguments)
    assert "was not finished" in (small / "out" / "README.md").read_text()
    assert command.main(arguments) == 0
    whole = (small / "out" / "README.md").read_text()
    assert "was not finished" not in whole
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pages, "_section", interrupted)
        command.main(arguments)
    assert (small / "out" / "README.md").read_text() == whole


@pytest.mark.parametrize("name", ["digests_of_settings", "contents_of_settings"])
@pytest.mark.parametrize("value", [None, 3, [], True])
def test_digests_of_other_types_are_told(small, monkeypatch, capsys, name, value):
    results, out = fine_tuned(small, monkeypatch)
    path = results / "paper/T2/fine/-/seed=1/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    capsys.readouterr()
    assert command.main(["report", f"--results={results}", f"--out={out}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 trainings of 1 cells" in said and "Remove the folder to train anew" in said


def test_a_narrow_terminal_has_lines_in_place_of_columns(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    capsys.readouterr()
    command.main(["list", f"--results={results}"])
    command.main(["compare", "paper.T1.a.2", f"--results={results}"])
    said = " ".join(capsys.readouterr().out.split())
    assert "paper.T1: 6 cells, 4 trainings, ? minutes, 0 recorded, 2 here, ? minutes left" in said
    assert "paper.T1.a.2: recorded nothing, here" in said


def test_yours_have_a_line_of_their_own(small, monkeypatch):
    results, recorded = small / "results", small / "recorded"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, recorded)
    (recorded / "findings.md").write_text("# Found\n\n[audits](../audits.md)\n")
    for seed in (1, 2):
        path = results / f"paper/T1/a/2/seed={seed}/run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"test_accuracy": 0.25}))
    monkeypatch.setattr(command, "_PAGES", str(recorded))
    assert command.main(["report", f"--results={results}"]) == 0
    out = results / "pages"
    page = (out / "README.md").read_text()
    assert "| &emsp;yours | 25.00 ± 0.00 (2) |" in page and page.count("&emsp;here") >= 1
    assert not (out / "records.json").exists()
    assert "](../../recorded/../audits.md)" not in (out / "findings.md").read_text()
    assert (out / "findings.md").read_text().endswith("[audits](../../audits.md)\n")
    # With --out they join the records.
    assert command.main(["report", f"--results={results}", f"--out={small / 'joined'}"]) == 0
    page = (small / "joined" / "README.md").read_text()
    assert "yours" not in page.split("## ")[1] and "| &emsp;here | 25.00 ± 0.00 (2) |" in page


def test_what_is_trained_here_alone_is_not_said_to_be_missing(small, monkeypatch):
    results, out = small / "results", small / "pages"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    pages.write_pages(results, out, recorded=small / "none", apart=True)
    page = (out / "README.md").read_text()
    assert "Not measured yet: Row A at 3." in page and "&emsp;yours" in page


def test_a_training_of_two_cells_is_counted_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "paper.toml").write_text(STARTS)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    monkeypatch.setenv("COLUMNS", "120")
    command.main(["list", f"--results={tmp_path}/r"])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "paper.T2" in each]
    catalogue.tables.cache_clear()
    assert line.replace("│", " ").split()[-6:] == ["3", "2", "?", "0", "0", "?"]


def test_a_damaged_collection_is_told(small, capsys):
    out = small / "pages"
    pages.write_pages(small / "none", out)
    path = out / "records.json"
    whole = json.loads((ROOT / "docs/papers/records.json").read_text())["dropout.T1_digits.ac.1"]
    other = [whole["1"] | change for change in ({"settings": 0}, {"seconds": "x"}, {"claimed": {}})]
    values = {"computed": "noise_distance"}
    computed = {"settings": values, "seconds": 1.0, "code": {"commit": "c"}}
    other += [
        computed | {"values": each} for each in ({}, {"l1": "x", "of_gaussian": 1, "scale": 1})
    ]
    other += [computed | {"values": {}, "settings": {}}]
    fine = {"l1": 1.0, "of_gaussian": 1.0, "scale": 1.0}
    path.write_text(json.dumps({"paper.T1.a.2": {"1": computed | {"values": fine}}}))
    assert records.read(path)
    other += [computed | {"values": fine, "seconds": each} for each in ("x", None, -5e5, 10**400)]
    other += [computed | {"values": fine | {"l1": each}} for each in (math.nan, 10**400, -1, True)]
    histogram = {"computed": "gradient_histogram"}
    names = (name for _, name, _ in COMPUTATIONS["gradient_histogram"].lines)
    entries = dict.fromkeys(names, 1.0) | {"density": [1.0], "edges": [0.0, 1.0]}
    drawn = computed | {"settings": histogram}
    path.write_text(json.dumps({"paper.T1.a.2": {"1": drawn | {"values": entries}}}))
    assert records.read(path)
    other += [drawn | {"values": entries | {"density": each}} for each in ("", [1.0, 2.0], ["x"])]
    other += [
        whole["1"] | change
        for change in (
            {"lost_steps": "many"},
            {"lost_steps": -5},
            {"seconds": 10**400},
            {"steps": -3},
            {"num_examples": True},
            {"curve": [[1, 7]]},
            {"curve": [[0, 0.5]]},
            {"initial_weights_sha256": []},
            {"weights_sha256": 1},
            {"proven": whole["1"]["proven"] | {"delta": 5}},
            {"proven": whole["1"]["proven"] | {"epsilon": 10**400}},
        )
    ]
    right = json.dumps({"paper.T1.a.2": {"1": whole["1"]}})
    path.write_text(right)
    assert records.read(path) == json.loads(right)
    changed = [json.dumps({"paper.T1.a.2": {"1": each}}) for each in other]
    del whole["1"]["test_accuracy"]
    changed += [json.dumps({"paper.T1.a.2": {"1": whole["1"]}})]
    for damage in (
        "{",
        "[]",
        '{"a": {"x": {}}}',
        '{"a": {"01": {"settings": 0}}}',
        '{"a": 3}',
        f'{{"paper.T1.a.2": {json.dumps({"1": whole["2"]})}, "paper.T1.a.2": {{}}}}',
        "[" * 100_000,
        *changed,
    ):
        path.write_text(damage)
        assert command.main(["report", f"--results={small / 'none'}", f"--out={out}"]) == 2
        assert "to hold a collection of records" in capsys.readouterr().err
        assert path.read_text() == damage


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_accuracy", 7), ("test_accuracy", None), ("steps", "2"), ("settings", []),
        ("code", None), ("training", None), ("seed", 2), ("cell", "paper.T1.a.3"),
        ("test_accuracy", "0.5"), ("seconds", "12"), ("curve", 3), ("curve", [[1]]), ("steps", 0),
        ("noise_multiplier", []), ("num_examples", "x"),
        ("proven", {"epsilon": "none", "delta": 1e-5, "adjacency": "zero_out"}),
        ("proven", {"epsilon": 1, "delta": "x", "adjacency": "zero_out"}),
        ("claimed", {"epsilon": 1, "delta": 1e-5, "adjacency": "add_remove"}),
        ("seconds", math.inf), ("code", {"commit": ["x"]}), ("code", {}), ("noise_multiplier", "x"),
    ],
)  # fmt: skip
def test_records_of_other_content_are_told(small, monkeypatch, capsys, name, value):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    capsys.readouterr()
    assert command.main(["compare", "paper.T1.a.2", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(1)" in said and ("Found something else" in said or "Found it without" in said)


def test_a_training_that_lost_steps_is_no_figure(small, monkeypatch):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", f"--results={results}"]) == 0
    every = cells(["paper.T1.a.2"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    record = json.loads(path.read_text()) | {"steps": 1000}
    finished = records.finished
    for lost, kept in ((0, 2), (10, 2), (11, 1)):
        record["training"]["lost_steps"] = lost
        monkeypatch.setattr(
            records,
            "finished",
            lambda folder, *a: record if folder.name == "seed=1" else finished(folder, *a),
        )
        found, left = records.collect(results, every)
        assert len(found["paper.T1.a.2"]) == kept and len(left) == 2 - kept
        assert found["paper.T1.a.2"].get("1", {}).get("lost_steps", 0) == (lost if kept == 2 else 0)
    with pytest.raises(ResultError, match="were lost by a crash"):
        running.missing(every, results)  # `run` says so, too


def test_a_training_here_is_compared_with_the_record(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    arguments = ["run", "paper.T1.a.2", f"--results={results}"]
    assert command.main(arguments) == 0
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    pages.write_pages(results, small / "pages")
    monkeypatch.setenv("COLUMNS", "120")
    capsys.readouterr()
    assert command.main(["compare", "paper.T1", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "paper.T1.a.2" in said and "+0.00" in said and "│ +0.0│" in said
    assert command.main(["compare", "paper.T1", f"--results={small / 'other'}"]) == 0
    assert "None of these cells was trained" in capsys.readouterr().out


def test_a_damaged_result_is_not_counted(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    record = json.loads(path.read_text())
    del record["proven"]["epsilon"], record["seconds"]
    path.write_text(json.dumps(record))
    capsys.readouterr()
    for arguments in (["list"], ["list", "paper.T1"], ["compare", "paper.T1"]):
        assert command.main([*arguments, f"--results={results}"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "without seconds" in said
    record["seconds"] = 1.0
    path.write_text(json.dumps(record))
    assert command.main(["list", "paper.T1.a.2", f"--results={results}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0 recorded, 1 here" in said and "without epsilon" in said


def test_the_list_says_what_there_is(small, monkeypatch, capsys):
    assert command.main(["list", f"--results={small}/r"]) == 0
    assert "paper.T1" in capsys.readouterr().out
    assert command.main(["list", "paper.T1", f"--results={small}/r"]) == 0
    said = capsys.readouterr().out
    assert "paper.T1.a.2: the paper prints 50.0 ± 0.5; seeds 1 to 2: 0 recorded, 0 here" in said
    assert "not run: It would cost an hour." in said and "not run, as the paper quotes it" in said
    assert command.main(["run", "nothing"]) == 2
    assert "`list` shows all" in capsys.readouterr().err


def test_results_are_a_folder(small, capsys):
    (small / "file").touch()
    assert command.main(["list", f"--results={small / 'file'}"]) == 2
    assert "Expected --results to be a folder" in capsys.readouterr().err
    assert command.main(["report", f"--results={small}/r", f"--out={small / 'file'}"]) == 2
    assert "Expected --out to be a folder" in capsys.readouterr().err
    (small / "link").symlink_to(small / "nowhere")
    assert command.main(["report", f"--results={small / 'link'}"]) == 2
    assert "Expected --results to be a folder" in capsys.readouterr().err
    for folder in (small / "file" / "sub", small / ("x" * 300)):
        assert command.main(["report", f"--results={small}/r", f"--out={folder}"]) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("name", ["README.md", "findings.md", "index.html"])
def test_pages_of_others_are_not_written_over(small, monkeypatch, capsys, name):
    (small / "docs").mkdir()
    (small / "docs" / "findings.md").write_text("Found.")
    monkeypatch.setattr(command, "_PAGES", str(small / "docs"))
    out = small / "project"
    out.mkdir()
    (out / name).write_text("mine")
    arguments = ["report", f"--results={small}/r", f"--out={out}"]
    assert command.main(arguments) == 2
    assert f"Found {name} of something else" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: "mine"}
    (out / name).unlink()
    assert command.main(arguments) == 0 and command.main(arguments) == 0


def test_without_matplotlib_no_page_is_begun(small, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert command.main(["report", f"--results={small}/r", f"--out={small / 'out'}"]) == 2
    assert "pip install 'tfdp[plot]'" in capsys.readouterr().err and not (small / "out").exists()


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (2.00001, "2.001"), (50.0, "50"), (50.5, "(51)"), (99_999.5, "(100000)"), (1e5, "(1e5)"),
        (1.2e5, "(2e5)"), (9.5e5, "(1e6)"), (3.25e9, "(4e9)"), (math.inf, "infinite"),
    ],
)  # fmt: skip
def test_epsilons_of_a_table_are_short_and_not_too_small(epsilon, said):
    found = records.Measured((60.0,), 1.0, epsilon, 1e-5, 1.0, ("0",))
    assert pages._epsilon(found, "proven") == said
    assert float(said.strip("()").replace("infinite", "inf")) >= epsilon


def test_the_time_of_a_cell_is_that_of_its_fastest_training(small):
    def took(*seconds):
        return {str(i): {"seconds": each} for i, each in enumerate(seconds, 1)}

    (first, second) = cells(["paper.T1.a"])
    assert records.minutes_of(first, {}) is None
    found = {"paper.T1.a.2": took(600.0, 60.0), "paper.T1.a.25": took(6.0)}
    assert records.minutes_of(first, found) == 1.0
    assert records.minutes_of(second, found) == pytest.approx((1.0 + 0.1) / 2)
    (other,) = cells(["paper.T1.b.2"])
    assert records.minutes_of(other, {"paper.T1.c.2": took(120.0)}) == 2.0
