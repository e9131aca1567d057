import random

from foretoken.training.tokens.batches import BucketSampler, ShuffleSampler


def lengths(count=300):
    chance = random.Random(0)
    return [chance.randint(1, 1000) for _ in range(count)]


def padding(sampler, batch_size):
    order = list(sampler)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    widest = sum(max(sampler.lengths[index] for index in batch) * len(batch) for batch in batches)
    return widest / sum(sampler.lengths)


def test_every_document_comes_once():
    for count in (1, 7, 8, 9, 300, 3001):
        sampler = BucketSampler(lengths(count), batch_size=8, seed=0)
        assert sorted(sampler) == list(range(count))
        assert len(sampler) == count


def test_the_order_is_a_function_of_seed_and_epoch():
    one, two = (BucketSampler(lengths(), batch_size=8, seed=3) for _ in range(2))
    first = list(one)
    assert first == list(two)
    one.set_epoch(1)
    assert list(one) != first
    one.set_epoch(0)
    assert list(one) == first
    assert list(BucketSampler(lengths(), batch_size=8, seed=4)) != first


def test_buckets_save_padding():
    bucketed = padding(BucketSampler(lengths(), batch_size=8, seed=0), 8)
    shuffled = padding(ShuffleSampler(lengths(), batch_size=8, seed=0), 8)
    assert bucketed < 1.2
    assert shuffled > 1.6
