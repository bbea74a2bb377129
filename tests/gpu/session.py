"""Runs checks one after the other, each in processes of its own with a limit of its own, and keeps what they came to. A check that
fails, crashes or takes too long costs itself alone. The report is written anew after each check, so an early end loses nothing."""

import array
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import traceback

import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 256  # of models in a dry run


def add_flags(parser):
    """The flags that `first` and `more` share."""
    parser.add_argument("--results", type=pathlib.Path, help="where report and archive go (default: $OUT, else tests/gpu/results)")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument("--dry-run", action="store_true", help="run on the libraries of tests/fake_cuda, to test the scripts")
    parser.add_argument("--fakes", type=pathlib.Path, help="the folder of those (default: tests/fake_cuda/all in the build)")


def build_folder(scratch):
    """Returns the folder of the programs: $BUILD, else build/, else what tests/gpu/pack made, unpacked into `scratch`."""
    if "BUILD" in os.environ:
        return pathlib.Path(os.environ["BUILD"]).resolve()
    build, packed = ROOT / "build", ROOT / ".gpu/pack.tar.xz"
    if (build / "bin/piper-run").exists() or not packed.exists():
        return build
    subprocess.run(["tar", "-C", scratch, "-xf", packed], check=True)
    return scratch / "pack"


def lines_of(metrics):
    """Returns the metrics of each step."""
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]


def losses(lines):
    return [line["loss"] for line in lines]


