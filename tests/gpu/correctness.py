"""Whether the device computes what the CPU computes: every kernel, whole programs of plans, and the sample trained on both."""

import pathlib
import re

from session import ROOT, losses

SAMPLE = ROOT / "samples/gpt/model.onnx"
LOSSES = {"gpt-logits": "loss: {cross_entropy: {logits: logits, labels: labels}}"}  # of models whose graphs have none
BOUNDS = {"f32": 1e-4, "bf16": 2e-2}  # of losses beside the CPU's, relative


def one_device(session, numerics):
    """Returns the strategy of the sample on one device; in a dry run that of a smaller model, since kernels are interpreted there."""
    include = "" if numerics == "f32" else f"include: {ROOT}/strategies/numerics/{numerics}.yaml"
    loss = "loss: {cross_entropy: {logits: logits, labels: labels}}" if session.dry else ""
    return session.strategy(f"one-{numerics}", f"""piper: 1
{include}
{loss}
train: {{optimizer: {{adamw: {{lr: 1e-3}}}}, clip_norm: 1.0, global_batch: {8 if session.dry else 16}}}
""")


def plans_of_sample(session, numerics):
    folder = session.model() if session.dry else None
    return session.compile(f"gpt-{numerics}", folder / "model.onnx" if folder else SAMPLE, one_device(session, numerics))


def compare_losses(session, name, numerics, ours, theirs, steps):
    worst = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs)), default=1.0)
    session.note(f"losses of {name}, cuda beside cpu", len(ours) == len(theirs) == steps and worst <= BOUNDS[numerics],
                 worst=f"{worst:.2e}", bound=BOUNDS[numerics], output=f"{ours} and {theirs}")


def sample(session, numerics="bf16", steps=5):
    """Trains the sample op by op, as a graph, again, and on the CPU: the first three give the same bits, the last the same losses within a bound."""
    plans = plans_of_sample(session, numerics)
    if plans is None:
        return
    steps = 2 if session.dry else steps
    runs = {"op by op": ("--graphs", "off"), "as a graph": ("--graphs", "on"), "as a graph again": ("--graphs", "on")}
    made = {}
    for way, flags in runs.items():
        made[way] = session.train(f"sample {numerics} {way}".replace(" ", "-"), plans, steps, *flags, limit_s=60)
    theirs, _ = session.train(f"sample-{numerics}-cpu", plans, steps, backend="cpu", limit_s=60)
    compare_losses(session, f"the sample in {numerics}", numerics, losses(made["op by op"][0]), losses(theirs), steps)
    first_losses, first_saved = losses(made["op by op"][0]), made["op by op"][1]
    for way in list(runs)[1:]:
        lines, saved = made[way]
        session.note(f"the sample in {numerics}: {way} gives the bits of op by op", bool(first_saved) and saved == first_saved
                     and losses(lines) == first_losses)


def model_folders(session):
    """Returns the folders of models that were packed, or else those of PIPER_MODELS: each has model.onnx and reference.safetensors."""
    packed, given = session.build / "models", session.env.get("PIPER_MODELS")
    root = packed if packed.is_dir() else pathlib.Path(given) if given else None
    return sorted(path.parent for path in root.glob("*/reference.safetensors")) if root else []


def models(session, steps=5):
    """Trains exported models in f32 and bf16: the losses are those of the CPU within a bound."""
    folders = model_folders(session)
    if not folders:
        return session.note("models on cuda beside cpu", None, why="PIPER_MODELS names none, and none were packed")
    if session.dry:  # the smallest
        folders, steps = [min(folders, key=lambda folder: (folder / "model.onnx").stat().st_size)], 2
    for folder in folders:
        for numerics in ("f32",) if session.dry else ("f32", "bf16"):
            compute = "" if numerics == "f32" else f"directives:\n  - precision: {{compute: {numerics}}}\n"
            strategy = session.strategy(f"model-{numerics}", f"""piper: 1
{LOSSES.get(folder.name, "")}
train: {{optimizer: {{adamw: {{lr: 1e-3, eps: 1e-6}}}}, clip_norm: 1.0, global_batch: 8}}
{compute}""")
            name = f"{folder.name}-{numerics}"
            plans = session.compile(name, folder / "model.onnx", strategy)
            if plans is None:
                continue
            made = [losses(session.train(f"{name}-{backend}", plans, steps, "--no-shuffle", backend=backend, limit_s=60, saves=False,
                                         data=folder / "reference.safetensors")[0]) for backend in ("cuda", "cpu")]
            compare_losses(session, name, numerics, *made, steps)


def cases(session, program, pattern, env):
    """Returns the names of the test cases that match, as the program lists them in this environment."""
    code, output = session.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], 60, env)
    names, suite = [], ""
    for line in output.splitlines() if code == 0 else []:
        word = line.split("#")[0].rstrip()
        if word.endswith(".") and not word.startswith(" "):
            suite = word
        elif word.startswith("  "):
            names.append(suite + word.strip())
    return names


