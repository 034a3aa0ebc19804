"""A folder with a source of texts and a place for datasets, for the tests of the tokenizer; finds the modules of tools/."""

import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))


class InAFolder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.data = self.folder / "data"

    def write(self, **texts: bytes) -> Path:
        source = self.folder / "source"
        for name, text in texts.items():
            file = source / (name.replace("__", "/") + ".txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        return source
