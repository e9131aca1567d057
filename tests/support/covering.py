"""Which cases of a test the default suite runs: every value of every parameter, not every combination."""

import zlib
from collections import defaultdict

import pytest


def leave_to_the_slow_suite(items):
    """Of each test that is marked ``covering`` mark those cases as slow that have no value that others have not."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same_test in cases.values():
        seen = set()
        for item in sorted(same_test, key=lambda item: zlib.crc32(item.name.encode())):  # always the same mixture
            values = {(name, repr(value)) for name, value in item.callspec.params.items()}
            if values <= seen:
                item.add_marker(pytest.mark.slow)
            seen |= values
