"""The quotes in README files equal the sources, and the lesson leaves no variant out."""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import quote_sources  # noqa: E402

SOURCE = """int f() {
  // [loop]
  for (;;) {
    g();
  }
  // [/loop]
}
"""
README = "before\n<!-- code:a.cpp:loop -->\n{body}<!-- /code -->\nafter\n"
QUOTE = "```cpp\nfor (;;) {\n  g();\n}\n```\n"


class QuoteSources(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "a.cpp").write_text(SOURCE)

    def write(self, body, part="loop"):
        (self.root / "README.md").write_text(README.format(body=body).replace(":loop", f":{part}"))

    def test_a_quote_is_written_without_its_common_indentation(self):
        self.write("")
        quote_sources.rewrite(self.root)
        self.assertEqual((self.root / "README.md").read_text(), README.format(body=QUOTE))
        self.assertEqual(list(quote_sources.differences(self.root)), [])

    def test_a_quote_that_differs_by_one_character_is_found(self):
        self.write(QUOTE.replace("g()", "h()"))
        self.assertEqual(len(list(quote_sources.differences(self.root))), 1)
        self.write(QUOTE)
        (self.root / "a.cpp").write_text(SOURCE.replace("g()", "h()"))
        self.assertEqual(len(list(quote_sources.differences(self.root))), 1)

    def test_a_part_that_is_not_there_or_there_twice_is_refused(self):
        self.write("", part="other")
        with self.assertRaisesRegex(quote_sources.UnknownPart, "found 0"):
            quote_sources.rewrite(self.root)
        self.write("")
        (self.root / "a.cpp").write_text(SOURCE + SOURCE)
        with self.assertRaisesRegex(quote_sources.UnknownPart, "found 2"):
            quote_sources.rewrite(self.root)


class TheReadmesOfThisCheckout(unittest.TestCase):
    def test_quote_the_sources_as_they_are(self):
        self.assertEqual(list(quote_sources.differences(ROOT)), [])

    def test_the_lesson_quotes_code(self):
        quoted = [path for path in quote_sources.readmes(ROOT) if path.parent.name == "reference"]
        self.assertEqual(len(quoted), 1)
        self.assertGreaterEqual(len(quote_sources.MARKER.findall(quoted[0].read_text())), 4)

    def test_the_table_of_variants_has_a_full_row_for_each_registry_row(self):
        registry = (ROOT / "reference/registry.cpp").read_text()
        names = {a or b for a, b in re.findall(r'\.name = "(\w+)"|_row\("(\w+)"', registry)}
        self.assertGreaterEqual(len(names), 12)
        rows = {}
        for line in (ROOT / "reference/README.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            for name in re.findall(r"`(\w+)`", cells[0]) if cells else []:
                rows[name] = cells
        for name in sorted(names):
            name = re.sub("_(un)?normalized$", "", name)  # one file, one row
            with self.subTest(variant=name):
                self.assertIn(name, rows)
                self.assertEqual(len(rows[name]), 5)
                self.assertTrue(all(rows[name]), rows[name])
                for file in re.findall(r"\]\(([\w./]+)\)", rows[name][-1]):
                    self.assertTrue((ROOT / "reference" / file).exists(), file)


if __name__ == "__main__":
    unittest.main()
