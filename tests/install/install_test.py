"""What `cmake --install` puts into a prefix works from another folder: programs, the library of strategies, completion, man pages, versions.

  install_test.py SOURCE BUILD
"""
import os, pathlib, re, shutil, subprocess, sys, tempfile, unittest

SOURCE, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
PROGRAMS = "piperc", "piper-run", "piper-verify", "piper-diff", "piper-sim", "piper-search", "piper-checkpoint"
STRATEGY = """piper: 1
include: [<schedules/$schedule>, <memory/zero1>]
params: {schedule: 1f1b, stages: 2, dp: 2, microbatches: 4}
train: {optimizer: {adamw: {lr: 1e-3}}, global_batch: 8}
"""


def run(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.top = pathlib.Path(folder.name)
        done = run(["cmake", "--install", BUILD, "--prefix", cls.top / "first"])
        assert done.returncode == 0, done.stderr
        cls.said = done.stdout
        cls.prefix, cls.work = cls.top / "moved to/prefix", cls.top / "work"
        cls.prefix.parent.mkdir()
        (cls.top / "first").rename(cls.prefix)
        cls.work.mkdir()
        (cls.work / "mine.yaml").write_text(STRATEGY)
        (cls.work / "text.bin").write_bytes(bytes(i * i % 251 for i in range(20000)))

    def program(self, *words, code=0, **variables):
        """Runs an installed program outside the repository, with nothing of this environment."""
        environment = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": str(self.work)} | variables
        done = run(words, cwd=self.work, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def sample(self, name):
        return self.prefix / "share/doc/piper/samples/gpt" / name

    def test_trains_by_the_library(self):
        self.assertEqual(self.program("which", "piperc"), f"{self.prefix}/bin/piperc\n")
        said = self.program("piperc", self.sample("model.onnx"), "mine.yaml", "-o", "plans", "--explain=directives,lines")
        self.assertIn(f"{self.prefix}/share/piper/strategies/schedules/1f1b.yaml:", said)
        self.assertNotIn(str(SOURCE), said)
        self.program("piper-verify", "plans")
        said = self.program("piper-run", "plans", "--data", "text.bin:u8", "--steps", "2", "--verify-against", "single")
        self.assertIn("equal to the single-device plan bit for bit", said)
        self.program("piperc", self.sample("model.onnx"), self.sample("pp2-dp2.yaml"), "--dry-run")
        said = self.program("piperc", self.sample("model.onnx"), "<schedules/zvb>", "--dry-run", code=1)
        self.assertIn(f"did you mean '<schedules/zbv>' or '<zbv>'?)\n  = note: looked in '{self.prefix}/share/piper/strategies'\n", said)

    def test_plans_say_nothing_of_the_place(self):
        copied = self.work / "library"
        shutil.copytree(SOURCE / "strategies", copied)
        compile_ = ["piperc", self.sample("model.onnx"), "mine.yaml", "--force", "-o"]
        self.program(*compile_, "here")
        self.program(*compile_, "there", "-I", copied)
        self.program(*compile_, "third", PIPER_STRATEGIES=f"/nowhere:{copied}")
        (self.work / "mine.yaml").write_text(STRATEGY.replace("<schedules/$schedule>", "library/schedules/1f1b.yaml").replace(
            "<memory/zero1>", f"{copied}/memory/zero1.yaml").replace("schedule: 1f1b, ", ""))
        self.program(*compile_, "fourth")
        (self.work / "mine.yaml").write_text(STRATEGY)
        for other in "there", "third", "fourth":
            self.assertEqual(run(["diff", "-r", self.work / "here", self.work / other]).stdout, "")
        schedule = copied / "schedules/1f1b.yaml"
        schedule.write_text("piper: 1\ninclude: gpipe.yaml\n")
        compare = ["piper-diff", "--model", self.sample("model.onnx"), "mine.yaml", "mine.yaml"]
        self.assertIn("no difference", self.program(*compare, "-I", copied))
        self.program(*compile_, "changed", "-I", copied)
        self.assertIn("order", self.program("piper-diff", "here", "changed", code=1))
        self.program("piperc", self.sample("model.onnx"), "mine.yaml", "--dry-run", "-I", "nowhere", code=2)
        self.program("piper-diff", "here", "there", "-I", copied, code=2)

    def test_has_all_files(self):
        for folder in "strategies", "formats":
            same = run(["diff", "-r", SOURCE / folder, self.prefix / "share/piper" / folder])
            self.assertEqual(same.stdout + same.stderr, "")
        for page in "README.md", "tools/README.md", "formats/strategy.md", "strategies/README.md", "samples/README.md", "samples/ci/compare":
            self.assertTrue((self.prefix / "share/doc/piper" / page).is_file(), page)
        self.assertTrue(os.access(self.prefix / "share/doc/piper/samples/ci/compare", os.X_OK))
        for file in SOURCE.glob("tools/**/*.py"):
            self.assertTrue((self.prefix / "share/piper" / file.relative_to(SOURCE)).is_file(), file)
        self.assertEqual([str(path) for path in self.prefix.rglob("__pycache__")], [])
        # The exporter finds the programs beside it; a Python that says so stands for one with torch.
        (self.work / "python").write_text('#!/bin/sh\necho "$PIPER_BIN $*"\n')
        (self.work / "python").chmod(0o755)
        said = self.program("piper-export", "a b", PYTHON=str(self.work / "python"))
        self.assertEqual(said, f"{self.prefix}/bin {self.prefix}/bin/../share/piper/tools/export.py a b\n")
        self.assertTrue((self.prefix / "share/piper/tools/export.py").is_file())

    def complete(self, line):
        script = ('source "$1"; read -ra COMP_WORDS <<<"$2"; [[ $2 != *" " ]] || COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
                  '_piper "${COMP_WORDS[0]}"; printf "%s\\n" "${COMPREPLY[@]}"')
        file = self.prefix / "share/bash-completion/completions" / line.split()[0]
        return self.program("bash", "-c", script, "bash", file, line).split()

    def test_completes_command_lines(self):
        self.assertEqual(self.complete("piperc --emit-or"), ["--emit-order"])
        self.assertEqual(self.complete("piperc m.onnx --target "), ["cpu", "cuda"])
        self.assertEqual(self.complete("piperc --target = cu"), ["cuda"])
        self.assertEqual(self.complete("piperc --target ="), ["cpu", "cuda"])
        self.assertEqual(self.complete("piperc model.on"), [])  # files
        self.assertEqual(self.complete("piper-run plans --graphs o"), ["on", "off"])
        self.assertIn("--version", self.complete("piper-verify --v"))
        for program in PROGRAMS:
            options = set(re.findall(r"^  (?:(-\w),)?(-[-\w]+)", self.program(program, "--help"), re.M))
            self.assertGreater(len(options), 2)
            self.assertEqual(set(self.complete(f"{program} -")), {word for pair in options for word in pair if word})
        self.assertIn(" ".join(PROGRAMS), (self.prefix / "share/zsh/site-functions/_piper").read_text().splitlines()[0])

    def test_has_man_pages(self):
        pages = sorted(page.name for page in self.prefix.glob("share/man/man1/*"))
        if shutil.which("help2man") is None:
            self.assertEqual(pages, [])
            self.assertIn("No man pages", self.said)
            return
        self.assertEqual(pages, sorted(f"{program}.1" for program in PROGRAMS))
        page = (self.prefix / "share/man/man1/piperc.1").read_text()
        self.assertIn("piperc \\- Compiles an ONNX training graph and a YAML strategy into one plan per device\n", page)
        for option in re.findall(r"^  (?:-\w,)?(--[-\w]+)", self.program("piperc", "--help"), re.M):
            self.assertIn(option.replace("-", "\\-"), page)

    def test_lists_directives_in_two_columns(self):
        rows = self.program("piperc", "--help").split("Directives of a strategy:\n")[1].split("\n\n")[0].splitlines()
        self.assertGreater(len(rows), 10)
        self.assertEqual(len({re.match(r"  \w+  +", row).end() for row in rows}), 1)

    def test_says_its_version(self):
        for program in PROGRAMS:
            self.assertRegex(self.program(program, "--version"), rf"^{program} \d+\.\d+\.\d+ \(commit ([0-9a-f]{{12,}}(-dirty)?|unknown)\)\n$")


class Version(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = pathlib.Path(folder.name) / "outer/source"
        self.source.mkdir(parents=True)
        self.output = self.source / "version.cc"

    def version(self):
        done = run(["cmake", "-D", "VERSION=1.2.3", "-D", f"SOURCE={self.source}", "-D", f"TEMPLATE={SOURCE}/tools/version.cc.in", "-D",
                    f"OUTPUT={self.output}", "-P", SOURCE / "tools/version.cmake"])
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.search(r'"(.*)"; }', self.output.read_text())[1]

    def git(self, folder, *words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        return run(["git", "-C", folder, *identity, *words], check=True).stdout.strip()

    def test_is_of_the_commit(self):
        self.assertEqual(self.version(), "1.2.3 (commit unknown)")
        self.git(self.source.parent, "init", "--quiet")  # of others
        self.git(self.source.parent, "commit", "--quiet", "--allow-empty", "--message=outer")
        self.assertEqual(self.version(), "1.2.3 (commit unknown)")
        self.git(self.source, "init", "--quiet")
        (self.source / "file").write_text("one")
        self.git(self.source, "add", "file")
        self.git(self.source, "commit", "--quiet", "--message=inner")
        commit = self.git(self.source, "rev-parse", "--short=12", "HEAD")
        self.assertEqual(self.version(), f"1.2.3 (commit {commit})")
        before = self.output.stat().st_mtime_ns
        self.version()
        self.assertEqual(self.output.stat().st_mtime_ns, before)  # nothing is compiled anew
        (self.source / "file").write_text("two")
        self.assertEqual(self.version(), f"1.2.3 (commit {commit}-dirty)")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
