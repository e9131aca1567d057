"""The machine that foretoken runs on: what it has, and what is the fastest there."""
