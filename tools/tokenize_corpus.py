#!/usr/bin/env python3
"""Turns a corpus into the token shards that training and evaluation read (format: experiments/data/README.md).

  tokenize_corpus.py prepare --corpus bible --tokenizer bytes --output artefacts/data/bible-bytes
  tokenize_corpus.py encode --tokenizer gpt2 --gpt2-files folder < prompt.txt

`prepare` writes beside its place and renames, and does nothing where the folder already holds this very corpus.
`encode` prints the tokens of standard input. Exit status: 0 done, 2 wrong call, 1 failed run (one line on standard error).
"""

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Optional

import numpy as np

SPLITS = ("train", "valid", "test")
SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER_INTS = 20240520, 1, 256  # llm.c's header: 1024 bytes of int32
SHARD_TOKENS = 100_000_000
FORMAT = 1  # of dataset.json and vocabulary.bin; a folder of another format is made anew


class WrongCall(Exception):
    """What the caller can mend: "name: expected …, found …"."""


# --- corpora -----------------------------------------------------------------------------------------------------------


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
# About 5 % each, a history, a prophet, a book of wisdom and a letter. Books that quote each other at length (Samuel, Kings,
# Chronicles and Isaiah; the first three gospels; 2 Peter and Jude) all stay in train.
BIBLE_SPLITS = {
    "Jdgs": "valid", "Dan": "valid", "Eccl": "valid", "1Jn": "valid",
    "Job": "test", "Est": "test", "Hos": "test", "Rom": "test",
}  # fmt: skip


def bible() -> Corpus:
    """The King James Version as Debian's bible-kjv prints it: a verse a line, one document a book."""
    if not shutil.which("bible"):
        raise WrongCall("corpus: expected the program 'bible' of the package bible-kjv, found none (tools/setup installs it)")
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    lines = printed.splitlines(keepends=True)
    if (len(printed), len(lines)) != (BIBLE_BYTES, BIBLE_VERSES):
        raise RuntimeError(f"bible: expected {BIBLE_BYTES} bytes in {BIBLE_VERSES} verses, found {len(printed)} in {len(lines)}")
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
    # An index may list more than was unpacked, and splits of its own that are for other uses.
    origin = {"index_sha256": sha256_of(index), "left_out": len(documents) - len(kept), "absent": len(split_of.keys() - {d.name for d in documents})}
    return Corpus(folder.name, kept, origin)


def file_documents(base: Path, files: list[Path]) -> list[Document]:
    """Sorted by the path below `base`, the same on every machine; empty files are none."""
    named = sorted((f.relative_to(base).as_posix(), f) for f in files)
    return [Document(name, f.stat().st_size, f.read_bytes) for name, f in named if f.stat().st_size]


def split_by_name(documents: list[Document], share: float = 0.05) -> list[Document]:
    """Assigns about `share` of the bytes to valid and to test, whole documents only, in the order of the hash of their names.

    A document larger than what is left of a split's share is passed over; where none fits, the smallest one is taken, so
    that no split is empty. Needs three documents.
    """
    if len(documents) < len(SPLITS):
        raise WrongCall(f"corpus: expected at least {len(SPLITS)} documents, one a split, found {len(documents)}")
    budget = share * sum(d.size for d in documents)
    free = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())
    for split in ("valid", "test"):
        taken, size = [], 0
        for document in free:
            if size + document.size <= budget:
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
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages], capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in shown.stdout.splitlines() if not line.endswith(" "))


# --- tokenizers --------------------------------------------------------------------------------------------------------


@dataclass
class Tokenizer:
    name: str
    pieces: list[bytes]  # token id → bytes, for decoding by table
    begin_token: int
    encode: Callable[[bytes, str], np.ndarray]  # (text, name of the document for errors) → uint16


BEGIN_PIECE = b"<|endoftext|>"


def byte_tokenizer() -> Tokenizer:
    """A token is a byte; 256 begins a document."""
    return Tokenizer("bytes", [bytes([b]) for b in range(256)] + [BEGIN_PIECE], 256,
                     lambda text, _: np.frombuffer(text, np.uint8).astype(np.uint16))  # fmt: skip


