"""The kernels' budgets: what breaks them is found out, in the compiler's messages and in its machine code. Both written by hand."""

import contextlib
import io
import pathlib
import subprocess
import sys
import unittest
import unittest.mock

from shell_programs import ShellPrograms

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_kernels  # noqa: E402

PRODUCT, EXPONENTIAL, WAIT = "HGMMA.64x64x16.F32 R24, R4, gdesc[UR4], R24", "@!P1 MUFU.EX2 R5, R5", "WARPGROUP.DEPBAR.LE gsb0, 0x1"
FORWARD = [PRODUCT, PRODUCT, WAIT, EXPONENTIAL, EXPONENTIAL, WAIT]
BACKWARD = [PRODUCT, EXPONENTIAL, PRODUCT, EXPONENTIAL, WAIT, PRODUCT, WAIT]


def dump(*parts):
    """As cuobjdump writes a kernel. A part is an instruction, or the body of a loop: a list, that a branch back to its begin follows."""
    lines = []

    def add(part):
        if isinstance(part, str):
            lines.append(part)
            return
        begin = len(lines)
        for inner in part:
            add(inner)
        lines.append(f"@P0 BRA 0x{16 * begin:x}")

    for part in parts:
        add(part)
    code = "".join(f"        /*{16 * i:04x}*/    {text} ;   /* 0x0000000000007918 */\n" for i, text in enumerate(lines))
    return "\tFunction : kernel\n" + code


def kernel(*parts):
    return check_kernels.instructions_of(dump(*parts))


