"""The search for a learning rate: which rates are tried, for how long, and when the method's own stays."""

import math
from itertools import pairwise

import pytest

from foretoken.training.run.find_rate import ROUNDS, candidates, halve

RATES = candidates(0.01)


def searched(loss_of, *, start=1.0, whole=99, noise=0.0):
    """Return the rate that is chosen, why, and the rates that each round tried."""
    seen = {}

    def losses_after(rate, steps):
        assert rate not in seen.setdefault(steps, [])
        seen[steps].append(rate)
        loss = loss_of(rate)
        return [loss + (noise if rate == 0.01 and n % 2 else 0) for n in range(16)]

    chosen, why = halve(RATES, losses_after, start=start, whole=whole)
    return chosen, why, list(seen.values())


def test_the_rounds_halve_around_the_best():
    chosen, _, tried = searched(lambda rate: abs(math.log(rate / 0.02)) / 10)
    assert chosen == 0.022
    assert tried == [RATES, [0.022, 0.01, 0.046, 0.0046], [0.022, 0.01]]


@pytest.mark.parametrize("whole", [5, 15, 99])
def test_no_round_is_longer_than_the_run(whole):
    lengths = []
    halve(RATES, lambda rate, steps: lengths.append(steps) or [rate] * 2, start=9.0, whole=whole)
    assert max(lengths) <= whole
    assert sum(lengths) <= 3 * ROUNDS[0][0] * ROUNDS[0][1] + 3 * ROUNDS[-1][1]


@pytest.mark.parametrize(
    ("loss_of", "options", "chosen", "why"),
    [
        (lambda rate: math.nan, {}, 0.01, "none lowered the loss"),
        (lambda rate: 0.8, {"start": 0.7}, 0.01, "none lowered the loss"),
        (lambda rate: abs(rate - 0.01), {}, 0.01, "none is better"),
        (lambda rate: 0.5 - rate / 100, {}, 0.01, "the loss still falls"),
        (lambda rate: 0.5 - 1e-4 * (rate == 0.022), {"noise": 0.5}, 0.022, "lower than with 0.01"),
        (lambda rate: abs(math.log(rate / 0.22)) / 10, {}, 0.22, "lower than with 0.01"),
    ],
)
def test_the_own_rate_stays_unless_another_is_better_beyond_the_noise(loss_of, options, chosen, why):
    found, said, _ = searched(loss_of, **options)
    assert (found, why in said) == (chosen, True), said


def test_a_gain_within_the_noise_is_none():
    def losses_after(rate, steps):
        return [0.5 + (0.2 if n % 2 else -0.19) * (rate == 0.022) for n in range(16)]

    assert (
        halve(
            RATES,
            lambda rate, steps: [0.6] * 16 if rate not in (0.01, 0.022) else losses_after(rate, steps),
            start=1.0,
            whole=99,
        )[0]
        == 0.01
    )


@pytest.mark.parametrize("middle", [3e-5, 0.01, 1.0])
def test_candidates_are_evenly_spread_around_the_middle(middle):
    rates = candidates(middle)
    assert middle in rates
    assert rates[0] < middle / 20
    assert rates[-1] == pytest.approx(10 * middle, rel=0.01)
    ratios = [later / earlier for earlier, later in pairwise(rates)]
    assert all(ratio == pytest.approx(10 ** (1 / 3), rel=0.06) for ratio in ratios)
