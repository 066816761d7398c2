"""The pages' links resolve, and their Python blocks run."""

import pathlib
import re

import keras
import numpy as np
import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "papers").rglob("*.md")),
]


def title(page):
    return page.relative_to(ROOT).as_posix()


def without_code(text):
    text = re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=\n)\n(?: {4}\S.*\n+)+", "\n", text)


def links(text):
    """Returns the targets of links and images, except addresses on the web."""
    text = re.sub(r"`[^`\n]*`", "", without_code(text))
    targets = re.findall(r"\]\(\s*([^)\s]+)\s*\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """Returns the anchors of a page's headings, as code hosts make them."""
    found = []
    for heading in re.findall(r"^#{1,6} +(.*?) *$", without_code(text), flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


def resolves(page, target):
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in anchors(file.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_resolve(page):
    assert not [target for target in links(page.read_text()) if not resolves(page, target)]


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Here\n\n[a](none.md) [b](#there) [c](#here) [d](page.md#none)\n")
    broken = [target for target in links(page.read_text()) if not resolves(page, target)]
    assert broken == ["none.md", "#there", "page.md#none"]


def test_the_api_page_has_every_optimizer():
    page = (ROOT / "docs/api/optimizers.md").read_text()
    assert [
        name for name in tfdp.optimizers.__all__ if f"tfdp.optimizers.{name}\n" not in page
    ] == []


# docs/adding.md adds files to the project; tests/test_adding.py runs it.
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(f"docs/{page}.md" for page in ["start", "epsilon", "budgets", "data"]),
        *(f"docs/{page}.md" for page in ["images", "text", "tables", "time_series"]),
        pytest.param("docs/audit.md", marks=pytest.mark.slow),
        pytest.param("docs/migrating.md", marks=pytest.mark.slow),
    ],
)
def test_python_blocks_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    run_blocks(name, tmp_path, monkeypatch)


def run_blocks(name, tmp_path, monkeypatch):
    """Runs the blocks of a page one after the other, and returns the names that they define."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
        exec(compile(block, name, "exec"), names)
    keras.backend.clear_session()
    return names


def test_the_private_survival_model_ranks_people_by_their_risks(tmp_path, monkeypatch):
    names = run_blocks("docs/own_code.md", tmp_path, monkeypatch)
    risk, survival = names["x"] @ [0.8, -0.5, 0.0, 0.3], names["survival"][:, 2]
    ranks = [values.argsort().argsort() for values in (risk, survival)]
    assert np.corrcoef(ranks)[0, 1] < -0.97 and names["model"].privacy.spent().epsilon <= 2.0
