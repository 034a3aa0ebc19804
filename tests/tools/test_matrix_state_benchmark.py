"""The benchmark of gated_state and delta_state: its arguments, what a rival of it gets a time for, and the lines of its profile. No GPU."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "optimized" / "benchmarks" / "cuda"))
import matrix_state  # noqa: E402
import torch  # noqa: E402


class Arguments(unittest.TestCase):
    def refused(self, *options):
        with unittest.mock.patch.object(sys, "argv", ["matrix_state.py", "library", *options]), contextlib.redirect_stderr(io.StringIO()) as found:
            with self.assertRaises(SystemExit) as end:
                matrix_state.main()
        self.assertEqual(end.exception.code, 2)
        return found.getvalue()

    def test_that_are_wrong_are_refused(self):
        for options, words in ((["--rounds", "0"], "--rounds: expected at least 1, found 0"), (["--only", "x"], "--only: invalid choice"),
                               (["--gates", "x"], "--gates: invalid choice"), (["--profile"], "--profile: expected one argument"),
                               (["--output", "absent/found.json"], "--output: expected a file in a folder that exists, found absent/found.json"),
                               (["--profile", "absent/found.log"], "--profile: expected a file in a folder that exists, found absent/found.log"),
                               (["--profile", "found.log", "--output", "found.json"], "--profile: expected neither --output nor --fla beside it, found --output"),
                               (["--profile", "found.log", "--fla", "."], "--profile: expected neither --output nor --fla beside it, found --fla")):
            with self.subTest(options):
                self.assertIn(words, self.refused(*options))

    def test_a_folder_that_is_no_checkout_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn(f"--fla: expected a checkout of flash-linear-attention, found {folder}", self.refused("--fla", folder))


class Rivals(unittest.TestCase):
    """Of a form whose values are 2 q, of operators that are right, right forward alone, wrong, or that raise."""

    def setUp(self):
        self.given = {"query": torch.ones(1, 4, 1, 2, requires_grad=True), "key": None}
        self.direction = torch.full((1, 4, 1, 2), 3.0)
        self.expected = {"forward": {"values": torch.full((1, 4, 1, 2), 2.0)}, "backward": {"query": torch.full((1, 4, 1, 2), 6.0)}}

    def run_fla(self, given, operator):
        class WrongBackward(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: 2 * x)
            backward = staticmethod(lambda ctx, gradient: gradient)

        query = given["query"]
        if operator[1] == "raises":
            raise RuntimeError("not on\nthis GPU")
        return {"right": 2 * query, "wrong": 2.5 * query, "wrong_backward": WrongBackward.apply(query)}[operator[1]], None

    def rivals(self, *names, times=None, direction=True):
        operators = {"form": [("module", name, {}, {}) for name in names]}
        times = iter(times or [5.0] * 8)

        def clock(call):
            call()
            return next(times)

        expected = self.expected if direction else {"forward": self.expected["forward"]}
        with unittest.mock.patch.object(matrix_state, "FLA", operators), unittest.mock.patch.object(matrix_state, "run_fla", self.run_fla):
            return matrix_state.of_rivals(self.given, "form", expected, self.direction if direction else None, 0.02, clock)

    def test_have_the_time_of_the_fastest_in_each_direction(self):
        fastest, reasons = self.rivals("right", "right", times=[5.0, 9.0, 6.0, 8.0])
        self.assertEqual({side: row["rival_microseconds"] for side, row in fastest.items()}, {"forward": 5.0, "backward": 8.0})
        self.assertEqual(reasons, {"forward": [], "backward": []})

    def test_keep_the_forward_where_the_backward_is_wrong(self):
        fastest, reasons = self.rivals("wrong_backward")
        self.assertEqual((list(fastest), reasons["forward"]), (["forward"], []))
        self.assertEqual(reasons["backward"], ["wrong_backward: ValueError: query: expected ours within 2.0%, found 50.00%"])

    def test_that_raise_or_are_wrong_have_no_time_and_a_reason(self):
        fastest, reasons = self.rivals("raises", "wrong")
        self.assertEqual(fastest, {})
        self.assertEqual(reasons["forward"], ["raises: RuntimeError: not on this GPU", "wrong: ValueError: values: expected ours within 2.0%, found 25.00%"])
        self.assertEqual(len(reasons["backward"]), 2)

    def test_of_one_token_are_timed_forward_alone(self):
        fastest, reasons = self.rivals("right", direction=False)
        self.assertEqual((list(fastest), list(reasons)), (["forward"], ["forward"]))


class Profile(unittest.TestCase):
    def test_has_a_line_a_kernel(self):
        self.assertEqual(matrix_state.profile_lines("token gate", [(315.24, 1.0, "k" * 200), (78.8, 2.0, "join")]),
                         ["-- token gate", "   315.2 us   1.0 x  " + "k" * 110, "    78.8 us   2.0 x  join"])


if __name__ == "__main__":
    unittest.main()