def gpt2_tokenizer(files: Optional[str]) -> Tokenizer:
    """GPT-2's byte-pair encoding by tiktoken, from the two files that GPT-2 was published with; 50256 begins a document."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str

    if not files:
        raise WrongCall("--gpt2-files (or LETHE_GPT2_FILES): expected the folder of GPT-2's encoder.json and vocab.bpe, found none")
    encoder, merges = Path(files) / "encoder.json", Path(files) / "vocab.bpe"
    for file in (encoder, merges):
        if not file.is_file():
            raise WrongCall(f"--gpt2-files (or LETHE_GPT2_FILES): expected the file {file}, found none")
    # tiktoken keeps what it reads in a cache of its own unless it is told not to.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(merges), encoder_json_file=str(encoder))
    begin = len(ranks)
    encoding = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={BEGIN_PIECE.decode(): begin})

    def encode(text: bytes, name: str) -> np.ndarray:
        try:
            return np.array(encoding.encode_ordinary(text.decode("utf-8")), np.uint16)
        except UnicodeDecodeError as error:
            raise RuntimeError(f"{name}: expected UTF-8, found byte {text[error.start]:#04x} at offset {error.start}") from error

    pieces = [b""] * begin + [BEGIN_PIECE]
    for piece, token in ranks.items():
        pieces[token] = piece
    return Tokenizer("gpt2", pieces, begin, encode)


# --- shards ------------------------------------------------------------------------------------------------------------


class Progress:
    """One updating line on a terminal, else a plain line every few seconds, on standard error."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.done, self.start = what, total, 0, time.monotonic()
        self.live = sys.stderr.isatty()
        self.interval, self.shown = (0.2, 0.0) if self.live else (5.0, self.start)

    def add(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.shown < self.interval:
            return
        self.shown = now
        left = (now - self.start) * (self.total - self.done) / max(self.done, 1)
        line = f"{self.what}: {self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB, {left:.0f} s left"
        print(f"\r{line}\x1b[K" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def write_shards(folder: Path, split: str, stream: Iterator[np.ndarray], shard_tokens: int = SHARD_TOKENS) -> list[dict]:
    """Writes a split's tokens; a shard holds at most `shard_tokens`, documents may run on in the next. One document in memory."""
    shards: list[dict] = []
    file = None

    def finish() -> None:
        header = np.zeros(SHARD_HEADER_INTS, "<i4")
        header[:3] = SHARD_MAGIC, SHARD_VERSION, shards[-1]["tokens"]
        file.seek(0)
        file.write(header.tobytes())
        file.close()
        shards[-1]["sha256"] = sha256_of(folder / shards[-1]["file"])

    for tokens in stream:
        while tokens.size:
            if file is None or shards[-1]["tokens"] == shard_tokens:
                if file is not None:
                    finish()
                shards.append({"file": f"{split}_{len(shards):03}.bin", "tokens": 0})
                file = (folder / shards[-1]["file"]).open("wb")
                file.seek(SHARD_HEADER_INTS * 4)
            part = tokens[: shard_tokens - shards[-1]["tokens"]]
            file.write(part.astype("<u2").tobytes())
            shards[-1]["tokens"] += int(part.size)
            tokens = tokens[part.size :]
    finish()
    return shards


def write_vocabulary(path: Path, pieces: list[bytes]) -> None:
    """Count as uint32, then every token's length as uint16 and its bytes; little-endian."""
    with path.open("wb") as file:
        file.write(len(pieces).to_bytes(4, "little"))
        for piece in pieces:
            file.write(len(piece).to_bytes(2, "little") + piece)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_hash(corpus: Corpus) -> str:
    """Of every document's name, split and bytes, in order."""
    whole = hashlib.sha256()
    for document in corpus.documents:
        whole.update(f"{document.split} {document.name} {hashlib.sha256(document.read()).hexdigest()}\n".encode())
    return whole.hexdigest()


def prepare(corpus: Corpus, tokenizer: Tokenizer, output: Path) -> dict:
    """Writes the dataset, unless `output` already holds this corpus in these tokens. Returns dataset.json."""
    for split in SPLITS:
        if not any(d.split == split for d in corpus.documents):
            raise WrongCall(f"corpus: expected at least one document in {split}, found none")
    source = source_hash(corpus)
    found = finished(output)
    if found and (found["source"]["sha256"], found["tokenizer"]) == (source, tokenizer.name):
        return found

    beside = output.with_name(f"{output.name}.partial-{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        progress = Progress(f"{corpus.name} as {tokenizer.name}", sum(d.size for d in corpus.documents))

        def stream(documents: list[Document]) -> Iterator[np.ndarray]:
            for document in documents:
                yield np.array([tokenizer.begin_token], np.uint16)
                yield tokenizer.encode(document.read(), document.name)
                progress.add(document.size)

        splits = {}
        for split in SPLITS:
            documents = [d for d in corpus.documents if d.split == split]
            shards = write_shards(beside, split, stream(documents))
            splits[split] = {"tokens": sum(s["tokens"] for s in shards), "bytes": sum(d.size for d in documents),
                             "shards": shards, "documents": [d.name for d in documents]}  # fmt: skip
        progress.close()
        write_vocabulary(beside / "vocabulary.bin", tokenizer.pieces)
        vocabulary = {"size": len(tokenizer.pieces), "sha256": sha256_of(beside / "vocabulary.bin")}
        # As sha256sum would print it: the shards in order, then the vocabulary.
        listing = "".join(f"{s['sha256']}  {s['file']}\n" for split in SPLITS for s in splits[split]["shards"])
        listing += f"{vocabulary['sha256']}  vocabulary.bin\n"
        dataset = {"format": FORMAT, "name": corpus.name, "tokenizer": tokenizer.name, "begin_token": tokenizer.begin_token,
                   "vocabulary": vocabulary, "source": {"sha256": source, **corpus.origin},
                   "content_sha256": hashlib.sha256(listing.encode()).hexdigest(), "splits": splits}  # fmt: skip
        (beside / "dataset.json").write_text(json.dumps(dataset, indent=1) + "\n", encoding="utf-8")
        replace(beside, output)
        return dataset
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def finished(folder: Path) -> Optional[dict]:
    """dataset.json of a folder that is whole, else None."""
    try:
        dataset = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        if dataset["format"] != FORMAT or sha256_of(folder / "vocabulary.bin") != dataset["vocabulary"]["sha256"]:
            return None
        shards = [s for split in SPLITS for s in dataset["splits"][split]["shards"]]
        return dataset if all(sha256_of(folder / s["file"]) == s["sha256"] for s in shards) else None
    except (OSError, KeyError, ValueError):
        return None


def replace(beside: Path, output: Path) -> None:
    """Renames a finished folder to its place; an old one steps aside first, because a rename onto it would fail."""
    if output.exists():
        old = output.with_name(f"{output.name}.old-{os.getpid()}")
        output.rename(old)
        beside.rename(output)
        shutil.rmtree(old)
        return
    try:
        beside.rename(output)
    except OSError:  # another process was faster; what it made is as good as ours
        if not finished(output):
            raise


# --- the command -------------------------------------------------------------------------------------------------------


def named_corpus(name: str) -> Corpus:
    if name == "bible":
        return bible()
    if name == "headers":
        return headers()
    if not Path(name).is_dir():
        raise WrongCall(f"corpus: expected 'bible', 'headers' or a folder of text, found {name!r}")
    return folder_of_text(Path(name).resolve())


def named_tokenizer(name: str, gpt2_files: Optional[str]) -> Tokenizer:
    return gpt2_tokenizer(gpt2_files) if name == "gpt2" else byte_tokenizer()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (commands.add_parser("prepare", help="write a corpus as token shards"),
                    commands.add_parser("encode", help="print the tokens of standard input")):  # fmt: skip
        command.add_argument("--tokenizer", choices=("bytes", "gpt2"), default="bytes")
        command.add_argument("--gpt2-files", default=os.environ.get("LETHE_GPT2_FILES"),
                             help="folder of GPT-2's encoder.json and vocab.bpe (default: LETHE_GPT2_FILES)")  # fmt: skip
    commands.choices["prepare"].add_argument("--corpus", required=True, help="bible, headers or a folder of *.txt files")
    commands.choices["prepare"].add_argument("--output", required=True, type=Path, help="the dataset's folder")
    call = parser.parse_args()
    try:
        tokenizer = named_tokenizer(call.tokenizer, call.gpt2_files)
        if call.command == "encode":
            print(*tokenizer.encode(sys.stdin.buffer.read(), "standard input"))
        else:
            prepare(named_corpus(call.corpus), tokenizer, call.output)
    except WrongCall as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
