"""What a reader of the report needs: captions, legends beside the data, marks on cut bars, colours that stay distinct in colour blindness, own
trainings."""

import itertools
import json
import math
import shutil
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from matplotlib.container import BarContainer
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from checkout import CERTIFICATE, SOURCE, WithCheckout  # first: it finds tools/report
from report.curves import losses, smoothed_over_positions
from report.markdown import with_band
from report.results import VERDICTS, load_machine
from report.style import COLOURS, DASHES, VERDICT_COLOURS, bars_within, panels, plt, save
from sealed_json import sealed
from report.trainings import hash_of_lines
from report.tables import claim_page, legend_table, numbers_table, readable_unit, scale_sentence

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as protanopes, deuteranopes and tritanopes see it.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour):
    channels = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]


def luminance(rgb):
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), rgb))


def lab(rgb):
    """CIE L*a*b* of linear sRGB, D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * max(0.0, min(1.0, b)) for a, b in zip(row, rgb)) / white for row, white in zip(rows, (0.9505, 1, 1.089))]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


class Colours(unittest.TestCase):
    def test_the_first_of_the_palette_differ_in_any_colour_blindness(self):
        for name, matrix in BLINDNESS.items():
            seen = [lab([sum(a * b for a, b in zip(row, linear(colour))) for row in matrix]) for colour in COLOURS]
            for (i, a), (j, b) in itertools.combinations(enumerate(seen), 2):
                self.assertGreater(math.dist(a, b), 10, f"{COLOURS[i]} and {COLOURS[j]} in {name}")

    def test_every_verdict_has_a_badge_with_contrast(self):
        self.assertEqual(set(VERDICT_COLOURS), set(VERDICTS))
        for colour in VERDICT_COLOURS.values():
            self.assertGreaterEqual(1.05 / (luminance(linear(colour)) + 0.05), 4.5)

    def test_dashes_are_all_different(self):
        self.assertEqual(len(set(DASHES)), len(DASHES))


class Figures(unittest.TestCase):
    """Every figure of the committed results, drawn once."""

    @classmethod
    def setUpClass(cls):
        cls.figures = {}
        for claim in load_machine(SOURCE, SOURCE / "results" / "intel-xeon-16-cores"):
            cls.figures[claim.name] = claim.figure()
            cls.figures[claim.name].draw_without_rendering()
        cls.addClassCleanup(plt.close, "all")

    def axes(self):
        for name, figure in self.figures.items():
            for axes in figure.get_axes():
                yield name, figure, axes

    def test_have_no_legend_over_data_or_text(self):
        for name, figure in self.figures.items():
            legends = [axes.get_legend() for axes in figure.get_axes() if axes.get_legend()] + figure.legends
            for legend in legends:
                box = legend.get_window_extent().padded(-1)
                for axes in figure.get_axes():
                    self.assertFalse(box.overlaps(axes.get_window_extent()), f"{name}: a legend is over {axes.get_title('left')}")
                    for text in [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]:
                        if text.get_text() and text.get_visible():
                            self.assertFalse(box.overlaps(text.get_window_extent()), f"{name}: a legend is over '{text.get_text()}'")

    def test_have_no_bar_beyond_their_axis(self):
        for name, _, axes in self.axes():
            for bars in (container for container in axes.containers if isinstance(container, BarContainer)):
                low, high = sorted(axes.get_xlim() if bars.orientation == "horizontal" else axes.get_ylim())
                for bar in bars:
                    ends = (bar.get_x(), bar.get_x() + bar.get_width()) if bars.orientation == "horizontal" else (bar.get_y(),
                                                                                                                  bar.get_y() + bar.get_height())
                    self.assertTrue(all(low - 1e-9 <= end <= high + 1e-9 for end in ends if end == end), f"{name}: {ends} beyond {low} … {high}")

    def test_tell_lines_apart_without_colour(self):
        for name, _, axes in self.axes():
            lines = [line for line in axes.get_lines() if not line.get_label().startswith("_") and len(line.get_xdata())]
            looks = [(str(line._unscaled_dash_pattern), line.get_marker(), line.get_markerfacecolor() == "white") for line in lines]
            self.assertEqual(len(set(looks)), len(looks), f"{name}: {axes.get_title('left')}: {[line.get_label() for line in lines]}")

    def test_have_positions_on_a_logarithmic_axis(self):
        seen = 0
        for name, _, axes in self.axes():
            if axes.get_xlabel() in ("position i", "context length l"):
                seen += 1
                self.assertEqual(axes.get_xscale(), "log", name)
        self.assertGreaterEqual(seen, 5)

    def test_are_saved_with_the_same_bytes_whatever_the_last_bits_of_the_layout(self):
        layout = ConstrainedLayoutEngine.execute

        def with_other_bits(engine, figure):
            layout(engine, figure)
            for box in [part.bbox_relative for part in figure.subfigs]:
                box.set_points(box.get_points() * (1 + 1e-15))
            for axes in figure.axes:
                axes.set_position(Bbox(axes.get_position(original=True).get_points() * (1 + 1e-15)))

        claims = {claim.name: claim for claim in load_machine(SOURCE, SOURCE / "results" / "intel-xeon-16-cores")}
        for name in ("duality", "per_head_savings"):  # with and without subfigures
            with tempfile.TemporaryDirectory() as folder:
                first, second = Path(folder) / "first.svg", Path(folder) / "second.svg"
                save(claims[name].figure(), first)
                with unittest.mock.patch.object(ConstrainedLayoutEngine, "execute", with_other_bits):
                    save(claims[name].figure(), second)
                self.assertEqual(first.read_bytes(), second.read_bytes(), name)

    def test_show_what_one_should_see(self):
        for claim in load_machine(SOURCE, SOURCE / "results" / "intel-xeon-16-cores"):
            self.assertGreater(len(claim.caption), 60, claim.name)


class Numbers(WithCheckout):
    def claim(self):
        return load_machine(self.checkout.root, self.checkout.machine)[0]

    def test_a_bar_that_is_cut_has_a_mark_and_its_value(self):
        figure, [[axes]] = panels(1)
        self.addCleanup(plt.close, figure)
        bars_within(axes, range(3), [0.5, 7.25, -3.0], -1, 2)
        self.assertEqual([bar.get_width() for bar in axes.patches], [0.5, 2, -1])
        self.assertEqual([text.get_text() for text in axes.texts if text.get_gid() == "cut"], ["7.25", "-3.00"])
        self.assertEqual(len(axes.get_lines()), 4)  # two strokes a cut

    def test_smoothing_over_positions_keeps_the_beginning(self):
        self.assertEqual(smoothed_over_positions([8.0, 4.0, 2.0, 1.0]), [8.0, 4.0, 2.0, 1.0])
        self.assertAlmostEqual(smoothed_over_positions([0.0] * 15 + [5.0] + [0.0] * 15)[15], 1.0)

    def test_a_loss_curve_of_stretches_is_one_of_positions(self):
        claim = self.claim()
        for x, value in ((1, 5.0), (2, 4.0), (4, 3.0), (7, 2.0)):
            claim.points.append({"quantity": "loss_at_position", "variant": "stretches", "seed": 0, "x": float(x), "y": math.nan, "value": value})
        self.assertEqual(losses(claim, "stretches"), ([1, 2, 4, 7], [5.0, 4.0, 3.0, 3.0, 2.0, 2.0, 2.0]))

    def test_units_fit_their_values(self):
        self.assertEqual(readable_unit("s", [0.0021, 0.0035, 0.5]), (1e3, "ms"))
        self.assertEqual(readable_unit("B", [3e7, 4e7, 1e8]), (1e-6, "MB"))
        self.assertEqual(readable_unit("nats", [0.001]), (1, "nats"))

    def test_a_zero_has_no_sign(self):
        self.assertEqual(with_band(-0.001, 0.12), "0.00 ± 0.12")
        self.assertEqual(with_band(-0.02, 0.012), "-0.020 ± 0.012")

    def test_tables_say_which_direction_is_better(self):
        path = self.checkout.root / "experiments/papers/forgetting_transformer/ablations/config.toml"
        self.assertIn("| perplexity ↓ |", numbers_table(self.claim()))
        path.write_text(path.read_text().replace("[claim]\n", '[claim]\nbetter.perplexity = "higher"\n'))
        self.assertIn("| perplexity ↑ |", numbers_table(self.claim()))

    def test_the_page_explains_verdicts_and_scale(self):
        for verdict in VERDICTS:
            self.assertIn(f"| {verdict} |", legend_table())
        self.assertRegex(scale_sentence([self.claim()]), r"^Scale quick\. Read it for directions")
        committed = load_machine(SOURCE, SOURCE / "results" / "intel-xeon-16-cores")
        self.assertRegex(scale_sentence(committed), r"models of up to [\d,]+ parameters, trained on up to [\d,]+ tokens of bible")


def write_training(root, name, label="", machine="m", losses=(3.0, 2.0, 1.5), **done):
    folder = root / "artefacts" / "models" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"label": label, "model": {"layers": 2, "width": 64, "mixer": {"name": "attention"}},
                                                 "training": {"corpus": "bible", "total_tokens": 300}}))
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": i, "tokens": 100 * (i + 1), "loss": loss}) + "\n" for i, loss in enumerate(losses)))
    (folder / "done.json").write_text(sealed({"validation_loss": 1.75, "diverged": None, "time": "2026-01-02T00:00:00Z", "machine": {"name": machine}}
                                             | done))
    return folder


def write_checkpoint(folder):
    """A checkpoint after the lines of the log, as far as the report reads it."""
    log = (folder / "log.jsonl").read_bytes()
    header = json.dumps({"identity": "{}", "steps_done": 3, "log": {"bytes": len(log), "hash": hash_of_lines(log)}})
    (folder / "checkpoint.pt").write_text(f"lethe checkpoint 2 {64 * '0'} {len(header) + 1}\n{header}\n")


class Pages(WithCheckout):
    def test_a_page_names_the_program_of_a_model_that_was_trained_away_from_a_checkout(self):
        path = self.checkout.machine / "ablations.json"
        run = {"label": "FoX (Pro)", "seed": 0, "artefact": "0" * 16, "dirty": None, "commit": "unknown"}
        for built, expected in (({"built": "b" * 40}, f"models trained at {'b' * 12} (the program's);"), ({}, "models trained at unknown (a tree without git);")):
            path.write_text(json.dumps(CERTIFICATE | {"runs": [run | built]}))
            self.assertIn(expected, claim_page(load_machine(self.checkout.root, self.checkout.machine)[0]))

    def test_why_names_a_control_that_does_as_well(self):
        path = self.checkout.machine / "ablations.json"
        control = {"what": "untrained", "measured": 0.2, "band": 0.01}
        for does, expected in (({"does_as_well": True}, "the control does as well: with these means no number of runs would decide it |"),
                               ({}, "| untrained: 0.200 ± 0.010 |")):
            comparison = CERTIFICATE["comparisons"][0] | {"verdict": "inconclusive at this scale", "control": control | does}
            path.write_text(json.dumps(CERTIFICATE | {"comparisons": [comparison]}))
            self.assertIn(expected, claim_page(load_machine(self.checkout.root, self.checkout.machine)[0]))


class Trainings(WithCheckout):
    def setUp(self):
        super().setUp()
        # A figure for the checkout's claim, which has too few rows for its own.
        (self.checkout.root / "experiments/papers/forgetting_transformer/ablations/figure.py").write_text(
            "from report.style import panels\n\n\ndef figure(claim):\n    return panels(1)[0]\n")

    def report(self):
        result = self.checkout.run("report.py")
        return result, (self.checkout.machine / "report.html").read_text()

    def test_of_ones_own_are_in_the_report_and_those_of_claims_are_not(self):
        write_training(self.checkout.root, "aaaa", "my first model")
        write_training(self.checkout.root, "bbbb")
        certificate = self.checkout.machine / "ablations.json"
        certificate.write_text(json.dumps(json.loads(certificate.read_text()) | {"runs": [{"label": "FoX", "artefact": "bbbb"}]}))
        result, page = self.report()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("my first model (aaaa)", page)  # in the legend of the figure
        self.assertIn("1.750", page)
        self.assertNotIn("bbbb", page)
        self.assertFalse(list(self.checkout.results.rglob("trainings*")), "own trainings leave nothing beside the committed results")

    def test_without_any_results_are_a_report(self):
        write_training(self.checkout.root, "aaaa", "alone", machine="another-machine")
        for path in self.checkout.machine.iterdir():
            path.unlink()
        (self.checkout.root / "README.md").unlink()
        self.assertEqual(self.checkout.run("report.py").returncode, 0)
        self.assertIn("alone", (self.checkout.results / "another-machine" / "report.html").read_text())

    def test_without_an_end_are_shown_too(self):
        (write_training(self.checkout.root, "aaaa", "running") / "done.json").unlink()
        _, page = self.report()
        self.assertIn("running (aaaa)", page)
        self.assertIn("not finished", page)
        shutil.rmtree(self.checkout.results)
        self.assertEqual(self.checkout.run("report.py", "--results", str(self.checkout.results)).returncode, 1)  # README.md wants the lost table
        self.assertIn("running (aaaa)", (self.checkout.results / "trainings/report.html").read_text())

    def test_without_an_end_are_compared_with_their_checkpoint(self):
        folder = write_training(self.checkout.root, "aaaa", "running")
        (folder / "done.json").unlink()
        write_checkpoint(folder)
        log = (folder / "log.jsonl").read_text()
        for content, fault in ((log, ""), (log + '{"step": 3, "tokens": 400, "loss": 1.25}\n{"st', ""), (log.replace("2.0", "0.1"), "found others"),
                               (log[:-2], f"found {len(log) - 2}")):
            with self.subTest(content):
                (folder / "log.jsonl").write_text(content)
                result, page = self.report()
                self.assertEqual(("running (aaaa)" in page, result.returncode), (not fault, 1 if fault else 0), result.stderr)
                line = f"^report: .*aaaa/log.jsonl: expected the {len(log)} bytes of its checkpoint, {fault}\n$"
                self.assertRegex(result.stderr, line if fault else "^$")
        (folder / "log.jsonl").write_text(log)
        (folder / "checkpoint.pt").rename(folder / "checkpoint.previous.pt")  # as between both renames of a training
        self.assertEqual(self.report()[0].returncode, 0)
        (folder / "checkpoint.pt").write_text("torn")
        self.assertRegex(self.report()[0].stderr, "^report: .*aaaa/checkpoint.pt: expected a checkpoint of lethe .*\n$")

    def test_that_are_damaged_are_named_and_the_rest_goes_on(self):
        write_training(self.checkout.root, "aaaa", "whole")
        (write_training(self.checkout.root, "cccc") / "run.json").write_text("{")
        (write_training(self.checkout.root, "dddd") / "log.jsonl").write_text('{"step": 0}\nno JSON\n{"step": 2}\n')
        result, page = self.report()
        self.assertEqual(result.returncode, 1)
        for text in (result.stderr, page):
            self.assertIn("cccc/run.json: expected JSON", text)
            self.assertIn("dddd/log.jsonl, line 2: expected JSON", text)
        self.assertIn("whole (aaaa)", page)
        self.assertNotIn("Traceback", result.stderr)

    def test_whose_files_are_no_files_are_named_in_one_line(self):
        lost, loop = write_training(self.checkout.root, "aaaa", log={"bytes": 9, "hash": ""}), write_training(self.checkout.root, "bbbb")
        (lost / "log.jsonl").unlink()
        (loop / "run.json").unlink()
        (loop / "run.json").symlink_to("run.json")
        (self.checkout.root / "experiments/papers/forgetting_transformer/ablations/config.toml").unlink()
        result = self.checkout.run("report.py")
        self.assertEqual(result.returncode, 1)
        self.assertIn("bbbb/run.json: expected a file, found Too many levels of symbolic links\n", result.stderr)
        self.assertIn("aaaa/log.jsonl: expected the log of its training, found none\n", result.stderr)
        self.assertRegex(result.stderr, r"config.toml: expected the table \[claim\], found No such file or directory\n")
        self.assertNotIn("Err", result.stderr)
        for place in ("README.md", "loop"):
            (self.checkout.root / "loop").unlink(missing_ok=True)
            (self.checkout.root / "loop").symlink_to("loop")
            refused = self.checkout.run("report.py", "--results", str(self.checkout.root / place))
            self.assertEqual((refused.returncode, refused.stderr), (1, f"report: --results: expected a folder, found {self.checkout.root / place}\n"))

    def test_whose_memory_is_measured_are_side_by_side_and_what_is_not_is_said(self):
        def measured(name, mixer, **measures):
            folder = write_training(self.checkout.root, name, name)
            run = json.loads((folder / "run.json").read_text())
            run["model"]["mixer"], run["training"]["context_length"] = mixer, 8
            (folder / "run.json").write_text(json.dumps(run))
            (folder / "measured").mkdir()
            for place, (measure, settings, records, points) in enumerate((key, *value) for key, value in measures.items()):
                file = {"measure": measure, "settings": settings, "value": {"records": records, "points": points}}
                (folder / "measured" / f"{place}.json").write_text(json.dumps(file))
            return folder

        def record(metric, value, length=8):
            return {"metric": metric, "value": value, "length": length}

        curve = [{"quantity": "loss_at_position", "variant": "", "value": [9, 9, 3, 3, 2, 2, 2, 2]}]
        def copied(length, copy, guess):
            return [{"quantity": f"{name}_of_repeat_at_length", "x": [length, length], "value": [value, value]}
                    for name, value in (("copy", copy), ("lm", guess))]

        measured("aaaa", {"name": "attention", "forget_gate": "full"},
                 per_token_loss=({"length": 8}, [record("loss", 2)], curve),
                 needle=({"prompt": "paper"}, [record("gain", 0.5), record("exact_match", 0.25), record("gain", 0.1, 16)], []),
                 gates=({}, [record("median_half_life", 12.5), record("local_heads", 0.75), record("global_heads", 0)], []))
        measured("bbbb", {"name": "delta"}, associative_recall=({}, [record("accuracy", 0.875)], []),
                 forgetting_curve=({"length": 32}, [], copied(8, 1, 0.5) + copied(16, 0.9, 0.5) + copied(32, 0.5, 0.5)))
        write_training(self.checkout.root, "cccc", "cccc")
        result, page = self.report()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        section = page[page.index('id="memory"'):]
        section = section[:section.index("</section>")]
        self.assertEqual(section.count("<tr>"), 3)
        for text in ("-1.000", "0.5000 / 0.2500 at 8", "12.50 / 0.7500 / 0", "0.8750 / ?", "8.000 / 16.00", "no gates", "not measured"):
            self.assertIn(text, section)
        self.assertNotIn("cccc", section)
        (self.checkout.root / "artefacts/models/bbbb/measured/0.json").write_text("{")
        result, page = self.report()
        self.assertIn("bbbb/measured/0.json: expected JSON", result.stderr)
        self.assertIn("12.50 / 0.7500 / 0", page)

    def test_with_a_log_that_a_kill_cut_are_read(self):
        folder = write_training(self.checkout.root, "aaaa", "killed")
        with open(folder / "log.jsonl", "a") as log:
            log.write('{"step": 3, "tok')
        result, page = self.report()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("killed (aaaa)", page)


if __name__ == "__main__":
    unittest.main()
