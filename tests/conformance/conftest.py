"""Which cells of the table run by default: all of them together take longer than the default suite may.

The full table runs with ``-m "slow or not slow"`` (``make test-slow`` runs what is left out here).
"""

import pytest

from foretoken.attention import choose as attention_settings

# a family whose declaration and attention code are another family's
ALIKE = (
    *("roberta", "xlm-roberta", "camembert", "electra", "big_bird, full", "nomic_bert", "jina_embeddings_v3"),
    *("qwen2", "qwen3", "mistral", "gemma3_text"),
)
ALIKE_ROWS = ("prefix-propagation", "prefix-tuning", "stack, of every site")
# one family per way of getting rows and columns in: a variant of a method differs in the method's own module
VARIANT_FAMILIES = ("bert", "longformer", "llama", "t5")
COMPOSED = ("mam-adapter", "stack", "head-only")  # of parts that have rows of their own


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch):
    monkeypatch.setattr(attention_settings, "_chosen", {"engine": None, "packing": None})


def runs_by_default(method, family):
    if family in ALIKE:
        return method in ALIKE_ROWS
    is_main = "," not in method and method not in COMPOSED
    return is_main or method in ALIKE_ROWS or family in VARIANT_FAMILIES


def pytest_collection_modifyitems(items):
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params
        is_cell = parameters and all(isinstance(parameters.get(name), str) for name in ("method", "family"))
        left_out = is_cell and not runs_by_default(parameters["method"], parameters["family"])
        compiles = "compile" in item.name and item.path.name != "test_lifecycle.py"  # ten seconds each
        if left_out or compiles:
            item.add_marker(pytest.mark.slow)
