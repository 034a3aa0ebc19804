"""Each mutant of the CUDA kernels finds its place in them, and tools/gpu_mutants reports the result of each. No GPU: shell programs."""

import argparse
import contextlib
import dataclasses
import fnmatch
import io
import os
import pathlib
import re
import runpy
import subprocess
import sys
import unittest
import unittest.mock

from shell_programs import ShellPrograms

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/cuda"), str(ROOT / "tools")]
import mutants  # noqa: E402
from mutants import FILTERS, MUTANTS, PROGRAMS, SECONDS, Mutant, mutant, places  # noqa: E402

PASSES, FAILS = "exit 0", "echo '[  FAILED  ] Suite.FindsItOut/0, where'; exit 1"


class List(unittest.TestCase):
    def test_each_finds_its_place_and_changes_the_text_as_no_other_does(self):
        texts = {}
        for mutant in MUTANTS:
            with self.subTest(mutant.name):
                file, text = mutant.changed
                self.assertNotEqual(places.without_comments(text), places.without_comments((ROOT / "optimized" / file).read_text()))
                self.assertNotIn((file, text, mutant.suite), texts)
                texts[file, text, mutant.suite] = mutant.name
        self.assertGreater(len(texts), 0)

    def test_there_are_at_most_160_of_attention_and_55_others_each_with_its_own_name(self):
        others = ("matrix_state", "segments", "layers")
        for of_others, most in ((False, 160), (True, 55)):
            self.assertLessEqual(sum(mutant.breaks and (mutant.suite in others) == of_others for mutant in MUTANTS), most)
        self.assertEqual(len({mutant.name for mutant in MUTANTS}), len(MUTANTS))
        self.assertEqual(PROGRAMS.keys(), FILTERS.keys())
        self.assertEqual(PROGRAMS.keys(), SECONDS.keys())
        self.assertLessEqual({mutant.suite for mutant in MUTANTS}, PROGRAMS.keys())

    def test_each_of_the_log_is_kept_or_shares_the_formula_of_a_kept_one(self):
        logged = dict(re.findall(r"^(\w+) +\w+/\S+ +(?:killed|passed) *(.*)", (ROOT / "results/h200/mutants.log").read_text(), re.M))
        readme = re.split(r"\n\|---.*\n", (ROOT / "tests/cuda/mutants/README.md").read_text())[1]
        same = dict(re.findall(r"^\| (\w+) \|.*\| (.*) \|$", readme, re.M))
        gone = [name for names in same.values() for name in names.split(", ")]
        kept = {mutant.name for mutant in MUTANTS}
        self.assertLessEqual(same.keys(), kept)
        self.assertFalse(kept & set(gone))
        self.assertEqual(len(gone), len(set(gone)))
        self.assertLessEqual(logged.keys(), set(gone) | kept)
        logged = {name: re.sub(r"no end of \S+", "", tests) for name, tests in logged.items()}
        tests_of = lambda names: {test for name in names for test in re.findall(r"\w+\.\w+|\btest_\w+", logged.get(name, ""))}
        self.assertGreater(len(tests_of(logged)), 70)
        self.assertEqual(tests_of(logged), tests_of(kept))

    def test_filters_name_tests(self):
        texts = "".join(path.read_text() for path in (ROOT / "tests/cuda").glob("test_*.c*"))
        of_kernels = {".".join(names) for names in re.findall(r"TEST(?:_[PF])?\((\w+), (\w+)\)", texts)}
        of_files = {suite: (ROOT / "tests/cuda" / files[0]).read_text() for suite, files in mutants.PYTHON_TESTS.items()}
        for suite, filters in FILTERS.items():
            for pattern in re.split("[:-]", ":".join(filters)):
                with self.subTest(suite, pattern=pattern):
                    if suite in of_files:
                        of_class, _, name = pattern.partition(".")
                        self.assertRegex(of_files[suite], rf"(?s)class {of_class}\(.*def {name}\(" if name else rf"class {of_class}\(")
                    else:
                        self.assertTrue(any(fnmatch.fnmatchcase(name, pattern) for name in of_kernels))
        self.assertTrue(any(fnmatch.fnmatchcase(name, mutants.LONG) for name in of_kernels))

    def test_filters_run_every_test_of_the_kernels(self):
        matches = lambda name, patterns: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(":"))
        not_run = ("Unsupported.", "PrecisionOracle.", "Precision.")  # of no kernel; too long, but for one
        lists = re.findall(r"lethe_test\(cuda_(forward|backward|matrix_state) SOURCES ([^)]*?) LIBRARIES",
                           (ROOT / "tests/cuda/CMakeLists.txt").read_text())
        self.assertEqual([program for program, _ in lists], ["forward", "backward", "matrix_state"])
        for program, files in lists:
            filters = [tests.partition("-") for suite in FILTERS if PROGRAMS[suite] == f"bin/test_cuda_{program}" for tests in FILTERS[suite]]
            texts = "".join((ROOT / "tests/cuda" / file).read_text() for file in files.split())
            for name in map(".".join, re.findall(r"TEST(?:_[PF])?\((\w+), (\w+)\)", texts)):
                with self.subTest(name):
                    run = any(matches(name, those) and not matches(name, but) for those, _, but in filters)
                    self.assertTrue(run or name.startswith(not_run))

    def test_each_wrapper_has_one_or_is_listed_without(self):
        changed = {part for mutant in MUTANTS if mutant.suite == "ptx" for part in mutant.function.split("::")}
        wrappers = [name for path in (ROOT / "optimized/cuda").rglob("*.cuh") if path.parent.name == "ptx" or path.stem in ("handover", "arithmetic")
                    for name in re.findall(r"__device__ (?:inline )?\w+ (\w+)(?:<\w+>)?\(", path.read_text())]
        self.assertGreater(len(wrappers), 40)
        for name in wrappers:
            with self.subTest(name):
                self.assertTrue(name in changed or re.search(rf"\b{name}\b", mutants.__doc__))


