"""The blocks of docs/migrating.md run, one after the other."""

import contextlib
import io
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "migrating.md"


def test_the_blocks_of_the_page_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names, said = {}, io.StringIO()
    for block in blocks:
        with contextlib.redirect_stdout(said):
            exec(compile(block, str(PAGE), "exec"), names)
    assert "proven" in said.getvalue()
    assert 0 < names["number"] < 200  # the budget ended the loop
