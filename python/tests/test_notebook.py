"""Runs the notebook of the examples, and compares its output."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]


def told(cell: Any) -> list[str]:
    """Returns the output of a cell, without tables that pandas or polars formatted."""
    shown = [output.get("data", {}).get("text/plain", output.get("text")) for output in cell.outputs]
    return [text for text in shown if text and text[0] in "{(<'0123456789n"]


def test_the_notebook_shows_its_stored_output(alone: Path) -> None:
    for part in ("specs", "examples/superhero"):
        shutil.copytree(ROOT / part, alone / part)
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    before = [told(cell) for cell in notebook.cells if cell.cell_type == "code"]
    run = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(alone / "examples")}}
    )
    run.execute()
    after = [told(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert after == before and sum(map(len, before)) >= 6
