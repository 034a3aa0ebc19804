"""The runs and reports of tools/gpu_check. No GPU: shell programs stand for the programs it runs."""

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
            "test_cuda_cross_entropy", "test_cuda_matrix_state", "test_cuda_matrix_state_racecheck", "test_cuda_linear_cross_entropy",
            "test_cuda_products", "test_cuda_gated_attention", "lethe", "test_two_gpus", "rank", "test_packed_on_gpu", "benchmark_cuda_kernels",
            "liblethe_torch.so", "lethe_kernels.so", "lethe_kernels_without_gate.so")


def eventually(holds):
    end = time.monotonic() + 20
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("expected it within twenty seconds")
        time.sleep(0.02)


class Steps(ShellPrograms):
    def setUp(self):
        super().setUp()
        for name in PROGRAMS:
            self.script(f"build/{name}", f'echo "{name} ran, part $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"; exit $((1 - LETHE_REQUIRE_GPU))')
        self.script("build/benchmark_cuda_kernels", 'echo "benchmark ran $*"')
        self.script("bin/nvidia-smi", "echo 'NVIDIA G1'")
        self.script("bin/python3", 'case "$1" in -c) echo nowhere ;; *) echo "python ran $(basename "$1") $*" ;; esac')
        self.script("bin/compute-sanitizer", 'echo "checked $2 $7, part $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"')

    also = {}  # of the environment

    def environment(self):
        own = {name: value for name, value in os.environ.items() if name != "LETHE_RWKV_FILES"}
        return own | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OUT": f"{self.folder}/out", "LETHE_COMMIT": "abc"} | self.also

    def check(self, *arguments):
        """Exit status, lines of the summary, standard error."""
        run = subprocess.run([ROOT / "tools/gpu_check", *arguments, self.folder / "build"], capture_output=True, text=True, env=self.environment())
        return run.returncode, run.stdout.splitlines(), run.stderr

    def log(self, name):
        return (self.folder / "out" / name).read_text()

    def test_trained_models_of_others_are_run_where_their_folder_is_named(self):
        self.assertFalse([line for line in self.check()[1] if "gpu.rwkv" in line])
        self.also = {"LETHE_RWKV_FILES": "/models"}
        _, summary, _ = self.check()
        self.assertEqual(len([line for line in summary if "gpu.rwkv" in line]), 1)
        self.assertRegex(self.log("check.log"), r"test_rwkv\.py .*test_rwkv\.py .*liblethe_torch\.so --device cuda")

    def test_each_test_has_a_summary_line_and_output_in_its_labels_log(self):
        status, summary, complaint = self.check()
        self.assertEqual(status, 0, complaint)
        self.assertEqual(len(summary), (1 + 24 + 32 + 23) + (16 + 15 + 12 + 19) + 6)
        for line in summary:
            self.assertRegex(line, r"(gpu|sanitizer|benchmark)\.\S+ \.+ +Passed +\d+\.\d+ sec$")
            self.assertIn(line, self.log("check.log"))
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()), ["benchmark.log", "check.log", "sanitizer.log"])
        self.assertRegex(self.log("check.log"), r"^gpu     NVIDIA G1\ndriver  .*\ncommit  abc \(as told\)\ndate    ")
        for program, count in (("forward", 24), ("backward", 32)):
            parts = re.findall(rf"test_cuda_{program} ran, part (\d+) of {count}", self.log("check.log"))
            self.assertEqual(sorted(map(int, parts)), list(range(count)))
        checked = re.findall(r"checked (\w+) /\S*/test_(\w+), part (\d*) of (\d*)", self.log("sanitizer.log"))
        self.assertEqual(sorted(checked), sorted(
            [(tool, program, "", "") for tool in ("memcheck", "initcheck", "synccheck") for program in ("ptx", "cuda_cross_entropy")]
            + [(tool, program, str(part), str(count)) for tool in ("memcheck", "initcheck", "synccheck")
               for program, count in (("cuda_forward", 3), ("cuda_backward", 6)) for part in range(count)]
            + [(tool, "cuda_matrix_state", str(part), "4") for tool in ("memcheck", "initcheck") for part in range(4)]
            + [("racecheck", program, "", "") for program in ("ptx", "cuda_cross_entropy", "cuda_matrix_state_racecheck")]
            + [("synccheck", "cuda_matrix_state", "", "")]
            + [("racecheck", "cuda_forward_racecheck", str(part), "3") for part in range(3)]
            + [("racecheck", "cuda_backward_racecheck", str(part), "12") for part in range(12)]))
        self.assertRegex(self.log("benchmark.log"), r"benchmark ran .*--benchmark_context=commit=abc .*--benchmark_context=gpu=NVIDIA G1 ")
        self.assertRegex(self.log("benchmark.log"), r"compare_attention.py .* --commit=abc --length 4096 --length 16384 --rounds 6\n")
        self.assertNotIn(f'"{self.folder}', self.log("check.log"))  # of the commands

    def test_on_other_gpus_what_is_of_hoppers_kernels_is_left_out(self):
        self.script("bin/nvidia-smi", 'case "$1" in *compute_cap*) echo 8.0 ;; *) echo "NVIDIA A100-SXM4-80GB" ;; esac')
        status, summary, complaint = self.check()
        self.assertEqual(status, 0, complaint)
        self.assertEqual(len(summary), (1 + 24 + 32 + 23) + (15 + 14 + 11 + 18) + 4)
        names = {re.search(r"#\d+: (\S+)", line)[1] for line in summary}
        self.assertFalse([name for name in names if re.fullmatch(r"sanitizer.*wrappers|benchmark.gate.*", name)])
        self.assertIn("benchmark.portable", names)

    def test_benchmarks_have_a_gpu_each_where_there_are_two(self):
        alone = 'mkdir "../gpu_$CUDA_VISIBLE_DEVICES" || exit 1; sleep 0.1; rmdir "../gpu_$CUDA_VISIBLE_DEVICES"'  # fails beside another one
        self.script("build/benchmark_cuda_kernels", f'{alone}; echo "gate on $CUDA_VISIBLE_DEVICES"')
        self.script("bin/python3",
                    f'case "$1" in -c) echo nowhere ;; *compare_attention*|*/benchmarks/*) {alone}; echo "a script on $CUDA_VISIBLE_DEVICES" ;; esac')
        for visible, gate, scripts in (("0,3", "0", "0033"), ("2", "2", "2222")):
            with self.subTest(visible):
                run = subprocess.run([ROOT / "tools/gpu_check", self.folder / "build"], capture_output=True, text=True,
                                     env=self.environment() | {"CUDA_VISIBLE_DEVICES": visible})
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertEqual(self.log("benchmark.log").count(f"gate on {gate}\n"), 2)
                self.assertEqual("".join(sorted(re.findall(r"a script on (\d)\n", self.log("benchmark.log")))), scripts)

    def test_at_most_six_racechecks_share_a_gpu(self):
        self.script("bin/nproc", "echo 36")
        self.script("bin/compute-sanitizer", f"""case "$2 $7" in racecheck*_racecheck)
  mine={self.folder}/sharing.$CUDA_VISIBLE_DEVICES; mkdir -p $mine; touch $mine/$$; sleep 0.3
  for _ in 1 2 3 4 5 6 7 8 9 10; do [ $(ls $mine | wc -l) -gt 2 ] && break; sleep 0.2; done  # for company
  ls $mine | wc -l >>{self.folder}/shared; rm $mine/$$ ;;
esac""")
        for visible in ("0", "0,1"):
            with self.subTest(visible):
                (self.folder / "shared").write_text("")
                run = subprocess.run([ROOT / "tools/gpu_check", "--without-benchmarks", self.folder / "build"], capture_output=True, text=True,
                                     env=self.environment() | {"CUDA_VISIBLE_DEVICES": visible})
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                shared = [int(line) for line in (self.folder / "shared").read_text().split()]
                self.assertEqual(len(shared), 16)
                self.assertLessEqual(max(shared), 6)
                self.assertGreater(max(shared), 2)

    def test_one_that_fails_fails_the_check_and_the_others_still_run(self):
        for name, label in (("build/test_cuda_forward", "gpu.forward"), ("bin/compute-sanitizer", "sanitizer"),
                            ("build/benchmark_cuda_kernels", "benchmark")):
            with self.subTest(name):
                kept = (self.folder / name).read_text()
                self.script(name, "echo no good; exit 77")
                status, summary, complaint = self.check()
                self.assertEqual(status, 1)
                self.assertTrue(any(label in line and "Failed" in line for line in summary))
                self.assertIn("python ran compare_attention.py", self.log("benchmark.log"))
                self.assertIn("see the logs", complaint)
                (self.folder / name).write_text(kept)

    def test_all_rivals_are_a_job_of_their_own(self):
        self.check("--without-benchmarks")
        before = self.log("check.log")
        self.script("bin/python3", 'case "$1 $*" in -c*) echo nowhere ;; *"--length 4096"*) exit 1 ;; *) echo "python ran $*" ;; esac')
        status, summary, _ = self.check("--all-rivals")
        self.assertEqual((status, sorted("Passed" in line for line in summary)), (1, [False, True]))
        self.assertEqual(self.log("check.log"), before)
        self.assertRegex(self.log("all_rivals.log"), "python ran .*--length 65536 --all --rounds 15\n")

    def test_its_end_ends_what_it_runs(self):
        self.script("build/test_cuda_backward", f"[ $GTEST_SHARD_INDEX = 0 ] || exit 0; echo $$ >{self.folder}/process; exec sleep 60")
        check = subprocess.Popen([ROOT / "tools/gpu_check", self.folder / "build"], stdout=subprocess.PIPE, text=True, env=self.environment())
        process = self.folder / "process"
        eventually(lambda: process.exists() and process.read_text().strip())
        self.assertTrue(any("Passed" in line for line in check.stdout))
        time.sleep(0.5)  # the line is on its way to the summary
        check.terminate()
        check.communicate(timeout=20)
        self.assertEqual(check.returncode, 143)
        status = pathlib.Path(f"/proc/{process.read_text().strip()}/status")
        eventually(lambda: not status.exists() or "State:\tZ" in status.read_text())
        self.assertRegex(self.log("check.log"), r"Test +#\d+: \S+ \.+ +Passed")

    def test_an_option_that_does_not_exist_is_refused(self):
        status, _, complaint = self.check("--only-long")
        self.assertEqual(status, 2)
        self.assertIn("expected --without-benchmarks, --all-rivals or a folder, found --only-long", complaint)

    def test_where_there_is_no_build_it_builds(self):
        self.script("tools/environment", "enter_environment() { lethe_python=a_python; }")
        shutil.copy(ROOT / "tools/gpu_check", self.folder / "tools")
        self.script("bin/cmake", 'echo "$*" >>calls; case "$1" in --build) mkdir build/cuda ;; esac; true')
        self.script("bin/ctest", "echo '1/1 Test #1: all ... Passed'")
        for _ in range(2):  # the second finds one
            run = subprocess.run([self.folder / "tools/gpu_check"], capture_output=True, text=True, env=self.environment())
            self.assertEqual(run.returncode, 0, run.stderr)
        calls = [line for line in (self.folder / "calls").read_text().splitlines() if "tests/cuda/device" not in line]
        self.assertEqual(calls, ["--preset cuda -DLETHE_PYTHON=a_python", "--build --preset cuda --target gpu_check_programs"])

    def test_a_program_that_is_not_built_is_named(self):
        (self.folder / "build/test_ptx").unlink()
        status, _, complaint = self.check()
        self.assertEqual(status, 1)
        self.assertIn("expected test_ptx in", complaint)


if __name__ == "__main__":
    unittest.main()
