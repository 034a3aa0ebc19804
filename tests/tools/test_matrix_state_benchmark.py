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
import matrix_state_rivals  # noqa: E402
import torch  # noqa: E402
from matrix_state_rivals import Rival  # noqa: E402


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
                               (["--profile", "found.log", "--output", "found.json"],
                                "--profile: expected none of --output, --fla and --peers beside it, found --output"),
                               (["--profile", "found.log", "--fla", "."],
                                "--profile: expected none of --output, --fla and --peers beside it, found --fla"),
                               (["--profile", "found.log", "--peers", "."],
                                "--profile: expected none of --output, --fla and --peers beside it, found --peers"),
                               (["--peers", "absent"], "--peers: expected a folder, found absent")):
            with self.subTest(options):
                self.assertIn(words, self.refused(*options))

    def test_a_folder_that_is_no_checkout_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn(f"--fla: expected a checkout of flash-linear-attention, found {folder}", self.refused("--fla", folder))


class WrongBackward(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: 2 * x)
    backward = staticmethod(lambda ctx, gradient: gradient)


def raises(leaves):
    raise RuntimeError("not on\nthis GPU")


class Rivals(unittest.TestCase):
    """Of a form whose values are 2 q, of operators that are right, right forward alone, wrong, or that raise."""

    CALLS = {"right": lambda leaves: (2 * leaves["query"], None), "wrong": lambda leaves: (2.5 * leaves["query"], None), "raises": raises,
             "wrong_backward": lambda leaves: (WrongBackward.apply(leaves["query"]), None)}

    def setUp(self):
        self.given = {"query": torch.ones(1, 4, 1, 2), "key": None, "value": torch.ones(1, 4, 1, 2)}

    def rivals(self, *names, times=None, sides=("forward", "backward"), **members):
        of = lambda name: Rival(name.partition("_")[0], name, self.CALLS[name], lambda given: {"query": given["query"]}, **members)
        rivals = [name if isinstance(name, Rival) else of(name) for name in names]
        times = iter(times or [5.0] * 8)

        def clock(call):
            call()
            return next(times)

        return matrix_state_rivals.of_rivals(self.given, rivals, lambda given: (2 * given["query"], given.get("state")), sides, 0.02, clock)

    def test_have_the_time_of_the_fastest_in_each_direction(self):
        fastest, reasons = self.rivals("right", "right", times=[5.0, 9.0, 6.0, 8.0])
        self.assertEqual({side: [row["rival_microseconds"] for row in rows] for side, rows in fastest.items()}, {"forward": [5.0], "backward": [8.0]})
        self.assertEqual(reasons, {"forward": [], "backward": []})

    def test_of_each_package_have_a_row_the_fastest_first(self):
        other = Rival("other", "as_right", self.CALLS["right"], lambda given: {"query": given["query"]})
        fastest, _ = self.rivals("right", other, times=[5.0, 9.0, 6.0, 8.0])
        self.assertEqual([row["rival_package"] for row in fastest["forward"]], ["right", "other"])
        self.assertEqual([row["rival_package"] for row in fastest["backward"]], ["other", "right"])

    def test_keep_the_forward_where_the_backward_is_wrong(self):
        fastest, reasons = self.rivals("wrong_backward")
        self.assertEqual((len(fastest["forward"]), fastest["backward"], reasons["forward"]), (1, [], []))
        self.assertEqual(reasons["backward"], ["wrong_backward: ValueError: query: expected ours within 2.0%, found 50.00%"])

    def test_that_raise_or_are_wrong_have_no_time_and_a_reason(self):
        fastest, reasons = self.rivals("raises", "wrong")
        self.assertEqual(fastest, {"forward": [], "backward": []})
        self.assertEqual(reasons["forward"], ["raises: RuntimeError: not on this GPU",
                                              "wrong: ValueError: values: expected ours within 2.0%, found 25.00%"])
        self.assertEqual(len(reasons["backward"]), 2)

    def test_whose_leaves_cannot_be_prepared_have_a_reason(self):
        fastest, reasons = self.rivals(Rival("package", "unprepared", self.CALLS["right"], raises))
        self.assertEqual((fastest["forward"], reasons["backward"]), ([], ["unprepared: RuntimeError: not on this GPU"]))

    def test_without_a_backward_are_timed_forward_alone(self):
        fastest, reasons = self.rivals("right", backward=False)
        self.assertEqual((len(fastest["forward"]), fastest["backward"], reasons["backward"]), (1, [], []))

    def test_of_one_token_are_timed_forward_alone(self):
        fastest, reasons = self.rivals("right", sides=("forward",))
        self.assertEqual((list(fastest), list(reasons)), (["forward"], ["forward"]))

    def test_with_another_last_state_have_no_time(self):
        self.given["state"] = torch.ones(1, 1, 2, 2)
        leaves = lambda given: {"query": given["query"], "state": given["state"]}
        for state, times in ((1.0, 1), (1.1, 0)):
            fastest, _ = self.rivals(Rival("package", "step", lambda leaves: (2 * leaves["query"], state * leaves["state"]), leaves),
                                     sides=("forward",))
            self.assertEqual(len(fastest["forward"]), times)


