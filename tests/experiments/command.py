"""The lethe command for the tests that call it: its file is their first argument."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]

TINY = ("--layers 1 --width 16 --heads 2 --context 32 --batch-tokens 128 --warmup-tokens 128 --tokens 512 "
        "--set mlp_multiple=16 --set checkpoint_tokens=256").split()  # fmt: skip


def lethe(*arguments: str, cwd: Path | None = None, input: str | None = None) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "LETHE_GPT2_FILES"}
    # Runs in a separate folder: with --root, no result may depend on the working directory.
    with tempfile.TemporaryDirectory() as elsewhere:
        threads = () if "--threads" in arguments else ("--threads", "1")
        return subprocess.run([BINARY, *threads, *arguments], capture_output=True, text=True, input=input, cwd=cwd or elsewhere,
                              env=environment, timeout=300)  # fmt: skip


class CommandTest(unittest.TestCase):
    def done(self, *arguments: str, cwd: Path | None = None) -> str:
        result = lethe(*arguments, cwd=cwd)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, status: int, message: str, *arguments: str) -> None:
        result = lethe(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(message, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(result.stdout, "")
