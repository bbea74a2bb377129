"""Part A: every kernel, and models as a whole, beside the CPU."""

import concurrent.futures
import json
import re
import sys

from report import ROOT, losses

SAMPLE = ROOT / "samples/gpt/model.onnx"
BOUNDS = {"f32": 1e-4, "bf16": 2e-2}


def one_device(day, numerics):
    """The sample's strategy; in a dry run, which interprets kernels, that of a smaller model."""
    include = "" if numerics == "f32" else f"include: {ROOT}/strategies/numerics/{numerics}.yaml"
    loss = "loss: {cross_entropy: {logits: logits, labels: labels}}" if day.dry else ""
    return day.strategy(f"one-{numerics}", f"""piper: 1
{include}
{loss}
train: {{optimizer: {{adamw: {{lr: 1e-3}}}}, clip_norm: 1.0, global_batch: {4 if day.dry else 16}}}
""")


def probe(day):
    """What the device and its libraries are; kept for whoever plans for one that is not there."""
    day.note("libraries are found", day.dry or " missing " not in day.devices, output=day.devices)
    facts = {"devices": day.devices}
    if day.has("nvidia-smi"):
        wanted = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,compute_cap,mig.mode.current"
        facts["nvidia_smi"] = day.run(["nvidia-smi", f"--query-gpu={wanted}", "--format=csv"], 30)[1]
    code, output = day.run([sys.executable, ROOT / "tests/gpu/cudnn_properties.py"], 60)
    facts["cudnn_properties"] = output[-20000:]
    if not day.dry:  # the faked driver carries no cuDNN
        day.note("cuDNN's properties of the device", code == 0, output=output)
    day.facts["probe"] = facts
    day.write()


def cases(day, program, pattern):
    code, output = day.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], 60)
    names, suite = [], ""
    for line in output.splitlines() if code == 0 else []:
        word = line.split("#")[0].rstrip()
        if word.endswith(".") and not word.startswith(" "):
            suite = word
        elif word.startswith("  "):
            names.append(suite + word.strip())
    return names


def kernels(day, name, program, pattern="*", at_once=4, limit_s=90, digests=None):
    """Each case in a process of its own: one that takes the device's context with it costs no other."""
    program = day.build / "tests" / program
    names = cases(day, program, pattern)

    def run(case):
        env = {"PIPER_SOURCE": str(ROOT), **({} if day.dry else {"PIPER_ON_DEVICE": "1"})}
        if digests:
            env["PIPER_DIGESTS"] = str(digests / re.sub(r"\W", "_", case))
        return case, *day.run([program, f"--gtest_filter={case}"], limit_s, env)

    if digests:
        digests.mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(1 if day.dry else at_once) as pool:
        done = list(pool.map(run, names))
    failed = [(case, code, output) for case, code, output in done if code != 0]
    told = "\n".join(line for _, _, output in failed for line in output.splitlines() if "Failure" not in line)
    with day.log.open("a") as log:
        for case, code, output in failed:
            log.write(f"\n==== {case}: {code}\n{output[-20000:]}")
    day.note(name, bool(names) and not failed, cases=len(names), failed=len(failed),
             more=[{"case": case, "code": code, "output": output[-2000:]} for case, code, output in failed], output=told[-4000:])


def read_digests(path):
    """What each result of each use of an op was, by its name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    lines = [line.rpartition(" ") for file in files for line in file.read_text().splitlines()]
    return {label: digest for label, _, digest in lines}


def agreement(day, digests):
    """Which ops give the bits that the emulated kernels give (packed beside the programs, if they were)."""
    packed = day.build / "emulated.txt"
    if not packed.exists():
        return day.note("bits beside the emulation's", None, why="tests/gpu/pack --emulated makes what they are compared with")
    ours, theirs = read_digests(digests), read_digests(packed)
    ops = {}
    for label, digest in ours.items():
        ops.setdefault(label.split()[0], []).append(theirs.get(label) == digest)
    exact = sorted(op for op, same in ops.items() if all(same))
    others = {op: f"{sum(same)} of {len(same)}" for op, same in sorted(ops.items()) if not all(same)}
    day.facts["exact_ops"], day.facts["other_ops"] = exact, others
    return day.note("bits beside the emulation's", bool(ours), exact=len(exact), others=len(others))


def model(day, numerics):
    folder = day.model() if day.dry else None
    plans = day.compile(f"gpt-{numerics}", folder / "model.onnx" if folder else SAMPLE, one_device(day, numerics))
    if plans is None:
        return
    steps = 1 if day.dry else 5
    ours, saved = day.train(f"gpt-{numerics}-cuda", plans, steps, "--graphs", "off", limit_s=150)
    theirs, _ = day.train(f"gpt-{numerics}-cpu", plans, steps, backend="cpu")
    worst = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(losses(ours), losses(theirs))), default=1.0)
    day.note(f"losses of {numerics} on both", len(ours) == len(theirs) == steps and worst <= BOUNDS[numerics], worst=f"{worst:.2e}",
             bound=BOUNDS[numerics], output=f"{losses(ours)} and {losses(theirs)}")
    again, same = day.train(f"gpt-{numerics}-again", plans, steps, "--graphs", "off", limit_s=100)
    day.note(f"{numerics} twice is the same, bit by bit", bool(ours) and losses(ours) == losses(again) and saved == same)


def attention_twice(day):
    """Forward and backward, by cuDNN and by kernels of one's own."""
    made = []
    for turn in (1, 2):
        folder = day.out / f"attention-{turn}"
        kernels(day, f"attention, time {turn}", "conformance_test", "*Attention*", digests=folder)
        made.append(read_digests(folder))
    day.note("attention twice is the same, bit by bit", bool(made[0]) and made[0] == made[1], results=len(made[0]))


def sanitizer(day, tool):
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", day.build / "tests/conformance_test",
             "--gtest_filter=*Norm*:*Softmax*:*Reduce*:*Attention*"]
    # Its child is ours and wants our libraries.
    env = {"PIPER_ON_DEVICE": "1", **day.variables(day.build / "tests/conformance_test")}
    day.check(f"compute-sanitizer {tool}", words, 80, env=env)


def run(day):
    digests = day.out / "digests"
    day.section("probe", 100, 10, lambda: probe(day))
    # In a dry run a few: each is compiled anew.
    few = "*Adagrad*:*Softmax*" if day.dry else "*"
    day.section("kernels beside the CPU's", 200, 20, lambda: kernels(day, "kernels beside the CPU's", "conformance_test", few, digests=digests))
    for numerics in ("bf16",) if day.dry else ("bf16", "f32"):
        day.section(f"the sample in {numerics}", 120, 20, lambda: model(day, numerics))
    if not day.dry:
        day.section("programs of plans beside the CPU's", 90, 20,
                    lambda: kernels(day, "programs of plans beside the CPU's", "plan_programs_test", at_once=3))
        day.section("attention twice", 60, 20, lambda: attention_twice(day))
    day.section("bits beside the emulation's", 20, 0, lambda: agreement(day, digests))
    if not day.dry and day.has("compute-sanitizer"):
        for tool in ("memcheck", "racecheck"):
            day.section(f"compute-sanitizer {tool}", 80, 30, lambda: sanitizer(day, tool))
