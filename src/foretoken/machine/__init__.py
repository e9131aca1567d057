"""The machine that foretoken runs on: its processor, and the fastest way to compute there."""
