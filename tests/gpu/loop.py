"""Whether what happens around steps works on a device: checkpoints, evaluation, steps that are not finite, comparison of replicas, ranks
that are killed and go on, other optimizers and element types."""

import json

import parallel
from correctness import BOUNDS, SAMPLE, compare_losses
from session import ROOT, lines_of, losses

BOUNDS |= {"f16": 2e-2, "f64": 1e-6}
OPTIMIZERS = {"muon": "{muon: {lr: 2e-2}}, groups: [{of: [vectors, embeddings, heads], optimizer: {adamw: {lr: 1e-3}}}]", "adafactor": "{adafactor: {}}", "lion": "{lion: {lr: 1e-4}}",
              "adamw-bf16": "{adamw: {lr: 1e-3, states: bf16}}"}


def plans_with(session, name, numerics="bf16", optimizer="{adamw: {lr: 1e-3}}", files=(), flags=(), directives=""):
    """Returns the plans of the sample (in a dry run of a smaller model) with this optimizer and these files of the library."""
    included = [*files, *([] if numerics == "f32" else [f"numerics/{numerics}"])]
    loss = "loss: {cross_entropy: {logits: logits, labels: labels}}" if session.dry else ""
    strategy = session.strategy(name, f"""piper: 1
include: [{", ".join(f"{ROOT}/strategies/{file}.yaml" for file in included)}]
{loss}
train: {{optimizer: {optimizer}, clip_norm: 1.0, global_batch: {8 if session.dry else 16}}}
{directives}""")
    model = session.model() / "model.onnx" if session.dry else SAMPLE
    return session.compile(name, model, strategy, *flags)


def data(session):
    return session.tokens() if session.dry else session.text()


