#!/usr/bin/env python3
"""Turns a corpus into the token shards that training and evaluation read (format: experiments/data/README.md).

  tokenize_corpus.py prepare --corpus bible --tokenizer bytes --output artefacts/data/bible-bytes
  tokenize_corpus.py encode --tokenizer gpt2 --gpt2-files folder < prompt.txt

`prepare` writes beside its place and renames, and does nothing where the folder already holds this very corpus.
`encode` prints the tokens of standard input.
Exit status: 0 done, 1 failed run, 2 wrong call; what was wrong is one line on standard error.
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Optional

import numpy as np

from corpora import SPLITS, Corpus, Document, WrongCall, named_corpus, sha256_of

SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER_INTS = 20240520, 1, 256  # llm.c's header: 1024 bytes of int32
SHARD_TOKENS = 100_000_000
FORMAT = 1  # of dataset.json and vocabulary.bin; a folder of another format is written anew


# --- tokenizers ---


@dataclass
class Tokenizer:
    name: str
    pieces: list[bytes]  # token id → bytes, for decoding by table
    begin_token: int
    encode: Callable[[bytes, str], np.ndarray]  # (text, name of the document for errors) → uint16


BEGIN_PIECE = b"<|endoftext|>"
GPT2_FILES = "--gpt2-files (or LETHE_GPT2_FILES)"


def byte_tokenizer() -> Tokenizer:
    """A token is a byte; 256 begins a document."""
    return Tokenizer("bytes", [bytes([b]) for b in range(256)] + [BEGIN_PIECE], 256,
                     lambda text, _: np.frombuffer(text, np.uint8).astype(np.uint16))  # fmt: skip


def gpt2_tokenizer(files: Optional[str]) -> Tokenizer:
    """GPT-2's byte-pair encoding by tiktoken, from the two files that GPT-2 came with; 50256 begins a document."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str

    if not files:
        raise WrongCall(f"{GPT2_FILES}: expected the folder of GPT-2's encoder.json and vocab.bpe, found none")
    encoder, merges = Path(files) / "encoder.json", Path(files) / "vocab.bpe"
    for file in (encoder, merges):
        if not file.is_file():
            raise WrongCall(f"{GPT2_FILES}: expected the file {file}, found none")
    # Without this tiktoken keeps the files it reads in a cache of its own.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(merges), encoder_json_file=str(encoder))
    begin = len(ranks)
    special = {BEGIN_PIECE.decode(): begin}
    encoding = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=special)

    def encode(text: bytes, name: str) -> np.ndarray:
        try:
            return np.array(encoding.encode_ordinary(text.decode("utf-8")), np.uint16)
        except UnicodeDecodeError as error:
            found = f"byte {text[error.start]:#04x} at offset {error.start}"
            raise RuntimeError(f"{name}: expected UTF-8, found {found}") from error

    pieces = [b""] * begin + [BEGIN_PIECE]
    for piece, token in ranks.items():
        pieces[token] = piece
    return Tokenizer("gpt2", pieces, begin, encode)


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

    def close(self) -> None:
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


def write_vocabulary(path: Path, pieces: list[bytes]) -> None:
    """Count as uint32, then every token's length as uint16 and its bytes; little-endian."""
    with path.open("wb") as file:
        file.write(len(pieces).to_bytes(4, "little"))
        for piece in pieces:
            file.write(len(piece).to_bytes(2, "little") + piece)


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
        dataset = {
            "format": FORMAT,
            "name": corpus.name,
            "tokenizer": tokenizer.name,
            "begin_token": tokenizer.begin_token,
            "vocabulary": vocabulary,
            "source": {"sha256": source, **corpus.origin},
            "content_sha256": hashlib.sha256(listing.encode()).hexdigest(),
            "splits": splits,
        }
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
    except OSError:  # another process was faster; its result is as good as ours
        if not finished(output):
            raise


# --- the command ---


def named_tokenizer(name: str, gpt2_files: Optional[str]) -> Tokenizer:
    return gpt2_tokenizer(gpt2_files) if name == "gpt2" else byte_tokenizer()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_call = commands.add_parser("prepare", help="write a corpus as token shards")
    prepare_call.add_argument("--corpus", required=True, help="bible, headers or a folder of *.txt files")
    prepare_call.add_argument("--output", required=True, type=Path, help="the dataset's folder")
    encode_call = commands.add_parser("encode", help="print the tokens of standard input")
    files_help = "folder of GPT-2's encoder.json and vocab.bpe (default: LETHE_GPT2_FILES)"
    for call in (prepare_call, encode_call):
        call.add_argument("--tokenizer", choices=("bytes", "gpt2"), default="bytes")
        call.add_argument("--gpt2-files", default=os.environ.get("LETHE_GPT2_FILES"), help=files_help)
    call = parser.parse_args()
    try:
        tokenizer = named_tokenizer(call.tokenizer, call.gpt2_files)
        if call.command == "encode":
            print(*tokenizer.encode(sys.stdin.buffer.read(), "standard input"))
        else:
            prepare(named_corpus(call.corpus), tokenizer, call.output)
    except WrongCall as error:
        print(f"tokenize_corpus: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"tokenize_corpus: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
