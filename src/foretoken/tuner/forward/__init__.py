"""One forward pass: the plan of it, the hooks that carry it out, and the sites that they call."""
