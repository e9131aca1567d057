"""What the tests share: tiny models and data, naive loops of the equations, made runs, and faults."""
