"""samples/models: the files are read as they are meant, train as one device does, and compile without their weights.

  models_test.py ROOT BIN    77 where no python here has numpy and onnx; one that PYTHON names serves
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, BIN = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
sys.path.insert(0, str(ROOT / "tests/torch"))
sys.dont_write_bytecode = True
from own_process import find_python  # noqa: E402

find_python(ROOT, ["numpy", "onnx"])
MODELS = ROOT / "samples/models"
SMALL = "--layers 4 --hidden 32 --tokens 8 --vocab 64"
TINY = {
    "gpt2": f"{SMALL} --heads 4",
    "llama3-8b": f"{SMALL} --heads 4 --kv-heads 2 --inner 64",
    "deepseek-v3-like": f"{SMALL} --heads 4 --inner 64 --experts 4 --top 2 --expert-inner 16 --dense 1 --q-rank 16 --kv-rank 8 --plain-width 4 "
                        "--rotary-width 4 --value-width 8",
}
RECOGNISED = {
    "gpt2": "recognised: Attention 4",
    "llama3-8b": "recognised: Rotary 8, Attention 4, SwiGlu 4",
    "deepseek-v3-like": "recognised: Rotary 8, Attention 4, SwiGlu 7, GroupedMatMul 6",
}
TRAIN = "train: {optimizer: {sgd: {lr: 0.5, momentum: 0.9}}, global_batch: 8}\n"
TENSOR = "piper: 1\ninclude: [<schedules/1f1b>, <tensor/tensor>, <numerics/f64>]\nparams: {stages: 2, tp: 2, microbatches: 4}\n" + TRAIN
STRATEGIES = {
    "gpt2": TENSOR.replace("tp: 2", "tp: 2, out: -1, in: 0"),
    "llama3-8b": TENSOR,
    "deepseek-v3-like": "piper: 1\ninclude: [<schedules/1f1b>, <experts/experts>, <numerics/f64>]\nparams: {stages: 2, ep: 2, microbatches: 4}\n" + TRAIN,
}
ONE = "piper: 1\n" + TRAIN


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *words, fails=False):
        done = subprocess.run([str(word) for word in words], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode != 0, fails, f"{words}:\n{done.stdout}{done.stderr}")
        return done.stderr if fails else done.stdout

    def generate(self, model, *words, name="model.onnx", fails=False):
        return self.call(sys.executable, MODELS / "generate", model, "-o", name, *words, fails=fails)

    def write(self, text):
        (self.folder / "strategy.yaml").write_text(text)

    def test_patterns_are_recognised_and_names_kept(self):
        for model, sizes in TINY.items():
            with self.subTest(model):
                self.generate(model, *sizes.split())
                said = " ".join(self.call(BIN / "piperc", "model.onnx", "--describe").split())
                self.assertIn(RECOGNISED[model], said)
                self.assertNotIn("no attention:", said)
                self.assertIn("layer 0..3", said)

    def test_pipelines_and_cut_layers_train_as_one_device(self):
        (self.folder / "text.bin").write_bytes(bytes(k * k % 61 for k in range(600)))
        data = ["--data", "text.bin:u8", "--steps", 4]
        for model, sizes in TINY.items():
            with self.subTest(model):
                self.generate(model, *sizes.split(), "--weights")
                self.write(STRATEGIES[model])
                self.call(BIN / "piperc", "model.onnx", "strategy.yaml", "-o", model)
                bounds = ["--verify-against", "uncut", "--loss-bound", 1e-9, "--param-bound", 1e-9]
                self.call(BIN / "piper-run", model, *data, *bounds)
                losses = [self.loss(model, *data), self.loss(model, *data[:-1], 1)]
                self.assertLess(losses[0], losses[1] - 1e-3)  # it learns
                # Another seed's weights are another model.
                self.generate(model, *sizes.split(), "--weights", "--seed", 1)
                self.call(BIN / "piperc", "model.onnx", "strategy.yaml", "-o", f"{model}-1")
                self.assertGreater(abs(self.loss(f"{model}-1", *data) - losses[0]), 1e-6)

    def loss(self, plans, *words):
        self.call(BIN / "piper-run", plans, *words, "--metrics", f"{plans}.jsonl")
        return float(re.findall(r'"loss": ?([0-9.e+-]+)', (self.folder / f"{plans}.jsonl").read_text())[-1])

    def test_plans_do_not_depend_on_weights(self):
        for model, sizes in TINY.items():
            with self.subTest(model):
                explained = []
                for words in (["--weights"], []):
                    (self.folder / "model.onnx.data").unlink(missing_ok=True)
                    self.generate(model, *sizes.split(), *words)
                    self.write(STRATEGIES[model])
                    said = self.call(BIN / "piperc", "model.onnx", "strategy.yaml", "--dry-run", "--explain")
                    explained.append([line for line in said.splitlines() if "values" not in line and "zeros" not in line])
                self.assertEqual(*explained)

    def test_plans_to_train_with_need_weights(self):
        self.generate("gpt2", *TINY["gpt2"].split())
        self.write(ONE)
        said = self.call(BIN / "piperc", "model.onnx", "strategy.yaml", "-o", "plans", fails=True)
        self.assertIn("model.onnx.data", said)
        self.assertIn("--dry-run", said)
        self.assertFalse((self.folder / "plans").exists())

    def test_strategies_compile(self):
        for strategy in sorted(MODELS.glob("*.yaml")):
            with self.subTest(strategy.stem):
                shrunk = "-D dp=2 -D microbatches=4 -D stages=2 -D tp=2 -D chunks=2 -D ep=2".split()
                asked = re.search(r"(?m)^params: {(.*)}", strategy.read_text())[1]
                words = [word for word in zip(shrunk[::2], shrunk[1::2]) if f"{word[1].split('=')[0]}:" in asked]
                family = next(name for name in TINY if name[:3] == strategy.stem[:3])
                self.generate(strategy.stem, *TINY[family].split())
                said = self.call(BIN / "piperc", "model.onnx", strategy, "--dry-run", *(part for word in words for part in word))
                self.assertRegex(said, r"(?m)^pp=1|^all ")

    def test_whole_models_compile(self):
        for strategy in sorted(MODELS.glob("*.yaml")):
            with self.subTest(strategy.stem):
                self.generate(strategy.stem)
                said = self.call(BIN / "piperc", "model.onnx", strategy, "--dry-run")
                self.assertRegex(said, r"(?m)^pp=1|^all ")

    def test_sizes_that_do_not_fit_are_named(self):
        self.assertIn("--hidden 30 cannot be split into 4 heads", self.generate("gpt2", "--hidden", 30, "--heads", 4, fails=True))
        self.assertIn("gpt2 has no --experts; it has --layers", self.generate("gpt2", "--experts", 4, fails=True))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
