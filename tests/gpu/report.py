"""Checks that are run one after the other, each with a limit, and what they came to. A check that fails, crashes or takes too long
costs itself alone; the report is written anew after each, so that an end in the middle leaves what there is."""

import array
import datetime
import glob
import json
import os
import pathlib
import random
import re
import shutil
import signal
import site
import subprocess
import sysconfig
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = {"A": 540, "B": 540, "C": 555}
VOCABULARY = 256  # of models in a dry run


def build_folder():
    """BUILD, build/, or what tests/gpu/pack made."""
    if "BUILD" in os.environ:
        return pathlib.Path(os.environ["BUILD"]).resolve()
    return next((ROOT / name for name in ("build", ".gpu") if (ROOT / name / "bin/piper-run").exists()), ROOT / "build")


def wheels():
    """Folders of NVIDIA's libraries beside this Python."""
    packages = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *site.getsitepackages()}
    return sorted(folder for each in packages for folder in glob.glob(f"{each}/nvidia/*/lib"))


class Day:
    def __init__(self, part, words):
        self.part, self.dry = part, words.dry_run
        self.out = words.out.resolve()
        self.build = build_folder()
        self.end = time.monotonic() + min(LIMIT_S[part], words.seconds or LIMIT_S[part])
        self.section_end = self.end
        self.results, self.facts, self.children = [], {}, []
        self.env = dict(os.environ)
        if self.dry:
            self.env["PIPER_CUDA_PATH"] = str((words.fakes or self.build / "tests/fake_cuda/all").resolve())
            self.env["XDG_CACHE_HOME"] = str(self.out / "cache")
        elif "PIPER_CUDA_PATH" not in self.env and wheels():
            self.env["PIPER_CUDA_PATH"] = ":".join(wheels())
        self.results_folder = words.results or (self.out if self.dry else ROOT / "tests/gpu/results")
        self.results_folder.mkdir(parents=True, exist_ok=True)
        _, self.devices = self.run([self.build / "bin/piper-run", "--devices"], 60)
        first = re.search(r"^cuda:0  ([^,\n]+)", self.devices, re.M)
        self.device = first[1].strip() if first else "no device"
        name = re.sub(r"[^A-Za-z0-9]+", "-", self.device).strip("-")
        self.target = self.results_folder / f"{datetime.date.today().isoformat()}-{name}-{part}.json"
        self.log = self.target.with_suffix(".log")
        self.log.write_text(self.devices)

    def has(self, what):
        return shutil.which(what, path=self.env.get("PATH")) is not None

    # ---- Programs ----

    def variables(self, program, env=None):
        """Those of a child. The libraries that were packed are for the programs beside them alone."""
        made = {**self.env, **(env or {})}
        if str(program).startswith(str(self.build)) and (self.build / "lib").is_dir():
            made["LD_LIBRARY_PATH"] = ":".join([str(self.build / "lib"), *filter(None, [made.get("LD_LIBRARY_PATH")])])
        return made

    def start(self, command, env=None):
        """A child with a session of its own. What it says goes into a file: nobody waits for the end of a pipe that others hold."""
        said = tempfile.TemporaryFile()
        child = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=self.variables(command[0], env),
                                 stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        child.said = said
        self.children.append(child)
        return child

    def left(self):
        return min(self.end, self.section_end) - time.monotonic()

    def finish(self, child, limit_s):
        """(exit code, the end of its output); 124: it was ended, with all that it started."""
        try:
            code = child.wait(timeout=max(1.0, min(limit_s, self.left())))
        except subprocess.TimeoutExpired:
            code = 124
        self.kill(child)
        self.children.remove(child)
        child.said.seek(max(0, child.said.seek(0, os.SEEK_END) - (1 << 20)))
        output = child.said.read().decode(errors="replace")
        child.said.close()
        return code, output

    @staticmethod
    def kill(child):
        """And what it has left running. What cannot be killed holds nobody up."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pass

    def kill_all(self):
        for child in list(self.children):
            self.kill(child)

    def run(self, command, limit_s=120, env=None):
        try:
            child = self.start(command, env)
        except OSError as problem:
            return 127, f"{command[0]}: {problem}\n"
        return self.finish(child, limit_s)

    # ---- What they came to ----

    def note(self, name, passed, **facts):
        """`passed`: None where it was left out."""
        self.results.append({"check": name, "passed": passed, **facts})
        told = ", ".join(f"{key} {value}" for key, value in facts.items() if key not in ("output", "more"))
        word = {True: "ok  ", False: "FAIL", None: "--  "}[passed]
        print(f"{word} {name}{': ' + told if told else ''}", flush=True)
        if passed is False and facts.get("output"):
            print("\n".join("     " + line for line in facts["output"].splitlines()[-12:]), flush=True)
        self.write()
        return passed

    def check(self, name, command, limit_s=120, expect=0, env=None, **facts):
        """The output; None where it failed."""
        start = time.monotonic()
        code, output = self.run(command, limit_s, env)
        with self.log.open("a") as log:
            log.write(f"\n==== {name}: {' '.join(map(str, command))}\n{output[-100000:]}")
        passed = code == expect
        tail = {} if passed else {"code": code, "output": output[-4000:]}
        self.note(name, passed, seconds=round(time.monotonic() - start, 1), **facts, **tail)
        return output if passed else None

    def section(self, name, seconds, least, run):
        """Runs it in at most so many seconds, if `least` of them are left."""
        left = self.end - time.monotonic()
        if left < least:
            return self.note(name, None, why=f"{left:.0f} s are left, and it wants {least}")
        self.section_end = time.monotonic() + seconds
        try:
            return run()
        except Exception:  # its own mistakes cost the others nothing
            return self.note(name, False, output=traceback.format_exc())
        finally:
            self.section_end = self.end

    def write(self):
        text = {"device": self.device, "part": self.part, "build": self.build.name, **self.facts, "checks": self.results}
        beside = self.target.with_suffix(".tmp")
        beside.write_text(json.dumps(text, indent=1) + "\n")
        beside.replace(self.target)

    def report(self):
        self.write()
        count = {word: sum(each["passed"] is word for each in self.results) for word in (True, False, None)}
        print(f"{count[True]} passed, {count[False]} failed, {count[None]} left out; {self.target}")
        return 1 if count[False] else 0

    # ---- Plans and runs ----

    def model(self, name="gpt2", batch=4, **sizes):
        """The model's folder; None where it cannot be made. Small in a dry run, and the same for all parts: each of its kernels is
        compiled once."""
        if self.dry:
            sizes = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1 if "llama" in name else 2, "hidden": 64, "context": 16,
                     "vocabulary": VOCABULARY}
        folder = self.out / f"{name}-{batch}"
        if (folder / "bf16.yaml").exists():
            return folder
        folder.mkdir(exist_ok=True)
        words = [self.build / "tests/make_models", name, 4 if self.dry else batch, folder, "random=1",
                 *(f"{key}={size}" for key, size in sizes.items())]
        return folder if self.check(f"model {name} for {batch} samples", words, 90) is not None else None

    def strategy(self, name, text):
        path = self.out / f"{name}.yaml"
        path.write_text(text)
        return path

    def compile(self, name, model, strategy, *flags):
        plans = self.out / name
        words = [self.build / "bin/piperc", model, strategy, "--target", "cuda", "-o", plans, "--force", *flags]
        return plans if self.check(f"compile {name}", words, 120) is not None else None

    def text(self):
        """Bytes to train the sample on."""
        data = self.out / "text.bin"
        if not data.exists():
            licences = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
            text = b"".join(path.read_bytes() for path in licences if path.is_file())
            data.write_bytes((text or bytes(range(32, 127)) * 4000)[:1 << 20])
        return f"{data}:u8"

    def tokens(self):
        data = self.out / "tokens.bin"
        if not data.exists():
            draw = random.Random(1)
            most = VOCABULARY if self.dry else 50257
            data.write_bytes(array.array("H", (draw.randrange(most) for _ in range(1 << (12 if self.dry else 21)))).tobytes())
        return f"{data}:u16"

    def train(self, name, plans, steps, *flags, backend="cuda", limit_s=120, env=None):
        """The lines of the metrics, one a step, and what was saved; nothing where it failed."""
        metrics, saved = self.out / f"{name}.jsonl", self.out / f"{name}.safetensors"
        metrics.unlink(missing_ok=True)
        words = [self.build / "bin/piper-run", plans, "--backend", backend, "--data", self.tokens() if self.dry else self.text(),
                 "--steps", steps, "--metrics", metrics, "--save", saved, *flags]
        if self.check(f"train {name}", words, limit_s, env=env) is None:
            return [], b""
        return lines_of(metrics), saved.read_bytes()


def lines_of(metrics):
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]


def losses(lines):
    return [line["loss"] for line in lines]
