#!/usr/bin/env python3
"""Keeps the code in README files equal to the sources.

A README quotes a part of a file between markers, and the source marks where the part begins and ends:

    <!-- code:reference/linear_attention.cpp:recurrent -->          // [recurrent]
    <!-- /code -->                                                  // [/recurrent]

usage: tools/quote_sources.py [--check] [--root FOLDER]
Without --check every quote is written anew; with it, each one that differs is printed and the exit status is 1.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import os
import re
import sys
import textwrap
from pathlib import Path

from report.files import folder

ROOT = Path(__file__).resolve().parent.parent
MARKER = re.compile(r"(<!-- code:(?P<file>[\w./-]+):(?P<part>\w+) -->\n)(?P<body>.*?)(<!-- /code -->)", re.DOTALL)
UNSEARCHED = {".git", ".venv", "build", "artefacts"}  # folders without a README of ours
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".py": "python"}


class UnknownPart(Exception):
    """A marker in a README that names a part that no source has."""


def part_of(root, file, part):
    """The lines between // [part] and // [/part] of a file, less what they are all indented by."""
    path = root / file
    if not path.exists():
        raise UnknownPart(f"{file}: expected the file that a README quotes, found none")
    found = re.findall(rf"^ *// \[{part}\]\n(.*?)^ *// \[/{part}\]$", path.read_text(), re.DOTALL | re.MULTILINE)
    if len(found) != 1:
        raise UnknownPart(f"{file}: expected one part between // [{part}] and // [/{part}], found {len(found)}")
    return textwrap.dedent(found[0])


def with_quotes(text, root):
    """A README's text with every quote made anew."""

    def replace(match):
        language = LANGUAGES[Path(match["file"]).suffix]
        return f"{match[1]}```{language}\n{part_of(root, match['file'], match['part'])}```\n{match[5]}"

    return MARKER.sub(replace, text)


def readmes(root):
    """The README files of the checkout that quote a source."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in UNSEARCHED)
        path = Path(folder) / "README.md"
        if "README.md" in files and MARKER.search(path.read_text()):
            yield path


def differences(root):
    """One line for each README whose quotes differ from the sources."""
    for path in readmes(root):
        text = path.read_text()
        if with_quotes(text, root) != text:
            yield f"{path.relative_to(root)}: quotes differ from the sources; run tools/quote_sources.py"


def rewrite(root):
    """Writes beside the place and renames, and only what changed."""
    for path in readmes(root):
        text = path.read_text()
        quoted = with_quotes(text, root)
        if quoted == text:
            continue
        draft = path.with_name(path.name + ".new")
        draft.write_text(quoted)
        draft.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a quote differs")
    parser.add_argument("--root", type=folder, default=ROOT, help="the checkout (default: the one that holds this script)")
    arguments = parser.parse_args()
    try:
        if not arguments.check:
            rewrite(arguments.root)
            return
        found = list(differences(arguments.root))
    except UnknownPart as error:
        sys.exit(f"quote_sources: {error}")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
