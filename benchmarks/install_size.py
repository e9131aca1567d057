"""How large an installation is: the core, and each extra with what it needs: `python -m benchmarks.install_size`.

The packages that are installed here are followed from foretoken's metadata through their own, and the bytes of their
files are summed. Writes results/install_size.json. Before there were extras, every installation was that of `sweep`.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RESULT = Path(__file__).parent / "results" / "install_size.json"
EXTRAS = ("", "train", "demo", "sweep", "serve", "export", "ray")


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution], seen: set[tuple[str, str]]) -> None:
    """Add a package and what it needs."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        print(f"{name} is not installed here, and not counted")
        return
    found[canonicalize_name(name)] = package
    for extra in extras | {""}:
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        for line in package.requires or ():
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                needed(one.name, frozenset(one.extras), found, seen)


def size(package: Distribution) -> int:
    """Return the bytes of a package's files; compiled Python is not counted."""
    files = (Path(str(package.locate_file(file))) for file in package.files or () if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    """Count and write."""
    sizes = {}
    for extra in EXTRAS:
        found: dict[str, Distribution] = {}
        needed("foretoken", frozenset({extra} if extra else ()), found, set())
        sizes[extra or "core"] = {
            "packages": len(found),
            "megabytes": round(sum(map(size, found.values())) / 1e6, 1),
        }
    machine = {"python": platform.python_version(), "system": platform.system(), "torch": distribution("torch").version}
    RESULT.write_text(json.dumps({"machine": machine, "sizes": sizes}, indent=1) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
