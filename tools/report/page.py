"""One self-contained HTML page of a results folder."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from report.style import VERDICT_COLOURS
from report.tables import READING, comparisons_table, legend_table, numbers_table, provenance, scale_sentence, verdicts_table

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass
class Part:
    """A section that is no claim: measurements of kernels, one's own trainings."""

    name: str
    title: str
    text: str  # Markdown
    figures: list = field(default_factory=list)  # (identifier, path of the SVG)
    caption: str = ""  # what one should see in them


def badge(verdict):
    return Markup('<span class="verdict" style="background:{}">{}</span>').format(VERDICT_COLOURS[verdict], verdict)


def in_boxes(tokens):
    """Each table in a box that scrolls; one with verdicts is stacked on a narrow screen, its cells under the titles of their columns."""
    boxed, titles, column = [], [], 0
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            end = next(i for i in range(place, len(tokens)) if tokens[i].type == "table_close")
            inline = [t.content for t in tokens[place:end] if t.type == "inline"]
            titles = [tokens[i + 1].content for i in range(place, end) if tokens[i].type == "th_open"]
            kind = "stacked" if "verdict" in inline else "numbers"
            boxed.append(html_token(f'<div class="wide {kind}" tabindex="0">'))
        if token.type == "tr_open":
            column = 0
        if token.type in ("td_open", "th_open"):
            if token.type == "td_open":
                token.attrs["data-title"] = titles[column]
            column += 1
        boxed.append(token)
        if token.type == "table_close":
            boxed.append(html_token("</div>\n"))
    return boxed


def html_token(content):
    return Token("html_block", "", 0, content=content)


def markdown(text):
    """Markdown of ours as HTML: verdicts are badges, a link to a claim's page leads to its section, and one to another file is its text."""
    tokens = MARKDOWN.parse(text)
    inside = False
    for token in (child for block in tokens for child in block.children or []):
        if token.type == "link_open":
            inside = re.fullmatch(r"\w+\.md", token.attrs["href"])
            token.attrs["href"] = f"#{Path(token.attrs['href']).stem}"
        if token.type in ("link_open", "link_close") and not inside:
            token.type, token.tag = "html_inline", ""
        elif token.type == "text" and token.content in VERDICT_COLOURS:
            token.type, token.content = "html_inline", badge(token.content)
    return Markup(MARKDOWN.renderer.render(in_boxes(tokens), MARKDOWN.options, {}))


def figure(name, path, caption):
    """The <svg> of a file with identifiers of its own, as several share the page; a click opens it at its own size."""
    if not path.exists():  # it couldn't be drawn: named among the faults
        return ""
    text = path.read_text()
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text[text.index("<svg"):])
    text = text.replace("<svg", Markup('<svg role="img" aria-label="{}"').format(caption or name), 1)
    return Markup('<figure id="figure-{0}"><a class="close" href="#{0}">close</a><a class="open" href="#figure-{0}" title="open large">{1}</a>'
                  "<figcaption>{2}</figcaption></figure>").format(name, Markup(text), caption)


def page(machine, claims, parts=(), faults=()):
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
                            trim_blocks=True, keep_trailing_newline=True)
    templates.filters.update(badge=badge, markdown=markdown)
    return templates.get_template("page.html.j2").render(
        machine=machine, claims=claims, parts=parts, faults=faults, figure=figure, comparisons_table=comparisons_table, numbers_table=numbers_table,
        provenance=provenance, verdicts_table=verdicts_table, legend_table=legend_table, scale_sentence=scale_sentence, reading=READING)