class Leaves(unittest.TestCase):
    """What a rival takes is our problem in other words: our arguments, computed from its leaves, are ours but for rounding."""

    def test_give_our_arguments_back(self):
        torch.manual_seed(1)
        normal = lambda *shape: torch.randn(2, 5, 3, *shape).to(torch.bfloat16)
        gate = lambda *shape: torch.nn.functional.logsigmoid(torch.randn(2, 5, 3, *shape) + 3)
        for form, rivals in matrix_state_rivals.OTHERS.items():
            given = {"query": normal(4), "key": torch.nn.functional.normalize(normal(4), dim=-1), "value": normal(6),
                     "beta": gate().exp() if "delta" in form else None, "key_gate": gate() if "token" in form else gate(4),
                     "value_gate": gate(6) if "value" in form else None, "state": torch.randn(2, 3, 4, 6) if "state" in form else None}
            for rival in rivals:
                with self.subTest(form, rival=rival.name):
                    ours = rival.ours(rival.leaves(given))
                    wanted = {name: tensor for name, tensor in given.items() if tensor is not None}
                    self.assertEqual(ours.keys(), wanted.keys())
                    if rival.package == "flash_kda":  # whose kernels take a query's direction alone
                        wanted["query"] = torch.nn.functional.normalize(wanted["query"], dim=-1)
                    for name, tensor in wanted.items():
                        self.assertEqual(ours[name].shape, tensor.shape, name)
                        self.assertLess(((ours[name] - tensor).float().norm() / tensor.float().norm()).item(), 0.01, name)

    def test_of_mamba_have_the_gradients_of_its_step(self):
        given = {"query": torch.ones(1, 1, 1, 4), "key": torch.ones(1, 1, 1, 4), "value": torch.ones(1, 1, 1, 2),
                 "key_gate": torch.full((1, 1, 1), -0.5)}
        leaves = matrix_state_rivals.mamba_leaves(given)
        step = leaves["step"].requires_grad_()
        ours = matrix_state_rivals.mamba_ours(leaves)
        gradient, = torch.autograd.grad(3 * ours["value"].sum() + 5 * ours["key_gate"].sum(), step)
        self.assertEqual(gradient.item(), 3 * 2 * 2 - 5)  # x is value / step: 2, in both columns

    def test_of_mamba_s_step_have_a_skip_of_zeros(self):
        taken = {}

        def update(state, x, *others, D, dt_bias):
            taken.update(skip=D, rows=x)
            return x

        given = {"query": torch.ones(2, 1, 3, 4), "key": torch.ones(2, 1, 3, 4), "value": torch.ones(2, 1, 3, 6),
                 "key_gate": torch.full((2, 1, 3), -0.5),
                 "state": torch.ones(2, 3, 4, 6)}
        rival = matrix_state_rivals.mamba_step()
        with unittest.mock.patch.dict(sys.modules,
                                      {"mamba_ssm.ops.triton.selective_state_update": unittest.mock.Mock(selective_state_update=update)}):
            values, state = rival.call(rival.leaves(given))
        self.assertEqual((values.shape, state.shape, taken["skip"].shape), ((2, 1, 3, 6), (2, 3, 4, 6), taken["rows"].shape[1:]))
        self.assertFalse(taken["skip"].any())


class Packages(unittest.TestCase):
    def test_are_found_by_import_with_their_version_or_have_a_reason(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(sys, "path", [folder, *sys.path]):
            found = pathlib.Path(folder) / "found_rival"
            found.mkdir()
            (found / "__init__.py").write_text("__version__ = '1.2'\nimport nothing_of_this_name\n")
            (found / "operators.py").write_text("")
            modules = {"found_rival": ("found_rival.operators", True), "missing_rival": ("missing_rival", False)}
            with unittest.mock.patch.object(matrix_state_rivals, "MODULES", modules):
                versions, missing = matrix_state_rivals.packages_at_hand(tuple(modules))
            del sys.modules["found_rival"], sys.modules["found_rival.operators"]
        self.assertEqual(versions, {"found_rival": "1.2"})
        self.assertEqual(missing, {"missing_rival": "ModuleNotFoundError: No module named 'missing_rival'"})

    def test_of_fla_pass_no_call_on_to_others(self):
        with unittest.mock.patch.dict("os.environ", {"FLA_TILELANG": "1"}) as environment:
            matrix_state_rivals.packages_at_hand(("fla",))
            self.assertEqual({environment[name] for name in ("FLA_FLASH_KDA", "FLA_FLASH_QLA", "FLA_TILELANG")}, {"0"})

    def test_that_are_not_at_hand_have_no_rivals(self):
        names = lambda packages: {rival.package for rival in matrix_state_rivals.rivals_of("delta token", packages)}
        self.assertEqual((names(()), names(("fla", "flashinfer"))), (set(), {"fla", "flashinfer"}))


class Profile(unittest.TestCase):
    def test_has_a_line_a_kernel(self):
        self.assertEqual(matrix_state.profile_lines("token gate", [(315.24, 1.0, "k" * 200), (78.8, 2.0, "join")]),
                         ["-- token gate", "   315.2 us   1.0 x  " + "k" * 110, "    78.8 us   2.0 x  join"])


if __name__ == "__main__":
    unittest.main()
