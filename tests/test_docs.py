"""The pages name only existing files, names, links and anchors; the index lists every decision."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
# Code on this page adds files that do not exist yet; tests/test_adding.py runs it.
WALKTHROUGHS = [ROOT / "docs" / "adding.md"]
# Files that training writes, or that a reader is asked to write.
WRITTEN_LATER = {
    "model_card.md",
    "run.json",
    "epochs.png",
    "audit.png",
    "audit.json",
    "docs/decisions/<topic>.md",
    "flags/defaults/fashion_mnist_<mechanism>.cfg",
}
_SUFFIXES = ("py", "md", "cfg", "toml", "txt", "json", "png")


# -- what a page says ----------------------------------------------------------------------------


def without_blocks(text):
    """Returns the text of a page without its blocks of code."""
    text = re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=\n)\n(?: {4}\S.*\n+)+", "\n", text)


def blocks(text):
    """Returns the blocks of code of a page, fenced and indented."""
    fenced = re.findall(r"^(```+).*?\n(.*?)^\1$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for _, code in fenced] + re.findall(r"(?<=\n)\n((?: {4}\S.*\n+)+)", text)


def in_backticks(text):
    return re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", without_blocks(text))


def named_paths(code):
    """Yields the words of a piece of code that look like files or folders of the repository."""
    for word in re.split(r"[\s=,\"'()\[\]]+", code):
        word = word.partition("::")[0].rstrip(":;.").rstrip("/")
        first, slash, _ = word.partition("/")
        ours = slash and (ROOT / first).is_dir() and first not in ("", ".", "..")
        suffix = re.fullmatch(r"[\w<>*./-]*[\w>*]\.(\w+)", word)
        if (ours or (suffix and suffix[1] in _SUFFIXES)) and not word.startswith("-"):
            yield word


def named_objects(code):
    return re.findall(r"(?<![\w./-])tfdp(?:\.[A-Za-z_]\w*)+(?![\w/]|\.py)", code)


def links(text):
    """Returns the targets of links and images, except addresses on the web."""
    text = re.sub(r"`[^`\n]*`", "", without_blocks(text))
    targets = re.findall(r"\]\(\s*([^)\s]+)\s*\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """Returns the anchors of a page's headings, as code hosts make them."""
    found = []
    for heading in re.findall(r"^#{1,6} +(.*?) *$", without_blocks(text), flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


# -- what exists ---------------------------------------------------------------------------------


@functools.cache
def everything():
    """Returns all files and folders that a page may name, from the root of the repository."""
    kept = ("tfdp", "tests", "docs", "flags", "benchmarks", ".ci")
    found = [path for folder in kept for path in (ROOT / folder).rglob("*")]
    found = [path for path in found if "__pycache__" not in path.parts]
    found += [*ROOT.glob("*.*"), *(ROOT / folder for folder in kept)]
    return ["/" + path.relative_to(ROOT).as_posix() for path in found]


def exists(name):
    """Whether a path ends with `name`, in which <this> and * stand for any text."""
    pattern = re.escape(name).replace(r"\*", "[^/]*")
    pattern = re.sub(r"<[^<>/]*>", "[^/]*", pattern)
    return any(re.search(f"/{pattern}$", path) for path in everything())


def module_file(dotted):
    path = ROOT.joinpath(*dotted.split("."))
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


@functools.cache
def contents(dotted):
    """Returns the top-level names of a module: each one's node, or its origin "module.name"."""
    names = {}
    for node in ast.parse(module_file(dotted).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return names | lazy(dotted, names.get("_PUBLIC"))


def lazy(dotted, table):
    """Returns the names that a package loads on first use, from its table {name: module}."""
    if table is None:
        return {}
    modules = ast.literal_eval(table.value)
    full = {k: m if m.startswith("tfdp.") else f"{dotted}.{m}" for k, m in modules.items()}
    return {name: f"{module}.{name}" for name, module in full.items()}


def is_defined(name):
    """Whether "tfdp.module.name.member" is defined, judged by the source text only."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if module_file(module):
            return not rest or is_member(module, rest)
    return False


def is_member(module, rest):
    found = contents(module).get(rest[0])
    if isinstance(found, str):  # imported from another module
        return not found.startswith("tfdp.") or is_defined(".".join([found, *rest[1:]]))
    if found is None or len(rest) == 1:
        return found is not None
    return isinstance(found, ast.ClassDef) and has_attribute(module, found, rest[1])


def has_attribute(module, cls, name):
    """Whether a class, or a base class that tfdp defines, has a method, field or attribute."""
    for node in ast.walk(cls):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr == name
        ):
            return True
    bases = [base.id for base in cls.bases if isinstance(base, ast.Name)]
    return any(is_member(module, [base, name]) for base in bases)


# -- the checks ----------------------------------------------------------------------------------


def faults(page, text):
    """Returns a sentence for everything that a page names and that does not exist."""
    pieces = in_backticks(text) + ([] if page in WALKTHROUGHS else blocks(text))
    for piece in pieces:
        for path in named_paths(piece):
            if path not in WRITTEN_LATER and not path.startswith("runs/") and not exists(path):
                yield f"there is no file {path}"
        yield from (f"there is no {name}" for name in named_objects(piece) if not is_defined(name))
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file != page and not file.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in anchors(text if file == page else file.read_text()):
            yield f"the link {target} has an anchor that no heading has"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_what_exists(page):
    assert not list(faults(page, page.read_text()))


def test_pages_and_what_they_name_are_found():
    assert {"README.md", "BUILD_NOTES.md", "CONTRIBUTING.md"} <= {page.name for page in PAGES}
    assert len(DECISIONS) > 15
    text = "\n".join(page.read_text() for page in PAGES)
    pieces = in_backticks(text) + blocks(text)
    assert len({path for piece in pieces for path in named_paths(piece)}) > 60
    assert len({name for piece in pieces for name in named_objects(piece)}) > 15
    assert sum(len(links(page.read_text())) for page in PAGES) > 60


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_date_and_its_line_in_the_index(page):
    heading, blank, date, *_ = page.read_text().splitlines()
    assert heading.startswith("# ") and not blank
    assert re.match(r"20\d\d-[01]\d-[0-3]\d[.;]", date), f"expected a date, found {date!r}"
    name = f"docs/decisions/{page.name}"
    lines = [each for each in (ROOT / "BUILD_NOTES.md").read_text().splitlines() if name in each]
    assert [date[:10] in line for line in lines if line.startswith("| [")] == [True], (
        f"expected one line of BUILD_NOTES.md's table with {name} and a date of it; found {lines}"
    )


# -- the checks can fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("See `tfdp/gradients/engine.py`.", "there is no file tfdp/gradients/engine.py"),
        ("See `engine.py`.", "there is no file engine.py"),
        ("See `docs/decisions`, `tests/nothing`.", "there is no file tests/nothing"),
        ("Run `python tests/none.py --list`.", "there is no file tests/none.py"),
        ("See `tests/none.py::test_this`.", "there is no file tests/none.py"),
        ("Use `flags/<this>_<that>.txt`.", "there is no file flags/<this>_<that>.txt"),
        (
            "Run\n\n    python train.py --flagfile=flags/none.cfg\n",
            "there is no file flags/none.cfg",
        ),
        ("```\npython benchmarks/none.py\n```\n", "there is no file benchmarks/none.py"),
        ("`tfdp.nothing`", "there is no tfdp.nothing"),
        ("`tfdp.session.Sessions(1)`", "there is no tfdp.session.Sessions"),
        ("`tfdp.session.Session.nothing`", "there is no tfdp.session.Session.nothing"),
        ("`tfdp.accounting.nothing`", "there is no tfdp.accounting.nothing"),
        ("```python\ntfdp.fixed(model)\n```\n", "there is no tfdp.fixed"),
        ("[a](nowhere.md)", "the link nowhere.md leads nowhere"),
        ("# Here\n\n[a](#there)", "the link #there has an anchor that no heading has"),
        (
            "[a](BUILD_NOTES.md#pin)",
            "the link BUILD_NOTES.md#pin has an anchor that no heading has",
        ),
        ("![a\nb](none.png)", "the link none.png leads nowhere"),
    ],
)
def test_a_fault_is_found(text, fault):
    assert list(faults(ROOT / "NEW.md", text)) == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "`tfdp/gradients/bounds.py`, `bounds.py` and `gradients/bounds.py:` are one file.",
        "`tests/test_docs.py::test_a_fault_is_found`, `flags/*`, `tfdp/accounting/`",
        "`tfdp.make_private(model)`, `tfdp.accounting.Run`, `tfdp.optimizers.DPKerasSGDOptimizer`",
        "`tfdp.session.Session.close` and `tfdp.accounting.mechanisms.dpsgd.DPSGD.with_noise`",
        "`runs/a/run.json`, `a/b`, `x[...]`, `python -m pytest -m slow`",
        "# One `two`: (three)\n\n[a](#one-two-three) [b](https://example.org/none)",
        "[a](BUILD_NOTES.md#pins)",
        "# Twice\n\n# Twice\n\n[a](#twice-1)",
    ],
)
def test_what_is_there_is_no_fault(text):
    assert not list(faults(ROOT / "NEW.md", text))
