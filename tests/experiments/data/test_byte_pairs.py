"""GPT-2's byte pairs: its two files, the merges, what is no text. Run by ctest, or by hand."""

import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from in_a_folder import TOOLS, InAFolder  # before what it finds in tools/

import corpora
import tokenize_corpus as subject
import vocabularies


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

    def tokenizer(self) -> vocabularies.Tokenizer:
        return subject.gpt2_tokenizer(vocabularies.gpt2_pieces(self.data, str(self.files)))

    def encoded(self, text: bytes) -> list[int]:
        return np.concatenate(list(self.tokenizer().encode(text, "text"))).tolist()

    def test_merge_in_the_order_of_the_list(self):
        tokenizer = self.tokenizer()
        self.assertEqual(tokenizer.begin_token, 260)
        self.assertEqual(self.encoded(b"hello"), [259])
        self.assertEqual([tokenizer.pieces[t] for t in self.encoded(b"shell he")], [b"s", b"hell", b" ", b"he"])

    def test_decode_by_table_to_the_text_they_came_from(self):
        text = "hello, früh\n\n  well 42 — 'll".encode()
        self.assertEqual(b"".join(self.tokenizer().pieces[t] for t in self.encoded(text)), text)

    def test_never_read_a_special_token_out_of_the_text(self):
        self.assertNotIn(self.tokenizer().begin_token, self.encoded(vocabularies.BEGIN_PIECE))

    def test_need_utf_8(self):
        with self.assertRaisesRegex(RuntimeError, "text: expected UTF-8, found byte 0xff at offset 2"):
            self.encoded(b"ab\xff")

    def test_leave_out_what_is_not_utf_8_and_say_so(self):
        corpus = corpora.text_of(self.write(**{name: b"hello " * 9 for name in "abcdefgh"}, broken=b"\xff" * 99))
        place = subject.prepare(corpus, self.tokenizer(), self.data)
        dataset = json.loads((place / "dataset.json").read_text())
        self.assertEqual(dataset["left_out"], {"files that are not UTF-8": 1})
        documents = [name for split in corpora.SPLITS for name in dataset["splits"][split]["documents"]]
        self.assertEqual((len(documents), "broken.txt" in documents), (8, False))

    def test_are_those_of_the_whole_text_wherever_its_parts_end(self):
        text = "hello well, he'll say  42 hell0s!\n\n\t früh —  " * 40
        whole = self.encoded(text.encode())
        for part in (1, 7, 100):
            with mock.patch.object(vocabularies, "PART", part):
                self.assertEqual(self.encoded(text.encode()), whole)

    def test_take_seconds_for_a_megabyte_without_a_space(self):
        tokenizer = self.tokenizer()
        for kind in ("hello", "7", "-_", "漢", " ", "\n", "a1!", "'s"):
            text = (kind * (2**20 // len(kind))).encode()
            start, steps, tokens = time.monotonic(), 0, []
            for part in tokenizer.encode(text, "text"):
                tokens.append(part)
                steps += 1
            with self.subTest(kind):
                self.assertLess(time.monotonic() - start, 20)
                self.assertEqual(b"".join(tokenizer.pieces[t] for t in np.concatenate(tokens)), text)
                if not kind.isspace():
                    self.assertGreater(steps, 1, "progress moves")

    def test_need_their_files_once(self):
        for files, found in ((None, "found none"), (str(self.folder), "expected the file")):
            with self.assertRaisesRegex(corpora.WrongCall, f"--gpt2-files .*{found}"):
                vocabularies.gpt2_pieces(self.data, files)
        first = vocabularies.gpt2_pieces(self.data, str(self.files))
        for file in self.files.iterdir():
            file.unlink()
        self.assertEqual(vocabularies.gpt2_pieces(self.data, None), first)

    def test_of_many_texts_are_a_line_each(self):
        vocabularies.gpt2_pieces(self.data, str(self.files))
        command = [sys.executable, TOOLS / "tokenize_corpus.py", "encode", "--texts", "--vocabulary", self.data / "gpt2-vocabulary.bin"]
        texts = ["hello", "", "früh\nhe"]
        done = subprocess.run(command, input=json.dumps(texts, ensure_ascii=False), capture_output=True, text=True)
        found = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(found, [list(map(str, self.encoded(text.encode()))) if text else [] for text in texts])

    def test_of_damaged_files_are_refused_in_one_line(self):
        for name, content in (("encoder.json", "{"), ("encoder.json", "[]"), ("vocab.bpe", ""), ("vocab.bpe", "#\nx y z\n")):
            with self.subTest(name=name, content=content), mock.patch.object(self, "data", self.folder / "other"):
                original = (self.files / name).read_bytes()
                (self.files / name).write_text(content)
                with self.assertRaisesRegex(corpora.WrongCall, "expected encoder.json and vocab.bpe of one vocabulary"):
                    vocabularies.gpt2_pieces(self.data, str(self.files))
                (self.files / name).write_bytes(original)
        vocabularies.gpt2_pieces(self.data, str(self.files))
        kept = self.data / "gpt2-vocabulary.bin"
        for content in (kept.read_bytes()[:-1], b"", b"\xff" * 100, kept.read_bytes() + b"x"):
            kept.write_bytes(content)
            with self.assertRaisesRegex(corpora.WrongCall, "found a damaged one"):
                vocabularies.gpt2_pieces(self.data, None)


class PublishedBytePairs(unittest.TestCase):
    def test_say_hello_world_in_two_tokens(self):
        files = os.environ.get("LETHE_GPT2_FILES")
        if not files:
            self.skipTest("LETHE_GPT2_FILES is not set: the folder of GPT-2's encoder.json and vocab.bpe")
        tokenizer = subject.gpt2_tokenizer(vocabularies.published_pieces(Path(files)))
        self.assertEqual(next(tokenizer.encode(b"Hello world", "text")).tolist(), [15496, 995])
        self.assertEqual((tokenizer.begin_token, len(tokenizer.pieces)), (50256, 50257))


if __name__ == "__main__":
    unittest.main()
