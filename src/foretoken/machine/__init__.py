"""The machine that foretoken runs on: its processor, the fastest way to compute there, and clusters of machines."""
