"""A report as one self-contained HTML page, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from foretoken import __version__
from foretoken.report.content import Report, Section
from foretoken.report.render.table import escape_markdown, markdown
from foretoken.report.tables.methods import MethodText

if TYPE_CHECKING:
    from markupsafe import Markup

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
    environment.filters["linked"] = _linker(report)
    sections = [Section("summary", "Summary"), *report.sections]
    return environment.get_template("page.html").render(
        title=TITLE,
        generator=GENERATOR,
        version=__version__,
        summary=report.summary,
        picture=report.picture,
        warnings=report.warnings,
        sections=sections,
        describe=method_line,
        run_count=report.run_count,
    )


def method_line(method: MethodText) -> str:
    """Return what a method is, for readers who know its name alone.

    >>> method_line(MethodText("lora", ("lora",), "LoRA", "low-rank updates", "Hu et al. 2021"))
    'lora (LoRA): low-rank updates. Hu et al. 2021.'
    """
    title = "" if method.title == method.name else f" ({method.title})"
    return f"{method.name}{title}: {method.summary}.{f' {method.paper}.' if method.paper else ''}"


def markdown_page(report: Report) -> str:
    """Return the summary and all tables as Markdown."""
    return "\n".join(_lines(report))


def _linker(report: Report) -> Callable[[str], Markup]:
    """Return what makes every name of a method in a text a link to what the page says of it."""
    from markupsafe import Markup, escape

    places = {
        label: method.name for section in report.sections for method in section.methods for label in method.labels
    }
    longest_first = sorted(places, key=len, reverse=True)
    names = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(?![\w-])") if places else None

    def linked(text: str) -> Markup:
        parts = names.split(text) if names else [text]
        return Markup("").join(
            Markup('<a href="#method-{}">{}</a>').format(places[part], part) if index % 2 else escape(part)
            for index, part in enumerate(parts)
        )

    return linked


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
        if section.methods:
            yield f"## {section.title}\n"
            yield from (f"- {escape_markdown(method_line(method))}\n" for method in section.methods)
