"""The tokenizer that writes datasets: corpora, splits, shards, its command. Run by ctest, or by hand."""

import contextlib
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
from in_a_folder import TOOLS, InAFolder  # before what it finds in tools/

import corpora
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

    def test_of_one_or_two_documents_are_by_position_at_ends_of_lines(self):
        for texts in ({"a": b"one line\n" * 1000}, {"a": b"one line\n" * 1000, "b": b"another\n" * 500}):
            source = self.write(**texts)
            for corpus in (corpora.text_of(source), *([corpora.text_of(source / "a.txt")] if len(texts) == 1 else [])):
                for split, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
                    parts = [d.read() for d in corpus.documents if d.split == split]
                    whole = sum(map(len, texts.values()))
                    self.assertAlmostEqual(sum(map(len, parts)) / whole, share, delta=0.01)
                    self.assertTrue(all(part.endswith(b"\n") for part in parts))
                for name, text in texts.items():
                    parts = [d.read() for d in corpus.documents if d.name.startswith(f"{name}.txt[")]
                    self.assertEqual(b"".join(parts), text)

    def test_by_position_cut_no_character_of_a_text_without_lines(self):
        text = "früh€" * 100
        corpus = corpora.text_of(self.write(a=text.encode()))
        self.assertEqual("".join(d.read().decode() for d in corpus.documents), text)
        self.assertEqual([d.split for d in corpus.documents], list(corpora.SPLITS))

    def test_of_too_little_text_are_refused(self):
        for texts in ({"a": b"short"}, {"a": b"short", "b": b"s" * 99}):
            with self.assertRaisesRegex(corpora.WrongCall, "one of 100 bytes or more, found"):
                corpora.text_of(self.write(**texts))
        (empty := self.folder / "empty.txt").touch()
        with self.assertRaisesRegex(corpora.WrongCall, "found 0 bytes"):
            corpora.text_of(empty)

    def test_do_not_depend_on_the_order_of_the_documents(self):
        forwards = {d.name: d.split for d in corpora.split_by_name(self.documents(*[100] * 50))}
        backwards = {d.name: d.split for d in corpora.split_by_name(self.documents(*[100] * 50)[::-1])}
        self.assertEqual(forwards, backwards)

    def test_of_an_index_are_obeyed_and_others_left_out(self):
        source = self.write(a=b"a", b=b"b", c=b"c", d=b"d", unlisted=b"u")
        rows = ["file,title,split", "a.txt,A,test", 'b.txt,"B, or not",train', "c.txt,C,valid", "d.txt,D,haystack"]
        (source / "INDEX.csv").write_text("\n".join([*rows, "gone.txt,E,train"]))
        corpus = corpora.text_of(source)
        splits = {d.name: d.split for d in corpus.documents}
        self.assertEqual(splits, {"a.txt": "test", "b.txt": "train", "c.txt": "valid"})
        expected = {"files that INDEX.csv lacks": 1, "files of other splits": 1, "absent files of INDEX.csv": 1}
        self.assertEqual(corpus.left_out, expected)

    def test_of_an_index_with_hashes_hold_these_texts_alone(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        corpora.write_index(source, [(f"{d}.txt", split, hashlib.sha256(d.encode()).hexdigest()) for d, split in zip("abc", corpora.SPLITS)])
        place = subject.prepare(corpora.text_of(source), subject.byte_tokenizer(), self.data)
        self.assertEqual(tokens_of(place, "valid"), [256, ord("b")])
        self.write(b=b"B")
        with self.assertRaisesRegex(corpora.WrongCall, "b.txt: expected the SHA-256 3e23.* of INDEX.csv, found df7e"):
            subject.prepare(corpora.text_of(source), subject.byte_tokenizer(), self.data)
        self.assertEqual([p.name for p in self.data.iterdir()], [place.name])
        (source / "b.txt").unlink()
        with self.assertRaisesRegex(corpora.WrongCall, "INDEX.csv: expected b.txt with the SHA-256 3e23.*, found none"):
            corpora.text_of(source)

    def test_of_a_bad_index_are_refused_with_its_name(self):
        source = self.write(a=b"a")
        for content, message in (
            (b"name,part\na.txt,train\n", "expected the columns file and split, found name, part"),
            (b"", "expected the columns file and split, found none"),
            (b"file,split\na.txt,train\na.txt,test\n", "expected one split of a.txt, found train and test"),
            (b"file,split\n\xff.txt,train\n", "expected CSV in UTF-8"),
            (b"file,split\n" + b"x" * 200_000, "expected CSV in UTF-8"),
            (b"file,split,sha256\na.txt,train\n", "expected the SHA-256 of a.txt, found none"),
            (b"file,split,SHA256\na.txt,train,00\n", "expected the column sha256, found 'SHA256'"),
            (b"file,split, sha256\na.txt,train,00\n", "expected the column sha256, found ' sha256'"),
        ):
            with self.subTest(message):
                (source / "INDEX.csv").write_bytes(content)
                with self.assertRaisesRegex(corpora.WrongCall, f"INDEX.csv: {message}"):
                    corpora.text_of(source)
        with open(source / "INDEX.csv", "wb") as sparse:
            sparse.truncate(1 << 40)
        with self.assertRaisesRegex(corpora.WrongCall, "expected at most"):
            corpora.text_of(source)
        (source / "INDEX.csv").unlink()
        (source / "INDEX.csv").symlink_to("nowhere")
        with self.assertRaisesRegex(corpora.WrongCall, "INDEX.csv: expected a file, found something else"):
            corpora.text_of(source)


class LeftOut(InAFolder):
    def test_are_counted_by_kind(self):
        source = self.write(a=b"a", b=b"b", c=b"c", empty=b"")
        for name in ("notes.md", "more.md", "picture.png", "plain"):
            (source / name).write_text(name)
        (source / "link.txt").symlink_to(source / "a.txt")
        (source / "below").symlink_to(source)
        os.mkfifo(source / "pipe.txt")
        corpus = corpora.text_of(source)
        self.assertEqual([d.name for d in corpus.documents], ["a.txt", "b.txt", "c.txt"])
        expected = {"links": 2, "empty files": 1, "unreadable files": 1, "files with other suffixes (.md, .png, none)": 4}
        self.assertEqual(corpus.left_out, expected)

    @unittest.skipIf(os.getuid(), "needs root, to become a user who can't read")
    def test_what_another_user_can_not_read_is_counted(self):
        source = self.write(a=b"a", b=b"b", c=b"c", locked=b"d", below__e=b"e")
        for path in (self.folder, source):
            path.chmod(0o755)
        (source / "locked.txt").chmod(0)
        (source / "below").chmod(0)
        (self.data).mkdir()
        self.data.chmod(0o777)
        reader = "import os, sys; os.setuid(65534); sys.path.insert(0, sys.argv[1]); import corpora, pathlib; " \
                 "print(corpora.words(corpora.text_of(pathlib.Path(sys.argv[2])).left_out))"  # fmt: skip
        done = subprocess.run([sys.executable, "-c", reader, TOOLS, source], capture_output=True, text=True)
        if "Permission" in done.stderr or "No module" in done.stderr:
            self.skipTest("the checkout can't be read by another user")
        self.assertEqual(done.stdout, "unreadable files: 1, unreadable folders: 1\n", done.stderr)

    def test_names_of_any_bytes_are_read(self):
        source = self.write(a=b"a", b=b"b")
        Path(os.fsdecode(os.fsencode(source) + b"/\xff\n.txt")).write_bytes(b"c")
        place = subject.prepare(corpora.text_of(source), subject.byte_tokenizer(), self.data)
        dataset = json.loads((place / "dataset.json").read_text())
        documents = {name for split in corpora.SPLITS for name in dataset["splits"][split]["documents"]}
        self.assertEqual(documents, {"a.txt", "b.txt", "\\xff\\n.txt"})


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
    def prepare(self, source: Path) -> Path:
        with contextlib.redirect_stderr(io.StringIO()):
            return subject.prepare(corpora.text_of(source), subject.byte_tokenizer(), self.data)

    def content(self, place: Path) -> str:
        return json.loads((place / "dataset.json").read_text())["content_sha256"]

    def test_hold_every_document_behind_a_begin_token(self):
        texts = {"a": b"first\n", "sub__b": bytes(range(256)), "c": "früh".encode()}
        place = self.prepare(self.write(**texts))
        dataset = json.loads((place / "dataset.json").read_text())
        for split in corpora.SPLITS:
            (name,) = dataset["splits"][split]["documents"]
            text = texts[name.removesuffix(".txt").replace("/", "__")]
            self.assertEqual(tokens_of(place, split), [256, *text])
        self.assertEqual(pieces_of(place)[:256], [bytes([b]) for b in range(256)])
        self.assertEqual(dataset["not_utf8"], 1)

    def test_are_not_written_again_where_nothing_changed(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        place = self.prepare(source)
        written = (place / "dataset.json").stat().st_ino
        self.assertEqual(self.prepare(source), place)
        self.assertEqual((place / "dataset.json").stat().st_ino, written)

    def test_read_their_text_once_until_it_is_touched(self):
        source = self.write(a=b"a", b=b"b", c=b"c")

        def reads() -> int:
            corpus, count = corpora.text_of(source), []
            for document in corpus.documents:
                document.read = lambda read=document.read: (count.append(1), read())[1]
            self.assertEqual(subject.prepare(corpus, subject.byte_tokenizer(), self.data).name, "source-bytes")
            return len(count)

        self.assertEqual([reads(), reads()], [3, 0])
        os.utime(source / "a.txt")
        self.assertEqual([reads(), reads()], [3, 0])

    def test_that_are_damaged_are_written_again(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        place = self.prepare(source)
        first = self.content(place)
        for damage in (b"broken", None):
            (place / "train_000.bin").write_bytes(damage) if damage else (place / "train_000.bin").unlink()
            self.assertEqual(self.prepare(source), place)
            self.assertTrue(subject.finished(place))
            self.assertEqual(self.content(place), first)
        self.assertEqual([p.name for p in self.data.iterdir()], [place.name])

    def test_of_a_text_that_grew_lie_beside_the_old_one(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        old = self.prepare(source)
        content = self.content(old)
        self.write(d=b"another text")
        new = self.prepare(source)
        self.assertRegex(new.name, "^source-bytes-[0-9a-f]{12}$")
        self.assertEqual(self.content(old), content)
        self.assertNotEqual(self.content(new), content)
        self.assertEqual(self.prepare(source), new)
        (source / "d.txt").unlink()
        self.assertEqual(self.prepare(source), old)

    def test_of_two_corpora_of_one_name_are_two(self):
        first = self.prepare(self.write(a=b"a", b=b"b", c=b"c"))
        other = self.folder / "elsewhere" / "source"
        other.mkdir(parents=True)
        for name in "xyz":
            (other / f"{name}.txt").write_text(name)
        content = self.content(first)
        self.assertNotEqual(self.prepare(other), first)
        self.assertEqual(self.content(first), content)

    def test_never_replace_a_folder_that_is_no_dataset(self):
        mine = self.data / "source-bytes"
        mine.mkdir(parents=True)
        (mine / "precious").write_text("text")
        self.assertNotEqual(self.prepare(self.write(a=b"a", b=b"b", c=b"c")), mine)
        self.assertEqual((mine / "precious").read_text(), "text")

    def test_leave_nothing_behind_where_a_document_can_not_be_read(self):
        corpus = corpora.text_of(self.write(a=b"a", b=b"b", c=b"c"))
        tokenizer = subject.byte_tokenizer()
        tokenizer.encode = lambda text, name: 1 // 0
        with self.assertRaises(ZeroDivisionError):
            subject.prepare(corpus, tokenizer, self.data)
        self.assertEqual(list(self.data.iterdir()), [])

    def test_have_the_same_hash_on_every_machine(self):
        first = self.content(self.prepare(self.write(a=b"a", b=b"b", c=b"c")))
        self.data = self.folder / "elsewhere"
        self.assertEqual(self.content(self.prepare(self.folder / "source")), first)

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


class Command(InAFolder):
    def run_tool(self, *arguments: str, text: str = "", python: tuple = (sys.executable,)) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if k != "LETHE_GPT2_FILES"}
        return subprocess.run([*python, TOOLS / "tokenize_corpus.py", *arguments], input=text, text=True,
                              capture_output=True, env=environment)  # fmt: skip

    def prepare(self, corpus: Path, *arguments: str) -> subprocess.CompletedProcess:
        return self.run_tool("prepare", "--corpus", str(corpus), "--data", str(self.data), *arguments)

    def test_prints_the_place_and_says_what_is_left_out(self):
        source = self.write(a=b"a", b=b"b", c=b"\xff")
        (source / "notes.md").write_text("notes")
        for _ in range(2):
            done = self.prepare(source)
            self.assertEqual((done.returncode, done.stdout), (0, f"{self.data}/source-bytes\n"))
            self.assertEqual(done.stderr.splitlines(), [
                "tokenize_corpus: left out of source: files with other suffixes (.md): 1",
                "tokenize_corpus: source: documents that are not UTF-8, kept as bytes: 1"])  # fmt: skip

    def test_never_takes_the_name_of_a_named_corpus(self):
        (text := self.folder / "bible.txt").write_text("In the beginning " * 99)
        self.assertRegex(self.prepare(text).stdout, "/bible-bytes-[0-9a-f]{12}\n$")

    def test_says_in_one_line_what_is_wrong(self):
        source = self.write(a=b"a", b=b"b", c=b"c")
        (self.folder / "file").touch()
        (self.folder / "huge.txt").write_bytes(b"x" * 1000)
        for status, arguments, message in (
            (2, ("prepare", "--corpus", "nowhere", "--data", str(self.data)), "corpus: expected 'bible', 'headers'"),
            (2, ("prepare", "--corpus", "/dev/zero", "--data", str(self.data)), "corpus: expected 'bible', 'headers'"),
            (2, ("prepare", "--corpus", str(source), "--data", str(self.data), "--tokenizer", "gpt2"), "--gpt2-files"),
            (1, ("prepare", "--corpus", str(source), "--data", str(self.folder / "file")), "file"),
            (2, ("encode", "--vocabulary", str(self.folder / "file")), "found a damaged one"),
            (1, ("encode", "--vocabulary", "nowhere"), "nowhere"),
        ):
            with self.subTest(arguments):
                done = self.run_tool(*arguments)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
                self.assertIn(message, done.stderr)

    def test_an_error_of_any_kind_is_one_line(self):
        for error in ("ValueError('one\\ntwo')", "MemoryError()", "KeyError('x')"):
            code = f"import sys, runpy; sys.path.insert(0, {str(TOOLS)!r}); import corpora\n" \
                   f"def fail(_): raise {error}\ncorpora.named_corpus = fail\n" \
                   f"sys.argv = ['x', 'prepare', '--corpus', 'y', '--data', 'z']\n" \
                   f"runpy.run_path({str(TOOLS / 'tokenize_corpus.py')!r}, run_name='__main__')"  # fmt: skip
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_without_numpy_is_one_line(self):
        done = self.run_tool("encode", python=(sys.executable, "-S", "-E"))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("expected numpy", done.stderr)


if __name__ == "__main__":
    unittest.main()
