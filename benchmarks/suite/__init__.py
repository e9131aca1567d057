"""The benchmarks of ``python -m benchmarks``: one file each, and what they share."""