SOURCE = """// sum() adds: x += 1;
struct Ring {
  int advance(int stages) const { return stages + 1; }
};
template <>
float sum<int>(const char* text) {
  const auto step = [&](int i) { /* x += 1; */ if (text[i] == '}') x  +=
      1;  // once
  };
  x += 2;
  return total(x += 3);
}
int other() { return sum("{"), x += 1; }
"""


class Places(unittest.TestCase):
    def setUp(self):
        mock = unittest.mock.patch.object(places, "sources", lambda: [("file.cu", SOURCE)])
        mock.start()
        self.addCleanup(mock.stop)
        self.addCleanup(places.find.cache_clear)
        places.find.cache_clear()

    def changed(self, function, statement, **options):
        return Mutant("name", "ptx", function, statement, "NEW", **options).changed[1]

    def test_a_statement_is_found_in_its_function_however_it_is_spaced(self):
        self.assertEqual(self.changed("sum", "x += 1;"), SOURCE.replace("x  +=\n      1;", "NEW"))
        self.assertEqual(self.changed("sum::step", "x+=1"), SOURCE.replace("x  +=\n      1", "NEW"))
        self.assertEqual(self.changed("other", "x += 1"), SOURCE.replace(", x += 1", ", NEW"))
        self.assertEqual(self.changed("Ring::advance", "stages + 1"), SOURCE.replace("stages + 1", "NEW"))
        self.assertEqual(self.changed("sum", "x += 2;", more=(("return", "throw"),)), SOURCE.replace("x += 2;\n  return", "NEW\n  throw"))

    def test_a_missing_or_ambiguous_function_or_statement_is_named(self):
        for function, statement, complaint in (
                ("missing", "x += 1", "name: expected a function missing in optimized/cuda or optimized/torch, found none"),
                ("total", "x += 1", "name: expected a function total in optimized/cuda or optimized/torch, found none"),
                ("Ring::sum", "x += 1", "name: expected a function Ring::sum in optimized/cuda or optimized/torch, found none"),
                ("sum", "x += 4", "name: expected 1 of `x += 4` in sum, found 0"),
                ("sum", "x +=", "name: expected 1 of `x +=` in sum, found 3 in file.cu")):
            with self.subTest(function, statement=statement), self.assertRaisesRegex(ValueError, f"^{re.escape(complaint)}$"):
                self.changed(function, statement)

    def test_kinds_change_what_they_name(self):
        for kind, statement, expected in (
                (mutant.dropped, "x = 1;", "{}"), (mutant.swapped("row[1]", "row[0]"), "row[1] + 1", "row[0] + 1"),
                (mutant.one_more("bound"), "i < bound", "i < bound + 1"), (mutant.never("near"), "if (near) f();", "if (false) f();"),
                (mutant.inclusive, "i < n", "i <= n"), (mutant.inclusive, "i >= n", "i > n")):
            self.assertEqual(kind(statement), expected)
        with self.assertRaisesRegex(ValueError, "`i \\+ i`: expected 1 of `i`, found 2"):
            mutant.swapped("i", "j")("i + i")


