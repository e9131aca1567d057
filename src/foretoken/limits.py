"""The largest numbers that recipes and commands take: far beyond any use, and near enough to catch a slip."""

MOST_DOCUMENTS = 100_000  # of a forward pass
MOST_TOKENS = 100_000_000  # of a forward pass
LONGEST_DOCUMENT = 10_000_000  # tokens
MOST_STEPS = 1_000_000_000
MOST_EPOCHS = 1_000_000
MOST_BINS = 10_000
MOST_THREADS = 1024
