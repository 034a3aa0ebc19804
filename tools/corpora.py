"""The corpora that tokenize_corpus.py knows, as documents with their splits."""

import csv
import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterable, Optional

SPLITS = ("train", "valid", "test")
NAMED = ("bible", "headers")
SUFFIX = ".txt"
LARGEST_INDEX = 256 << 20  # bytes of INDEX.csv


class WrongCall(Exception):
    """What the caller can mend: "name: expected …, found …"."""


@dataclass
class Document:
    name: str
    size: int  # bytes
    read: Callable[[], bytes]
    split: str = ""
    stamp: str = ""  # of a file: size, times, inode; another one where the file may have changed
    file: Optional[Path] = None


@dataclass
class Corpus:
    name: str
    documents: list[Document]
    origin: dict = field(default_factory=dict)
    left_out: Counter = field(default_factory=Counter)  # what → how many

    def listing(self) -> Optional[str]:
        """A hash of the documents' names, splits and stamps; None where a document is no file."""
        if not all(d.stamp for d in self.documents):
            return None
        lines = "".join(f"{d.split} {d.stamp} {d.name}\n" for d in self.documents)
        return hashlib.sha256(lines.encode()).hexdigest()


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


def text_of(path: Path) -> Corpus:
    """A file, or every *.txt below a folder, one document a file. Links are left out: a document lies in one split.

    Splits: those of INDEX.csv (columns file, split) where it is there; else by name; by position below three documents.
    """
    if path.is_file():
        corpus = Corpus(corpus_name(path.stem), file_documents(path.parent, [path]))
        if not corpus.documents:
            raise WrongCall(f"corpus: expected text in {path}, found 0 bytes")
        return split_by_position(corpus)
    files, left_out = files_below(path)
    corpus = Corpus(corpus_name(path.name), file_documents(path, files), left_out=left_out)
    if empty := len(files) - len(corpus.documents):
        left_out["empty files"] = empty
    if not corpus.documents:
        found = f"none in {path}" + (f" (left out: {words(left_out)})" if left_out else "")
        raise WrongCall(f"corpus: expected 'bible', 'headers' or text (a file, or a folder with *{SUFFIX}), found {found}")
    index = path / "INDEX.csv"
    if index.is_symlink() or index.exists():
        if not index.is_file():
            raise WrongCall(f"{index}: expected a file, found something else")
        return split_by_index(corpus, index)
    if len(corpus.documents) < len(SPLITS):
        return split_by_position(corpus)
    split_by_name(corpus.documents)
    return corpus


def corpus_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", printable(name)).strip(".") or "text"


