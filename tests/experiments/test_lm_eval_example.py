"""examples/lethe_lm_eval.py writes requests that lethe answers, and reads the answers in their order.

usage: test_lm_eval_example.py LETHE
"""
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LETHE = sys.argv.pop(1)


def stand_in():
    """The two names of lm_eval that the example imports."""
    modules = {name: types.ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")}
    modules["lm_eval.api.model"].LM = object
    modules["lm_eval.api.registry"].register_model = lambda name: lambda kind: kind
    sys.modules.update(modules)


stand_in()
sys.path.insert(0, str(ROOT / "examples"))
import lethe_lm_eval  # noqa: E402


def request(*args):
    return types.SimpleNamespace(args=args)


class LmEvalExample(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.chdir(cls.folder.name)
        pathlib.Path("text.txt").write_text("the river forgets. an old ferryman remembers.\n" * 400)
        small = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch-tokens", "128", "--tokens", "2048"]
        subprocess.run([LETHE, "train", "text.txt", *small], check=True, capture_output=True)
        (cls.name,) = (path.name for path in pathlib.Path("artefacts/models").iterdir())

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.folder.cleanup()

    def model(self, **options):
        return lethe_lm_eval.Lethe(model=self.name, lethe=LETHE, **options)

    def test_answers_in_the_order_of_the_requests(self):
        asked = [request("the river", " forgets"), request("", "a"), request("an old", " ferryman remembers"), request("the river", " ZXQJVKW")]
        found = self.model().loglikelihood(asked)
        self.assertEqual(len(found), 4)
        for log_likelihood, greedy in found:
            self.assertTrue(-200 < log_likelihood < 0 and math.isfinite(log_likelihood))
            self.assertIsInstance(greedy, bool)
        self.assertLess(found[3][0], found[0][0])
        self.assertEqual([self.model().loglikelihood([one])[0][1] for one in asked], [greedy for _, greedy in found])

    def test_of_long_texts_are_sums_over_pieces(self):
        (found,) = self.model(length=16).loglikelihood_rolling([request("the river forgets. " * 8)])
        self.assertTrue(-1000 < found < 0)

    def test_errors_are_one_line_of_lethe(self):
        with self.assertRaises(SystemExit) as error:
            self.model(length=4).loglikelihood([request("x", "longer than four")])
        self.assertRegex(str(error.exception), r"line 1: continuation: expected at most length = 4 tokens, found 16$")
        with self.assertRaises(SystemExit):
            self.model().generate_until([])


if __name__ == "__main__":
    unittest.main()
