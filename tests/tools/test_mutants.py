"""Each mutant of the CUDA kernels changes what it says it changes: the list keeps up with the kernels."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cuda"))
from mutants import FILTERS, MUTANTS, PROGRAMS, Mutant  # noqa: E402


class Mutants(unittest.TestCase):
    def test_each_finds_what_it_replaces(self):
        for mutant in MUTANTS:
            with self.subTest(mutant.name):
                text = (ROOT / "optimized/cuda" / mutant.file).read_text()
                self.assertNotEqual(mutant.apply(text), text)

    def test_each_has_a_name_of_its_own_and_a_suite(self):
        self.assertEqual(len({mutant.name for mutant in MUTANTS}), len(MUTANTS))
        self.assertEqual(PROGRAMS.keys(), FILTERS.keys())
        self.assertLessEqual({mutant.suite for mutant in MUTANTS}, PROGRAMS.keys())

    def test_a_change_that_fits_elsewhere_too_is_refused(self):
        with self.assertRaisesRegex(ValueError, "expected 1 of what it replaces in file, found 2"):
            Mutant("name", "ptx", "file", "old", "new").apply("old, old")


if __name__ == "__main__":
    unittest.main()
