"""tools/reproduce from text to report, in a checkout of its own: git shows no change, and what is measured next has a clean certificate.

usage: test_reproduce.py LETHE [unittest arguments]

The programs git, setup and python are the real ones; cmake stands for a second build, and puts LETHE in its place. LETHE_REPRODUCE names the claims
(default: one that trains and one that does not; all: every claim).
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
CLAIMS = os.environ.get("LETHE_REPRODUCE", "duality boundaries").split()
CMAKE = """#!/bin/sh
case "$1" in
  --version) echo "cmake version 3.31.0" ;;
  --build) mkdir -p build/cpu/bin && ln -sf "$LETHE_BINARY" build/cpu/bin/lethe ;;
esac
"""


class Reproduce(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.checkout, programs = Path(temporary.name, "checkout"), Path(temporary.name, "programs")
        tracked = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True,
                                 check=True)
        for name in filter(None, tracked.stdout.decode().split("\0")):
            if (SOURCE / name).is_file():
                (cls.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                (cls.checkout / name).write_bytes((SOURCE / name).read_bytes())
                (cls.checkout / name).chmod((SOURCE / name).stat().st_mode)
        cls.git("init", "-q")
        cls.git("add", "-A")
        cls.git("-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "-m", "first")
        programs.mkdir()
        for name, text in (("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'), ("cmake", CMAKE), ("ninja", "#!/bin/sh\n")):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        cls.environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "LETHE_BINARY": str(LETHE), "PYTHONDONTWRITEBYTECODE": "1"}
        cls.run_of_all = cls.call("tools/reproduce", "--scale", "smoke", *([] if CLAIMS == ["all"] else CLAIMS))

    @classmethod
    def git(cls, *arguments):
        return subprocess.run(["git", "-C", cls.checkout, *arguments], capture_output=True, text=True, check=True).stdout

    @classmethod
    def call(cls, *arguments):
        return subprocess.run([cls.checkout / arguments[0], *arguments[1:]], capture_output=True, text=True, cwd=cls.checkout, env=cls.environment)

    def certificates(self):
        return {path.stem: json.loads(path.read_text()) for path in self.checkout.glob("artefacts/results/*/*.json")}

    def test_leaves_no_change_in_git_and_a_clean_certificate(self):
        self.assertEqual(self.run_of_all.returncode, 0, self.run_of_all.stderr)
        self.assertRegex(self.run_of_all.stdout, r"report: .*/artefacts/results/.*/report\.html")
        self.assertEqual(self.git("status", "--porcelain"), "")
        measured = self.certificates()
        self.assertGreaterEqual(len(measured), len(CLAIMS))
        again = self.call("build/cpu/bin/lethe", "run", "--scale", "smoke", "state_capacity")
        self.assertEqual(again.returncode, 0, again.stderr)
        commit = self.git("rev-parse", "HEAD").strip()
        for name, certificate in {**measured, **self.certificates()}.items():
            with self.subTest(name):
                self.assertEqual((certificate["commit"], certificate["dirty"]), (commit, False))
        self.assertIn("state_capacity", self.certificates())
        self.assertEqual(self.git("status", "--porcelain"), "")

    def test_a_wrong_call_is_one_line_before_any_work(self):
        for arguments in (("--scale", "tiny"), ("--scale",), ("--frobnicate",), ("no_such_claim",)):
            result = self.call("tools/reproduce", *arguments)
            self.assertEqual((result.returncode, result.stderr.count("\n"), result.stdout), (2, 1, ""), result.stderr)
            self.assertIn("expected", result.stderr)


if __name__ == "__main__":
    LETHE = Path(sys.argv.pop(1)).resolve()
    unittest.main()
