"""Tables of a report, and their LaTeX."""
