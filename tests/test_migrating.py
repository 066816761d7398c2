"""The blocks of docs/migrating.md run, one after the other."""

import contextlib
import io
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "migrating.md"


def test_the_blocks_of_the_page_run():
    names, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, str(PAGE), "exec"), names)
    assert "proven" in said.getvalue()
    assert 0 < names["number"] < 200  # the budget ended the loop