def read_cases(output):
    """Returns the cases that ended, by how: "OK", "FAILED" or "SKIPPED"; and the one that did not end, or None."""
    ended = {case: how for how, case in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*)? \(\d+ ms\)$", output, re.M)}
    begun = re.findall(r"^\[ RUN +\] (\S+)", output, re.M)
    return ended, begun[-1] if begun and begun[-1] not in ended else None


def kernels(session, name, program, pattern="*", digests=None):
    """Runs the cases in one process, for its context takes longer than most of them: beside others on a device each waits for its share
    of time at every small copy. After one that fails, or breaks the process, another process goes on with those behind it."""
    program = session.build / "tests" / program
    env = {"PIPER_SOURCE": str(ROOT), **({} if session.dry else {"PIPER_ON_DEVICE": "1"})}
    names = cases(session, program, pattern, env)
    left, ended, failed = list(names), {}, []
    if digests:
        env["PIPER_DIGESTS"] = str(digests)
    while left and session.left() > 2:
        code, output = session.run([program, "--gtest_fail_fast", f"--gtest_filter={':'.join(left)}"], session.left(), env)
        session.write_log(f"{name}: {code}", output)
        found, broken = read_cases(output)
        failed += [(case, code, output) for case, how in found.items() if how == "FAILED"]
        if broken:
            failed.append((broken, code, output))
        left = [case for case in left if case not in found and case != broken]
        ended |= found
        if not found and not broken:  # it cannot even begin
            failed.append((left.pop(0), code, output))
    messages = "\n".join(line for _, _, output in failed for line in output.splitlines()[-60:] if not line.startswith("["))
    for case, _, _ in failed[:3]:
        session.failed.append((case, [program, f"--gtest_filter={case}"], env))
    session.note(name, bool(names) and not failed and not left, cases=len(names), failed=len(failed), not_run=len(left),
                 skipped=sum(how == "SKIPPED" for how in ended.values()), which=[case for case, _, _ in failed][:40], output=messages[-4000:],
                 more=[{"case": case, "code": code, "output": output[-2000:]} for case, code, output in failed])


def conformance(session):
    few = "*Adagrad*:*Softmax*" if session.dry else "*"  # in a dry run each kernel is compiled for the host
    kernels(session, "kernels beside the CPU's", "conformance_test", few, digests=session.out / "digests")


def programs(session):
    if session.dry:
        return session.note("programs of plans beside the CPU's", None, why="plan_programs_test is a test of its own here")
    return kernels(session, "programs of plans beside the CPU's", "plan_programs_test")


def cudnn(session):
    if session.dry:
        return session.note("attention of cuDNN beside its definition", None, why="the faked libraries have no cuDNN of numbers")
    return kernels(session, "attention of cuDNN beside its definition", "cudnn_numbers_test")


def read_digests(path):
    """Returns the digest of each result of each use of an op, by its name."""
    lines = [line.rpartition(" ") for line in (path.read_text().splitlines() if path.exists() else ())]
    return {label: digest for label, _, digest in lines}


def emulation(session):
    """Says which ops give the bits that the emulated kernels gave where the programs were packed."""
    packed, ours = session.build / "emulated.txt", session.out / "digests"
    if not packed.exists() or not ours.exists():
        return session.note("bits beside the emulation's", None, why="tests/gpu/pack --emulated makes what they are compared with")
    ours, theirs, ops = read_digests(ours), read_digests(packed), {}
    for label, digest in ours.items():
        ops.setdefault(label.split()[0], []).append(theirs.get(label) == digest)
    exact = sorted(op for op, same in ops.items() if all(same))
    others = {op: f"{sum(same)} of {len(same)}" for op, same in sorted(ops.items()) if not all(same)}
    session.facts["exact_ops"], session.facts["other_ops"] = exact, others
    return session.note("bits beside the emulation's", bool(ours), exact=len(exact), others=len(others))


def attention_twice(session):
    """Forward and backward, by cuDNN and by our own kernels, give the same bits in two runs."""
    made = []
    for turn in (1, 2):
        folder = session.out / f"attention-{turn}"
        kernels(session, f"attention, run {turn}", "conformance_test", "*Attention*", digests=folder)
        made.append(read_digests(folder))
    session.note("attention twice gives the same bits", bool(made[0]) and made[0] == made[1], results=len(made[0]))


def sanitizer(session, tool):
    program = session.build / "tests/conformance_test"
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", program, "--gtest_filter=*Norm*:*Softmax*:*Reduce*:*Attention*"]
    # compute-sanitizer starts our program, which needs the libraries packed beside it.
    session.check(f"compute-sanitizer {tool}", words, 120, env={"PIPER_ON_DEVICE": "1", **session.variables(program)}, again=False)
