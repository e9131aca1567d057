"""A folder whose subfolders are adapters, looked into while the server runs."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias

from foretoken.errors import AdapterError, ForetokenError, one_line
from foretoken.inference.predictor import adapter_folder
from foretoken.serving.engine import Engine
from foretoken.serving.errors import NoSuchAdapterError, NotReadyError

log = logging.getLogger(__name__)
Signature: TypeAlias = tuple[tuple[str, int, int], ...]


class Watcher:
    """Loads the adapters of a folder, again when their files change, and removes those that are gone.

    Args:
        engine: that answers for them.
        folder: where they are.
        seconds: between two looks.
    """

    def __init__(self, engine: Engine, folder: Path, *, seconds: float) -> None:
        self.engine, self.folder, self.seconds = engine, folder, seconds
        self._seen: dict[str, Signature] = {}
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="foretoken-watch", daemon=True)

    def start(self) -> None:
        """Look every few seconds, from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Load what is new or has changed, and remove what is gone."""
        found = self._found()
        for name, signature in found.items():
            if self._seen.get(name) != signature:
                self._seen[name] = signature
                self._load(name)
        for name in self._seen.keys() - found.keys():
            del self._seen[name]
            self._remove(name)

    def _watch(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                self.look()
            except NotReadyError:
                return
            except OSError as error:
                log.warning("%s cannot be read: %s", self.folder, error.strerror)

    def _found(self) -> dict[str, Signature]:
        folders = (place for place in sorted(self.folder.iterdir()) if not place.name.startswith("."))
        return {place.name: files for place in folders if (files := _signature(place))}

    def _load(self, name: str) -> None:
        place = self.folder / name
        try:
            self.engine.add(name, place)
        except NotReadyError:
            raise
        except ForetokenError as error:
            log.warning("adapter %s is not loaded: %s", name, one_line(str(error)))

    def _remove(self, name: str) -> None:
        place, store = self.folder / name, self.engine.store
        try:
            if store.get(name).folder == place:
                self.engine.call(lambda: store.remove(name)).result()
        except NoSuchAdapterError:
            return


def _signature(folder: Path) -> Signature:
    """Return names, times and sizes of an adapter's files; nothing for a folder that is no adapter, or a link."""
    if folder.is_symlink() or not folder.is_dir():
        return ()
    try:
        files = [(item.name, item.stat()) for item in sorted(adapter_folder(folder).iterdir())]
    except (AdapterError, OSError):  # a run that goes on yet, or files that are being moved
        return ()
    return tuple((name, about.st_mtime_ns, about.st_size) for name, about in files)
