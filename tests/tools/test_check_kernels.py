"""Code that breaks the kernels' budgets is detected in machine code, which is written by hand here."""

import contextlib
import io
import pathlib
import re
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
    """A kernel in cuobjdump's format. A part is an instruction, or the body of a loop: a list, that a branch back to its begin follows."""
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
        """The complaint about a budget that is broken; "" of one that is kept."""
        with contextlib.redirect_stdout(io.StringIO()):
            return "\n".join(check_kernels.complaints_about(kernels, [("kernel", 99)], [(pattern, waits, budgets)]))

    def test_innermost_loops_of_products_are_held_the_shortest_first(self):
        spin, end = ["SYNCS.PHASECHK R1"], "BRA 0x0"  # the last from after the kernel's end, where a wait spins
        instructions = kernel("PREEXIT", spin, [[*FORWARD, "NOP"], spin, FORWARD], "@P0 EXIT", "EXIT", spin, end)["kernel"]
        self.assertEqual([len(body) for body in check_kernels.innermost_loops(instructions)], [7, 8])

    def test_a_budget_that_is_just_kept_passes(self):
        self.assertFalse(self.broken(kernel(FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0)]))
        self.assertFalse(self.broken(kernel(BACKWARD), check_kernels.UNDER_GRAD_WEIGHT, [(8, 2, 0, 0)]))

    def test_each_loop_may_have_grown(self):
        loops = kernel([*FORWARD, "NOP"], FORWARD)
        self.assertFalse(self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0), (8, 2, 0, 0)]))
        self.assertIn("7 instructions a block (at most 6)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(6, 2, 0, 0), (8, 2, 0, 0)]))
        self.assertIn("8 instructions a block (at most 7)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2, 0, 0), (7, 2, 0, 0)]))

    def test_moves_into_uniform_registers_are_counted(self):
        loop = kernel(["R2UR UR4, R7", *FORWARD])
        self.assertFalse(self.broken(loop, check_kernels.UNDER_OUTPUT, [(8, 2, 1, 0)]))
        self.assertIn("1 moves into uniform registers (at most 0)", self.broken(loop, check_kernels.UNDER_OUTPUT, [(8, 2, 0, 0)]))

    def test_accesses_of_local_memory_are_counted(self):
        loop = kernel(["LDL.LU R2, [R1+0xc]", "@!P0 STL.64 [R1], R2", *FORWARD])
        self.assertFalse(self.broken(loop, check_kernels.UNDER_OUTPUT, [(9, 2, 0, 2)]))
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

    def test_spills_are_the_bytes_that_stores_to_local_memory_write(self):
        stores = kernel("STL [R1], R2", "@!P0 STL.64 [R1+0x8], R2", "STL.128 [R1], R4", "LDL R2, [R1]", "EXIT")
        about = lambda limit: check_kernels.complaints_about(stores, [("kernel", limit)], [])
        self.assertEqual(about(28), [])
        self.assertEqual(about(27), ["kernel: expected at most 27 bytes stored to local memory, found 28"])
        self.assertEqual(len(check_kernels.complaints_about({"other": stores["kernel"]} | kernel("EXIT"), [("kernel", 28)], [])), 1)

    def test_serialised_products_are_those_that_have_an_arrival_each(self):
        pipelined, serial = ["WARPGROUP.ARRIVE", *[PRODUCT] * 4, WAIT], ["WARPGROUP.ARRIVE", PRODUCT, WAIT] * 4
        self.assertEqual(check_kernels.complaints_about(kernel(*pipelined), [], []), [])
        self.assertIn("found 4: serialised", "".join(check_kernels.complaints_about(kernel(*serial), [], [])))


class Program(ShellPrograms):
    def outcome(self, budgets, *arguments, cuobjdump=True, code=FORWARD):
        """Exit status and output for a library with one kernel."""
        self.script("cuobjdump", f"cat <<'END'\n{dump(code)}END" if cuobjdump is True else cuobjdump or "")
        found = unittest.mock.patch.object(check_kernels, "find_cuobjdump", lambda given: str(self.folder / "cuobjdump") if cuobjdump else None)
        with found, unittest.mock.patch.object(check_kernels, "LOOPS", [("kernel", check_kernels.UNDER_OUTPUT, budgets)]), \
                unittest.mock.patch.object(check_kernels, "SPILLS", []), \
                unittest.mock.patch.object(sys, "argv", ["check_kernels.py", "library", *arguments]), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            return check_kernels.main(), said.getvalue()

    def test_it_fails_over_budget_and_passes_within(self):
        status, said = self.outcome([(7, 2, 0, 0)])
        self.assertEqual(status, 0)
        self.assertIn("7 instructions a block", said)
        status, said = self.outcome([(6, 2, 0, 0)])
        self.assertEqual(status, 1)
        self.assertIn("OVER BUDGET", said)

    def test_a_cuobjdump_that_fails_fails_it(self):
        status, said = self.outcome([(7, 2, 0, 0)], cuobjdump="echo no good >&2; exit 255")
        self.assertEqual(status, 1)
        self.assertIn("no good", said)

    def test_it_is_skipped_without_cuobjdump_and_for_another_nvcc(self):
        self.assertEqual(self.outcome([(6, 2, 0, 0)], cuobjdump=None)[0], 77)
        for version, status in (("13.0.88", 1), ("13.1.2", 77), ("13", 77)):
            self.assertEqual(self.outcome([(6, 2, 0, 0)], "--nvcc", version)[0], status)


class Sources(unittest.TestCase):
    def test_no_constant_condition_has_a_pragma_for_its_body(self):
        # nvcc 13.0 drops the loop after that body where the condition is false, and says nothing. In braces it doesn't.
        dropped = re.compile(r"(if constexpr \([^{};]*\)|(?<![#\w])else) *(//.*)?\n *#pragma")
        for text in ("  if constexpr (kKeeps<Element>)\n#pragma unroll\n    for", "if constexpr (kA)  // why\n#pragma unroll", "  else\n#pragma unroll"):
            self.assertRegex(text, dropped)
        files = [file for ending in ("cu", "cuh") for file in (ROOT / "optimized").rglob(f"*.{ending}")]
        self.assertGreater(len(files), 100)
        self.assertEqual([file.name for file in files if dropped.search(file.read_text())], [])


if __name__ == "__main__":
    unittest.main()
