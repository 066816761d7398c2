"""`run` trains what is missing, and only that, whatever ended before."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.papers.small_catalogue import CATALOGUE, STARTS, train_here
from tfdp.experiments import __main__ as command
from tfdp.experiments import console
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_folder import ResultFolder
from tfdp.papers import catalogue, pages, records, running
from tfdp.papers.catalogue import cells, tables


def test_what_is_finished_is_not_run_again_and_what_failed_is(small, monkeypatch, capsys):
    results = small / "results"
    arguments = ["run", "paper.T1", f"--results={results}"]
    train_here(monkeypatch, fail=["paper.T1.a.3"])
    assert command.main(arguments) == 2
    said = capsys.readouterr().out
    assert "paper.T1.a.3: failed" in said and "It failed." in said and "1 done, 1 failed" in said
    before = (results / "paper/T1/a/2/seed=1/run.json").read_text()
    train_here(monkeypatch)
    assert command.main(arguments) == 0
    assert "2 done" in capsys.readouterr().out
    assert (results / "paper/T1/a/2/seed=1/run.json").read_text() == before
    record = json.loads(before)
    assert (record["cell"], record["seed"]) == ("paper.T1.a.2", 1)
    assert record["code"]["tfdp"] and "commit" in record["code"]
    # The pages have figures of these records only.
    out = small / "pages"
    assert command.main(["report", f"--results={results}", f"--out={out}"]) == 0
    page = (out / "README.md").read_text()
    accuracies = [
        100 * json.loads((results / f"paper/T1/a/2/seed={s}/run.json").read_text())["test_accuracy"]
        for s in (1, 2)
    ]
    error = abs(accuracies[0] - accuracies[1]) / 2
    assert f"| {sum(accuracies) / 2:.2f} ± {error:.2f} (2) |" in page
    assert (
        "| **Row A: paper** | 50.00 ± 0.50 | NC |" in page
        and "| **Row C: quoted** | 1.00 | 2.00 |" in page
    )
    assert "Row A: All of it." in page and "Not run: Row B at 2, Row B at 3. It would cost" in page
    html = (out / "index.html").read_text()
    assert (
        'name="viewport"' in html and "data:image/png;base64," in html and 'src="http' not in html
    )
    # They can be made again without the results.
    again = small / "again"
    again.mkdir()
    (again / "records.json").write_text((out / "records.json").read_text())
    command.main(["report", f"--results={small / 'nothing'}", f"--out={again}"])
    assert (again / "README.md").read_text() == page


def test_a_training_starts_from_another_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "paper.toml").write_text(STARTS)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    fine, public, same = (cell for table in tables() for cell in table.cells)
    results, begun = tmp_path / "r", []
    assert running.missing([same, fine], results) == [(public, (1,)), (same, (1,))]

    class Ended:
        returncode = 0

        def poll(self):
            return 0

    def start(cell, seeds, folder, data_dir, jobs):
        begun.append(cell.row)
        for seed in seeds:
            path = records.place(folder, cell, seed)
            path.mkdir(parents=True)
            (path / "run.json").write_text("{}")
        return running._Running(Ended(), cell, seeds, 0.0, path / "log.txt")

    def done(folder, cell, seed):
        there = (records.place(folder, cell, seed) / "run.json").exists()
        return {"test_accuracy": 0.5} if there else None

    monkeypatch.setattr(running, "_start", start)
    monkeypatch.setattr(running, "done", done)
    assert command.main(["run", "paper.T2", "--jobs=2", f"--results={results}"]) == 0
    assert begun == ["public", "fine"]
    monkeypatch.undo()
    catalogue.tables.cache_clear()


def test_a_cell_that_another_process_makes_is_no_failure(small, monkeypatch, capsys):
    results = small / "results"
    (cell,) = cells(["paper.T1.a.2"])
    with ResultFolder(records.place(results, cell, 1)):
        assert command.main(["train", cell.name, "--seeds=1", f"--results={results}"]) == 75
    train_here(monkeypatch)
    start = running._start

    def busy(*arguments):
        each = start(*arguments)
        each.process.returncode = running.BUSY
        return each

    monkeypatch.setattr(running, "_start", busy)
    capsys.readouterr()
    assert command.main(["run", cell.name, f"--results={results}"]) == 0  # it is made by now
    shutil.rmtree(results / "paper/T1/a/2/seed=2")

    def idle(cell, seeds, *arguments):
        each = start(cell, (), *arguments)
        each.process.returncode = running.BUSY
        return dataclasses.replace(each, seeds=seeds)

    monkeypatch.setattr(running, "_start", idle)
    capsys.readouterr()
    assert command.main(["run", cell.name, f"--results={results}"]) == 75
    said = capsys.readouterr().out
    assert "another process is making seed 2." in said and "1 busy" in said


def test_free_seeds_of_a_busy_cell_are_trained(small, capsys):
    results = small / "results"
    (cell,) = cells(["paper.T1.a.2"])
    with ResultFolder(records.place(results, cell, 1)):
        assert command.main(["train", cell.name, "--seeds=1,2", f"--results={results}"]) == 75
    there = [records.done(results, cell, seed) is not None for seed in (1, 2)]
    assert there == [False, True]


def test_some_seeds_only_and_what_is_unfinished(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    assert command.main(["run", "paper.T1.a.2", "--seeds=1", f"--results={results}"]) == 0
    said = capsys.readouterr().out
    assert "To train: 1 of 1" in said
    assert sorted(p.name for p in (results / "paper/T1/a/2").glob("seed=*")) == ["seed=1"]
    (results / "paper/T1/a/2/seed=2.secret").mkdir()
    command.main(["list", "paper.T1.a.2", f"--results={results}"])
    assert "0 recorded, 1 here, 1 unfinished" in capsys.readouterr().out


def test_what_is_recorded_is_left_out(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    monkeypatch.setattr(command, "_PAGES", str(small / "pages"))
    pages.write_pages(results, small / "pages")
    capsys.readouterr()
    arguments = ["run", "paper.T1.a.2", f"--results={small / 'new'}"]
    assert command.main([*arguments, "--skip_recorded"]) == 0
    assert "1 done" in capsys.readouterr().out and not (small / "new").exists()
    assert command.main(arguments) == 0
    assert (small / "new/paper/T1/a/2/seed=2/run.json").exists()


def test_no_training_begins_after_the_budget(small, monkeypatch, capsys):
    train_here(monkeypatch)
    clock = iter([0.0, *[1e6] * 1000])
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(running.time, "sleep", lambda seconds: None)
    assert command.main(["run", "paper.T1", "--budget_minutes=1", f"--results={small}/r"]) == 75
    assert "2 left" in capsys.readouterr().out


def test_a_training_belongs_to_the_weights_that_it_started_from(tmp_path, monkeypatch):
    def catalogue_of(text):
        (tmp_path / "paper.toml").write_text(text)
        catalogue.tables.cache_clear()
        fine, public, _ = (cell for table in tables() for cell in table.cells)
        return fine, public

    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    # Without privacy, since private training refuses weights that were trained on the same data.
    text = STARTS.replace("dpsgd --noise_multiplier=4", "none --learning_rate=0.3")
    text = text.replace("seeds = 1", "seeds = 2", 1)
    fine, public = catalogue_of(text)
    results = Path("r")
    running.train(public, [1], results, None)
    running.train(fine, [1], results, None)
    # However the folder of all results is written, and wherever it is moved.
    assert running.missing([fine], tmp_path / "r") == [(fine, (2,))]
    Path("r").rename("moved")
    kept, left = records.collect(Path("moved"), [fine, public])
    assert set(kept) == {fine.name, public.name} and not left
    assert records.seeds_in(kept, fine) == {1}
    # With other settings of the first training, the second is no figure of this cell any more.
    fine, public = catalogue_of(
        text.replace('flags = "--mechanism=none"', 'flags = "--mechanism=none --learning_rate=0.7"')
    )
    with pytest.raises(ResultError, match="settings of this point"):
        records.done(Path("moved"), fine, 1)
    assert records.seeds_in(kept, fine) == set()
    # Nor are other seeds begun from weights that are trained again.
    fine, public = catalogue_of(text)
    shutil.rmtree(records.place(Path("moved"), public, 1))
    with pytest.raises(ResultError, match="nothing shows from which ones"):
        running.missing([fine], Path("moved"))
    catalogue.tables.cache_clear()


def test_a_terminal_interrupts_no_training_itself(small):
    """Ctrl-C goes to all processes of a terminal's group, and a training takes a second as an order."""
    (cell,) = cells(["paper.T1.a.2"])
    each = running._start(cell, (1,), small / "results", None, 1)
    try:
        assert os.getpgid(each.process.pid) == each.process.pid != os.getpgid(0)
    finally:
        each.process.kill()
        each.process.wait()


