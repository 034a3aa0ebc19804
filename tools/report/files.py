"""Files that are whole or absent."""

import argparse
import json
import os
from pathlib import Path

from sealed_json import has_seal


class BadResult(Exception):
    """A file of results or of a training that isn't what it should be; says which and why."""


def folder(text):
    """The type of an option that names an existing folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, found {text}")
    return Path(text)


def reason(error):
    """The words of an error without the names that Python gives to errors and their numbers."""
    return error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())


def write_whole(path, content):
    """Writes text or bytes beside the place and renames, and only what changed. A link stays; what is no regular file, as /dev/stdout, is
    written into.

    throws  BadResult naming the place where it can't be written
    """
    given, content = path, content.encode() if isinstance(content, str) else content
    try:
        path = Path(path).resolve() if Path(path).is_symlink() and not Path(path).is_char_device() else Path(path)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            draft = path.with_name(f"{path.name}.{os.getpid()}.new")
            try:
                draft.write_bytes(content)
                draft.replace(path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise BadResult(f"{given}: expected a place to write, found {reason(error)}") from None
    except RuntimeError:  # of Path.resolve
        raise BadResult(f"{given}: expected a place to write, found links in a loop") from None


def read_sealed(path, members=()):
    """read_json of a file with the hash of its content (tools/sealed_json.py).

    throws  BadResult naming the file, also where the hash is absent or another
    """
    content = read_json(path, members)
    if not has_seal(path):
        raise BadResult(f"{path}: expected content with its SHA-256, found none or another")
    return content


def read_json(path, members=()):
    """The object in a file, with these members.

    throws  BadResult naming the file where it is no JSON object, or a member is absent
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadResult(f"{path}: expected JSON, found {error}") from None
    except OSError as error:
        raise BadResult(f"{path}: expected a file, found {error.strerror}") from None
    if not isinstance(content, dict):
        raise BadResult(f"{path}: expected a JSON object, found {type(content).__name__}")
    for name in members:
        if name not in content:
            raise BadResult(f"{path}: expected {name}, found none")
    return content
