"""Settings of the documentation site: `python -m sphinx -W -c docs . build/site`.

The repository is the source, so links between pages work as in a code host's browser.
"""

import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "tfdp"
author = "The tfdp authors"
copyright = author
root_doc = "docs/index"
include_patterns = ["docs/**", "papers/*.md", "benchmarks/README.md", "*.md"]
exclude_patterns = ["docs/_site", "CHANGELOG.md"]
html_extra_path = ["_site"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"

autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": "from_config",
}
autodoc_typehints = "description"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "Attributes"), ("Formal guarantee", "notes")]

html_theme = "furo"
html_title = "tfdp"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

# A word between two stars is emphasized; any other star stands for itself.
STARS = re.compile(r"(?<!\w)(\*\w[^*]*\w\*)(?!\w)|\*")


def as_markdown(app, what, name, obj, options, lines):
    """Reads `code` and *emphasis* in docstrings as Markdown does."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            bullet, line = re.fullmatch(r"(\s*\* )?(.*)", line).groups("")
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [STARS.sub(lambda m: m[1] or r"\*", part) for part in parts[::2]]
            parts[1::2] = [f"``{part.strip('`')}``" for part in parts[1::2]]
            lines[number] = bullet + "".join(parts)


def leave_out_of_search(app, tree):
    """Leaves decisions out of the search, where they would stand before what a reader can do."""
    if "decisions/" in app.env.docname:
        app.env.metadata[app.env.docname]["nosearch"] = ""


def leave_out_internal(app, what, name, obj, skip, options):
    """Leaves out what completion leaves out of optimizers and of `model.privacy`."""
    from tfdp.optimizers.arguments import INTERNAL
    from tfdp.training import model_privacy

    where = getattr(getattr(obj, "fget", obj), "__module__", None) or ""
    hidden = {model_privacy.__name__: model_privacy._INTERNAL}.get(where, ())
    hidden = INTERNAL if where.startswith("tfdp.optimizers") else hidden
    return True if name in hidden else None


def setup(app):
    """Connects the reading of docstrings, before napoleon's, and of pages."""
    app.connect("autodoc-process-docstring", as_markdown, priority=100)
    app.connect("autodoc-skip-member", leave_out_internal)
    app.connect("doctree-read", leave_out_of_search)
