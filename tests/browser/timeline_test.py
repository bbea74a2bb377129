"""The page of piper-sim --html in a browser without a screen: it opens, answers the mouse and the keys, and says no word on the console.

  tests/browser/timeline_test.py SOURCE BIN [PICTURES]     # PICTURES: a folder for screenshots, light and dark
"""
import html, json, pathlib, re, shutil, subprocess, sys, tempfile, unittest

ROOT, BIN = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
PICTURES = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

# Runs in the page behind its own script, whose names it sees, and leaves what it saw as JSON.
DRIVER = r"""
<script>
const report = {errors: []};
window.addEventListener('error', (event) => report.errors.push(event.message));
// Without a screen there may be no frames: what a frame would draw is drawn.
const frame = async () => draw();
function send(kind, x, y, more = {}) {
  const box = canvas.getBoundingClientRect();
  const Kind = kind === 'wheel' ? WheelEvent : PointerEvent;
  canvas.dispatchEvent(new Kind(kind, {clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, button: 0, ...more}));
}
const key = (name, on = document) => on.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true}));
const middle = (item) => {
  const at = laneOfItem(item);
  return [xOf(startOf(item) + lengthOf(item) / 2), kTop + at.y - view.top + at.height / 3];
};
const find_step = (label) => ({kind: 'step', at: [...step.one.keys()].find((s) => labelOf(s) === label && step.length[s] > 0)});
const pixel = (item) => {
  const [x, y] = middle(item), dense = window.devicePixelRatio;
  return [...ink.getImageData(Math.round((x + 6) * dense), Math.round((y - 4) * dense), 1, 1).data].join();
};
const drawn = () => pen.getImageData(0, 0, marks.width, marks.height).data.reduce((sum, value) => sum + (value > 0), 0);
function drag(x0, y0, x1, y1, more) {
  send('pointerdown', x0, y0, more);
  send('pointermove', (x0 + x1) / 2, (y0 + y1) / 2, more);
  send('pointermove', x1, y1, more);
  send('pointerup', x1, y1, more);
}
async function drive() {
  await frame();
  report.title = document.querySelector('h1').textContent;
  report.bold = document.querySelectorAll('h1 b').length;
  report.summary = byId('summary').textContent;
  report.resources = performance.getEntriesByType('resource').length;
  report.nodes = document.querySelectorAll('*').length;
  report.ready = performance.now();
  const forward = find_step('F stage=0 mb=1'), other = find_step('B stage=0 mb=2');
  send('pointermove', ...middle(forward));
  report.forward = tip.innerText;
  const waiting = {kind: 'gap', at: gap.reason.findIndex((reason, g) => head.reasons[reason] === 'other ranks' && gap.row[g] === 1)};
  send('pointermove', ...middle(waiting));
  report.gap = tip.innerText;
  send('pointermove', ...middle({kind: 'run', at: run.by.get(forward.at)}));
  report.run = tip.innerText;
  send('pointermove', 40, middle(forward)[1]);
  report.row = tip.innerText;
  send('pointerleave', 0, 0);
  report.left = tip.hidden;

  const [x, y] = middle(forward), before = {from: view.from, to: view.to, time: timeAt(x)};
  send('wheel', x, y, {deltaY: -300});
  report.zoomed = (view.to - view.from) / (before.to - before.from);
  report.stayed = Math.abs(timeAt(x) - before.time) * scale();
  const from = view.from;
  drag(700, y, 600, y);
  report.moved = (view.from - from) * scale();
  drag(500, kTop - 10, 700, kTop - 10);
  report.selected = (view.to - view.from) * scale() > 0 && timeAt(500) !== timeAt(700);
  key('0');
  await frame();
  report.whole = [view.from <= 0, view.to >= whole];
  const span = view.to - view.from;
  key('w');
  report.keyed = (view.to - view.from) / span;
  key('f');
  await frame();

  const last = find_step('B stage=0 mb=3');
  report.empty = drawn();
  send('pointerdown', ...middle(last));
  send('pointerup', ...middle(last));
  await frame();
  report.side = side.innerText;
  report.arrows = drawn();
  report.chain = chain.map((item) => [startOf(item), rowOf(item)]);
  key('Enter');
  report.second = titleOf(chosen);
  key('Backspace');
  report.back = titleOf(chosen);
  key('Escape');
  await frame();
  report.closed = side.hidden;

  key('0');
  await frame();
  const colours_before = [pixel(forward), pixel(other)];
  byId('search').value = 'mb=1 F';
  byId('search').dispatchEvent(new Event('input'));
  await frame();
  report.found = byId('found').textContent;
  report.expected = [...step.one.keys()].filter((s) => /mb=1/.test(labelOf(s)) && /f/i.test(labelOf(s) + (head.names[one.what[step.one[s]]] || '') + head.kinds[one.kind[step.one[s]]])).length;
  report.dimmed = [pixel(forward) === colours_before[0], pixel(other) === colours_before[1]];
  key('Escape', byId('search'));
  await frame();
  byId('stage').value = '1';
  byId('stage').dispatchEvent(new Event('change'));
  await frame();
  report.followed = [pixel(forward) === colours_before[0], wanted.found.every((s) => one.stage[step.one[s]] === 1), wanted.found.length > 0];
  key('Escape');
  await frame();
  report.restored = pixel(forward) === colours_before[0];
}
drive().catch((error) => report.errors.push(String(error))).finally(() => {
  document.body.append(Object.assign(document.createElement('pre'), {id: 'report', textContent: JSON.stringify(report)}));
});
</script>
"""


