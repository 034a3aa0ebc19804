"""The table of every item of the papers."""

import json
import unittest

from checkout import CERTIFICATE, SOURCE, WithCheckout  # first: it finds tools/report
from report.items import TITLES, all_folders, claims_of, faults_of_items, is_about, is_of_an_abstract, largest, read_items
from report.results import BadResult
from report.tables import readme_table


class Items(WithCheckout):
    """The table of the papers' items, over the checkout's claim."""

    HEADER = "paper,item,says,state,claims,why"

    def setUp(self):
        super().setUp()
        (self.checkout.root / "tests").mkdir()

    def write(self, *rows):
        path = self.checkout.root / "experiments/papers/items.csv"
        path.write_text("\n".join([self.HEADER, *rows]) + "\n")

    def table(self, *rows):
        self.write(*rows)
        return readme_table(self.checkout.root, self.checkout.results, "all", "items")

    def test_a_row_has_the_verdicts_on_its_statements(self):
        text = self.table("FoX,Table 3,components help,measured,ablations,smaller", "FoX,Table 1,tasks,out of reach,,760M")
        self.assertIn("| Table 3 | components help | measured | ablations at quick: 1 trend reproduced | smaller |", text)
        self.assertIn("| Table 1 | tasks | out of reach |  | 760M |", text)

    def test_a_claim_without_a_result_has_no_run_yet(self):
        self.assertIn("needle: no run yet", self.table("FoX,Fig. 4,needle,measured,needle,"))

    def test_the_largest_scale_is_shown(self):
        larger = self.checkout.results / "other"
        larger.mkdir()
        for file in self.checkout.machine.iterdir():
            (larger / file.name).write_bytes(file.read_bytes())
        (larger / "ablations.json").write_text(json.dumps(CERTIFICATE | {"scale": "gpu"}))
        self.assertIn("ablations at gpu:", self.table("FoX,Table 3,components help,measured,ablations,"))

    def on_another_text(self, **changes):
        """A folder with the claim's result at gpu on linux-gpt2, with a statement of these changes."""
        other = self.checkout.results / "other-linux"
        other.mkdir()
        for file in self.checkout.machine.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        comparisons = [CERTIFICATE["comparisons"][0] | changes]
        text = {"corpus": "data/linux-gpt2", "dataset": {"name": "linux-gpt2", "content": "0"}}
        (other / "ablations.json").write_text(json.dumps(CERTIFICATE | text | {"scale": "gpu", "comparisons": comparisons}))
        return other

    def test_a_result_on_another_text_is_not_the_claims(self):
        self.on_another_text()
        self.assertIn("| ablations at quick: 1 trend reproduced |", self.table("FoX,Table 3,components help,measured,ablations,"))

    def test_a_row_names_a_claim_on_another_text(self):
        other = self.on_another_text(statement="A gate hurts", verdict="refuted")
        self.assertIn("| ablations at quick: 1 trend reproduced. ablations on linux-gpt2 at gpu: 1 refuted |",
                      self.table("FoX,Table 3,components help,measured,ablations; ablations on linux-gpt2: A gate,"))
        self.assertEqual(self.faults(other), [])
        self.write("FoX,Table 3,components help,measured,ablations on linux-gpt2: FoX (Pro) is,")
        self.assertEqual(self.faults(other),
                         ["FoX Table 3: expected a statement of ablations on linux-gpt2 that begins with 'FoX (Pro) is', found none"])

    def test_figure_2_is_not_figure_21(self):
        row = {"paper": "FoX", "item": "Fig. 2"}
        self.assertTrue(is_about({"source": "FoX Fig. 2 and Section 4.2"}, row))
        self.assertFalse(is_about({"source": "FoX Fig. 21"}, row))
        self.assertFalse(is_about({"source": "ACP Fig. 2 left"}, row))
        self.assertFalse(is_about({"source": "T2FW Section 3.1"}, {"paper": "T2FW", "item": "Section 3"}))

    def with_statements(self, *statements):
        """The certificate with these statements, each with a verdict of its own."""
        comparisons = [CERTIFICATE["comparisons"][0] | {"statement": statement, "verdict": verdict}
                       for statement, verdict in zip(statements, ["trend reproduced", "refuted", "reproduced"])]
        (self.checkout.machine / "ablations.json").write_text(json.dumps(CERTIFICATE | {"comparisons": comparisons}))

    def faults(self, *folders):
        return [fault.split(": ", 1)[1] for fault in faults_of_items(self.checkout.root, [self.checkout.machine, *folders])]

    def test_a_row_shows_the_verdicts_of_the_statements_that_it_names(self):
        self.with_statements("A gate helps", "A gate hurts", "The control fails")
        for begins, verdicts in (("A gate helps", "1 trend reproduced"), ("A gate | The control", "1 trend reproduced; 1 refuted; 1 reproduced"),
                                 ("The", "1 reproduced")):
            self.assertIn(f"| ablations at quick: {verdicts} |", self.table(f"FoX,Fig. 8,gates help,measured,ablations: {begins},"))
            self.assertEqual(self.faults(), [])

    def test_a_row_without_a_statement_is_a_fault(self):
        self.assertIn("| ablations at quick: no statement |", self.table("FoX,Fig. 8,gates help,measured,ablations,"))
        self.assertEqual(self.faults(), ["FoX Fig. 8: expected a statement of ablations on it, found none"])
        self.assertIn("Fig. 8: expected a statement of ablations on it", self.checkout.run("check_results.py").stdout)
        self.write("FoX,Fig. 8,gates help,measured,ablations: FoX (Pro) is | A gate,")
        self.assertEqual(self.faults(), ["FoX Fig. 8: expected a statement of ablations that begins with 'A gate', found none"])

    def test_a_sentence_of_an_abstract_has_each_statement_with_its_number_and_band(self):
        self.with_statements("A gate helps", "A gate hurts")
        self.assertIn("| ablations at quick: trend reproduced: A gate helps (0.100 ± 0.020 nats); refuted: A gate hurts (0.100 ± 0.020 nats) |",
                      self.table("FoX,Abstract 1,gates help,measured,ablations: A gate,"))
        self.write("FoX,Abstract 1,gates help,measured,ablations: No gate,")
        self.assertEqual(self.faults(), ["FoX Abstract 1: expected a statement of ablations that begins with 'No gate', found none"])

    def test_a_drawn_row_has_no_verdict(self):
        self.assertIn("| drawn | ablations at quick |", self.table("FoX,Fig. 18,curves,drawn,ablations,grey"))
        self.assertEqual(self.faults(), [])

    def test_a_state_that_is_none_is_refused(self):
        with self.assertRaisesRegex(BadResult, "line 2: state: expected one of exact, measured, drawn, open, out of reach, found maybe"):
            self.table("FoX,Table 3,components help,maybe,ablations,")

    def test_a_comma_without_quotes_is_refused(self):
        with self.assertRaisesRegex(BadResult, "line 2: expected 6 columns, found more"):
            self.table("FoX,Fig. 7,L(i),measured,ablations,these rows, and those")
        with self.assertRaisesRegex(BadResult, "line 2: expected 6 columns, found fewer"):
            self.table("FoX,Fig. 7,L(i),measured,ablations")

    def test_a_path_or_a_test_that_is_not_there_is_named(self):
        tests = self.checkout.root / "tests/lesson"
        tests.mkdir(parents=True)
        (tests / "test_recency.cpp").write_text("TEST(RecencyBias, IsBounded) {}\n")
        self.write("page,Prop. 1,it holds,exact,,\"tests/explainer, experiments/papers/forgetting_transformer/ablations/paper, RecencyBias.IsFree\"",
                   "page,Prop. 2,too,exact,,RecencyBias.IsBounded")
        found = [fault.split(": ", 1)[1] for fault in faults_of_items(self.checkout.root)]
        self.assertEqual(found, ["page Prop. 1: expected tests/explainer, found none",
                                 "page Prop. 1: expected the test RecencyBias.IsFree, found none"])
        self.assertIn("page Prop. 1: expected tests/explainer, found none", self.checkout.run("check_results.py").stdout)

    def test_every_row_of_the_project_is_whole(self):
        rows = read_items(SOURCE)
        known = {path.parent.name for path in SOURCE.glob("experiments/papers/*/*/paper.csv")}
        known |= set(largest(SOURCE, SOURCE.glob("results/*-gpu-*")))  # on another text
        self.assertEqual({row["paper"] for row in rows}, set(TITLES))
        self.assertEqual(len({(row["paper"], row["item"]) for row in rows}), len(rows))
        for row in rows:
            claims = {name for name, _ in claims_of(row)}
            self.assertTrue(row["state"] not in ("measured", "drawn") or claims, row)
            self.assertTrue(claims <= known or "to be measured by" in row["why"], row)
            self.assertTrue(row["state"] in ("exact", "measured") or row["why"], row)
        self.assertEqual({row["paper"] for row in rows if is_of_an_abstract(row)}, set(TITLES))
        self.assertEqual(list(faults_of_items(SOURCE, all_folders(SOURCE, SOURCE / "results"))), [])


if __name__ == "__main__":
    unittest.main()
