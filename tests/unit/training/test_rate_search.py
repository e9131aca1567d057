"""The search for a learning rate: the halving against a naive one."""

import math
import random
from itertools import pairwise

import pytest

from foretoken.training.run.find_rate import ROUNDS, candidates, halve


def naive(rates, loss_of, start):
    """The best of the last round that has a usable loss, by plain loops."""
    best, left = None, rates
    for count, steps in ROUNDS:
        scored = []
        for rate in left[:count]:
            loss = loss_of(rate, steps)
            if math.isfinite(loss) and loss <= start:
                scored.append((loss, rates.index(rate), rate))
        scored.sort()
        if scored:
            best = scored[0][2]
        if len(scored) < 2:
            return best
        left = [rate for _, _, rate in scored]
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_halving_is_that_of_plain_loops(seed):
    chance, rates, seen = random.Random(seed), candidates(10.0 ** -(seed % 5)), []
    bad = (math.nan, math.inf, 5.0)
    table = {
        (rate, steps): chance.choice(bad) if chance.random() < seed / 50 else chance.random()
        for rate in rates
        for _, steps in ROUNDS
    }

    def loss_of(rate, steps):
        seen.append((rate, steps))
        return table[rate, steps]

    assert halve(rates, loss_of, start=0.9) == naive(rates, lambda *key: table[key], 0.9)
    assert len(seen) == len(set(seen))
    assert sum(steps for _, steps in seen) <= 240


def test_without_divergence_the_rounds_halve():
    seen = []

    def loss_of(rate, steps):
        seen.append((rate, steps))
        return abs(math.log(rate / 0.02)) / steps

    rates = candidates(0.01)
    assert halve(rates, loss_of, start=1.0) == 0.022
    assert [[rate for rate, steps in seen if steps == wanted] for _, wanted in ROUNDS] == [
        rates,
        [0.022, 0.01, 0.046, 0.0046],
        [0.022, 0.01],
    ]


def test_nothing_is_found_where_nothing_is_learned():
    assert halve(candidates(0.01), lambda rate, steps: math.nan, start=0.7) is None
    assert halve(candidates(0.01), lambda rate, steps: 0.8, start=0.7) is None


@pytest.mark.parametrize("middle", [3e-5, 0.01, 1.0])
def test_candidates_are_evenly_spread_around_the_middle(middle):
    rates = candidates(middle)
    assert middle in rates
    assert rates[0] < middle / 20
    assert rates[-1] == pytest.approx(10 * middle, rel=0.01)
    ratios = [later / earlier for earlier, later in pairwise(rates)]
    assert all(ratio == pytest.approx(10 ** (1 / 3), rel=0.06) for ratio in ratios)
