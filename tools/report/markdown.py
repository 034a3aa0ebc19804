"""Numbers and tables as Markdown has them."""

import math


def number(value, metric=""):
    """A value as a reader wants it: counts grouped, the others with four digits."""
    if value is None or math.isnan(value):
        return ""
    if metric == "parameters":
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def without_minus_zero(text):
    """"-0.00" as "0.00"."""
    return text.removeprefix("-") if text.startswith("-") and not text.strip("-0.") else text


def with_band(value, band):
    """A value and what noise explains of it, both to the band's second digit; the value alone where there is no noise."""
    if value is None:  # a training that diverged
        return "none"
    if band is None:
        return f"{number(value)} ± ?"
    if band == 0:
        return number(value)
    digits = min(6, max(0, 1 - math.floor(math.log10(band))))
    return f"{without_minus_zero(f'{value:.{digits}f}')} ± {band:.{digits}f}"


def measured_words(comparison):
    """A statement's number with its band and unit; empty where it is open without one."""
    value, band, unit = comparison["measured"], comparison["band"], comparison["unit"]
    if value is None and "open" in comparison:
        return ""
    return (f"{value:.3g}" if value is not None and band == 0 else with_band(value, band)) + ("" if unit in ("", "1") else f" {unit}")


def commit_words(commit, dirty):
    """`dirty` None: of a tree that is no checkout, whose commit was given."""
    if not commit or commit == "unknown":
        return "unknown"
    return commit[:12] + (" (as told)" if dirty is None else " with uncommitted changes" if dirty else "")


def table(header, rows):
    """A Markdown table; columns without any entry are left out."""
    used = [c for c in range(len(header)) if any(row[c] for row in rows)]
    lines = ["| " + " | ".join(str(row[c]) for c in used) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "---|" * len(used))
    return "\n".join(lines) + "\n"
