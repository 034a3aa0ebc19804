"""JSON with the SHA-256 of its other members, as experiments/json_file.cpp writes it: sorted, with an indentation of one space."""

import hashlib
import json
import re
from pathlib import Path

# A line, or the last one with the comma before it.
SEAL = re.compile(rb'(?:(?<=\n) "sha256": "([0-9a-f]{64})",\n|,\n "sha256": "([0-9a-f]{64})"(?=\n}))')


def text_of(members: dict) -> str:
    return json.dumps(members, indent=1, sort_keys=True, ensure_ascii=False)


def sealed(members: dict) -> str:
    """The text of a file with these members and their hash."""
    return text_of(members | {"sha256": hashlib.sha256(text_of(members).encode()).hexdigest()}) + "\n"


def has_seal(path: Path) -> bool:
    """Whether a file is, to the last byte, one that was written with its hash."""
    content = Path(path).read_bytes()
    seals = list(SEAL.finditer(content))
    if len(seals) != 1 or not content.endswith(b"}\n"):
        return False
    rest = (content[:seals[0].start()] + content[seals[0].end():]).removesuffix(b"\n")
    return hashlib.sha256(rest).hexdigest().encode() == (seals[0][1] or seals[0][2])
