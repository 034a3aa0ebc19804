#!/usr/bin/env python3
"""Rebuilds the corpus of Linux's sources from one Debian package, and checks it.

usage: tools/fetch_linux.py FOLDER [--deb FILE] [--index experiments/data/linux.toml]

The index names the package, its version and SHA-256, the folders and suffixes that are kept, the folders of validation and test, and the hash of the
whole text. The package comes through apt, or is FILE; unpacking needs dpkg-deb. FOLDER gets each file's bytes as PATH.txt, and INDEX.csv with splits
and hashes, which `lethe data` holds a text to. A folder that holds the corpus is not written again; one that holds something else is refused.
Debian's archive keeps the newest versions alone: snapshot.debian.org has the others.

  tools/fetch_linux.py linux && build/cpu/bin/lethe data prepare linux --tokenizer gpt2 --gpt2-files gpt2
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import contextlib
import csv
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path, PurePosixPath

from corpora import Corpus, Document, sha256_of, write_index
from report.files import BadResult
from tokenize_corpus import source_hash

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = {"package": str, "version": str, "sha256": str, "suffixes": list, "folders": list, "without": list, "valid": list, "test": list,
           "corpus": dict}


def read_index(path):
    """The members of the index.

    throws  BadResult naming one that is absent or of another kind
    """
    try:
        index = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadResult(f"{path}: expected TOML, found {error}") from None
    for name, kind in MEMBERS.items():
        if not isinstance(index.get(name), kind):
            raise BadResult(f"{path}: {name}: expected a {kind.__name__}, found {index.get(name, 'none')}")
    return index


def is_below(name, folders):
    return any(PurePosixPath(name).is_relative_to(folder) for folder in folders)


def split_of(name, index):
    """The split of a path of the sources; None where it is left out."""
    kept = name.endswith(tuple(index["suffixes"])) and is_below(name, index["folders"]) and not is_below(name, index["without"])
    return next((split for split in ("valid", "test") if is_below(name, index[split])), "train") if kept else None


def fetched(index, folder):
    """The package's file, through apt into `folder`."""
    package, version = index["package"], index["version"]
    elsewhere = f"https://snapshot.debian.org/package/linux/{version}/ has its .deb, for --deb"
    if not shutil.which("apt-get"):
        raise BadResult(f"apt: expected the program apt-get, found none; {elsewhere}")
    call = ["apt-get", "-o", "APT::Sandbox::User=root", "download", f"{package}={version}"]  # root's folder is closed to the user _apt
    run = subprocess.run(call, cwd=folder, capture_output=True, text=True)
    files = sorted(folder.glob("*.deb"))
    if run.returncode or len(files) != 1:
        lines = [line.removeprefix("E: ") for line in run.stderr.splitlines() if line.startswith("E: ")] or ["no file"]
        raise BadResult(f"apt: expected {package} {version}, found: {lines[0]}; where apt-get update does not help, the version has left "
                        f"Debian's archive, and {elsewhere}")
    return files[0]


@contextlib.contextmanager
def members_of(deb, package):
    """(path below the sources' folder, open file) of each regular file, in order."""
    unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    with unpacked, tarfile.open(fileobj=unpacked.stdout, mode="r|") as outer:
        wanted = f"usr/src/{package}.tar.xz"
        inner = next((outer.extractfile(member) for member in outer if member.name.removeprefix("./") == wanted), None)
        if inner is None:
            raise BadResult(f"{deb}: expected {wanted}, found none")
        try:
            with tarfile.open(fileobj=inner, mode="r|xz") as sources:
                yield ((member.name.partition("/")[2], sources.extractfile(member)) for member in sources if member.isreg())
        finally:
            unpacked.kill()  # before its pipe closes, which it would report


def unpack(deb, index, folder):
    """Writes the chosen files and INDEX.csv, and returns the members of [corpus] as found."""
    rows, size = [], 0
    with members_of(deb, index["package"]) as members:
        for name, file in members:
            split = split_of(name, index)
            if split and ".." not in PurePosixPath(name).parts and (text := file.read()):
                place = folder / f"{name}.txt"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(text)
                rows.append((f"{name}.txt", split, hashlib.sha256(text).hexdigest()))
                size += len(text)
    write_index(folder, sorted(rows))
    return summary(rows, size)


def summary(rows, size):
    documents = [Document(name, 0, bytes, split) for name, split, _ in sorted(rows)]
    return {"files": len(rows), "bytes": size, "text": source_hash(Corpus("linux", documents), {name: digest for name, _, digest in rows})}


def found_in(folder):
    """The members of [corpus] as found in a folder that was fetched before; None where INDEX.csv is absent or of other texts."""
    if not (folder / "INDEX.csv").is_file():
        return None
    with open(folder / "INDEX.csv", newline="", encoding="utf-8") as file:
        rows = [(row.get("file"), row.get("split"), row.get("sha256")) for row in csv.DictReader(file)]
    if {name for name, _, _ in rows} != {path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")}:
        return None
    if any(sha256_of(folder / name) != digest for name, _, digest in rows):
        return None
    return summary(rows, sum((folder / name).stat().st_size for name, _, _ in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--deb", type=Path, help="the package, where apt has another version")
    parser.add_argument("--index", type=Path, default=ROOT / "experiments/data/linux.toml")
    options = parser.parse_args()
    index, folder = read_index(options.index), options.folder.resolve()
    words = f"{index['corpus']['files']} files of {index['package']} {index['version']} in {options.folder}"
    if folder.exists():
        if found_in(folder) != index["corpus"]:
            raise BadResult(f"{options.folder}: expected no folder, or the corpus as it was fetched, found something else")
        print(words)
        return
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent) as download:
            deb = options.deb or fetched(index, Path(download))
            if (digest := sha256_of(deb)) != index["sha256"]:
                raise BadResult(f"{deb.name}: expected SHA-256 {index['sha256']}, found {digest}")
            found = unpack(deb, index, draft)
        if found != index["corpus"]:
            raise BadResult(f"{options.index.name}: corpus: expected {index['corpus']}, found {found}")
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(words)


if __name__ == "__main__":
    main()
