"""One forward pass: its plan, the hooks that carry it out, and the sites that they call."""
