"""What tools/gpu_check says of its steps. No GPU: programs of a shell stand for what it runs."""

import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest

from shell_programs import ShellPrograms

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("test_ptx", "test_cuda_forward", "test_cuda_backward", "test_cuda_forward_racecheck", "test_cuda_backward_racecheck",
            "benchmark_cuda_kernels", "liblethe_torch.so", "lethe_kernels.so", "lethe_kernels_without_gate.so")


def eventually(holds):
    end = time.monotonic() + 10
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("expected it within ten seconds")
        time.sleep(0.02)


class Steps(ShellPrograms):
    def setUp(self):
        super().setUp()
        for name in PROGRAMS:
            self.script(f"build/{name}", f"echo {name} ran")
        self.script("bin/nvidia-smi", "echo 'NVIDIA G1'")
        self.script("bin/python3", 'case "$1" in -c) echo nowhere ;; *) echo "python ran $(basename "$1")" ;; esac')
        self.script("bin/compute-sanitizer", 'echo "checked $2, part $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"')

    def environment(self):
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OUT": f"{self.folder}/out", "LETHE_COMMIT": "abc"}

    def check(self, *arguments):
        """Exit status, lines of the summary, standard error."""
        run = subprocess.run([ROOT / "tools/gpu_check", *arguments, self.folder / "build"], capture_output=True, text=True, env=self.environment())
        return run.returncode, run.stdout.splitlines(), run.stderr

    def log(self, name):
        return (self.folder / "out" / name).read_text()

    def files(self):
        return sorted(path.name for path in (self.folder / "out").iterdir())

    def test_all_steps_that_pass_are_in_the_summary_and_their_output_in_the_logs(self):
        status, summary, _ = self.check()
        self.assertEqual(status, 0)
        self.assertEqual(len(summary), 5 + (4 * 3 + 3) + 3)
        for line in summary:
            self.assertRegex(line, r"^.+ passed +\d+ s$")
            self.assertIn(line, self.log("check.log"))
        self.assertEqual(self.files(), ["benchmark.log", "check.log", "sanitizer.log"])
        places = [self.log("check.log").index(what) for what in ("abc", "test_ptx ran", "test_cuda_forward ran", "test_cuda_backward ran")]
        self.assertEqual(places, sorted(places))
        self.assertEqual(self.log("check.log").count("test_cuda_backward ran"), 8)  # processes
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            parts = re.findall(rf"checked {tool}, part (\d?) of (\d?)", self.log("sanitizer.log"))
            self.assertEqual(parts, [("", "")] * 3 if tool != "racecheck" else [("", "")] * 2 + [(str(part), "4") for part in range(4)])

    def test_one_that_fails_fails_the_check_and_keeps_nothing_else_from_running(self):
        for name in ("test_cuda_forward", "benchmark_cuda_kernels"):
            with self.subTest(name):
                self.script(f"build/{name}", "echo no good; exit 1")
                status, summary, complaint = self.check()
                self.assertEqual(status, 1)
                self.assertTrue(any("FAILED" in line for line in summary))
                self.assertIn("python ran compare_attention.py", self.log("benchmark.log"))
                self.assertIn("check.log", complaint)
                self.assertNotIn("check.summary", self.files())

    def test_a_step_that_somebody_ends_is_a_failure(self):
        self.script("bin/python3", 'case "$1 $2" in -c*) echo nowhere ;; *test_operators*) kill -9 $(cut -d" " -f4 /proc/$PPID/stat) ;; esac')
        status, summary, _ = self.check("--without-benchmarks")
        self.assertEqual(status, 1)
        self.assertTrue(any("FAILED  to end by itself" in line for line in summary))

    def test_what_a_sanitizer_finds_fails_the_check(self):
        self.script("bin/compute-sanitizer", "exit 1")
        self.assertEqual(self.check("--without-benchmarks")[0], 1)

    def test_the_comparison_with_all_rivals_is_a_job_of_its_own(self):
        self.script("bin/python3", 'case "$1" in -c) echo nowhere ;; *) echo "python ran $*" ;; esac')
        self.check()
        before = self.log("check.log"), self.log("benchmark.log")
        self.assertIn("--length 4096 --length 16384\n", before[1])
        status, summary, _ = self.check("--all-rivals")
        self.assertEqual((status, len(summary)), (0, 2))
        self.assertEqual((self.log("check.log"), self.log("benchmark.log")), before)
        ran = re.findall(r"python ran .* (--length .*)", self.log("all_rivals.log"))
        self.assertEqual(ran, ["--length 4096 --all --rounds 15", "--length 65536 --all --rounds 15"])

    def test_a_length_that_all_rivals_fail_at_keeps_the_other_from_nothing(self):
        self.script("bin/python3", 'case "$1 $*" in -c*) echo nowhere ;; *"--length 4096"*) exit 1 ;; *) echo "python ran $*" ;; esac')
        status, summary, _ = self.check("--all-rivals")
        self.assertEqual((status, [("FAILED" in line, "passed" in line) for line in summary]), (1, [(True, False), (False, True)]))
        self.assertIn("--length 65536", self.log("all_rivals.log"))

    def test_what_an_earlier_check_has_left_is_not_taken_for_this_ones(self):
        self.script("out/check.log.forward", "of another check")
        self.check("--without-benchmarks")
        self.assertNotIn("of another check", self.log("check.log"))

    def test_who_ends_it_ends_what_it_runs(self):
        for name in ("test_ptx", "test_cuda_backward"):  # in the foreground, in the background
            with self.subTest(name):
                # not at once: older timeouts that are ended before they know of their child leave it
                self.script(f"build/{name}", f"echo {name} has begun; sleep 0.2; echo $$ >{self.folder}/{name}.process; exec sleep 60")
                check = subprocess.Popen([ROOT / "tools/gpu_check", self.folder / "build"], stdout=subprocess.DEVNULL, env=self.environment())
                process = self.folder / f"{name}.process"
                eventually(lambda: process.exists() and process.read_text().strip())
                check.terminate()
                self.assertEqual(check.wait(10), 143)
                status = pathlib.Path(f"/proc/{process.read_text().strip()}/status")
                eventually(lambda: not status.exists() or "State:\tZ" in status.read_text())
                self.assertFalse([name for name in self.files() if name.startswith("check.") and name != "check.log"])
                self.assertIn(f"{name} has begun", self.log("check.log"))
                self.assertEqual(bool(re.search(r"^instruction wrappers +passed", self.log("check.log"), re.M)), name != "test_ptx")
                self.script(f"build/{name}", "true")

    def test_who_asks_for_what_there_is_not_hears_what_there_is(self):
        status, _, complaint = self.check("--only-long")
        self.assertEqual(status, 2)
        text = (ROOT / "tools/gpu_check").read_text()
        for option in re.findall(r"^#   (--[\w-]+)|\[(--[\w-]+) \|", text, re.M):
            self.assertIn("".join(option), complaint)

    def test_where_there_is_no_build_it_makes_one(self):
        self.script("tools/environment", "enter_environment() { lethe_python=a_python; }")
        shutil.copy(ROOT / "tools/gpu_check", self.folder / "tools")
        self.script("bin/cmake", 'echo "$*" >>calls; case "$1" in --build) mkdir build/cuda && cp build/* build/cuda/ 2>/dev/null ;; esac; true')
        for _ in range(2):  # the second finds one
            run = subprocess.run([self.folder / "tools/gpu_check", "--without-benchmarks"], capture_output=True, text=True, env=self.environment())
            self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual((self.folder / "calls").read_text().splitlines(),
                         ["--preset cuda -DLETHE_PYTHON=a_python", "--build --preset cuda --target gpu_check_programs"])
        shutil.rmtree(self.folder / "build/cuda")
        self.script("bin/cmake", "exit 1")
        run = subprocess.run([self.folder / "tools/gpu_check"], capture_output=True, text=True, env=self.environment())
        self.assertEqual(run.returncode, 1)
        self.assertIn("expected a build", run.stderr)

    def test_a_program_that_is_not_built_is_named(self):
        (self.folder / "build/test_ptx").unlink()
        status, _, complaint = self.check()
        self.assertEqual(status, 1)
        self.assertIn("expected test_ptx in", complaint)


if __name__ == "__main__":
    unittest.main()
