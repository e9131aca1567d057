"""The workflow of continuous integration: its jobs are targets of the Makefile, whose versions are the package's."""

import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def jobs():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]


def targets(job):
    """Return the targets that a job makes, for every value of its matrix."""
    (kind, values) = next(iter(job.get("strategy", {}).get("matrix", {"none": [""]}).items()))
    steps = [step["run"] for step in job["steps"] if "run" in step]
    return [step.replace(f"${{{{ matrix.{kind} }}}}", value) for value in values for step in steps]


@pytest.mark.parametrize("name", jobs())
def test_every_job_makes_targets_that_exist(name):
    for command in targets(jobs()[name]):
        target = re.fullmatch(r'make ([\w-]+)( [A-Z]+="[^"]*")?', command)[1]
        assert re.search(rf"^{target}:", MAKEFILE, re.M), command


def test_the_oldest_and_the_newest_versions_are_tested():
    made = {command for job in jobs().values() for command in targets(job)}
    assert {"make test", "make test-oldest", "make test-newest", "make test-wheel"} <= made


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_the_ends_of_the_range_are_those_of_the_package():
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ranges = {re.match(r"\w+", one)[0]: one for one in declared}
    newest = re.search(r"^NEWEST = (.*?)  #", MAKEFILE, re.M)[1]
    assert newest == f'"{ranges["transformers"]}" "{ranges["peft"]}"'
    oldest = dict(one.split("==") for one in re.search(r"^OLDEST = (.*)$", MAKEFILE, re.M)[1].split())
    for name, version in oldest.items():
        assert f"{name}>={'.'.join(version.split('.')[:2])}," in ranges[name]
