"""A PostgreSQL server of one's own, from the binaries of the pip package `pgserver` or of the system."""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "s3cret"
UNPRIVILEGED = "nobody"  # postgres refuses to run as root


def binaries():
    """Return the folder with initdb and pg_ctl; None where there is none."""
    package = importlib.util.find_spec("pgserver")
    places = [Path(place) / "pginstall" / "bin" for place in (package.submodule_search_locations if package else ())]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(found).parent for found in [shutil.which("initdb")] if found]
    return next((place for place in places if (place / "initdb").exists()), None)


class Postgres:
    """A server on a free port of this machine; user `postgres`, password `s3cret`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.port = free_port()
        (self.folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, self.folder / "password"):
                shutil.chown(path, UNPRIVILEGED)
        options = ["-A", "scram-sha-256", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]
        self._run("initdb", "-D", str(self.data), f"--pwfile={self.folder / 'password'}", *options)

    def url(self, password=PASSWORD, database="postgres"):
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}"

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-o", options, "start")

    def stop(self):
        self._run("pg_ctl", "-D", str(self.data), "-w", "-m", "fast", "stop")

    def _run(self, name, *words):
        identity = {"user": UNPRIVILEGED, "extra_groups": []} if os.geteuid() == 0 else {}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = subprocess.run([binaries() / name, *words], cwd=self.folder, timeout=120, **options, **identity)
        assert done.returncode == 0, done.stderr.decode()


@contextlib.contextmanager
def postgres():
    """Yield a running server; its folder lies where an unprivileged user may go."""
    folder = Path(tempfile.mkdtemp(prefix="foretoken-postgres-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
