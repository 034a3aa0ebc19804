"""report.html in a real browser at 1400 and 400 pixels: nothing overflows, every text has contrast, the verdicts are visible.

Skipped where there is no Chromium: apt-get install chromium-headless-shell (or LETHE_BROWSER=PROGRAM).
"""

import html
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from checkout import SOURCE  # first: it finds tools/report
from PIL import Image
from report.page import Part, page
from report.results import load_machine
from report.throughput import figure_name, load_throughput, throughput_page

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = os.environ.get("LETHE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
MACHINE = SOURCE / "results" / "intel-xeon-16-cores"
WIDTHS = (1400, 400)
CONTRAST = 4.5  # WCAG 2.2, 1.4.3

# Chromium's windows are at least 500 pixels wide, a frame in them isn't.
FRAME = """<!doctype html><style>body { margin: 0 } iframe { border: 0; display: block }</style>
<iframe src="page.html%s" width="%d" height="%d"></iframe><script>addEventListener('load', () => {
  document.body.append(document.importNode(document.querySelector('iframe').contentDocument.getElementById('measured'), true));
});</script>"""

MEASURE = """
<script>addEventListener('load', () => {
function channels(colour) { const c = colour.match(/[\\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; }
function luminance([r, g, b]) {
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
function contrast(a, b) { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); }
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour[3] == 1) return colour;
  }
  return [255, 255, 255, 1];
}
function where(element) { return element.tagName + ' ' + (element.textContent || '').trim().slice(0, 60); }
function rect(element) { const r = element.getBoundingClientRect(); return {left: r.left, top: r.top + scrollY, right: r.right, bottom: r.bottom + scrollY}; }
const found = {width: innerWidth, content: document.scrollingElement.scrollWidth, overflows: [], faint: [], small: [], cut: [], badges: [], texts: 0};
for (const element of document.querySelectorAll('main *')) {
  if (element.closest('svg, details:not([open]) > :not(summary)')) continue;
  const at = rect(element), box = element.closest('.numbers');
  if ((!box || box === element) && (at.right > innerWidth + 0.5 || at.left < -0.5)) found.overflows.push(where(element));
  const own = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
  if (!own || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  ++found.texts;
  if (contrast(channels(style.color), background(element)) < CONTRAST) found.faint.push(where(element));
  if (parseFloat(style.fontSize) < 12) found.small.push(where(element));
}
for (const text of document.querySelectorAll('svg text')) {
  ++found.texts;
  if (contrast(channels(getComputedStyle(text).fill), [255, 255, 255]) < CONTRAST) found.faint.push(where(text));
  const at = rect(text), frame = rect(text.closest('svg'));
  if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.top < frame.top - 1 || at.bottom > frame.bottom + 1) found.cut.push(where(text));
}
for (const badge of document.querySelectorAll('.verdict'))
  if (badge.getClientRects().length) found.badges.push({...rect(badge), text: badge.textContent, box: rect(badge.closest('.wide') || document.body)});
const target = document.querySelector('figure:target svg');
if (target) found.opened = {shown: target.getBoundingClientRect().width, own: target.width.baseVal.value, letters: Math.min(...[...target.querySelectorAll('text')].map(
  text => parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)))};
const result = document.createElement('pre');
result.id = 'measured';
result.textContent = JSON.stringify(found);
document.body.append(result);
});</script></body>""".replace("CONTRAST)", f"{CONTRAST})")


def whole_page():
    """A page with a section of each kind, from the committed results."""
    throughput = SOURCE / "results/h200/attention_throughput.csv"
    lengths = dict.fromkeys(length for length, *_ in load_throughput(throughput))
    figures = [(f"throughput-{length}", throughput.parent / figure_name(length)) for length in lengths]
    text = "\n".join(line for line in throughput_page(throughput).splitlines()[1:] if not line.startswith("!["))
    return page(MACHINE.name, load_machine(SOURCE, MACHINE), [Part("throughput", "Attention kernels", text, figures, "Longer is faster.")],
                ["results/m/broken.json: expected JSON, found " + "x" * 80])


@unittest.skipUnless(BROWSER, f"browser: expected one of {', '.join(NAMES)} on PATH, found none; apt-get install chromium-headless-shell")
class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        (cls.folder / "page.html").write_text(whole_page().replace("</body>", MEASURE))
        cls.found = {width: cls.measured(width) for width in WIDTHS}

    @classmethod
    def browse(cls, width, *options, fragment="", height=1600):
        (cls.folder / "frame.html").write_text(FRAME % (fragment, width, height))
        call = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={cls.folder / 'profile'}",
                "--allow-file-access-from-files", f"--window-size={max(width, 500)},{height}", *options, f"file://{cls.folder}/frame.html"]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=True).stdout

    @classmethod
    def measured(cls, width, fragment=""):
        return json.loads(html.unescape(re.search(r'<pre id="measured">(.*?)</pre>', cls.browse(width, "--dump-dom", fragment=fragment),
                                                  re.DOTALL)[1]))

    def test_nothing_is_wider_than_the_window(self):
        for width, found in self.found.items():
            self.assertEqual((found["width"], found["content"]), (width, width))
            self.assertEqual(found["overflows"], [])
            self.assertEqual(found["cut"], [], "texts that leave their figure")

    def test_every_text_has_contrast_and_size(self):
        for found in self.found.values():
            self.assertGreater(found["texts"], 500)
            self.assertEqual(found["faint"], [])
            self.assertEqual(found["small"], [])

    def test_every_verdict_is_in_sight(self):
        for width, found in self.found.items():
            self.assertGreater(len(found["badges"]), 100)
            for badge in found["badges"]:
                self.assertGreaterEqual(badge["left"], badge["box"]["left"] - 0.5, badge)
                self.assertLessEqual(badge["right"], min(width, badge["box"]["right"]) + 0.5, badge)

    def test_badges_have_contrast_in_the_screenshot(self):
        for width, found in self.found.items():
            path = self.folder / f"{width}.png"
            self.browse(width, f"--screenshot={path}", height=3000)
            picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
            self.assertEqual(picture.size, (max(width, 500), 3000))
            shown = [badge for badge in found["badges"] if badge["bottom"] < 3000]
            self.assertGreater(len(shown), 10)
            for badge in shown:
                inside = picture.crop([round(badge[side]) + inset for side, inset in (("left", 3), ("top", 2), ("right", -3), ("bottom", -2))])
                lights = sorted(luminance(pixel) for pixel in pixels(inside))
                self.assertGreaterEqual((lights[-1] + 0.05) / (lights[0] + 0.05), CONTRAST, badge)

    def test_a_figure_opens_large(self):
        opened = self.measured(min(WIDTHS), "#figure-ablations")["opened"]
        self.assertGreaterEqual(opened["shown"], opened["own"] - 1)
        self.assertGreaterEqual(opened["letters"], 9)


def pixels(picture):
    flat = picture.tobytes()
    return {tuple(flat[i:i + 3]) for i in range(0, len(flat), 3)}


def luminance(pixel):
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (channel / 255 for channel in pixel)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


if __name__ == "__main__":
    unittest.main()
