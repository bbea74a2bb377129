"""samples/ci/compare on changes of real strategies in a scratch repository: what it says, what it exits with, what it leaves behind."""
import os, pathlib, shutil, subprocess, sys, tempfile, unittest

ROOT, BIN = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
STRATEGY = """piper: 1
include: strategies/1f1b.yaml
params: {stages: 2, microbatches: 4}
train: {optimizer: {sgd: {lr: 0.1}}, global_batch: 8}
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repository = pathlib.Path(folder.name) / "repository"
        shutil.copytree(ROOT / "strategies", self.repository / "strategies")
        for name in ("model.onnx", "model.onnx.data"):
            shutil.copy(ROOT / "samples/gpt" / name, self.repository)
        self.git("init", "--quiet", "--initial-branch=main")
        self.config("fail-on order\nrun model.onnx gpt.yaml\n")
        self.write("gpt.yaml", STRATEGY)
        self.commit()

    def git(self, *words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *words], cwd=self.repository, check=True, capture_output=True, text=True).stdout

    def write(self, name, text):
        (self.repository / name).write_text(text)

    def config(self, text):
        self.write("piper-ci", text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=change")

    def compare(self, *revisions):
        done = subprocess.run([ROOT / "samples/ci/compare", *revisions], cwd=self.repository, capture_output=True, text=True,
                              env=os.environ | {"PIPER_BIN": str(BIN)})
        self.assertEqual(len(self.git("worktree", "list").splitlines()), 1)
        return done.returncode, done.stdout + done.stderr

    def change(self, before, after):
        self.assertIn(before, STRATEGY)
        self.write("gpt.yaml", STRATEGY.replace(before, after))

    def test_comments_are_no_difference(self):
        self.change("piper: 1", "# A comment.\npiper: 1")
        code, text = self.compare("HEAD")
        self.assertEqual(code, 0, text)
        self.assertIn("### gpt.yaml on model.onnx", text)
        self.assertNotIn("<details>", text)

    def test_what_no_gate_names_is_said_and_passes(self):
        self.change("lr: 0.1", "lr: 0.2")
        code, text = self.compare("HEAD")
        self.assertEqual(code, 0, text)
        self.assertIn("0.2", text)

    def test_what_a_gate_names_fails(self):
        self.change("1f1b", "gpipe")
        code, text = self.compare("HEAD")
        self.assertEqual(code, 1, text)
        self.assertIn("order", text)
        self.config("run model.onnx gpt.yaml\n")  # no gate
        self.assertEqual(self.compare("HEAD")[0], 0)
        self.commit()
        self.change("", "")
        self.assertEqual(self.compare("HEAD~1", "HEAD")[0], 0)
        self.assertEqual(self.compare("HEAD", "HEAD")[0], 0)
        self.assertEqual(self.compare("HEAD", "HEAD~1")[0], 1)  # whose gate counts

    def test_runs_have_params(self):
        self.config("run model.onnx gpt.yaml -D stages=1\nrun model.onnx gpt.yaml -D stages=4\n")
        self.change("piper: 1", "piper: 1\n")
        code, text = self.compare("HEAD")
        self.assertEqual(code, 0, text)
        self.assertIn("### gpt.yaml on model.onnx -D stages=4", text)

    def test_what_does_not_compile_is_an_error(self):
        self.change("optimizer", "optimiser")
        code, text = self.compare("HEAD")
        self.assertEqual(code, 2, text)
        self.assertIn("does not compile", text)
        self.assertIn("gpt.yaml:4", text)
        self.commit()
        self.write("gpt.yaml", STRATEGY)
        code, text = self.compare("HEAD")
        self.assertEqual(code, 0, text)
        self.assertIn("before, it did not", text)

    def test_new_strategies_only_compile(self):
        self.config("run model.onnx other.yaml\n")
        self.write("other.yaml", STRATEGY)
        code, text = self.compare("HEAD")
        self.assertEqual(code, 0, text)
        self.assertIn("new: there is nothing to compare it with", text)

    def test_wrong_input_is_located(self):
        for config, wanted in (("run model.onnx\n", "line 1 of piper-ci: expected 'run MODEL STRATEGY"),
                               ("# nothing\n", "no line 'run MODEL STRATEGY'"),
                               ("\nrum a b\n", "line 2 of piper-ci: expected 'run' or 'fail-on', found 'rum'"),
                               ("fail-on ordr\nrun model.onnx gpt.yaml\n", "line 2 of piper-ci")):
            self.config(config)
            self.change("lr: 0.1", "lr: 0.2")
            code, text = self.compare("HEAD")
            self.assertEqual(code, 2, text)
            self.assertIn(wanted, text)
        self.assertEqual(self.compare("no-such-revision")[0], 2)
        self.assertEqual(self.compare()[0], 2)


class Sample(unittest.TestCase):
    def test_the_workflow_calls_what_is_there(self):
        workflow = (ROOT / "samples/ci/strategies.yml").read_text()
        for path in ("samples/ci/compare", "tools/install-packages"):
            self.assertIn(f".piper/{path}", workflow)
            self.assertTrue(os.access(ROOT / path, os.X_OK), path)
        self.assertIn("ninja -C .piper/build piperc piper-diff", workflow)
        try:
            import yaml
        except ImportError:
            self.skipTest("no python3-yaml")
        jobs = yaml.safe_load(workflow)["jobs"]
        self.assertEqual(list(jobs), ["compare"])
        self.assertTrue(all("uses" in step or "run" in step for step in jobs["compare"]["steps"]))

    def test_the_configuration_names_files_that_are_there(self):
        for line in (ROOT / "samples/ci/piper-ci").read_text().splitlines():
            words = line.split("#")[0].split()
            for path in words[1:3] if words[:1] == ["run"] else []:
                self.assertTrue((ROOT / path).exists(), path)


if shutil.which("git") is None:
    sys.exit(77)
unittest.main(argv=sys.argv[:1])
