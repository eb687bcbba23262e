"""Runs the blocks of docs/guides/python.md that need only a model, and compares their output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint

GUIDE = Path(__file__).parents[2] / "docs/guides/python.md"


def test_guide(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("duckdb")
    endpoint.truth = lambda question, value: value in ("apple", "plum")
    text, _ = GUIDE.read_text().split("## Work with a spec")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        block = block.replace('Model("gpt-4o-mini",', f'Model("gpt-4o-mini", base_url="{endpoint.url}",')
        exec(block, names)
        printed = capsys.readouterr().out.splitlines()
        assert printed == re.findall(r"^print\(.*\)\s+# (.*)$", block, re.MULTILINE)