def evaluations(session, name):
    """Returns the losses of the evaluations in the metrics of this run."""
    lines = map(json.loads, (session.kept / f"{name}.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "evaluation" in line]


def same(session, name, one, other):
    session.note(name, bool(one) and one == other)


def resumes(session, plans):
    """A run that is saved and goes on, on the device and on the CPU; an evaluation changes no bit."""
    folder, steps, half = session.out / "checkpoints", 4, 2
    source = data(session)
    straight_lines, straight = session.train("straight", plans, steps)
    session.train("first-half", plans, half, "--checkpoint", folder)
    _, resumed = session.train("resumed", plans, steps, "--resume", folder)
    same(session, "a resumed run ends in the bits of one that was not interrupted", straight, resumed)
    if not session.dry:
        lines, _ = session.train("resumed-cpu", plans, steps, "--resume", f"{folder}/step-{half:09}", backend="cpu")
        compare_losses(session, "steps resumed on the CPU", "bf16", losses(straight_lines)[half:], losses(lines), steps - half)
    flags = ("--eval-data", source, "--eval-every", half, "--eval-batches", 2 if session.dry else 4)
    _, evaluated = session.train("evaluated", plans, steps, *flags)
    same(session, "a run with evaluations ends in the same bits", straight, evaluated)
    session.train("evaluated-cpu", plans, steps, *flags, backend="cpu")
    ours, theirs = evaluations(session, "evaluated"), evaluations(session, "evaluated-cpu")
    compare_losses(session, "evaluations", "bf16", ours, theirs, steps // half)


def not_finite(session):
    """A first update by a rate of 1e30 makes all that follows infinite: the same steps are not taken on the device and on the CPU."""
    plans, steps = plans_with(session, "overflows", optimizer="{adamw: {lr: 1e30}}"), 4
    for choice, code in (("stop", 11), ("skip", 0)) if plans else ():
        skipped = {}
        for backend in ("cuda", "cpu"):
            metrics = session.kept / f"overflows-{choice}-{backend}.jsonl"
            words = [session.build / "bin/piper-run", plans, "--backend", backend, "--data", data(session), "--steps", steps, "--on-nan",
                     choice, "--metrics", metrics]
            if session.check(f"not finite, {choice}, {backend}", words, 60, expect=code, again=False) is not None:
                skipped[backend] = [line["skipped"] for line in lines_of(metrics)]
        ours, theirs = skipped.get("cuda", []), skipped.get("cpu", [])
        if choice == "stop":  # a device ends behind the step that it has queued, which is not taken either
            theirs = theirs + theirs[-1:]
        session.note(f"not finite, {choice}: the CPU's steps are skipped", ours == theirs and any(ours), steps=str(skipped))


def element_types(session):
    """Losses of training in f16, whose scale comes down in the same steps, and in f64."""
    for numerics in ("f16",) if session.dry else ("f16", "f64"):
        plans, steps = plans_with(session, f"in-{numerics}", numerics), 2 if session.dry else 6
        if plans is None:
            continue
        runs = [session.train(f"{numerics}-{backend}", plans, steps, backend=backend, limit_s=60)[0] for backend in ("cuda", "cpu")]
        compare_losses(session, f"the sample in {numerics}", numerics, *map(losses, runs), steps)
        scales = [[line.get("loss_scale") for line in run] for run in runs]
        session.note(f"the sample in {numerics}: loss scales", scales[0] == scales[1], scales=str(scales[0]))


def optimizers(session):
    for name, optimizer in list(OPTIMIZERS.items())[:1 if session.dry else None]:
        plans, steps = plans_with(session, name, optimizer=optimizer), 2 if session.dry else 5
        if plans is not None:
            runs = [session.train(f"{name}-{backend}", plans, steps, backend=backend, limit_s=60)[0] for backend in ("cuda", "cpu")]
            compare_losses(session, name, "bf16", *map(losses, runs), steps)


def limited_streams(session):
    """Two streams, one of which is limited to a few multiprocessors: the bits of the plan for one device."""
    plans = plans_with(session, "limited", files=["ddp"], flags=["-D", "dp=2"],
                       directives="directives:\n  - stream: {where: {kind: all_reduce}, name: grads, priority: high, sms: 8}\n")
    if plans is not None:
        session.check("a stream of 8 multiprocessors gives the bits of the single plan",
                      [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", data(session), "--steps", 2, "--verify-against",
                       "single", "--start-timeout", 120, "--timeout", 60], 100)


def killed(session):
    """Ranks over NCCL write checkpoints; one is killed; a job of one process goes on from there to the bits of one that was not."""
    if session.dry:  # see parallel.nccl
        return
    plans = parallel.compile_job(session, "dp2")
    if plans is None:
        return
    folder, whole = session.out / "killed", session.out / "whole.safetensors"
    parallel.processes(session, "dp2 over NCCL, 6 steps", plans, 2, ("--steps", "6", "--save", whole, "--check-replicas", "2"))
    parallel.processes(session, "dp2 over NCCL, killed in step 5", plans, 2, ("--steps", "6", "--checkpoint", folder, "--every", "2"),
                       fault="kill@1:5:step", codes=[10, -9])
    # A step of more kernels than the driver queues: the host that is left may stand in one of its calls.
    many = parallel.compile_job(session, "pp2-many")
    if many is not None:
        parallel.processes(session, "a rank killed behind thousands of kernels ends the other", many, 2, ("--steps", "1000000", "--graphs", "off"), kill=12)
    left = sorted(path.name for path in folder.glob("step-*"))  # the last one was still being written, or not
    session.note("the killed job left checkpoints", left[:1] == ["step-000000002"], left=left)
    _, resumed = session.train("resumed-between-threads", plans, 6, "--resume", folder, limit_s=60)
    same(session, "it goes on to the bits of the job that was not killed", whole.read_bytes() if whole.exists() else b"", resumed)


def held_up(session):
    """GPT-2 at 4 samples with a checkpoint each 20 steps: for how long training stood still."""
    plans = None if session.dry else session.compile("plans-gpt2-4", session.model("gpt2", 4) / "model.onnx", session.out / "gpt2-4/bf16.yaml",
                                                     "--no-oracles")
    if plans is None:
        return
    words = [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", session.tokens(), "--steps", 60]
    output = session.check("gpt2 at 4 with checkpoints", [*words, "--checkpoint", session.out / "gpt2", "--every", 20], 90)
    lines = [line.strip() for line in (output or "").splitlines() if "held up" in line]
    session.note("checkpoints of gpt2", bool(lines), said=lines)


def all_of_it(session):
    plans = plans_with(session, "loop", flags=["--eval"])
    if plans is not None:
        session.section("checkpoints and evaluation", 90, 15, lambda: resumes(session, plans))
    for name, run in (("not finite", not_finite), ("element types", element_types), ("optimizers", optimizers),
                      ("limited streams", limited_streams), ("killed", killed), ("held up", held_up)):
        session.section(name, 90, 12, lambda run=run: run(session))
