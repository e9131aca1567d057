"""The search for a learning rate: its candidates, the rounds, and when the method's own rate stays."""

from itertools import pairwise

import pytest

from foretoken.training.run import find_rate
from foretoken.training.run.find_rate import ROUNDS, candidates

RATES = find_rate.candidates(0.01)
SPREAD = (-1.0, 1.0) * 8  # of documents, the same with every rate


def halved(mean, *, noise=SPREAD, rates=RATES):
    """Halve with losses of a formula; return the choice and what was tried."""
    tried = []

    def losses_after(rate, steps):
        tried.append((rate, steps))
        return [mean(rate) + one for one in noise]

    return find_rate.halve(rates, losses_after, start=99, whole=1000), tried


def test_a_rate_at_the_end_of_the_range_is_taken_only_if_the_one_beyond_it_is_worse():
    (chosen, _), tried = halved(lambda rate: abs(rate - 0.1))
    assert chosen == 0.1 == RATES[-1]
    assert (0.22, 10) in tried
    (chosen, _), tried = halved(lambda rate: abs(rate - 0.22))
    assert chosen == 0.22
    assert (0.47, 10) in tried
    (chosen, why), tried = halved(lambda rate: -rate)
    assert (chosen, why) == (0.01, "the loss still falls at 1, where the search ends")
    assert max(tried)[0] < 1.2


def test_the_own_rate_stays_where_another_is_better_by_no_more_than_the_noise():
    def losses_after(rate, steps):  # documents change places, as in longer and shorter runs
        return [(rate != 0.01) * (4 * (-1) ** i - 0.5) for i in range(16)]

    chosen, why = find_rate.halve(RATES, losses_after, start=99, whole=1000)
    assert chosen == 0.01
    assert "within the noise" in why
    assert halved(lambda rate: abs(rate - 0.022))[0][0] == 0.022  # all documents gain the same


def test_a_run_shorter_than_the_search_ends_it():
    tried = []
    find_rate.halve(RATES, lambda rate, steps: tried.append(steps) or [abs(rate - 0.02)] * 16, start=99, whole=15)
    assert set(tried) == {10, 15}


def test_an_own_rate_that_diverges_goes():
    (chosen, _), _ = halved(lambda rate: float("nan") if rate == 0.01 else abs(rate - 0.0022))
    assert chosen == 0.0022


def test_without_divergence_the_rounds_halve_and_keep_the_own_rate():
    (chosen, _), seen = halved(lambda rate: abs(rate - 0.0046))
    assert chosen == 0.0046
    assert [sorted(rate for rate, steps in seen if steps == wanted) for _, wanted in ROUNDS] == [
        RATES,
        [0.00046, 0.001, 0.0022, 0.0046, 0.01],
        [0.0022, 0.0046, 0.01],
    ]


@pytest.mark.parametrize("loss", [float("nan"), 99.5])
def test_the_own_rate_stays_where_nothing_is_learned(loss):
    (chosen, why), _ = halved(lambda _: loss)
    assert (chosen, why) == (0.01, "none lowered the loss of 99.0000")


@pytest.mark.parametrize("middle", [3e-5, 0.01, 1.0])
def test_candidates_are_evenly_spread_around_the_middle(middle):
    rates = candidates(middle)
    assert middle in rates
    assert rates[0] < middle / 20
    assert rates[-1] == pytest.approx(10 * middle, rel=0.01)
    ratios = [later / earlier for earlier, later in pairwise(rates)]
    assert all(ratio == pytest.approx(10 ** (1 / 3), rel=0.06) for ratio in ratios)
