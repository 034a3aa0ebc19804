"""One self-contained HTML page of a results folder."""

import html
import re

from report.style import VERDICT_COLOURS
from report.tables import comparisons_table, numbers_table, provenance, verdicts_table

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #22303c; background: #f5f7f9; margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.5rem 5rem; }
h1 { font-size: 2rem; margin: 1rem 0 0.2rem; } h2 { margin: 0 0 0.2rem; font-size: 1.35rem; } h3 { margin: 1.4rem 0 0.3rem; font-size: 1rem; }
section { background: white; border-radius: 10px; padding: 1.4rem 1.6rem; margin: 1.6rem 0; box-shadow: 0 1px 4px #22303c1c; overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; width: 100%; } th, td { text-align: left; padding: 0.32rem 0.7rem 0.32rem 0; border-bottom: 1px solid #e3e8ec; vertical-align: top; }
th { color: #5b6b78; font-weight: 600; } svg { max-width: 100%; height: auto; } .small { color: #5b6b78; font-size: 0.85rem; }
.verdict { color: white; border-radius: 4px; padding: 0.05rem 0.5rem; font-size: 0.82rem; white-space: nowrap; }
code { font-size: 0.9em; } summary { cursor: pointer; color: #2a7f9e; margin-top: 0.8rem; } a { color: #2a7f9e; }
"""


def badge(verdict):
    return f'<span class="verdict" style="background:{VERDICT_COLOURS[verdict]}">{verdict}</span>'


def inline(markdown):
    """The little Markdown that our tables use: bold, code, links to claims (which are on this page)."""
    text = html.escape(markdown)
    text = re.sub(r"\*\*(.*?)\*\*", lambda m: badge(m[1]) if m[1] in VERDICT_COLOURS else f"<strong>{m[1]}</strong>", text)
    text = re.sub(r"`(.*?)`", r"<code>\1</code>", text)
    return re.sub(r"\[(.*?)\]\(.*?\)", r'<a href="#\1">\1</a>', text)


def table(markdown):
    """A Markdown table of ours as HTML."""
    header, _, *body = [line[2:-2].split(" | ") for line in markdown.splitlines()]

    def cells(row, tag):
        return "".join(f"<{tag}>{badge(c) if c in VERDICT_COLOURS else inline(c)}</{tag}>" for c in row)

    lines = "".join(f"<tr>{cells(row, 'td')}</tr>\n" for row in body)
    return f"<table><thead><tr>{cells(header, 'th')}</tr></thead><tbody>\n{lines}</tbody></table>"


def svg_of(path, claim):
    """The figure's <svg> with identifiers of its own: several share the page."""
    text = path.read_text()
    text = text[text.index("<svg"):]
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{claim}-", text)


def section(claim):
    return f"""<section id="{claim.name}">
<h2>{html.escape(claim.certificate['title'])}</h2>
<p>{badge(claim.verdict)} <span class="small">{claim.certificate['experiment']}/{claim.name}</span></p>
{svg_of(claim.folder / f"{claim.name}.svg", claim.name)}
<h3>What the paper states, and what was measured</h3>
{table(comparisons_table(claim))}
<p class="small">Bold: the statements that decide over the claim. ± is what the noise of the measurement explains.</p>
<details><summary>All numbers</summary>
{table(numbers_table(claim))}
</details>
<p class="small">{inline(provenance(claim))}</p>
</section>
"""


def page(machine, claims):
    sections = "".join(section(claim) for claim in claims)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Lethe: {machine}</title>
<style>{STYLE}</style></head><body><main>
<h1>Attention that forgets, reproduced</h1>
<p class="small">{machine}, scale {claims[0].certificate['scale']}. Every number comes from the CSV and JSON files beside this page.</p>
<section><h2>Verdicts</h2>
{table(verdicts_table(claims))}
</section>
{sections}</main></body></html>
"""