def test_each_training_gets_one_signal(small):
    script = (
        "import signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "sys.exit(len(seen))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    running._stop([running._Running(process, None, (), 0.0, None)])
    assert process.returncode == 1


def test_what_the_system_ends_is_said_with_its_signal(small, monkeypatch, capsys):
    train_here(monkeypatch)
    start = running._start

    def killed(*arguments):
        each = start(*arguments)
        each.log.write_text("Epoch 3/20\n")
        each.process.returncode = -9
        return each

    monkeypatch.setattr(running, "_start", killed)
    assert command.main(["run", "paper.T1.a.2", f"--results={small}/r"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "SIGKILL ended it, as the system does where memory runs out" in said


@pytest.mark.parametrize("arguments", [["paper.T1.a.2", "--seeds=a"], ["paper.T1", "--seeds=1"]])
def test_one_cell_is_trained_by_numbers_of_seeds(small, capsys, arguments):
    try:
        status = command.main(["train", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2 and "xpected" in capsys.readouterr().err


def test_an_interrupted_run_ends_with_the_status_of_its_signal(small, monkeypatch):
    def terminated(*_, **__):
        raise console.Terminated(signal.SIGTERM)

    monkeypatch.setattr(running, "run", terminated)
    with pytest.raises(console.Terminated) as caught:
        command.main(["run", "paper.T1", f"--results={small}/r"])
    assert caught.value.__notes__ == ["The same command goes on from there."]


def test_a_truncated_record_is_told_and_blocks_no_other_cell(small, monkeypatch, capsys):
    results = small / "results"
    train_here(monkeypatch)
    command.main(["run", "paper.T1.a.2", f"--results={results}"])
    path = results / "paper/T1/a/2/seed=1/run.json"
    whole = path.read_text()
    for damage in (whole[:-40], "", "[]"):
        path.write_text(damage)
        for arguments in (["list", "paper.T1"], ["compare", "paper.T1"], ["report"]):
            capsys.readouterr()
            assert command.main([*arguments, f"--results={results}"]) == 0
            assert "Found it damaged" in " ".join(capsys.readouterr().out.split())
    assert command.main(["run", "paper.T1", f"--results={results}"]) == 2
    said = capsys.readouterr().out
    assert "Found it damaged" in " ".join(said.split()) and "1 done, 1 failed" in said
    assert (results / "paper/T1/a/3/seed=1/run.json").exists()


def test_a_training_that_lost_steps_is_made_anew(small, monkeypatch, capsys):
    results = small / "results"
    (cell,) = cells(["paper.T1.a.2"])
    crashed, real = [], records._check_content

    def check(record, *others):
        if not crashed:
            crashed.append(record["training"].update(lost_steps=1))
        real(record, *others)

    monkeypatch.setattr(records, "_check_content", check)
    assert command.main(["train", cell.name, "--seeds=1", f"--results={results}"]) == running.AGAIN
    assert "steps were lost by a crash" in capsys.readouterr().err
    assert not records.place(results, cell, 1).exists()
    # `run` begins another process, once.
    train_here(monkeypatch)
    start, ends = running._start, []

    def again(*arguments):
        each = start(*arguments)
        each.process.returncode = ends.pop(0)
        return each

    monkeypatch.setattr(running, "_start", again)
    ends += [running.AGAIN, 0]
    assert command.main(["run", cell.name, f"--results={results}"]) == 0 and not ends
    assert "a crash cost too many steps" in capsys.readouterr().out
    shutil.rmtree(results)
    ends += [running.AGAIN, running.AGAIN, 0]
    assert command.main(["run", cell.name, f"--results={results}"]) == 2 and ends == [0]


def test_what_cannot_start_ends_no_other_cell(tmp_path, monkeypatch, capsys):
    other = CATALOGUE.split("[[tables]]")[1]
    (tmp_path / "paper.toml").write_text(STARTS + "[[tables]]" + other)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    results = tmp_path / "r"
    train_here(monkeypatch)
    start = running._start

    def spoiled(cell, seeds, *others):
        each = start(cell, seeds, *others)
        if cell.row == "public":
            (records.place(results, cell, 1) / "run.json").write_text("{}")
        return each

    monkeypatch.setattr(running, "_start", spoiled)
    names = ["paper.T2.fine", "paper.T1.a.2"]
    assert command.main(["run", *names, "--seeds=1", f"--results={results}"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "paper.T2.fine.-: Expected" in said and "1 done, 2 failed" in said
    catalogue.tables.cache_clear()


def test_fine_tunings_of_one_cell_start_from_the_same_weights(tmp_path, monkeypatch):
    public_only = STARTS.replace("--mechanism=dpsgd --noise_multiplier=4", "--mechanism=none")
    (tmp_path / "paper.toml").write_text(public_only.replace("seeds = 1", "seeds = 3"))
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    fine, public, _ = (cell for table in tables() for cell in table.cells)
    results = tmp_path / "r"
    running.train(public, (1,), results, None)
    running.train(fine, (1,), results, None)
    kept, left = records.collect(results, [fine, public])
    assert not left and records.seeds_in(kept, fine) == {1}
    # The others of a cell that is recorded would start from weights that are made again.
    shutil.rmtree(results)
    assert running.missing([fine], results, kept) == [(public, (1,)), (fine, (1, 2, 3))]
    assert running.missing([fine, public], results, kept)[0] == (public, (1, 2, 3))
    fewer = [dataclasses.replace(cell, seeds=(1, 2)) for cell in (fine, public)]
    assert running.missing(fewer, results, kept)[0] == (public, (1, 2))
    running.train(public, (1,), results, None)  # again, with the same outcome
    assert running.missing([fine], results, kept) == [(fine, (2, 3))]
    model = records.place(results, public, 1) / "model.keras"
    monkeypatch.setattr(records, "weights_of", lambda *_: "of another file")
    monkeypatch.setattr(running, "weights_of", records.weights_of)
    assert model.exists() and running.missing([fine], results, kept) == [(fine, (1, 2, 3))]
    shutil.rmtree(results)
    other = {"2": kept[fine.source]["1"] | {"initial_weights_sha256": "of another file"}}
    assert records.merge(kept, {fine.source: other}) == {**kept, fine.source: other}
    settings = other["2"]["settings"] | {"seed": 2}
    mixed = {**kept, fine.source: {**kept[fine.source], "2": other["2"] | {"settings": settings}}}
    assert (
        records.seeds_in(mixed, fine) == {1} and len(records.measured(fine, mixed).accuracies) == 1
    )
    (why,) = records.shown(mixed)[1]
    assert why.startswith("paper.T2: one recorded training is not shown, as nothing shows that")
    # Where no digest of the weights is recorded, those of the last one count.
    unknown = {**mixed, public.source: {"1": {**mixed[public.source]["1"]}}}
    del unknown[public.source]["1"]["weights_sha256"]
    assert records.seeds_in(unknown, fine) == {2}
    # Where one of them is here without these weights, no other is begun, whatever is named beside it.
    running.train(public, (1,), results, None)
    running.train(fine, (1,), results, None)
    shutil.rmtree(records.place(results, public, 1))
    for chosen in ([fine], [public, fine]):
        with pytest.raises(ResultError, match="other seeds would start from others"):
            running.missing(chosen, results)
    catalogue.tables.cache_clear()
