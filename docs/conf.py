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

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
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


def _escaped(stars):
    return "".join(f"\\{star}" for star in stars.group())


def as_markdown(app, what, name, obj, options, lines):
    """Reads `code` in docstrings as Markdown does, and a star as a star."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [
                re.sub(r"(?<![\w*])\*{1,2}(?=[\w,])", _escaped, part) for part in parts[::2]
            ]
            parts[1::2] = [f"``{part.strip('`')}``" for part in parts[1::2]]
            lines[number] = "".join(parts)


def setup(app):
    """Connects the reading of docstrings, before napoleon's."""
    app.connect("autodoc-process-docstring", as_markdown, priority=100)
