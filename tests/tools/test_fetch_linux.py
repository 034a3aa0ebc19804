"""The sources out of a tiny package of Debian's kind: the chosen files with their splits, or refused with nothing written."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path

from shell_programs import ShellPrograms

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))

from corpora import SPLITS, text_of  # noqa: E402
from fetch_linux import is_below, read_index, split_of  # noqa: E402
from tokenize_corpus import read_hash  # noqa: E402

FILES = {"kernel/fork.c": b"int fork;\n", "kernel/time/time.c": b"int time;\n", "fs/file.h": b"int file;\n", "fs/xfs/xfs.c": b"int xfs;\n",
         "fs/nls/table.c": b"int table;\n", "fs/Makefile": b"all:\n", "tools/perf.c": b"int perf;\n", "kernel/empty.c": b""}
INDEX = """package = "linux-source-0"
version = "0.1-1"
sha256 = "{deb}"
suffixes = [".c", ".h"]
folders = ["kernel", "fs"]
without = ["fs/nls"]
valid = ["kernel/time"]
test = ["fs/xfs"]
[corpus]
files = 4
bytes = 39
text = "{text}"
"""
EXPECTED = {"kernel/fork.c.txt": "train", "kernel/time/time.c.txt": "valid", "fs/file.h.txt": "train", "fs/xfs/xfs.c.txt": "test"}
TEXT = hashlib.sha256("".join(f"{split} {name} {hashlib.sha256(FILES[name.removesuffix('.txt')]).hexdigest()}\n"
                              for name, split in sorted(EXPECTED.items())).encode()).hexdigest()


@unittest.skipUnless(shutil.which("dpkg-deb"), "no dpkg-deb")
class Sources(ShellPrograms):
    def setUp(self):
        super().setUp()
        package = self.folder / "package"
        (package / "DEBIAN").mkdir(parents=True)
        (package / "DEBIAN/control").write_text("Package: linux-source-0\nVersion: 0.1-1\nArchitecture: all\nMaintainer: none <none@example.org>\n"
                                                "Description: sources\n")
        (package / "usr/src").mkdir(parents=True)
        with tarfile.open(package / "usr/src/linux-source-0.tar.xz", "w:xz") as sources:
            for name, text in FILES.items():
                entry = tarfile.TarInfo(f"linux-source-0/{name}")
                entry.size = len(text)
                sources.addfile(entry, io.BytesIO(text))
        self.deb = self.folder / "linux-source-0_0.1-1_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", package, self.deb], check=True, capture_output=True)
        self.out = self.folder / "linux"
        self.write_index()

    def write_index(self, **other):
        values = {"deb": hashlib.sha256(self.deb.read_bytes()).hexdigest(), "text": TEXT} | other
        (self.folder / "index.toml").write_text(INDEX.format(**values))

    def fetch(self, *more):
        call = [sys.executable, SOURCE / "tools/fetch_linux.py", self.out, "--index", self.folder / "index.toml", *more]
        return subprocess.run(call, capture_output=True, text=True, env=os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"})

    def refused(self, message, *more):
        found = self.fetch(*more)
        self.assertEqual((found.returncode, found.stderr.count("\n")), (1, 1), found.stderr)
        self.assertRegex(found.stderr, message)

    def test_chosen_files_are_written_with_their_splits(self):
        found = self.fetch("--deb", self.deb)
        self.assertEqual((found.returncode, found.stdout), (0, f"4 files of linux-source-0 0.1-1 in {self.out}\n"), found.stderr)
        self.assertEqual({path.relative_to(self.out).as_posix() for path in self.out.rglob("*.txt")}, set(EXPECTED))
        self.assertEqual((self.out / "fs/xfs/xfs.c.txt").read_bytes(), FILES["fs/xfs/xfs.c"])
        corpus = text_of(self.out)
        self.assertEqual({document.name: document.split for document in corpus.documents}, EXPECTED)
        self.assertEqual(read_hash(corpus), TEXT)

    def test_a_corpus_that_is_there_is_checked_and_not_fetched(self):
        self.fetch("--deb", self.deb)
        self.assertEqual(self.fetch("--deb", "/nowhere").returncode, 0)
        (self.out / "fs/file.h.txt").write_text("another")
        self.refused("expected no folder, or the corpus as it was fetched, found something else", "--deb", self.deb)
        self.assertEqual((self.out / "fs/file.h.txt").read_text(), "another")

    def test_another_package_or_text_is_refused_and_nothing_left(self):
        before = None
        for wrong, message in (({"deb": "0" * 64}, f"0.1-1_all.deb: expected SHA-256 {'0' * 64}, found "),
                               ({"text": "1" * 64}, f"index.toml: corpus: expected .*{'1' * 64}.*, found .*{TEXT}")):
            self.write_index(**wrong)
            before = before or sorted(self.folder.iterdir())
            self.refused(message, "--deb", self.deb)
            self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_apt_gives_the_package_of_this_version(self):
        self.script("apt-get", f'test "$4" = linux-source-0=0.1-1 && cp {self.deb} .')
        self.assertEqual(self.fetch().returncode, 0)
        self.assertTrue((self.out / "INDEX.csv").is_file())

    def test_a_version_that_left_the_archive_is_sought_elsewhere(self):
        self.script("apt-get", "echo \"E: Version '0.1-1' for 'linux-source-0' was not found\" >&2; exit 100")
        self.refused("expected linux-source-0 0.1-1, found: Version '0.1-1' .* not found; .*https://snapshot.debian.org/package/linux/0.1-1/ .*--deb")
        self.assertFalse(self.out.exists())


class Index(unittest.TestCase):
    def test_of_the_project_splits_by_folders_that_it_keeps(self):
        index = read_index(SOURCE / "experiments/data/linux.toml")
        self.assertEqual((len(index["sha256"]), len(index["corpus"]["text"])), (64, 64))
        for split in ("valid", "test"):
            for folder in index[split]:
                self.assertEqual(split_of(f"{folder}/a.c", index), split)
        self.assertEqual(split_of("kernel/fork.c", index), SPLITS[0])
        for name in ("kernel/Makefile", "tools/perf/perf.c", "drivers/gpu/drm/amd/include/a.h", "kernels/a.c"):
            self.assertIsNone(split_of(name, index), name)
        self.assertFalse(set(index["valid"]) & set(index["test"]))
        self.assertFalse(any(is_below(folder, index["test"]) for folder in index["valid"]))


if __name__ == "__main__":
    unittest.main()
