"""The corpora that tokenize_corpus.py knows, as documents with their splits."""

import csv
import hashlib
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

SPLITS = ("train", "valid", "test")


class WrongCall(Exception):
    """What the caller can mend: "name: expected …, found …"."""


@dataclass
class Document:
    name: str
    size: int  # bytes
    read: Callable[[], bytes]
    split: str = ""


@dataclass
class Corpus:
    name: str
    documents: list[Document]
    origin: dict = field(default_factory=dict)


BIBLE_BYTES, BIBLE_VERSES = 4_404_412, 31_102
# About 5 % each: a history, a prophet, a book of wisdom and a letter. Books that quote each other at length (Samuel,
# Kings, Chronicles and Isaiah; the first three gospels; 2 Peter and Jude) all stay in train.
BIBLE_SPLITS = {
    "Jdgs": "valid", "Dan": "valid", "Eccl": "valid", "1Jn": "valid",
    "Job": "test", "Est": "test", "Hos": "test", "Rom": "test",
}  # fmt: skip


def bible() -> Corpus:
    """The King James Version as Debian's bible-kjv prints it: a verse a line, one document a book."""
    if not shutil.which("bible"):
        raise WrongCall("corpus: expected the program 'bible' of bible-kjv, found none (tools/setup installs it)")
    call = ["bible", "-f", "gen1:1-rev22:21"]
    printed = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    lines = printed.splitlines(keepends=True)
    if (len(printed), len(lines)) != (BIBLE_BYTES, BIBLE_VERSES):
        expected, found = f"{BIBLE_BYTES} bytes in {BIBLE_VERSES} verses", f"{len(printed)} in {len(lines)}"
        raise RuntimeError(f"bible: expected {expected}, found {found}")
    books: dict[str, list[bytes]] = {}
    for line in lines:
        book = line.split(b":", 1)[0].rstrip(b"0123456789").decode()
        books.setdefault(book, []).append(line)
    documents = []
    for book, verses in books.items():
        text = b"".join(verses)
        documents.append(Document(book, len(text), lambda text=text: text, BIBLE_SPLITS.get(book, "train")))
    return Corpus("bible", documents, {"packages": package_versions("bible-kjv", "bible-kjv-text")})


HEADER_FOLDERS = {
    "libeigen3-dev": "eigen3",
    "libgtest-dev": "gtest",
    "libbenchmark-dev": "benchmark",
    "nlohmann-json3-dev": "nlohmann",
    "libcli11-dev": "CLI",
    "libtomlplusplus-dev": "toml++",
}


def headers(include: Path = Path("/usr/include")) -> Corpus:
    """The C++ headers of the packages that tools/setup installs, and the newest libstdc++: one document a file."""
    libraries = sorted((p for p in (include / "c++").glob("[0-9]*") if p.name.isdigit()), key=lambda p: int(p.name))
    if not libraries:
        raise WrongCall(f"corpus: expected the headers of libstdc++ below {include}/c++, found none")
    folders = [include / name for name in HEADER_FOLDERS.values()] + [libraries[-1]]
    for package, folder in zip(HEADER_FOLDERS, folders):
        if not folder.is_dir():
            raise WrongCall(f"corpus: expected {folder} of the package {package}, found none (tools/setup installs it)")
    files = [f for folder in folders for f in folder.rglob("*") if f.is_file() and not f.is_symlink()]
    versions = package_versions(*HEADER_FOLDERS, f"libstdc++-{libraries[-1].name}-dev")
    return Corpus("headers", split_by_name(file_documents(include, files)), {"packages": versions})


def folder_of_text(folder: Path) -> Corpus:
    """Every *.txt below a folder, one document a file; splits of INDEX.csv (columns file, split) where it is there."""
    files = [f for f in folder.rglob("*.txt") if f.is_file()]
    if not files:
        raise WrongCall(f"corpus: expected 'bible', 'headers' or a folder with *.txt files, found none in {folder}")
    documents = file_documents(folder, files)
    index = folder / "INDEX.csv"
    if not index.is_file():
        return Corpus(folder.name, split_by_name(documents))
    with index.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        if not {"file", "split"} <= set(rows.fieldnames or []):
            raise WrongCall(f"{index}: expected the columns file and split, found {rows.fieldnames}")
        split_of = {row["file"]: row["split"] for row in rows}
    for document in documents:
        document.split = split_of.get(document.name, "")
    kept = [d for d in documents if d.split in SPLITS]
    # An index may list more files than were unpacked, and splits of its own for other uses.
    left_out, absent = len(documents) - len(kept), len(split_of.keys() - {d.name for d in documents})
    return Corpus(folder.name, kept, {"index_sha256": sha256_of(index), "left_out": left_out, "absent": absent})


def file_documents(base: Path, files: list[Path]) -> list[Document]:
    """Sorted by the path below `base`, the same on every machine; empty files are none."""
    named = sorted((f.relative_to(base).as_posix(), f) for f in files)
    return [Document(name, f.stat().st_size, f.read_bytes) for name, f in named if f.stat().st_size]


def split_by_name(documents: list[Document], share: float = 0.05) -> list[Document]:
    """Gives about `share` of the bytes to valid and to test: whole documents, in the order of the hash of their names.

    A document larger than what is left of a split's share is passed over; where none fits, the smallest one is taken,
    and one document is left for every split to come, so that none is empty. Needs three documents.
    """
    if len(documents) < len(SPLITS):
        raise WrongCall(f"corpus: expected at least {len(SPLITS)} documents, one a split, found {len(documents)}")
    budget = share * sum(d.size for d in documents)
    free = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())
    for split, to_leave in (("valid", 2), ("test", 1)):
        taken, size = [], 0
        for document in free:
            if size + document.size <= budget and len(free) - len(taken) > to_leave:
                taken.append(document)
                size += document.size
        for document in taken or [min(free, key=lambda d: (d.size, d.name))]:
            document.split = split
        free = [d for d in free if not d.split]
    for document in documents:
        document.split = document.split or "train"
    return documents


def package_versions(*packages: str) -> dict[str, str]:
    """Of Debian packages; those that dpkg doesn't know are left out."""
    if not shutil.which("dpkg-query"):
        return {}
    call = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages]
    shown = subprocess.run(call, capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in shown.stdout.splitlines() if not line.endswith(" "))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named_corpus(name: str) -> Corpus:
    if name == "bible":
        return bible()
    if name == "headers":
        return headers()
    if not Path(name).is_dir():
        raise WrongCall(f"corpus: expected 'bible', 'headers' or a folder of text, found {name!r}")
    return folder_of_text(Path(name).resolve())
