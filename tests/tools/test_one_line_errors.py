"""No Python tool shows a traceback: whatever ends it is one line, with the exit status of a failure."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def programs():
    """The Python programs of tools/: those that run as a script."""
    for path in sorted(TOOLS.iterdir()):
        if path.is_file() and (text := path.read_text(errors="replace")).startswith("#!/usr/bin/env python3"):
            yield path, text


class OneLineErrors(unittest.TestCase):
    def run_program(self, text, *arguments, **variables):
        """A tool with this text, in a folder with the module."""
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder) / "tool.py"
            tool.write_text("import one_line_errors\n" + text)
            (pathlib.Path(folder) / "one_line_errors.py").write_text((TOOLS / "one_line_errors.py").read_text())
            return subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True, env=os.environ | variables)

    def test_every_tool_imports_the_module_first(self):
        found = list(programs())
        self.assertGreaterEqual(len(found), 8)
        for path, text in found:
            imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
            self.assertTrue(imports[0].startswith("import one_line_errors"), path.name)

    def test_an_error_of_any_kind_is_one_line(self):
        for text, expected in (
            ("open('/nowhere/x')", "tool: /nowhere/x: No such file or directory"),
            ("import no_such_module", "tool: environment: expected the Python module no_such_module, found none; run tools/setup"),
            ("b'\\xff'.decode()", "tool: text: expected UTF-8, found byte 0xff at 0"),
            ("{}['key']", "tool: KeyError: 'key' ("),
            ("raise ValueError('two\\nlines')", "tool: ValueError: two lines ("),
            ("raise MemoryError", "tool: memory: expected enough"),
            ("def f(): f()\nf()", "tool: RecursionError: "),
        ):
            with self.subTest(text):
                result = self.run_program(text)
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assertTrue(result.stderr.startswith(expected), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)

    def test_an_interrupt_is_told_and_a_closed_pipe_is_silent(self):
        self.assertEqual(self.run_program("raise KeyboardInterrupt").returncode, 130)
        closed = self.run_program("raise BrokenPipeError")
        self.assertEqual((closed.returncode, closed.stderr), (141, ""))

    def test_lethe_traceback_shows_the_traceback(self):
        self.assertIn("Traceback", self.run_program("{}['key']", LETHE_TRACEBACK="1").stderr)

    def test_tools_refuse_a_folder_that_is_not_there(self):
        for name in ("report.py", "plot.py", "check_results.py", "quote_sources.py"):
            result = subprocess.run([sys.executable, TOOLS / name, "--root", "/nowhere"], capture_output=True, text=True)
            self.assertEqual(result.returncode, 2, name)
            self.assertIn("--root: expected a folder, found /nowhere", result.stderr)
        self.assertEqual(subprocess.run([sys.executable, TOOLS / "check_includes.py", "/nowhere"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
