"""How a report is drawn: HTML, Markdown and LaTeX."""
