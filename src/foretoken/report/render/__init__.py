"""How a report is drawn: HTML and LaTeX."""
