"""Tokenizers: bytes, and GPT-2's byte pairs. A vocabulary is a list of pieces: token id → bytes, the last begins a document."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Optional

import numpy as np

from corpora import WrongCall


class NotText(RuntimeError):
    """A document that is no text: "name: expected UTF-8, found …"."""


@dataclass
class Tokenizer:
    name: str
    pieces: list[bytes]
    encode: Callable[[bytes, str], Iterator[np.ndarray]]  # (text, name of the document for errors) → uint16, part by part

    @property
    def begin_token(self) -> int:
        return len(self.pieces) - 1


BEGIN_PIECE = b"<|endoftext|>"
GPT2_FILES = "--gpt2-files of lethe data prepare (or LETHE_GPT2_FILES)"  # other commands take the vocabulary that it kept
PART = 1 << 16  # characters that are encoded at once, so that progress moves
# The merges of a word take a time that grows with the square of its length. A run of one kind of character is therefore cut at
# every thousand: there alone the tokens differ from those of the whole text.
LONG_WORD = re.compile(r"[^\W\d_]{1000}|\d{1000}|(?:[^\w\s]|_){1000}")
WORD_END = re.compile(r"(?<=\S)(?=\s)|(?<=[A-Za-z])(?=\d)|(?<=[^\W\d_])(?=[^\w\s])")  # no byte pair crosses it


def decoded(text: bytes, name: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotText(f"{name}: expected UTF-8, found byte {text[error.start]:#04x} at offset {error.start}") from error


def parts_of(text: str) -> Iterator[str]:
    """A text in parts of about PART characters, cut at ends of words, and inside those that are too long."""
    begin = 0
    for end in sorted({match.end() for match in LONG_WORD.finditer(text)} | set(ends_of_parts(text))):
        yield text[begin:end]
        begin = end


def ends_of_parts(text: str) -> list[int]:
    ends = [0]
    while ends[-1] < len(text):
        word = WORD_END.search(text, ends[-1] + PART)
        ends.append(word.start() if word else len(text))
    return ends[1:]


def byte_tokenizer() -> Tokenizer:
    """A token is a byte; 256 begins a document."""

    def encode(text: bytes, _: str) -> Iterator[np.ndarray]:
        for begin in range(0, len(text), 1 << 20):
            yield np.frombuffer(text[begin : begin + (1 << 20)], np.uint8).astype(np.uint16)

    return Tokenizer("bytes", [bytes([b]) for b in range(256)] + [BEGIN_PIECE], encode)


def gpt2_tokenizer(pieces: list[bytes]) -> Tokenizer:
    """GPT-2's byte-pair encoding by tiktoken: a piece's number is its rank among the merges."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    begin = len(pieces) - 1
    ranks = {piece: rank for rank, piece in enumerate(pieces[:begin])}
    special = {BEGIN_PIECE.decode(): begin}
    encoding = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=special)

    def encode(text: bytes, name: str) -> Iterator[np.ndarray]:
        for part in parts_of(decoded(text, name)):
            yield np.array(encoding.encode_ordinary(part), np.uint16)

    return Tokenizer("gpt2", pieces, encode)


def published_pieces(files: Path) -> list[bytes]:
    """The vocabulary of the two files that GPT-2 came with."""
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    encoder, merges = files / "encoder.json", files / "vocab.bpe"
    for file in (encoder, merges):
        if not file.is_file():
            raise WrongCall(f"{GPT2_FILES}: expected the file {file}, found none")
    # Without this tiktoken keeps the files it reads in a cache of its own.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(merges), encoder_json_file=str(encoder))
        pieces = sorted(ranks, key=ranks.get)
        if [ranks[piece] for piece in pieces] != list(range(len(pieces))) or not 256 <= len(pieces) < 65536:
            raise ValueError(f"{len(pieces)} pieces")
    except (ValueError, KeyError, AttributeError, TypeError, AssertionError) as error:
        found = f"{type(error).__name__} {error}".splitlines()[0]
        raise WrongCall(f"{GPT2_FILES}: expected encoder.json and vocab.bpe of one vocabulary in {files}, found {found}") from error
    return pieces + [BEGIN_PIECE]


def gpt2_pieces(data: Path, files: Optional[str]) -> list[bytes]:
    """GPT-2's vocabulary: of `files` where they are given, kept below `data` for every later call; else the kept one."""
    kept = data / "gpt2-vocabulary.bin"
    if not files:
        if not kept.is_file():
            raise WrongCall(f"{GPT2_FILES}: expected the folder of GPT-2's encoder.json and vocab.bpe at the first call, found none")
        return read_vocabulary(kept)
    pieces = published_pieces(Path(files))
    data.mkdir(parents=True, exist_ok=True)
    beside = data / f".{kept.name}.partial-{os.getpid()}"
    beside.write_bytes(vocabulary_file(pieces))
    beside.replace(kept)
    return pieces


def vocabulary_file(pieces: list[bytes]) -> bytes:
    """Count as uint32, then every token's length as uint16 and its bytes; little-endian."""
    return len(pieces).to_bytes(4, "little") + b"".join(len(piece).to_bytes(2, "little") + piece for piece in pieces)


def read_vocabulary(path: Path) -> list[bytes]:
    content = path.read_bytes()
    count, at, pieces = int.from_bytes(content[:4], "little"), 4, []
    while at + 2 <= len(content) and len(pieces) < count:
        begin, at = at + 2, at + 2 + int.from_bytes(content[at : at + 2], "little")
        pieces.append(content[begin:at])
    if len(pieces) != count or at != len(content) or len(set(pieces)) != count or not {bytes([b]) for b in range(256)} < set(pieces):
        raise WrongCall(f"{path}: expected the vocabulary of GPT-2 as lethe data prepare --gpt2-files writes it, found a damaged one")
    return pieces