class CheckKernels(unittest.TestCase):
    def broken(self, kernels, waits, budgets, pattern="kernel"):
        """What is said of a budget that is broken; None of one that is kept."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            kept = check_kernels.keeps_budgets(kernels, [(pattern, waits, budgets)])
        return None if kept else said.getvalue()

    def test_innermost_loops_of_products_are_held_the_shortest_first(self):
        spin, end = ["SYNCS.PHASECHK R1"], "BRA 0x0"  # the last from behind the kernel's end, where a wait spins
        instructions = kernel("PREEXIT", spin, [[*FORWARD, "NOP"], spin, FORWARD], "@P0 EXIT", "EXIT", spin, end)["kernel"]
        self.assertEqual([len(body) for body in check_kernels.innermost_loops(instructions)], [7, 8])

    def test_a_budget_that_is_just_kept_passes(self):
        self.assertIsNone(self.broken(kernel(FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0)]))
        self.assertIsNone(self.broken(kernel(BACKWARD), check_kernels.UNDER_GRAD_WEIGHT, [(8, 2, 0, 0)]))

    def test_each_loop_may_have_grown(self):
        loops = kernel([*FORWARD, "NOP"], FORWARD)
        self.assertIsNone(self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0), (8, 2, 0, 0)]))
        self.assertIn("7 instructions a block (at most 6)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(6, 2, 0, 0), (8, 2, 0, 0)]))
        self.assertIn("8 instructions a block (at most 7)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0), (7, 2, 0, 0)]))

    def test_moves_into_uniform_registers_are_counted(self):
        loop = kernel(["R2UR UR4, R7", *FORWARD])
        self.assertIsNone(self.broken(loop, check_kernels.UNDER_OUTPUT, [(8, 2, 1, 0)]))
        self.assertIn("1 moves into uniform registers (at most 0)", self.broken(loop, check_kernels.UNDER_OUTPUT, [(8, 2, 0, 0)]))

    def test_accesses_of_local_memory_are_counted(self):
        loop = kernel(["LDL.LU R2, [R1+0xc]", "@!P0 STL.64 [R1], R2", *FORWARD])
        self.assertIsNone(self.broken(loop, check_kernels.UNDER_OUTPUT, [(9, 2, 0, 2)]))
        self.assertIn("2 accesses of local memory (at most 1)", self.broken(loop, check_kernels.UNDER_OUTPUT, [(9, 2, 0, 1)]))

    def test_an_exponential_elsewhere_is_missed_under_the_product(self):
        for body, waits in [
            ([PRODUCT, PRODUCT, WAIT, EXPONENTIAL, WAIT, EXPONENTIAL], check_kernels.UNDER_OUTPUT),
            ([PRODUCT, EXPONENTIAL, PRODUCT, WAIT, EXPONENTIAL, WAIT], check_kernels.UNDER_OUTPUT),
            ([EXPONENTIAL, PRODUCT, EXPONENTIAL, PRODUCT, WAIT, WAIT], check_kernels.UNDER_GRAD_WEIGHT),
            ([PRODUCT, EXPONENTIAL, PRODUCT, WAIT, EXPONENTIAL, WAIT], check_kernels.UNDER_GRAD_WEIGHT),
        ]:
            with self.subTest(body=body, waits=waits):
                self.assertIn("1 exponentials under the product (at least 2)", self.broken(kernel(body), waits, [(7, 2, 0, 0)]))

    def test_exponentials_that_no_wait_follows_are_under_no_product(self):
        body = [PRODUCT, EXPONENTIAL, EXPONENTIAL]
        self.assertIn("0 exponentials", self.broken(kernel(body), check_kernels.UNDER_GRAD_WEIGHT, [(4, 2, 0, 0)]))

    def test_a_loop_or_a_kernel_too_few_or_too_many_is_found(self):
        said = self.broken(kernel(FORWARD, FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0)])
        self.assertIn("expected 1 innermost loops of products, found 2, of [7, 7] instructions", said)
        self.assertIn("found 0", self.broken(kernel("EXIT"), check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0)]))
        self.assertIn("expected a kernel of this name", self.broken(kernel(FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0)], pattern="other"))


class Compilation(ShellPrograms):
    SPILLING = "backward_tilesI6__halfLi64E"
    LIMIT = next(limit for pattern, limit in check_kernels.SPILLS if "backward" in pattern and "Li64E" in pattern)

    def compiled(self, messages, status=0):
        """Exit status and standard error of a build whose compiler says this."""
        self.script("compiler", f"cat >&2 <<'END'\n{messages}\nEND\nexit {status}")
        run = subprocess.run([sys.executable, ROOT / "tools/check_kernels.py", "compile", self.folder / "compiler"], capture_output=True, text=True)
        self.assertTrue(run.stderr.startswith(messages))
        return run.returncode, run.stderr.removeprefix(messages).strip()

    def properties(self, name, stored):
        return (f"ptxas info    : Function properties for _ZN5lethe14{name}EvNS_18BackwardParametersE\n"
                f"    192 bytes stack frame, {stored} bytes spill stores, 4 bytes spill loads")

    def test_spills_that_are_allowed_pass(self):
        self.assertEqual(self.compiled(self.properties(self.SPILLING, self.LIMIT)), (0, ""))
        self.assertEqual(self.compiled(self.properties("another", 0)), (0, ""))

    def test_more_spills_than_are_allowed_fail(self):
        for name, limit in ((self.SPILLING, self.LIMIT), ("another", 0)):
            status, said = self.compiled(self.properties(name, limit + 4))
            self.assertEqual(status, 1)
            self.assertIn(f"expected at most {limit} bytes of spills, found {limit + 4}", said)
            self.assertIn("LETHE_KERNEL_BUDGETS=OFF", said)

    def test_products_that_ptxas_serialised_fail(self):
        for code in ("C7510", "C7512", "C7518"):
            status, said = self.compiled(f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized")
            self.assertEqual(status, 1)
            self.assertIn(code, said)

    def test_a_compiler_that_says_nothing_of_any_kernel_fails(self):
        for messages in ("", "ptxas info    : 0 bytes gmem"):
            status, said = self.compiled(messages)
            self.assertEqual(status, 1)
            self.assertIn("expected its word on each kernel", said)

    def test_the_compilers_own_failure_stays_one(self):
        self.assertEqual(self.compiled("error", 3), (3, ""))


class InTheBuild(ShellPrograms):
    def outcome(self, budgets, *arguments, cuobjdump=None):
        """Exit status and what is said of a library with one kernel, in the build unless the arguments are others."""
        self.script("cuobjdump", f"cat <<'END'\n{dump(FORWARD)}END")
        self.script("library", "")
        found = unittest.mock.patch.object(check_kernels, "find_cuobjdump", lambda given: cuobjdump)
        with found, unittest.mock.patch.object(check_kernels, "LOOPS", [("kernel", check_kernels.UNDER_OUTPUT, budgets)]), \
                unittest.mock.patch.object(sys, "argv", ["check_kernels.py", "sass", str(self.folder / "library"), *arguments]), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            return check_kernels.main(), said.getvalue()

    def test_a_loop_that_has_grown_fails_it_and_the_next_one_and_nothing_else_is_said(self):
        cuobjdump = str(self.folder / "cuobjdump")
        self.assertEqual(self.outcome([(7, 2, 0, 0)], "--in-build", cuobjdump=cuobjdump), (0, ""))
        self.assertTrue((self.folder / "library").exists())
        status, said = self.outcome([(6, 2, 0, 0)], "--in-build", cuobjdump=cuobjdump)
        self.assertEqual(status, 1)
        self.assertIn("OVER BUDGET", said)
        self.assertIn("LETHE_KERNEL_BUDGETS=OFF", said)
        self.assertFalse((self.folder / "library").exists())
        self.assertEqual(self.outcome([(6, 2, 0, 0)], cuobjdump=cuobjdump)[0], 1)
        self.assertTrue((self.folder / "library").exists())

    def test_a_cuobjdump_that_fails_is_no_budget_broken(self):
        self.script("broken", "echo no good >&2; exit 255")
        for arguments, expected in ((["--in-build"], 0), ([], 1)):
            status, said = self.outcome([(7, 2, 0, 0)], *arguments, cuobjdump=str(self.folder / "broken"))
            self.assertEqual(status, expected)
            self.assertIn("no good", said)

    def test_without_cuobjdump_a_build_passes_and_a_test_is_skipped(self):
        for arguments, expected in ((["--in-build"], 0), ([], 77)):
            status, said = self.outcome([(6, 2, 0, 0)], *arguments)
            self.assertEqual(status, expected)
            self.assertIn("found none", said)


if __name__ == "__main__":
    unittest.main()
