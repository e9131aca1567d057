"""A report as one self-contained HTML page."""

from __future__ import annotations

from foretoken.report.content import Report, Section
from foretoken.version import __version__

GENERATOR = "foretoken report"  # by which a folder is known for a report when it is written again
TITLE = "Report of runs"


def html(report: Report) -> str:
    """Return the page: styles, figures and a script to sort tables are inside, and nothing is fetched."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("foretoken.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup  # an SVG of ours: its texts are escaped by matplotlib
    first = [Section("verdict", "Verdict")] if report.verdict else []
    sections = [*first, Section("summary", "Summary"), *report.sections]
    return environment.get_template("page.html").render(
        title=TITLE, generator=GENERATOR, version=__version__, report=report, sections=sections
    )