def printable(name: str) -> str:
    """A file's name as UTF-8, whatever its bytes and without line breaks."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def words(counts: Counter) -> str:
    return ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()))


def files_below(folder: Path) -> tuple[list[Path], Counter]:
    """The readable *.txt below a folder, and how much of what lies there is something else."""
    files, left_out, suffixes = [], Counter(), Counter()
    for base, folders, names in os.walk(folder, onerror=lambda _: left_out.update(["unreadable folders"])):
        left_out["links"] += sum(os.path.islink(os.path.join(base, name)) for name in folders)
        for name in names:
            file = Path(base, name)
            mode = file.lstat().st_mode
            if stat.S_ISLNK(mode):
                left_out["links"] += 1
            elif file.suffix.lower() != SUFFIX:
                suffixes[printable(file.suffix) or "none"] += name != "INDEX.csv"
            elif not stat.S_ISREG(mode) or not os.access(file, os.R_OK):
                left_out["unreadable files"] += 1
            else:
                files.append(file)
    if others := +suffixes:
        common = ", ".join(suffix for suffix, _ in others.most_common(3)) + (", …" if len(others) > 3 else "")
        left_out[f"files with other suffixes ({common})"] = others.total()
    return files, +left_out


def split_by_index(corpus: Corpus, index: Path) -> Corpus:
    """Keeps the documents that INDEX.csv gives to a split; it may list more files, and splits for other uses.

    A column sha256 names the text of each: one that is absent, has no hash there or another one is refused.
    """
    if (size := index.stat().st_size) > LARGEST_INDEX:
        raise WrongCall(f"{index}: expected at most {LARGEST_INDEX} bytes, found {size}")
    split_of: dict[str, str] = {}
    digests: dict[str, str] = {}
    try:
        with index.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            if not {"file", "split"} <= set(rows.fieldnames or []):
                raise WrongCall(f"{index}: expected the columns file and split, found {', '.join(rows.fieldnames or []) or 'none'}")
            others = [column for column in rows.fieldnames if column.strip().lower() == "sha256"]
            if others and "sha256" not in others:
                raise WrongCall(f"{index}: expected the column sha256, found {others[0]!r}")
            for row in rows:
                name, split = row["file"] or "", row["split"] or ""
                if split_of.setdefault(name, split) != split:
                    raise WrongCall(f"{index}: expected one split of {name}, found {split_of[name]} and {split}")
                if split in SPLITS and "sha256" in rows.fieldnames:
                    if not row["sha256"]:
                        raise WrongCall(f"{index}: expected the SHA-256 of {name}, found none")
                    digests[name] = row["sha256"]
    except (csv.Error, UnicodeDecodeError) as error:
        raise WrongCall(f"{index}: expected CSV in UTF-8, found {error}") from error
    names = {d.name for d in corpus.documents}
    if absent := sorted(digests.keys() - names):
        raise WrongCall(f"{index}: expected {absent[0]} with the SHA-256 {digests[absent[0]]}, found none")
    for document in corpus.documents:
        document.split = split_of.get(document.name, "")
        if digest := digests.get(document.name):
            document.read = only_with(digest, document.name, document.read)
            document.stamp += f" {digest}"
    corpus.left_out.update({
        "files that INDEX.csv lacks": len(names - split_of.keys()),
        "files of other splits": sum(d.name in split_of and d.split not in SPLITS for d in corpus.documents),
        "absent files of INDEX.csv": len(split_of.keys() - names),
    })  # fmt: skip
    corpus.left_out = +corpus.left_out
    corpus.documents = [d for d in corpus.documents if d.split in SPLITS]
    corpus.origin["index_sha256"] = sha256_of(index)
    return corpus


def only_with(digest: str, name: str, read: Callable[[], bytes]) -> Callable[[], bytes]:
    """A reading that refuses a text with another hash."""

    def checked() -> bytes:
        text = read()
        if (found := hashlib.sha256(text).hexdigest()) != digest:
            raise WrongCall(f"{name}: expected the SHA-256 {digest} of INDEX.csv, found {found}")
        return text

    return checked


def write_index(folder: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """INDEX.csv of a corpus whose texts are known: file, split, hash."""
    with (folder / "INDEX.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("file", "split", "sha256"), *rows])


def file_documents(base: Path, files: list[Path]) -> list[Document]:
    """Sorted by the path below `base`, the same on every machine; empty files are none."""
    documents = []
    for name, file in sorted((printable(f.relative_to(base).as_posix()), f) for f in files):
        found = file.stat()
        stamp = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_dev}:{found.st_ino}"
        if found.st_size:
            documents.append(Document(name, found.st_size, file.read_bytes, "", stamp, file))
    return documents


def read_range(file: Path, begin: int, end: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(begin)
        return stream.read(end - begin)


SMALLEST_CUT = 100  # bytes of a document that is split by position


def split_by_position(corpus: Corpus) -> Corpus:
    """For a document or two: the first 90 % of each train, the next 5 % valid, the rest test, cut at ends of lines."""
    parts = []
    for document in corpus.documents:
        if document.size < SMALLEST_CUT:
            document.split = "train"
            parts.append(document)
            continue
        ends = [0, *(cut_near(document.file, document.size, share) for share in (90, 95)), document.size]
        for split, begin, end in zip(SPLITS, ends, ends[1:]):
            read = lambda file=document.file, begin=begin, end=end: read_range(file, begin, end)  # noqa: E731
            parts.append(Document(f"{document.name}[{begin}:{end}]", end - begin, read, split, document.stamp))
    if all(d.size < SMALLEST_CUT for d in corpus.documents):
        found = max(d.size for d in corpus.documents)
        raise WrongCall(f"corpus: expected three documents, or one of {SMALLEST_CUT} bytes or more, found {found} bytes")
    corpus.documents = parts
    corpus.origin["split"] = "by position"
    return corpus


def cut_near(file: Path, size: int, share: int) -> int:
    """An end of a line shortly after `share` percent of a file; the start of a character where no line ends there."""
    begin = size * share // 100
    window = read_range(file, begin, begin + min(size // 100, 1 << 16) + 4)
    if (line := window.find(b"\n", 0, -4)) >= 0:
        return begin + line + 1
    return begin + next(i for i in range(4) if i == 3 or window[i] & 0xC0 != 0x80)


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
    if name in NAMED:
        return bible() if name == "bible" else headers()
    path = Path(name)
    if not path.is_dir() and not path.is_file():
        raise WrongCall(f"corpus: expected 'bible', 'headers' or text (a file or a folder), found {printable(name)!r}")
    return text_of(path.resolve())
