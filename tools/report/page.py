"""One self-contained HTML page of a results folder."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from report.style import VERDICT_COLOURS
from report.tables import comparisons_table, numbers_table, provenance, verdicts_table

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def badge(verdict):
    return Markup('<span class="verdict" style="background:{}">{}</span>').format(VERDICT_COLOURS[verdict], verdict)


def markdown(text):
    """Markdown of ours as HTML: verdicts are badges, and a link to a claim's page leads to its section."""
    tokens = MARKDOWN.parse(text)
    for token in (child for block in tokens for child in block.children or []):
        if token.type == "link_open" and token.attrs["href"].endswith(".md"):
            token.attrs["href"] = f"#{Path(token.attrs['href']).stem}"
        elif token.type == "text" and token.content in VERDICT_COLOURS:
            token.type, token.content = "html_inline", badge(token.content)
    return Markup(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))


def figure(claim):
    """Its figure's <svg> with identifiers of its own: several share the page."""
    text = (claim.folder / f"{claim.name}.svg").read_text()
    text = text[text.index("<svg"):]
    return Markup(re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{claim.name}-", text))


def page(machine, claims):
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
                            trim_blocks=True, keep_trailing_newline=True)
    templates.filters.update(badge=badge, figure=figure, markdown=markdown)
    return templates.get_template("page.html.j2").render(
        machine=machine, claims=claims, comparisons_table=comparisons_table, numbers_table=numbers_table,
        provenance=provenance, verdicts_table=verdicts_table)