class Session:
    def __init__(self, name, words, seconds):
        self.name, self.dry = name, words.dry_run
        self.begin = time.monotonic()
        self.end = self.begin + (words.seconds or seconds)
        self.section_end = self.end
        self.scratch = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.scratch.name)
        self.kept = self.out / "kept"  # goes into the archive
        self.kept.mkdir()
        self.log = self.kept / "log.txt"
        self.build = build_folder(self.out)
        self.results, self.facts, self.table, self.children, self.failed = [], {}, [], [], []
        self.env = {**os.environ, "XDG_CACHE_HOME": str(self.cache())}
        if self.dry:
            self.env["PIPER_CUDA_PATH"] = str((words.fakes or self.build / "tests/fake_cuda/all").resolve())
            self.env["FAKE_NVRTC_PLAIN"] = "1"  # small models run briefly, and their kernels are compiled faster without optimisation
        elif "PIPER_CUDA_PATH" not in self.env and environment.wheels():
            self.env["PIPER_CUDA_PATH"] = ":".join(environment.wheels())
        self.folder = words.results or pathlib.Path(os.environ.get("OUT") or (self.out if self.dry else ROOT / "tests/gpu/results"))
        self.folder.mkdir(parents=True, exist_ok=True)
        _, self.devices = self.run([self.build / "bin/piper-run", "--devices"], 60)
        first = re.search(r"^cuda:0  ([^,\n]+)", self.devices, re.M)
        self.device = first[1].strip() if first else "no device"
        self.stem = "-".join([datetime.date.today().isoformat(), re.sub(r"[^A-Za-z0-9]+", "-", self.device).strip("-"), name])
        self.log.write_text(self.devices)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(self.close() or 143))

    def cache(self):
        """Returns where compiled kernels are kept: those that were packed, if any, are taken along."""
        folder = self.out / "cache"
        packed = self.build / "cache"
        if packed.is_dir() and not self.dry:
            shutil.copytree(packed, folder)
        return folder

    def has(self, program):
        return shutil.which(program, path=self.env.get("PATH")) is not None

    # ---- Programs ----

    def variables(self, program, env=None):
        """Returns the environment of a child. The libraries that were packed are for the programs beside them alone."""
        made = {**self.env, **(env or {})}
        if str(program).startswith(str(self.build)) and (self.build / "lib").is_dir():
            made["LD_LIBRARY_PATH"] = ":".join([str(self.build / "lib"), *filter(None, [made.get("LD_LIBRARY_PATH")])])
        return made

    def start(self, command, env=None):
        """Starts a child in a process group of its own. Its output goes into a file, so that nobody waits for a pipe that others hold."""
        output = tempfile.TemporaryFile()
        child = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=self.variables(command[0], env),
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        child.output = output
        self.children.append(child)
        return child

    def left(self):
        return min(self.end, self.section_end) - time.monotonic()

    def finish(self, child, limit_s):
        """Returns (exit code, the end of its output). Code 124: it took too long and was ended with all that it had started."""
        try:
            code = child.wait(timeout=max(1.0, min(limit_s, self.left())))
        except subprocess.TimeoutExpired:
            code = 124
        self.kill(child)
        self.children.remove(child)
        child.output.seek(max(0, child.output.seek(0, os.SEEK_END) - (4 << 20)))
        output = child.output.read().decode(errors="replace")
        child.output.close()
        return code, output

    @staticmethod
    def kill(child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:  # it cannot be killed, and holds nobody up
            pass

    def run(self, command, limit_s=120, env=None):
        try:
            child = self.start(command, env)
        except OSError as problem:
            return 127, f"{command[0]}: {problem}\n"
        return self.finish(child, limit_s)

    # ---- Results ----

    def write_log(self, title, output):
        with self.log.open("a") as log:
            log.write(f"\n==== {time.monotonic() - self.begin:.1f} s  {title}\n{output[-200000:]}")

    def note(self, name, passed, **facts):
        """Adds a line to the report. `passed` is None for what was left out."""
        self.results.append({"check": name, "passed": passed, "at_s": round(time.monotonic() - self.begin, 1), **facts})
        shown = ", ".join(f"{key} {value}" for key, value in facts.items() if key not in ("output", "more"))
        word = {True: "ok  ", False: "FAIL", None: "--  "}[passed]
        line = f"{word} {time.monotonic() - self.begin:6.1f} s  {name}{': ' + shown if shown else ''}"
        self.table.append(line)
        print(line, flush=True)
        if passed is False and facts.get("output"):
            print("\n".join("     " + text for text in facts["output"].splitlines()[-12:]), flush=True)
        self.write()
        return passed

    def check(self, name, command, limit_s=120, expect=0, env=None, again=True, **facts):
        """Runs a command and returns its output; None if its exit code is not `expect`. Failed commands are run again at the end (rerun_failed)
        unless `again` is False."""
        start = time.monotonic()
        code, output = self.run(command, limit_s, env)
        self.write_log(f"{name}: {' '.join(map(str, command))}", output)
        passed = code == expect
        tail = {} if passed else {"code": code, "output": output[-4000:]}
        if not passed and again:
            self.failed.append((name, command, env or {}))
        self.note(name, passed, seconds=round(time.monotonic() - start, 1), **facts, **tail)
        return output if passed else None

    def section(self, name, seconds, least, run):
        """Runs `run` for at most so many seconds, if `least` seconds are left."""
        left = self.left()
        if left < least:
            return self.note(name, None, why=f"{left:.0f} s are left, and it needs {least}")
        outer = self.section_end
        self.section_end = min(outer, time.monotonic() + seconds)
        try:
            return run()
        except Exception:  # a mistake of the script itself costs the other sections nothing
            return self.note(name, False, output=traceback.format_exc())
        finally:
            self.section_end = outer

    def rerun_failed(self, most=6):
        """Runs what failed on the device once more: with synchronous launches, so that an error is reported where it happens, and under memcheck."""
        for name, command, env in self.failed[:most]:
            if self.left() < 15:
                return self.note("failures again", None, why="no time is left")
            words, tests = list(command), "_test" in str(command[0])
            if str(command[0]).endswith("piper-run"):
                words = [word for word in words if word not in ("--graphs", "on", "off")] + ["--graphs", "off"]
            code, output = self.run(words, 30, {**env, "CUDA_LAUNCH_BLOCKING": "1"})
            self.write_log(f"again, synchronous: {name}", output)
            self.note(f"again, synchronous launches: {name}", None, code=code, last=" | ".join(output.strip().splitlines()[-3:])[:600])
            if self.has("compute-sanitizer") and (tests or code != 0) and self.left() > 20:
                environ = {**self.variables(command[0], env), "CUDA_LAUNCH_BLOCKING": "1"}
                code, output = self.run(["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *words], 40, environ)
                self.write_log(f"again, memcheck: {name}", output)
                found = [line for line in output.splitlines() if "=========" in line and "Invalid" in line]
                self.note(f"again, memcheck: {name}", None, code=code, last=" | ".join(found[:3] or output.strip().splitlines()[-3:])[:600])

    def write(self):
        text = {"device": self.device, "session": self.name, "build": self.build.name, **self.facts, "checks": self.results}
        target = self.folder / f"{self.stem}.json"
        beside = target.with_suffix(".tmp")
        beside.write_text(json.dumps(text, indent=1) + "\n")
        beside.replace(target)

    def close(self):
        """Ends all children, writes report and archive, and prints every line of the report once more. Returns the exit code."""
        for child in list(self.children):
            self.kill(child)
        self.write()
        shutil.copy(self.folder / f"{self.stem}.json", self.kept)
        with tarfile.open(self.folder / f"{self.stem}.tar.gz", "w:gz") as archive:
            archive.add(self.kept, arcname=self.stem)
        count = {word: sum(each["passed"] is word for each in self.results) for word in (True, False, None)}
        print(f"\n{self.name} on {self.device}, programs of {self.build.name}:")
        print("\n".join(line[:600] for line in self.table))
        print(f"{count[True]} passed, {count[False]} failed, {count[None]} left out; {self.folder / self.stem}.json", flush=True)
        return 1 if count[False] else 0

    # ---- Plans and runs ----

    def model(self, name="gpt2", batch=4):
        """Returns the folder of a model of tests/bench/make_models; None if it cannot be made. A dry run makes the same small model for all."""
        sizes = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1 if "llama" in name else 2, "hidden": 64, "context": 16,
                 "vocabulary": VOCABULARY} if self.dry else {}
        folder = self.out / f"{name}-{batch}"
        if (folder / "bf16.yaml").exists():
            return folder
        folder.mkdir(exist_ok=True)
        words = [self.build / "tests/make_models", name, 8 if self.dry else batch, folder, "random=1",
                 *(f"{key}={size}" for key, size in sizes.items())]
        return folder if self.check(f"model {name} of {batch} samples", words, 90, again=False) is not None else None

    def strategy(self, name, text):
        path = self.out / f"{name}.yaml"
        path.write_text(text)
        return path

    def compile(self, name, model, strategy, *flags):
        """Returns the folder of plans for cuda; None if they cannot be made."""
        plans = self.out / name
        if (plans / "manifest.json").exists():
            return plans
        words = [self.build / "bin/piperc", model, strategy, "--target", "cuda", "-o", plans, "--force", *flags]
        return plans if self.check(f"compile {name}", words, 120, again=False) is not None else None

    def text(self):
        """Returns bytes to train the sample on, as piper-run takes them."""
        data = self.out / "text.bin"
        if not data.exists():
            licences = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
            text = b"".join(path.read_bytes() for path in licences if path.is_file())
            data.write_bytes((text or bytes(range(32, 127)) * 4000)[:1 << 20])
        return f"{data}:u8"

    def tokens(self):
        """Returns tokens to train GPT-2 on, as piper-run takes them."""
        data = self.out / "tokens.bin"
        if not data.exists():
            draw = random.Random(1)
            most = VOCABULARY if self.dry else 50257
            data.write_bytes(array.array("H", (draw.randrange(most) for _ in range(1 << (12 if self.dry else 20)))).tobytes())
        return f"{data}:u16"

    def train(self, name, plans, steps, *flags, backend="cuda", data=None, limit_s=120, env=None, saves=True):
        """Returns the metrics of each step, and the bytes that were saved; nothing if the run failed."""
        metrics, saved = self.kept / f"{name}.jsonl", self.out / f"{name}.safetensors"
        metrics.unlink(missing_ok=True)
        words = [self.build / "bin/piper-run", plans, "--backend", backend, "--data",
                 data or (self.tokens() if self.dry else self.text()), "--steps", steps, "--metrics", metrics,
                 *(["--save", saved] if saves else []), *flags]
        if self.check(f"train {name}", words, limit_s, env=env) is None:
            return [], b""
        return lines_of(metrics), saved.read_bytes() if saves else b""