class Run(ShellPrograms):
    NAME = next(mutant.name for mutant in MUTANTS if mutant.suite == "ptx")
    TOOL = runpy.run_path(str(ROOT / "tools/gpu_mutants"))

    def setUp(self):
        super().setUp()
        self.script("bin/nvidia-smi", "echo a GPU")

    def run_with(self, also=(), options=(), commit="abc", **programs):
        """Exit status, last section of the log and standard error of a run where these programs were built. `also`: mutants to run beside NAME."""
        for name, text in programs.items():
            self.script(f"{name}/program", text)
            (self.folder / name / "commit").write_text(commit)
        run = subprocess.run([sys.executable, ROOT / "tools/gpu_mutants", "run", "--jobs", "4", *options,
                              *(word for name in (self.NAME, *also) for word in ("--only", name)), self.folder], capture_output=True, text=True,
                             env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        return run.returncode, (self.folder / "mutants.log").read_text().split("gpu  ")[-1], run.stderr

    def test_a_test_that_fails_kills(self):
        status, log, _ = self.run_with(**{"unchanged_ptx": PASSES, self.NAME: FAILS})
        self.assertEqual(status, 0)
        self.assertRegex(log, rf"{self.NAME} .* killed +Suite.FindsItOut/0\n")
        self.assertIn("commit  abc\n", log)
        self.assertIn("mutants 1, killed 1\n", log)

    def test_of_a_test_of_every_kernel_all_that_fail_are_named(self):
        fails = """case "$*" in
*--gtest_fail_fast*) echo '[  FAILED  ] Every/Suite.FindsItOut/bfloat16_64, where' ;;
*'--gtest_filter=Every/Suite.FindsItOut/*')
  for kernel in bfloat16_64 float16_128 float16_128; do echo "[  FAILED  ] Every/Suite.FindsItOut/$kernel, where"; done ;;
esac
exit 1"""
        _, log, _ = self.run_with(**{"unchanged_ptx": PASSES, self.NAME: fails})
        self.assertRegex(log, rf"{self.NAME} .* killed +Every/Suite.FindsItOut/bfloat16_64 float16_128, ")

    def test_kernels_that_the_first_failure_omits_get_another_test(self):
        fails = """case "$*" in
*--gtest_filter=\\*/bfloat16_128-*) exit 0 ;;
*--gtest_filter=\\*/float16_64-*) echo '[  FAILED  ] Every/Suite.FindsAnother/float16_64, where' ;;
*--gtest_filter=\\*/float16_128-*) exec sleep 60 ;;
*) echo '[  FAILED  ] Every/Suite.FindsItOut/bfloat16_64, where' ;;
esac
exit 1"""
        self.script(f"{self.NAME}/program", fails)
        with unittest.mock.patch.dict(SECONDS, ptx=1):
            self.assertEqual(self.verdict_of()[1], "Every/Suite.FindsItOut/bfloat16_64, nothing for bfloat16_128, "
                                                   "Every/Suite.FindsAnother/float16_64, no end for float16_128")

    def test_survivors_failed_builds_and_failing_kernels_fail_the_run(self):
        for programs, name, verdict in (({"unchanged_ptx": PASSES}, self.NAME, "NOT BUILT"), ({self.NAME: PASSES}, self.NAME, "SURVIVED"),
                                        ({"unchanged_ptx": FAILS, self.NAME: FAILS}, "unchanged_ptx", "FAILED +Suite.FindsItOut/0")):
            with self.subTest(verdict):
                status, log, complaint = self.run_with(**programs)
                self.assertEqual(status, 1)
                self.assertRegex(log, rf"{name} .* {verdict}\n")
                self.assertIn(name, complaint)
        self.assertRegex((self.folder / "mutants.log").read_text(), "(?s)NOT BUILT.*SURVIVED.*FAILED")  # a run keeps the others' sections

    def verdict_of(self, **changes):
        mutant = next(mutant for mutant in MUTANTS if mutant.name == self.NAME)
        return self.TOOL["verdict"](self.folder, dataclasses.replace(mutant, **changes), ["0"])

    def test_a_timeout_detects_only_after_a_failure_or_for_a_known_hang(self):
        begun = 'for test in Ends DoesNot; do echo "[ RUN      ] Suite.$test"; done; exec sleep 60'
        for program, changes, expected in (
                ("exec sleep 60", {}, ("TOO LONG", "no end within 1 s", False)),
                ("exec sleep 60", {"hangs": True}, ("killed", "no end within 1 s", True)),
                (begun, {}, ("TOO LONG", "no end of Suite.DoesNot within 1 s", False)),
                (f"{FAILS.removesuffix('; exit 1')}; exec sleep 60", {}, ("killed", "Suite.FindsItOut/0", True)),
                ("exec sleep 60", {"breaks": False}, ("TOO LONG", "no end", False))):
            with self.subTest(program, **changes), unittest.mock.patch.dict(SECONDS, ptx=1):
                self.script(f"{self.NAME}/program", program)
                self.assertEqual(self.verdict_of(**changes), expected)

    def test_one_that_is_known_to_hang_runs_alone_after_the_others(self):
        hanging = next(mutant.name for mutant in MUTANTS if mutant.hangs)
        status, log, _ = self.run_with([hanging], **{
            "unchanged_ptx": PASSES, "unchanged_backward": PASSES, self.NAME: f"sleep 1; touch '{self.folder}/ended'; {FAILS}",
            hanging: f"if [ -e '{self.folder}/ended' ]; then {FAILS}; fi; echo '[  FAILED  ] Suite.RanBeside, where'; exit 1"})
        self.assertEqual(status, 0)
        self.assertRegex(log, rf"{hanging} .* killed +Suite.FindsItOut/0\n")
        self.assertNotIn("RanBeside", log)

    def test_one_that_took_too_long_beside_others_is_run_again_alone(self):
        self.script("unchanged_ptx/program", PASSES)
        self.script(f"{self.NAME}/program", f"if [ ! -e '{self.folder}/ran' ]; then touch '{self.folder}/ran'; exec sleep 60; fi; {FAILS}")
        arguments = argparse.Namespace(folder=self.folder, only=[self.NAME], jobs=4, output=None, continued=False)
        with unittest.mock.patch.dict(SECONDS, ptx=1), contextlib.redirect_stdout(io.StringIO()) as said, \
                unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}"):
            self.assertEqual(self.TOOL["run"](arguments), 0)
        self.assertRegex(said.getvalue(), rf"{self.NAME} .* TOO LONG +no end within 1 s, again alone\n")
        self.assertRegex(said.getvalue(), rf"{self.NAME} .* killed +Suite.FindsItOut/0\n\nmutants 1, killed 1\n")

    def test_of_quick_tests_all_are_run_once(self):
        self.script(f"{self.NAME}/program", """echo "$*" >>"$0.calls"
for kernel in bfloat16_64 bfloat16_128 float16_64; do echo "[  FAILED  ] Every/Suite.IsQuick/$kernel, where"; done
echo "[  FAILED  ] Every/Suite.IsQuickToo/float16_128, where"
exit 1""")
        self.assertEqual(self.verdict_of(suite="forward"),
                         ("killed", "Every/Suite.IsQuick/bfloat16_64 bfloat16_128 float16_64, Every/Suite.IsQuickToo/float16_128", True))
        calls = (self.folder / self.NAME / "program.calls").read_text().splitlines()
        self.assertEqual(len(calls), 1)
        self.assertNotIn("fail_fast", calls[0])

    def test_one_that_needs_more_gpus_is_reported_as_not_run(self):
        self.script(f"{self.NAME}/program", FAILS)
        self.assertEqual(self.verdict_of(gpus=2), ("not run", "needs 2 GPUs", True))

    def test_failures_of_a_python_test_are_read(self):
        says = "echo 'FAIL: test_first (module.Class.test_first) [where]'; echo 'ERROR: test_second (module)'"
        self.assertEqual(self.TOOL["failing"](["sh", "-c", f"({says}) >&2; exit 1"], 5), ["test_first", "test_second"])

    def test_what_includes_a_file_is_compiled_anew(self):
        link = ["lib/liblethe_cuda.a", "lib/liblethe_cuda_ampere.a", "optimized/torch/CMakeFiles/lethe_torch.dir/autocast_rule.cpp.o"]
        objects_of = lambda file, link=link: list(self.TOOL["objects_of"](file, link))
        softmax, maps = (next(mutant.file for mutant in MUTANTS if mutant.name == name) for name in ("forward_no_decay", "map_strides"))
        self.assertEqual(objects_of(maps), [f"optimized/cuda/CMakeFiles/lethe_cuda.dir/{maps.removeprefix('cuda/')}.o"])
        self.assertEqual(sorted(target.split("/", 3)[-1] for target in objects_of(softmax)),
                         ["lethe_cuda.dir/hopper/forward.cu.o", "lethe_cuda.dir/hopper/forward_edges.cu.o",
                          "lethe_cuda_ampere.dir/ampere/forward.cu.o", "lethe_cuda_ampere.dir/ampere/forward_edges.cu.o"])
        self.assertEqual(objects_of("torch/rules.hpp"), ["optimized/torch/CMakeFiles/lethe_torch.dir/autocast_rule.cpp.o"])

    def test_what_a_program_does_not_link_is_not_compiled(self):
        release = next(mutant.file for mutant in MUTANTS if mutant.name == "late_forward_release")  # of attention's and the matrix state's kernels
        targets = lambda *libraries: [target.split("/")[-2] for target in self.TOOL["objects_of"](release,
                                                                                                  [f"lib/lib{library}.a" for library in libraries])]
        self.assertEqual({*targets("lethe_cuda")} & {*targets("lethe_cuda_matrix_state_hopper")}, {"hopper"})
        for library in ("lethe_cuda", "lethe_cuda_matrix_state_hopper"):
            for target in self.TOOL["objects_of"](release, [f"lib/lib{library}.a"]):
                self.assertIn(f"/{library}.dir/", target)

    def test_what_other_gpus_run_is_not_compiled(self):
        of = lambda number: f"--generate-code=arch=compute_{number},code=[sm_{number}]"
        self.assertEqual(self.TOOL["for_hopper"](["nvcc", of(80), of(90), "-c"]), ["nvcc", of(90), "-c"])
        for command in (["nvcc", of(80)], ["c++", "-c"], ["nvcc", "-gencode", "arch=compute_90a,code=sm_90a"]):
            self.assertEqual(self.TOOL["for_hopper"](command), command)

    def test_python_tests_run_beside_the_library(self):
        command = self.TOOL["command_of"](self.folder / "mutant/program", "layers", "Layers.test_one:Layers.test_two", True)
        self.assertEqual(command[1:], [f"{self.folder}/mutant/test_layers.py", f"{self.folder}/mutant/program", "--failfast", "Layers.test_one",
                                       "Layers.test_two"])

    def test_a_delay_must_pass_all(self):
        late = next(mutant.name for mutant in MUTANTS if not mutant.breaks and mutant.suite == "backward")
        programs = {"unchanged_ptx": PASSES, "unchanged_backward": PASSES, self.NAME: FAILS}
        status, log, _ = self.run_with([late], **programs, **{late: PASSES})
        self.assertEqual(status, 0)
        self.assertRegex(log, rf"{late} .* passed\n")
        self.assertIn("mutants 1, killed 1; delays 1, passed 1\n", log)
        status, log, complaint = self.run_with([late], **programs, **{late: FAILS})
        self.assertEqual(status, 1)
        self.assertRegex(log, rf"{late} .* FAILED +Suite.FindsItOut/0\n")
        self.assertIn("delays 1, passed 0\n", log)
        self.assertIn(late, complaint)

    def test_one_that_continues_runs_what_was_not_decided(self):
        late = next(mutant.name for mutant in MUTANTS if not mutant.breaks and mutant.suite == "backward")
        unchanged = {"unchanged_ptx": PASSES, "unchanged_backward": PASSES}
        self.run_with([late], **unchanged, **{self.NAME: FAILS, late: FAILS})
        status, log, _ = self.run_with([late], ["--continue"], **{self.NAME: PASSES, late: PASSES})
        self.assertEqual(status, 0)
        self.assertRegex(log, rf"{late} .* passed\n\nmutants 1, killed 1; delays 1, passed 1 \(1 of them in sections above\)\n")
        self.assertNotRegex(log, f"{self.NAME}|unchanged")

    def test_one_that_continues_takes_nothing_from_other_programs_or_gpus(self):
        self.run_with(**{"unchanged_ptx": PASSES, self.NAME: FAILS})
        _, log, _ = self.run_with((), ["--continue"], "abd", **{"unchanged_ptx": PASSES, self.NAME: PASSES})
        self.assertRegex(log, rf"{self.NAME} .* SURVIVED\n")
        self.script("bin/nvidia-smi", "echo another GPU")
        _, log, _ = self.run_with((), ["--continue"], **{"unchanged_ptx": PASSES, self.NAME: PASSES})
        self.assertRegex(log, rf"{self.NAME} .* SURVIVED\n")

    def test_programs_of_a_changed_commit_are_not_continued(self):
        (self.folder / "mutants.log").touch()
        status, _, complaint = self.run_with((), ["--continue"], "abc, changed", **{"unchanged_ptx": PASSES, self.NAME: FAILS})
        self.assertEqual(status, 1)
        self.assertEqual(complaint, "--continue: expected programs of one commit as it is, found abc, changed\n")


if __name__ == "__main__":
    unittest.main()
