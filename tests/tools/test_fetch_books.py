"""Books rebuilt from a local copy of their sources: the same bytes, or named and not written."""

import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))

from corpora import SPLITS, Corpus, Document  # noqa: E402
from fetch_books import COLUMNS, read_index  # noqa: E402
from tokenize_corpus import source_hash  # noqa: E402

EDITION = "\ufeffAn edition's header\r\n\r\nCHAPTER I  \r\n\r\n\r\n\r\n\r\n\r\nA café.\r\nThe end.\r\n\r\nIts footer\r\n".encode()
BOOK = "CHAPTER I\n\n\n\nA café.\nThe end.\n".encode()


class Books(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        clone = self.root / "clones/owner/name/texts"
        clone.mkdir(parents=True)
        (clone / "1.txt").write_bytes(EDITION)
        (clone / "2.txt").write_bytes(b"whole\n")
        self.write_index()

    def write_index(self, digest=hashlib.sha256(BOOK).hexdigest()):
        rows = [["one.txt", "owner/name@c0ffee", "texts/1.txt", 3, 8, digest, len(BOOK), "train", "One", "A"],
                ["two.txt", "owner/name@c0ffee", "texts/2.txt", "", "", hashlib.sha256(b"whole\n").hexdigest(), 6, "valid", "Two", "B"]]
        with open(self.root / "index.csv", "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])

    def fetch(self):
        call = [sys.executable, str(SOURCE / "tools/fetch_books.py"), str(self.root / "books"), "--from", str(self.root / "clones"), "--index",
                str(self.root / "index.csv")]
        return subprocess.run(call, capture_output=True, text=True)

    def test_books_are_cut_out_of_their_editions(self):
        found = self.fetch()
        self.assertEqual((found.returncode, found.stdout), (0, f"2 of 2 files in {self.root / 'books'}\n"), found.stderr)
        self.assertEqual((self.root / "books/one.txt").read_bytes(), BOOK)
        self.assertEqual((self.root / "books/two.txt").read_bytes(), b"whole\n")
        one, two = (hashlib.sha256(text).hexdigest() for text in (BOOK, b"whole\n"))
        self.assertEqual((self.root / "books/INDEX.csv").read_text(), f"file,split,sha256\none.txt,train,{one}\ntwo.txt,valid,{two}\n")

    def test_one_with_another_hash_is_named_and_not_written(self):
        self.write_index("0" * 64)
        found = self.fetch()
        self.assertEqual(found.returncode, 1)
        self.assertIn(f"one.txt: expected SHA-256 {'0' * 64}, found ", found.stderr)
        self.assertFalse((self.root / "books/one.txt").exists())
        self.assertTrue((self.root / "books/two.txt").exists())

    def test_one_that_is_there_is_not_fetched_again(self):
        self.fetch()
        (self.root / "clones/owner/name/texts/1.txt").unlink()
        self.assertEqual(self.fetch().returncode, 0)
        (self.root / "books/one.txt").write_text("damaged")
        self.assertIn("one.txt: expected texts/1.txt of owner/name@c0ffee, found", self.fetch().stderr)

    def test_the_index_of_the_project_names_every_book_once(self):
        rows = read_index(SOURCE / "experiments/data/books.csv")
        self.assertEqual(len({row["file"] for row in rows}), len(rows))
        self.assertEqual({len(row["sha256"]) for row in rows}, {64})
        self.assertTrue({"train", "valid", "test"} <= {row["split"] for row in rows})

    def test_an_index_without_splits_leaves_none(self):
        rows = [["one.txt", "owner/name@c0ffee", "texts/2.txt", "", "", hashlib.sha256(b"whole\n").hexdigest(), 6, "", "One", "A"]]
        with open(self.root / "index.csv", "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual([path.name for path in (self.root / "books").iterdir()], ["one.txt"])

    def test_the_vocabulary_of_gpt2_has_an_index(self):
        rows = read_index(SOURCE / "experiments/data/gpt2.csv")
        self.assertEqual([(row["file"], row["path"], row["split"]) for row in rows], [(name, name, "") for name in ("encoder.json", "vocab.bpe")])
        files = os.environ.get("LETHE_GPT2_FILES")
        if not files:
            self.skipTest("LETHE_GPT2_FILES: expected GPT-2's files to compare with, found none")
        for row in rows:
            data = (Path(files) / row["file"]).read_bytes()
            self.assertEqual((hashlib.sha256(data).hexdigest(), len(data)), (row["sha256"], int(row["bytes"])))

    def test_the_scale_gpu_wants_the_text_of_the_index(self):
        rows = [row for row in read_index(SOURCE / "experiments/data/books.csv") if row["split"] in SPLITS]
        documents = [Document(row["file"], int(row["bytes"]), bytes, row["split"]) for row in sorted(rows, key=lambda row: row["file"])]
        text = source_hash(Corpus("books", documents), {row["file"]: row["sha256"] for row in rows})
        for claim in ("forgetting_transformer/ablations", "decaying_fast_weights/update_rules"):
            settings = tomllib.loads((SOURCE / "experiments/papers" / claim / "config.toml").read_text())["gpu"]
            self.assertEqual(settings["text"], text, claim)


if __name__ == "__main__":
    unittest.main()
