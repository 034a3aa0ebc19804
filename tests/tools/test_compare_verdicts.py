"""Verdicts of several machines beside one another: which differ, which ran once, and what is refused. No GPU."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare_verdicts  # noqa: E402
from report.verdicts import verdicts_section  # noqa: E402
from sealed_json import sealed  # noqa: E402


def certificate(claim, verdicts, instruction_set, scale="quick", settings=None):
    return {"claim": claim, "scale": scale, "settings": settings or {}, "commit": "a" * 40, "time": "2026-11-28T10:00:00Z",
            "machine": {"processor": "P", "cores": 2, "instruction_set": instruction_set},
            "comparisons": [{"statement": statement, "verdict": verdict} for statement, verdict in verdicts.items()]}


class Verdicts(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.write("first", certificate("a", {"x": "reproduced", "y": "refuted", "z": "reproduced"}, "AVX512"))
        self.write("first", certificate("of_a_file", {"x": "refuted"}, "AVX512", settings={"data": "f.json"}))
        self.write("first", certificate("larger", {"x": "refuted"}, "AVX512", scale="gpu"))
        self.write("second", certificate("a", {"x": "reproduced", "y": "reproduced"}, "DEFAULT"))

    def write(self, folder, members):
        (self.root / folder).mkdir(exist_ok=True)
        (self.root / folder / f"{members['claim']}.json").write_text(sealed(members))

    def run_tool(self, *arguments):
        with mock.patch.object(sys, "argv", ["compare_verdicts.py", *arguments]), contextlib.redirect_stdout(io.StringIO()) as said, \
                contextlib.redirect_stderr(io.StringIO()) as error:
            try:
                compare_verdicts.main()
            except SystemExit as end:
                return end.code, error.getvalue()
        return 0, said.getvalue()

    def test_that_differ_have_a_row(self):
        status, said = self.run_tool(f"wide={self.root / 'first'}", f"narrow={self.root / 'second'}", "--output", str(self.root / "verdicts.json"))
        self.assertEqual(status, 0, said)
        self.assertIn("Of 2 statements at scale quick, in the settings of these commits, that ran more than once, 1 have one verdict wherever they ran. The others:", said)
        self.assertIn("| a | y | refuted | reproduced |", said)
        self.assertNotIn("| a | x |", said)
        self.assertIn("| narrow | P | DEFAULT | 2 |", said)
        members = json.loads((self.root / "verdicts.json").read_text())
        self.assertEqual([row["verdicts"] for row in members["statements"]], [["reproduced"] * 2, ["refuted", "reproduced"], ["reproduced", None]])
        self.assertEqual(verdicts_section(self.root), "\n## Verdicts on several machines\n\n" + said)

    def test_of_an_earlier_file_stay(self):
        file = self.root / "verdicts.json"
        both = self.run_tool(f"wide={self.root / 'first'}", f"narrow={self.root / 'second'}", "--output", str(file))
        whole = json.loads(file.read_text())
        self.write("third", certificate("a", {"y": "refuted", "w": "reproduced"}, "AVX2"))
        status, said = self.run_tool(f"busy={self.root / 'third'}", "--beside", str(file), "--output", str(file))
        self.assertEqual((both[0], status), (0, 0), said)
        members = json.loads(file.read_text())
        self.assertEqual(members["runs"][:2], whole["runs"])
        self.assertEqual([row["verdicts"] for row in members["statements"]],
                         [["reproduced", "reproduced", None], ["refuted", "reproduced", "refuted"], ["reproduced", None, None],
                          [None, None, "reproduced"]])
        status, said = self.run_tool(f"busy={self.root / 'third'}", "--beside", str(file), "--output", str(file))
        self.assertEqual(status, 2)
        self.assertIn("expected two or more with names of their own", said)

    def test_of_no_checkout_are_of_the_program(self):
        for members, commit in (({"commit": "unknown", "built": "b"}, "b"), ({"commit": "unknown"}, "unknown"), ({"commit": "a", "built": "b"}, "a")):
            self.assertEqual(compare_verdicts.commit_of(members), commit)

    def test_that_are_alike_have_none(self):
        self.write("second", certificate("a", {"x": "reproduced", "y": "refuted"}, "DEFAULT"))
        _, said = self.run_tool(f"wide={self.root / 'first'}", f"narrow={self.root / 'second'}", "--output", str(self.root / "verdicts.json"))
        self.assertTrue(said.endswith("2 have one verdict wherever they ran.\n"), said)

    def test_need_two_folders_with_claims(self):
        (self.root / "empty").mkdir()
        for arguments, words in (([f"a={self.root / 'first'}"], "expected two or more"), (["first", "second"], "expected NAME=FOLDER, found first"),
                                 ([f"a={self.root / 'absent'}", f"b={self.root / 'first'}"], "expected a folder")):
            status, said = self.run_tool(*arguments, "--output", str(self.root / "verdicts.json"))
            self.assertEqual(status, 2)
            self.assertIn(words, said)
        with self.assertRaisesRegex(compare_verdicts.BadResult, "empty: expected claims of scale quick, found none"):
            compare_verdicts.compared({"a": self.root / "empty", "b": self.root / "first"}, "quick")


if __name__ == "__main__":
    unittest.main()
