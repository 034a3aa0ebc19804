#!/usr/bin/env python3
"""Rebuilds the books that the scale gpu reads, from public repositories at fixed commits, and checks every one.

usage: tools/fetch_books.py FOLDER [--from LOCAL] [--index experiments/data/books.csv]

The index has a row a book: source (owner/name@commit), path, the lines that are kept of the text as it is normalised here, SHA-256, bytes and split.
A file is fetched from https://raw.githubusercontent.com/OWNER/NAME/COMMIT/PATH, or read from LOCAL/OWNER/NAME/PATH (clones), decoded, brought to line
feeds without blanks at the ends of lines and with at most three empty lines in a row, and cut to its lines: what is left out is the header and footer
of the edition. A book that is in FOLDER with its hash is not fetched again. A book with another hash is named and not written, and the exit status is
1. FOLDER gets INDEX.csv with splits and hashes, which `lethe data` holds a text to. GPT-2's vocabulary has an index without splits:

  tools/fetch_books.py books && tools/fetch_books.py gpt2 --index experiments/data/gpt2.csv
  build/cpu/bin/lethe data prepare books --tokenizer gpt2 --gpt2-files gpt2
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import concurrent.futures
import csv
import hashlib
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

from corpora import write_index

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ["file", "source", "path", "first_line", "last_line", "sha256", "bytes", "split", "title", "author"]
AT_ONCE = 8
LARGEST = 1 << 26  # bytes of a book


class BadBook(Exception):
    """A book that cannot be had, or has another hash."""


def read_index(path):
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise BadBook(f"{path}: expected the columns {','.join(COLUMNS)}, found {','.join(reader.fieldnames or [])}")
        rows = list(reader)
    for row in rows:
        if Path(row["file"]).name != row["file"]:
            raise BadBook(f"{path}: expected the name of a file, found {row['file']}")
    return rows


def decoded(data):
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            pass
    return data.decode("latin-1")


def text_of(data, row):
    """The book's bytes in its source."""
    if not row["first_line"]:  # kept whole
        return data
    lines = "\n".join(line.rstrip() for line in re.split("\r\n|\r|\n", decoded(data)))
    kept = re.sub("\n{5,}", "\n" * 4, lines).split("\n")[int(row["first_line"]) - 1:int(row["last_line"])]
    return ("\n".join(kept) + "\n").encode()


def fetched(row, local):
    name, _, commit = row["source"].partition("@")
    if local:
        return (local / name / row["path"]).read_bytes()
    url = f"https://raw.githubusercontent.com/{name}/{commit}/{urllib.request.quote(row['path'])}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read(LARGEST)


def is_whole(data, row):
    return hashlib.sha256(data).hexdigest() == row["sha256"]


def rebuild(row, folder, local):
    """Writes a book unless it is there.

    throws  BadBook naming it
    """
    place = folder / row["file"]
    if place.is_file() and is_whole(place.read_bytes(), row):
        return
    try:
        text = text_of(fetched(row, local), row)
    except (OSError, urllib.error.URLError) as error:
        raise BadBook(f"{row['file']}: expected {row['path']} of {row['source']}, found {error}") from None
    if not is_whole(text, row):
        raise BadBook(f"{row['file']}: expected SHA-256 {row['sha256']}, found {hashlib.sha256(text).hexdigest()}")
    draft = place.with_suffix(".new")
    draft.write_bytes(text)
    os.replace(draft, place)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="local", type=Path, help="clones at these commits, LOCAL/OWNER/NAME")
    parser.add_argument("--index", type=Path, default=ROOT / "experiments/data/books.csv")
    options = parser.parse_args()
    rows, faults = read_index(options.index), []
    options.folder.mkdir(parents=True, exist_ok=True)

    def attempt(row):
        try:
            rebuild(row, options.folder, options.local)
        except BadBook as error:
            faults.append(str(error))

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, rows))
    if any(row["split"] for row in rows):
        write_index(options.folder, ((row["file"], row["split"], row["sha256"]) for row in rows))
    for line in sorted(faults):
        print(f"fetch_books: {line}", file=sys.stderr)
    print(f"{len(rows) - len(faults)} of {len(rows)} files in {options.folder}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
