"""The tokenizer that writes datasets: corpora, splits, shards, GPT-2's byte pairs. Run by ctest, or by hand."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import corpora
import numpy as np
import tokenize_corpus as subject


def tokens_of(folder: Path, split: str) -> list[int]:
    """The tokens in the files, read independently: headers skipped, shards in order."""
    tokens = []
    for shard in sorted(folder.glob(f"{split}_*.bin")):
        content = shard.read_bytes()
        magic, version, count = struct.unpack_from("<3i", content)
        assert (magic, version) == (20240520, 1)
        tokens += struct.unpack_from(f"<{count}H", content, 1024)
    return tokens


def pieces_of(folder: Path) -> list[bytes]:
    content = (folder / "vocabulary.bin").read_bytes()
    (count,), at, pieces = struct.unpack_from("<I", content), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, at)
        pieces.append(content[at + 2 : at + 2 + length])
        at += 2 + length
    return pieces


class InAFolder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.output = self.folder / "data" / "corpus-bytes"

    def write(self, **texts: bytes) -> Path:
        source = self.folder / "source"
        for name, text in texts.items():
            file = source / (name.replace("__", "/") + ".txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        return source


class Splits(InAFolder):
    def documents(self, *sizes: int) -> list:
        return [corpora.Document(f"document {i}", size, bytes) for i, size in enumerate(sizes)]

    def test_hold_about_five_percent_of_the_bytes_each(self):
        documents = corpora.split_by_name(self.documents(*range(1000, 1200)))
        whole = sum(d.size for d in documents)
        for split in ("valid", "test"):
            share = sum(d.size for d in documents if d.split == split) / whole
            self.assertTrue(0.04 < share <= 0.05, f"{split}: {share}")

    def test_are_never_empty(self):
        for sizes in ((1, 1, 1), (1, 1, 10**6), (10**6, 1, 1, 1)):
            splits = {d.split for d in corpora.split_by_name(self.documents(*sizes))}
            self.assertEqual(splits, set(corpora.SPLITS), sizes)

    def test_of_two_documents_are_refused(self):
        with self.assertRaisesRegex(corpora.WrongCall, "expected at least 3 documents"):
            corpora.split_by_name(self.documents(5, 5))

    def test_do_not_depend_on_the_order_of_the_documents(self):
        forwards = {d.name: d.split for d in corpora.split_by_name(self.documents(*[100] * 50))}
        backwards = {d.name: d.split for d in corpora.split_by_name(self.documents(*[100] * 50)[::-1])}
        self.assertEqual(forwards, backwards)

    def test_of_an_index_are_obeyed_and_others_left_out(self):
        source = self.write(a=b"a", b=b"b", c=b"c", d=b"d", unlisted=b"u")
        rows = ["file,title,split", "a.txt,A,test", 'b.txt,"B, or not",train', "c.txt,C,valid", "d.txt,D,haystack"]
        (source / "INDEX.csv").write_text("\n".join([*rows, "gone.txt,E,train"]))
        corpus = corpora.folder_of_text(source)
        splits = {d.name: d.split for d in corpus.documents}
        self.assertEqual(splits, {"a.txt": "test", "b.txt": "train", "c.txt": "valid"})
        self.assertEqual((corpus.origin["left_out"], corpus.origin["absent"]), (2, 1))

    def test_of_an_index_without_its_columns_are_refused(self):
        source = self.write(a=b"a")
        (source / "INDEX.csv").write_text("name,part\na.txt,train\n")
        with self.assertRaisesRegex(corpora.WrongCall, "expected the columns file and split"):
            corpora.folder_of_text(source)


class Shards(InAFolder):
    def test_run_on_where_one_is_full(self):
        tokens = np.arange(25, dtype=np.uint16)
        stream = iter([tokens[:3], tokens[3:14], tokens[14:]])
        shards = subject.write_shards(self.folder, "train", stream, shard_tokens=10)
        self.assertEqual([s["tokens"] for s in shards], [10, 10, 5])
        self.assertEqual([(self.folder / s["file"]).stat().st_size for s in shards], [1044, 1044, 1034])
        self.assertEqual(tokens_of(self.folder, "train"), tokens.tolist())

    def test_have_the_1024_byte_header_of_llm_c(self):
        subject.write_shards(self.folder, "train", iter([np.array([7, 65535], np.uint16)]))
        header = np.fromfile(self.folder / "train_000.bin", "<i4", 256)
        self.assertEqual(header[:3].tolist(), [20240520, 1, 2])
        self.assertFalse(header[3:].any())


class Datasets(InAFolder):
    def prepare(self, source: Path) -> dict:
        return subject.prepare(corpora.folder_of_text(source), subject.byte_tokenizer(), self.output)

    def test_hold_every_document_behind_a_begin_token(self):
        texts = {"a": b"first\n", "sub__b": bytes(range(256)), "c": "früh".encode()}
        dataset = self.prepare(self.write(**texts))
        for split in corpora.SPLITS:
            (name,) = dataset["splits"][split]["documents"]
            text = texts[name.removesuffix(".txt").replace("/", "__")]
            self.assertEqual(tokens_of(self.output, split), [256, *text])
        self.assertEqual(pieces_of(self.output)[:256], [bytes([b]) for b in range(256)])

    def test_are_not_written_again_where_nothing_changed(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        first, written = self.prepare(source), (self.output / "dataset.json").stat().st_ino
        self.assertEqual(self.prepare(source), first)
        self.assertEqual((self.output / "dataset.json").stat().st_ino, written)

    def test_are_written_again_where_the_text_or_a_shard_changed(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        first = self.prepare(source)
        (self.output / "train_000.bin").write_bytes(b"broken")
        self.assertEqual(self.prepare(source), first)
        self.assertTrue(subject.finished(self.output))
        self.write(a=b"another text")
        self.assertNotEqual(self.prepare(source)["content_sha256"], first["content_sha256"])
        self.assertEqual([p.name for p in self.output.parent.iterdir()], [self.output.name])

    def test_leave_nothing_behind_where_a_document_can_not_be_read(self):
        corpus = corpora.folder_of_text(self.write(a=b"a", b=b"b", c=b"c"))
        tokenizer = subject.byte_tokenizer()
        tokenizer.encode = lambda text, name: 1 // 0
        with self.assertRaises(ZeroDivisionError):
            subject.prepare(corpus, tokenizer, self.output)
        self.assertEqual(list(self.output.parent.iterdir()), [])

    def test_have_the_same_hash_on_every_machine(self):
        first = self.prepare(self.write(a=b"a", b=b"b", c=b"c"))["content_sha256"]
        self.output = self.folder / "elsewhere"
        self.assertEqual(self.prepare(self.folder / "source")["content_sha256"], first)

    def test_of_the_bible_split_its_66_books(self):
        corpus = corpora.bible()
        books = {d.name: d for d in corpus.documents}
        self.assertEqual((len(books), sum(d.size for d in corpus.documents)), (66, corpora.BIBLE_BYTES))
        self.assertLessEqual(corpora.BIBLE_SPLITS.keys(), books.keys())
        self.assertTrue(books["Ge"].read().startswith(b"Ge1:1 In the beginning"))
        for split in ("valid", "test"):
            self.assertGreater(sum(d.size for d in corpus.documents if d.split == split), 200_000)

    def test_of_the_headers_hold_the_libraries_of_the_set_up(self):
        names = {d.name: d.split for d in corpora.headers().documents}
        for header in ("eigen3/Eigen/Core", "gtest/gtest.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "toml++/toml.h"):
            self.assertIn(names.get(header), corpora.SPLITS, header)


class BytePairs(InAFolder):
    """GPT-2's format with four merges instead of 50 000."""

    def setUp(self):
        super().setUp()
        # Visible characters are written as themselves, other bytes as characters from 256 on (GPT-2's encoder.py).
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        character = {b: chr(b) for b in visible}
        for b in range(256):
            character.setdefault(b, chr(256 + len(character) - len(visible)))
        merges = ["h e", "l l", "he ll", "hell o"]
        order = [character[b] for b in visible] + [character[b] for b in range(256) if b not in visible]
        pieces = order + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
        self.files = self.folder / "gpt2"
        self.files.mkdir()
        (self.files / "encoder.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
        (self.files / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")

    def test_merge_in_the_order_of_the_list(self):
        tokenizer = subject.gpt2_tokenizer(str(self.files))
        self.assertEqual(tokenizer.begin_token, 260)
        self.assertEqual(tokenizer.encode(b"hello", "text").tolist(), [259])
        pieces = [tokenizer.pieces[t] for t in tokenizer.encode(b"shell he", "text")]
        self.assertEqual(pieces, [b"s", b"hell", b" ", b"he"])

    def test_decode_by_table_to_the_text_they_came_from(self):
        text = "hello, früh\n\n  well 42 — 'll".encode()
        tokenizer = subject.gpt2_tokenizer(str(self.files))
        self.assertEqual(b"".join(tokenizer.pieces[t] for t in tokenizer.encode(text, "text")), text)

    def test_never_read_a_special_token_out_of_the_text(self):
        tokenizer = subject.gpt2_tokenizer(str(self.files))
        self.assertNotIn(tokenizer.begin_token, tokenizer.encode(subject.BEGIN_PIECE, "text"))

    def test_need_utf_8(self):
        with self.assertRaisesRegex(RuntimeError, "text: expected UTF-8, found byte 0xff at offset 2"):
            subject.gpt2_tokenizer(str(self.files)).encode(b"ab\xff", "text")

    def test_need_their_files(self):
        for files, found in ((None, "found none"), (str(self.folder), "expected the file")):
            with self.assertRaisesRegex(corpora.WrongCall, f"--gpt2-files .*{found}"):
                subject.gpt2_tokenizer(files)


class PublishedBytePairs(unittest.TestCase):
    def test_say_hello_world_in_two_tokens(self):
        files = os.environ.get("LETHE_GPT2_FILES")
        if not files:
            self.skipTest("LETHE_GPT2_FILES is not set: the folder of GPT-2's encoder.json and vocab.bpe")
        tokenizer = subject.gpt2_tokenizer(files)
        self.assertEqual(tokenizer.encode(b"Hello world", "text").tolist(), [15496, 995])
        self.assertEqual((tokenizer.begin_token, len(tokenizer.pieces)), (50256, 50257))


class Command(InAFolder):
    def run_tool(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if k != "LETHE_GPT2_FILES"}
        return subprocess.run([sys.executable, TOOLS / "tokenize_corpus.py", *arguments], input=text, text=True,
                              capture_output=True, env=environment)  # fmt: skip

    def test_prints_the_tokens_of_standard_input(self):
        done = self.run_tool("encode", "--tokenizer", "bytes", text="AZ")
        self.assertEqual((done.returncode, done.stdout), (0, "65 90\n"))

    def test_says_in_one_line_what_is_wrong_with_a_call(self):
        for arguments, message in (
            (("prepare", "--corpus", "nowhere", "--output", str(self.output)), "corpus: expected 'bible', 'headers'"),
            (("encode", "--tokenizer", "gpt2"), "--gpt2-files"),
        ):
            done = self.run_tool(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