def browse(*words):
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                               "--enable-logging=stderr", f"--user-data-dir={profile}", "--window-size=1400,800",
                               "--virtual-time-budget=8000", *words], capture_output=True, text=True, timeout=240)
    # The driver reads pixels back, which the browser remarks upon.
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line and "willReadFrequently" not in line]


class Timeline(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        at = pathlib.Path(cls.folder.name)
        plans, trace, page = at / "a<b>&c", at / "trace.json", at / "page.html"
        sample = ROOT / "samples/gpt"
        (at / "text.bin").write_bytes(bytes(range(256)) * 400)
        for words in ([BIN / "piperc", sample / "model.onnx", sample / "pp2-dp2.yaml", "-o", plans],
                      [BIN / "piper-run", plans, "--data", f"{at}/text.bin:u8", "--steps", "3", "--trace", trace],
                      [BIN / "piper-sim", plans, "--costs", "F=18,B=30,U=5,send=0.6", "--no-sensitivity", "--html", page, "--measured", trace]):
            subprocess.run(words, check=True, capture_output=True)
        text = page.read_text()
        driven = at / "driven.html"
        driven.write_text(text.replace("</body>", DRIVER + "</body>"))
        shown, cls.console = browse("--dump-dom", driven.as_uri())
        found = re.search(r'<pre id="report">(.*?)</pre>', shown, re.S)
        assert found, "the page did not come to its end:\n" + "\n".join(cls.console)
        cls.report = json.loads(html.unescape(found.group(1)))
        if PICTURES:
            chosen = at / "chosen.html"
            chosen.write_text(text.replace("</body>", "<script>choose({kind: 'step', at: rows[0].lanes[0].items.findLast((s) => /^B/.test(labelOf(s)))});"
                                           "showTip(600, 60, titleOf(chosen), factsOf(chosen));</script></body>"))
            for name, shown, words in (("light", page, []), ("dark", page, ["--blink-settings=preferredColorScheme=0"]), ("chosen", chosen, [])):
                browse(f"--screenshot={PICTURES}/{name}.png", *words, shown.as_uri())

    def test_says_nothing_on_the_console_and_loads_nothing(self):
        self.assertEqual((self.report["errors"], self.console, self.report["resources"]), ([], [], 0))

    def test_shows_names_as_text(self):
        self.assertRegex(self.report["title"], r"a<b>&c: 4 ranks")
        self.assertEqual(self.report["bold"], 0)

    def test_sums_up(self):
        for part in ("step", "idle", "ranks 4", "kinds of ranks 2", "measured, 1 step", "beside the prediction"):
            self.assertIn(part, self.report["summary"])

    def test_has_no_element_for_each_step(self):
        self.assertLess(self.report["nodes"], 200)

    def test_says_what_is_under_the_mouse(self):
        for part in ("F stage=0 mb=1", "ranks 0, 1", "forward (F)", "stage\t0", "microbatch\t1", "start\t18 ms", "takes\t18 ms", "stated", "measured"):
            self.assertIn(part, self.report["forward"])
        for part in ("computes nothing: other ranks", "ranks 2, 3", "messages over pp", "KiB", "held up by\trank 0", "from\t0 s"):
            self.assertIn(part, self.report["gap"])
        for part in ("F stage=0 mb=1", "measured on\trank 0", "predicted\t18 ms", "its task\tpredicted 18 ms"):
            self.assertIn(part, self.report["run"])
        for part in ("pp 0, dp 0", "computes", "waits: other ranks"):
            self.assertIn(part, self.report["row"])
        self.assertTrue(self.report["left"])

    def test_zooms_and_moves(self):
        self.assertLess(self.report["zoomed"], 0.7)
        self.assertLess(self.report["stayed"], 1)
        self.assertAlmostEqual(self.report["moved"], 100, delta=1)
        self.assertTrue(self.report["selected"])
        self.assertEqual(self.report["whole"], [True, True])
        self.assertAlmostEqual(self.report["keyed"], 0.7, delta=0.01)

    def test_follows_causes(self):
        self.assertIn("It waited for", self.report["side"])
        self.assertGreater(self.report["arrows"], self.report["empty"] + 500)
        chain = self.report["chain"]
        self.assertGreater(len(chain), 5)
        self.assertEqual(len({row for _, row in chain}), 2)  # it crosses to the other stage
        self.assertTrue(all(before >= after for (before, _), (after, _) in zip(chain, chain[1:])), chain)
        self.assertNotEqual(self.report["second"], self.report["back"])
        self.assertEqual(self.report["back"], "B stage=0 mb=3")
        self.assertTrue(self.report["closed"])

    def test_lets_stand_out_what_is_searched(self):
        self.assertEqual(self.report["found"], f"{self.report['expected']} found")
        self.assertGreater(self.report["expected"], 0)
        self.assertEqual(self.report["dimmed"], [True, False])
        self.assertEqual(self.report["followed"], [False, True, True])
        self.assertTrue(self.report["restored"])


if __name__ == "__main__":
    if not BROWSER:
        print("skipped: there is no chromium (tools/install-packages --dev installs it)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
