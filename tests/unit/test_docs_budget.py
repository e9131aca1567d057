"""The documentation stays short, and does not contradict the code: budgets, counts, keys and flags."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BUDGETS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["extra"]["budgets"]
GENERATED = re.compile(r"<!-- generated: .+? -->.*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
COUNTED = r"(?:methods|families|kinds of problems|problems|(?:built-in )?tasks|verbs|extras)"
NUMBER = r"(?:\d{1,2}|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|twenty)"
FILES = re.compile(r"\.(json|md|py|yaml|csv)$")  # names of files look like keys of a group
PAGES = sorted(DOCS.rglob("*.md"))


def written(page):
    """Return what somebody wrote on a page: no generated parts, no code."""
    return CODE.sub("", GENERATED.sub("", page.read_text(encoding="utf-8")))


def words(page):
    """Count words; names of tests, which the promises stand beside, are none."""
    return len(re.sub(r"`tests/[^`]+`,?", "", written(page)).replace("|", " ").split())


def pages_of(group):
    return [page for pattern in group.split() for page in list(DOCS.glob(pattern)) or [DOCS / pattern]]


@pytest.mark.parametrize("group", BUDGETS)
def test_a_group_of_pages_keeps_to_its_words(group):
    assert sum(map(words, pages_of(group))) <= BUDGETS[group]


def test_every_page_is_in_a_budget():
    assert {page for group in BUDGETS for page in pages_of(group)} >= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_types_a_count_that_the_code_knows(page):
    assert re.findall(rf"\b{NUMBER} {COUNTED}\b", written(page), re.IGNORECASE) == []


def generated_names(page, pattern):
    return set(re.findall(pattern, (DOCS / "reference" / page).read_text(encoding="utf-8"), re.MULTILINE))


KEYS = generated_names("recipe.md", r"^\| \**`([a-z0-9_.]+)`") | {"decision.cost.fraud"}  # of a mapping, by label
FLAGS = generated_names("cli.md", r"--[a-z][a-z-]+") | {f"--{key}" for key in KEYS} | {"--no-index", "--find-links"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_keys_and_flags_that_a_page_names_exist(page):
    text, groups = written(page), {key.partition(".")[0] for key in KEYS if "." in key}
    keys = {key for key in re.findall(r"`([a-z_]+\.[a-z0-9_.]+)", text) if key.partition(".")[0] in groups}
    assert {key for key in keys if not FILES.search(key)} - KEYS == set()
    assert set(re.findall(r"`[^`\n]*?(--[a-z][a-z-]+)(?=[ `])", text)) - FLAGS == set()
