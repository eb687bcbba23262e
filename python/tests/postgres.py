"""Runs a PostgreSQL server for the tests, in a temporary folder, on a loopback port."""

from __future__ import annotations

import glob
import os
import random
import shutil
import socket
import subprocess
import tempfile
from typing import Any

#: User of the server if the tests run as root, because PostgreSQL refuses to run as root.
NOBODY = 65534


def programs() -> str | None:
    """Returns the folder of ``initdb``, or None."""
    found = shutil.which("initdb")
    places = [found] if found else sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return os.path.dirname(os.path.realpath(places[-1])) if places else None


class Postgres:
    def __init__(self) -> None:
        self._programs = programs() or ""
        self._dir = tempfile.mkdtemp(prefix="hqdl-pg-")
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(self._dir, NOBODY, NOBODY)
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.port = self._free()
        self._data = os.path.join(self._dir, "data")
        self._run("initdb", "-U", "owner", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        with open(os.path.join(self._data, "postgresql.conf"), "a") as settings:
            settings.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\nfsync = off\n"
                f"unix_socket_directories = '{self._dir}'\nmax_connections = 200\n"
            )
        self._run("pg_ctl", "-w", "-t", "120", "-l", os.path.join(self._dir, "log"), "start")
        self._made = 0

    @staticmethod
    def _free() -> int:
        # Use a port below the ephemeral range, so that no other program is assigned it.
        while True:
            port = random.randrange(20_000, 32_000)
            with socket.socket() as some:
                if some.connect_ex(("127.0.0.1", port)):
                    return port

    def _run(self, program: str, *words: str) -> str:
        command = [os.path.join(self._programs, program)]
        command += ["-D", self._data] if program != "psql" else []
        # Write the output to a file, because the started server would keep a pipe open.
        with tempfile.TemporaryFile("w+") as told:
            run = subprocess.run(
                [*command, *words],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                **self._as,
            )
            told.seek(0)
            out = told.read()
        assert run.returncode == 0, out
        return out

    def sql(self, database: str, sql: str) -> list[list[str]]:
        told = self._run("psql", "-X", "-At", "-F", "\t", "-d", self.url(database), "-c", sql)
        return [line.split("\t") for line in told.splitlines()]

    def url(self, name: str) -> str:
        return f"postgres://owner@127.0.0.1:{self.port}/{name}"

    def database(self) -> str:
        """Creates a database and returns its URL."""
        self._made += 1
        self.sql("postgres", f"CREATE DATABASE t{self._made}")
        return self.url(f"t{self._made}")

    def close(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._dir, ignore_errors=True)
