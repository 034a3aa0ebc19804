#!/usr/bin/env python3
"""Turns a corpus into the token shards that training and evaluation read (format: experiments/data/README.md).

  tokenize_corpus.py prepare --corpus bible --tokenizer bytes --data artefacts/data
  tokenize_corpus.py encode --vocabulary artefacts/data/books-gpt2/vocabulary.bin < prompt.txt

`prepare` prints the dataset's folder: CORPUS-TOKENIZER below --data, or CORPUS-TOKENIZER-HASH where another text has that name. It
writes beside the place and renames, never over another text, and reads no text whose sizes and times are those of the dataset.
`encode` prints the tokens of standard input in GPT-2's byte pairs; with --texts, of each text of a JSON array, a line each.
Exit status: 0 done, 1 failed run, 2 wrong call; what was wrong is one line on standard error.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, Optional

try:
    import numpy as np
except ImportError as error:
    sys.exit(f"tokenize_corpus: {sys.executable}: expected numpy, found {error} (tools/setup installs it)")

from corpora import NAMED, SPLITS, Corpus, Document, WrongCall, named_corpus, sha256_of, words
from sealed_json import has_seal, sealed
from vocabularies import NotText, Tokenizer, byte_tokenizer, decoded, gpt2_pieces, gpt2_tokenizer, read_vocabulary, vocabulary_file

SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER_INTS = 20240520, 1, 256  # llm.c's header: 1024 bytes of int32
SHARD_TOKENS = 100_000_000
FORMAT = 2  # of dataset.json, as experiments/data/dataset_files.cpp reads it


# --- shards ---


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

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def cut_at_shards(stream: Iterator[np.ndarray], shard_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """The stream in parts that lie in one shard each, with the shard's number."""
    done = 0
    for tokens in stream:
        while tokens.size:
            part = tokens[: shard_tokens - done % shard_tokens]
            yield done // shard_tokens, part
            done += part.size
            tokens = tokens[part.size :]


def write_shards(folder: Path, split: str, stream: Iterator[np.ndarray], shard_tokens: int = SHARD_TOKENS) -> list:
    """Writes a split's tokens, at most `shard_tokens` a shard; documents may run on. One document in memory."""
    shards = []
    for number, parts in itertools.groupby(cut_at_shards(stream, shard_tokens), key=lambda cut: cut[0]):
        path = folder / f"{split}_{number:03}.bin"
        with path.open("wb") as file:
            file.seek(SHARD_HEADER_INTS * 4)
            for _, part in parts:
                file.write(part.astype("<u2").tobytes())
            header = np.zeros(SHARD_HEADER_INTS, "<i4")
            header[:3] = SHARD_MAGIC, SHARD_VERSION, file.tell() // 2 - SHARD_HEADER_INTS * 2
            file.seek(0)
            file.write(header.tobytes())
        shards.append({"file": path.name, "tokens": int(header[2]), "sha256": sha256_of(path)})
    return shards


# --- datasets ---


def source_hash(corpus: Corpus, hashes: dict[str, str]) -> str:
    """Of every document's name, split and hash, in order."""
    lines = (f"{d.split} {d.name} {hashes[d.name]}\n" for d in corpus.documents)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_hash(corpus: Corpus) -> str:
    hashes = {}
    with Progress(f"reading {corpus.name}", sum(d.size for d in corpus.documents)) as progress:
        for document in corpus.documents:
            hashes[document.name] = hashlib.sha256(document.read()).hexdigest()
            progress.add(document.size)
    return source_hash(corpus, hashes)


