"""A report as one self-contained HTML page, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from foretoken import __version__
from foretoken.report.content import Report, Section
from foretoken.report.render.table import escape_markdown, markdown

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
    sections = [Section("summary", "Summary"), *report.sections]
    return environment.get_template("page.html").render(
        title=TITLE,
        generator=GENERATOR,
        version=__version__,
        summary=report.summary,
        warnings=report.warnings,
        sections=sections,
        run_count=report.run_count,
    )


def markdown_page(report: Report) -> str:
    """Return the summary and all tables as Markdown."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"# {TITLE}\n"
    yield from (f"{'- ' if index else ''}{escape_markdown(line)}\n" for index, line in enumerate(report.summary))
    if report.warnings:
        yield "Before you compare:\n"
        yield from (f"- {escape_markdown(line)}\n" for line in report.warnings)
    for section in report.sections:
        tables = [table for part in section.parts for table in part.tables]
        if tables:
            yield f"## {section.title}\n"
            yield from (f"{escape_markdown(line)}\n" for line in section.lines)
        for part in section.parts:
            if part.title and part.tables:
                yield f"**{escape_markdown(part.title)}**\n"
                yield from (f"{escape_markdown(line)}\n" for line in part.lines)
            yield from (markdown(table) for table in part.tables)
