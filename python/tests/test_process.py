"""A process that is interrupted, forks or ends during a run loses no answer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import hqdl
import pytest
from endpoint import Endpoint

unix = pytest.mark.skipif(os.name != "posix", reason="forks and signals")

BEGIN = """
import hqdl, os, sys, threading, signal
model = hqdl.Model("m", base_url={url!r}, rows_per_request=5, concurrency=2)
values = [f"v{{n}}" for n in range(500)]
"""


def start(endpoint: Endpoint, script: str) -> subprocess.Popen[str]:
    text = BEGIN.format(url=endpoint.url) + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def everything_is_kept(endpoint: Endpoint) -> None:
    """Asserts that the next process knows all answers, and that each was paid for once."""
    assert 0 < endpoint.cells.total() < 500
    answered = [value for _, value in endpoint.cells]
    model = hqdl.Model("m", base_url=endpoint.url)
    assert hqdl.map("upper", answered, model=model).meta["values_asked"] == 0
    assert set(endpoint.cells.values()) == {1}


@unix
def test_ctrl_c_ends_a_run_and_keeps_answers_in_flight(endpoint: Endpoint) -> None:
    endpoint.go.clear()
    process = start(
        endpoint,
        """
        try:
            hqdl.map("upper", values, model=model)
        except KeyboardInterrupt as error:
            assert isinstance(error, hqdl.Interrupted), error
            assert error.exit == 130 and "kept" in error.hint
            print("interrupted")
        """,
    )
    assert endpoint.asked.wait(60)
    process.send_signal(signal.SIGINT)
    # The run reacts within 50 ms, and waits for the requests in flight.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    endpoint.go.set()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "interrupted\n"), err
    everything_is_kept(endpoint)


@unix
def test_ctrl_c_twice_ends_at_once(endpoint: Endpoint) -> None:
    endpoint.go.clear()
    process = start(
        endpoint,
        """
        try:
            hqdl.map("upper", values, model=model)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(0)
        """,
    )
    assert endpoint.asked.wait(60)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "interrupted\n", err


@unix
def test_the_interpreter_can_exit_during_a_run(endpoint: Endpoint) -> None:
    endpoint.go.clear()
    process = start(
        endpoint,
        """
        import time
        work = lambda: hqdl.map("upper", values, model=model)
        threading.Thread(target=work, daemon=True).start()
        while not os.path.exists("leave"):
            time.sleep(0.01)
        """,
    )
    assert endpoint.asked.wait(60)
    Path("leave").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    endpoint.go.set()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    everything_is_kept(endpoint)


def in_child(values: list[str], url: str) -> list[object]:
    return hqdl.map("upper", values, model=hqdl.Model("m", base_url=url)).to_pylist()


POOL = """
import multiprocessing
def ask(part):
    return hqdl.map("upper", part, model=model).to_pylist()
parts = [values[start:start + 30] for start in (0, 10, 20)]
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(ask, parts)
    assert found == [[v.upper() for v in part] for part in parts], found
"""


@unix
def test_forked_processes_share_known_answers(endpoint: Endpoint) -> None:
    process = start(endpoint, POOL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    everything_is_kept(endpoint)


@unix
def test_a_fork_with_an_open_cache_is_an_error(endpoint: Endpoint) -> None:
    process = start(
        endpoint,
        """
        hqdl.map("upper", ["v0"], model=model)
        child = os.fork()
        if child == 0:
            try:
                hqdl.map("upper", ["v0"], model=model)
            except hqdl.InputError as error:
                assert "spawn" in error.hint
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert hqdl.map("upper", ["v0", "v1"], model=model).to_pylist() == ["V0", "V1"]
        """,
    )
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    everything_is_kept(endpoint)


def in_child(values: list[str], url: str) -> list[object]:
    return hqdl.map("upper", values, model=hqdl.Model("m", base_url=url)).to_pylist()


def test_spawned_processes_share_known_answers(endpoint: Endpoint) -> None:
    in_child(["v0"], endpoint.url)
    parts = [[f"v{n}" for n in range(start, start + 30)] for start in (0, 10, 20)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(in_child, [(part, endpoint.url) for part in parts])
    assert found == [[v.upper() for v in part] for part in parts]
    assert set(endpoint.cells.values()) == {1}


@unix
def test_a_killed_process_loses_only_answers_in_flight(endpoint: Endpoint) -> None:
    process = start(
        endpoint,
        """
        hqdl.map("upper", values[:100], model=model)
        print("kept", flush=True)
        import time; time.sleep(100)
        """,
    )
    assert process.stdout is not None and process.stdout.readline() == "kept\n"
    process.kill()
    process.communicate()
    everything_is_kept(endpoint)


def test_the_type_stubs_match_the_module() -> None:
    project = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(project / "pyproject.toml")],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