def prepare(corpus: Corpus, tokenizer: Tokenizer, data: Path, reserved: bool = False) -> Path:
    """The dataset's folder below `data`: found where it holds this very text in these tokens, else written.

    reserved: the plain name belongs to another corpus, so that the folder has the text's hash in its name.
    """
    check_splits(corpus)
    stem, listing = f"{corpus.name}-{tokenizer.name}", corpus.listing()
    vocabulary = hashlib.sha256(vocabulary_file(tokenizer.pieces)).hexdigest()
    known = {place: key[0] for place in places(data, stem) if finished(place) and (key := key_of(place))[1] == vocabulary}
    for place in known:
        if listing and listing_of(place) == listing:
            return place
    if known:  # another text, or this one with other times
        source = read_hash(corpus)
        for place in known:
            if known[place] == source:
                write_listing(place, listing)
                return place

    data.mkdir(parents=True, exist_ok=True)
    beside = data / f".{stem}.partial-{os.getpid()}"
    beside.mkdir()
    try:
        source = write_dataset(corpus, tokenizer, beside)
        write_listing(beside, listing)
        place = place_for(data / stem, (source, vocabulary), reserved)
        replace(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if place.name != stem and not reserved:
        print(f"tokenize_corpus: {data / stem} holds another text and stays; this one is in {place}", file=sys.stderr)
    return place


def places(data: Path, stem: str) -> list[Path]:
    """The folders that may hold a text of this name."""
    named = re.compile(re.escape(stem) + "(-[0-9a-f]{12})?")
    return sorted(place for place in data.glob("*") if named.fullmatch(place.name)) if data.is_dir() else []


def place_for(plain: Path, key: tuple[str, str], reserved: bool) -> Path:
    """The plain name where it is free or holds a damaged dataset of this key, else the name with the key's hash."""
    free = not reserved and (not plain.exists() or key_of(plain) == key)
    return plain if free else plain.with_name(f"{plain.name}-{hashlib.sha256(' '.join(key).encode()).hexdigest()[:12]}")


def key_of(place: Path) -> tuple[str, str]:
    """What a dataset is made of: the hashes of its text and of its vocabulary; empty where that can't be read."""
    try:
        dataset = json.loads((place / "dataset.json").read_bytes())
        return dataset["source"]["sha256"], dataset["vocabulary"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", ""


def check_splits(corpus: Corpus) -> None:
    for split in SPLITS:
        if not any(d.split == split for d in corpus.documents):
            why = f" (left out: {words(corpus.left_out)})" if corpus.left_out else ""
            raise WrongCall(f"corpus: expected at least one document in {split}, found none{why}")


def write_dataset(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> str:
    """Writes all files and reads every document once. Returns the source's hash."""
    lengths = np.array([len(piece) for piece in tokenizer.pieces], np.int64)
    hashes, unreadable, splits = {}, {}, {}
    with Progress(f"{corpus.name} as {tokenizer.name}", sum(d.size for d in corpus.documents)) as progress:

        def stream(documents: list[Document]) -> Iterator[np.ndarray]:
            for document in documents:
                text = document.read()
                hashes[document.name] = hashlib.sha256(text).hexdigest()
                try:
                    decoded(text, document.name)
                except NotText as error:
                    unreadable[document.name] = error
                    if tokenizer.name != "bytes":
                        continue
                yield np.array([tokenizer.begin_token], np.uint16)
                for tokens in tokenizer.encode(text, document.name):
                    yield tokens
                    progress.add(int(lengths[tokens].sum()))

        for split in SPLITS:
            documents = [d for d in corpus.documents if d.split == split]
            shards = write_shards(folder, split, stream(documents))
            if tokenizer.name != "bytes":
                documents = [d for d in documents if d.name not in unreadable]
                if not documents:
                    raise next(iter(unreadable.values()))
            splits[split] = {"tokens": sum(s["tokens"] for s in shards), "bytes": sum(d.size for d in documents),
                             "shards": shards, "documents": [d.name for d in documents]}  # fmt: skip
    if unreadable and tokenizer.name != "bytes":
        corpus.left_out[NOT_UTF8] = len(unreadable)
    (folder / "vocabulary.bin").write_bytes(vocabulary_file(tokenizer.pieces))
    vocabulary = {"size": len(tokenizer.pieces), "sha256": sha256_of(folder / "vocabulary.bin")}
    # As sha256sum would print it: the shards in order, then the vocabulary.
    listing = "".join(f"{s['sha256']}  {s['file']}\n" for split in SPLITS for s in splits[split]["shards"])
    listing += f"{vocabulary['sha256']}  vocabulary.bin\n"
    source = source_hash(corpus, hashes)
    dataset = {
        "format": FORMAT,
        "name": corpus.name,
        "tokenizer": tokenizer.name,
        "begin_token": tokenizer.begin_token,
        "vocabulary": vocabulary,
        "source": {"sha256": source, **corpus.origin},
        "left_out": corpus.left_out,
        "not_utf8": len(unreadable),
        "content_sha256": hashlib.sha256(listing.encode()).hexdigest(),
        "splits": splits,
    }
    (folder / "dataset.json").write_text(sealed(dataset), encoding="utf-8")
    return source


NOT_UTF8 = "files that are not UTF-8"


def say_what_is_left_out(corpus: Corpus, tokenizer: Tokenizer, place: Path) -> None:
    not_utf8 = json.loads((place / "dataset.json").read_bytes()).get("not_utf8", 0)
    if not_utf8 and tokenizer.name != "bytes":
        corpus.left_out[NOT_UTF8] = not_utf8
    if corpus.left_out:
        print(f"tokenize_corpus: left out of {corpus.name}: {words(corpus.left_out)}", file=sys.stderr)
    if not_utf8 and tokenizer.name == "bytes":
        print(f"tokenize_corpus: {corpus.name}: documents that are not UTF-8, kept as bytes: {not_utf8}", file=sys.stderr)


def finished(folder: Path) -> Optional[dict]:
    """dataset.json of a folder that is whole, else None. Files that lethe found whole (.verified) aren't hashed again."""
    try:
        dataset = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        if dataset["format"] != FORMAT or not has_seal(folder / "dataset.json"):
            return None
        files = [(s["file"], s["sha256"]) for split in SPLITS for s in dataset["splits"][split]["shards"]]
        files.append(("vocabulary.bin", dataset["vocabulary"]["sha256"]))
        note = verified(folder)
        whole = all(note.get(name) == stamp(folder / name, sha256) or sha256_of(folder / name) == sha256 for name, sha256 in files)
        return dataset if whole else None
    except (OSError, KeyError, ValueError, TypeError, RecursionError):
        return None


def verified(folder: Path) -> dict:
    try:
        note = json.loads((folder / ".verified").read_bytes())
        return note if isinstance(note, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def stamp(file: Path, sha256: str) -> dict:
    """A line of .verified, as experiments/data/dataset_files.cpp writes it."""
    found = file.stat()
    return {"size": found.st_size, "modified": found.st_mtime_ns, "changed": found.st_ctime_ns, "inode": found.st_ino,
            "sha256": sha256}  # fmt: skip


def listing_of(place: Path) -> Optional[str]:
    """The listing of the text that a dataset was found to hold, at its last preparation."""
    try:
        return (place / ".listing").read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RecursionError):
        return None


def write_listing(place: Path, listing: Optional[str]) -> None:
    if listing is None:
        return
    try:
        beside = place / f".listing.partial-{os.getpid()}"
        beside.write_text(listing + "\n", encoding="utf-8")
        beside.replace(place / ".listing")
    except OSError:
        pass  # another user's dataset: the next call reads the text again


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
    except OSError:  # another process was faster; its result is as good as ours
        if not finished(output):
            raise


# --- the command ---


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    call = commands.add_parser("prepare", help="write a corpus as token shards")
    call.add_argument("--corpus", required=True, help="bible, headers, a text file or a folder of *.txt files")
    call.add_argument("--data", required=True, type=Path, help="the folder of the datasets")
    call.add_argument("--tokenizer", choices=("bytes", "gpt2"), default="bytes")
    call.add_argument("--gpt2-files", default=os.environ.get("LETHE_GPT2_FILES"),
                      help="folder of GPT-2's encoder.json and vocab.bpe, kept for later calls (default: LETHE_GPT2_FILES)")  # fmt: skip
    call = commands.add_parser("encode", help="print the tokens of standard input")
    call.add_argument("--vocabulary", required=True, type=Path, help="vocabulary.bin of a dataset in GPT-2's byte pairs")
    call.add_argument("--texts", action="store_true", help="standard input is a JSON array of texts")
    call = parser.parse_args()
    if call.command == "encode":
        encode, text = gpt2_tokenizer(read_vocabulary(call.vocabulary)).encode, sys.stdin.buffer.read()
        for one in (one.encode() for one in json.loads(text)) if call.texts else [text]:
            print(*itertools.chain.from_iterable(encode(one, "standard input")))
        return 0
    # First: files that were given are kept, whatever becomes of the corpus.
    tokenizer = gpt2_tokenizer(gpt2_pieces(call.data, call.gpt2_files)) if call.tokenizer == "gpt2" else byte_tokenizer()
    corpus = named_corpus(call.corpus)
    place = prepare(corpus, tokenizer, call.data, reserved=corpus.name in NAMED and call.corpus not in NAMED)
    say_what_is_left_out(corpus, tokenizer, place)
    print(place)
    return 0


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongCall as error:
        print(f"tokenize_corpus: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"tokenize_corpus: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # not foreseen: its kind belongs to the line
        print(f"tokenize_corpus: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
