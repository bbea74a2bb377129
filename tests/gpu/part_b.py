"""Part B: ranks on one device are the single plan, bit by bit; graphs; NCCL between processes on one device."""

import os
import re
import signal
import socket
import time

from part_a import SAMPLE, one_device
from report import ROOT, losses

# name, files of strategies/, flags, bound of losses and parameters where bits differ by right (sums within ops are cut)
JOBS = (("dp2", ["ddp"], ["dp=2"]),
        ("pp2-1f1b", ["1f1b"], ["stages=2", "dp=1", "microbatches=4"]),
        ("zero3", ["zero3"], ["dp=2"]),
        ("tp2", ["tensor/sequence"], ["tp=2"]),
        ("offload", ["schedules/gpipe", "memory/offload"], ["stages=2", "microbatches=8"]),
        ("dualpipev", ["dualpipev"], ["stages=2", "dp=1", "microbatches=8"]),
        ("zb-h1", ["zb-h1"], ["stages=2", "dp=1", "microbatches=4"]),
        ("2bw", ["pipedream-2bw"], ["stages=2", "dp=1", "microbatches=4"]))


def compile_job(day, name, files, flags, small=False):
    """A plan of the sample, or of a smaller model."""
    loss = "loss: {cross_entropy: {logits: logits, labels: labels}}" if small else ""
    text = f"""piper: 1
include: [{", ".join(f"{ROOT}/strategies/{file}.yaml" for file in files)}]
{loss}
train: {{optimizer: {{adamw: {{lr: 1e-3}}}}, clip_norm: 1.0, global_batch: {4 if small else 16}}}
"""
    model = day.model() / "model.onnx" if small else SAMPLE
    return day.compile(name, model, day.strategy(name, text), *(word for flag in flags for word in ("-D", flag)))


def job(day, name, files, flags):
    plans = compile_job(day, name, files, flags, small=day.dry)  # a dry run interprets kernels
    if plans is None:
        return
    day.check(f"{name} on one device is the single plan",
              [day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.tokens() if day.dry else day.text(), "--steps",
               "1" if day.dry else "3", "--verify-against", "single", "--start-timeout", "120", "--timeout", "60"], 100)


def graphs(day):
    folder = day.model() if day.dry else None
    plans = day.compile("graphs", folder / "model.onnx" if folder else SAMPLE, one_device(day, "bf16"))
    if plans is None:
        return
    steps = 4 if day.dry else 50
    without, saved = day.train("graphs-off", plans, steps, "--graphs", "off", limit_s=60)
    replayed, same = day.train("graphs-on", plans, steps, "--graphs", "on", limit_s=60)
    day.note("graphs change no bit", bool(without) and losses(without) == losses(replayed) and saved == same)
    if day.dry:
        memory_calls(day, plans)


def memory_calls(day, plans):
    """A step takes no memory and gives none back: more steps make no more such calls. The faked driver counts them."""
    counts = []
    for steps in (3, 6):
        words = [day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.tokens(), "--steps", steps]
        output = day.check(f"calls of {steps} steps", words, 60, env={"FAKE_CUDA_COUNT": "1"}) or ""
        counts += [tuple(map(int, found)) for found in re.findall(r"fake cuda: (\d+) calls, (\d+) of them for memory", output)]
    day.note("no memory is taken in a step", len(counts) == 2 and counts[0][0] < counts[1][0] and counts[0][1] == counts[1][1],
             counts=str(counts))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processes(day, name, plans, world, extra=(), kill=None, expect=0, limit_s=100):
    """One process a rank on one device: NCCL is told that they are on different hosts. `kill`: the last one, after so many seconds."""
    port, start, children = free_port(), time.monotonic(), []
    for rank in range(world):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "NCCL_HOSTID": str(rank), "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1",
               "NCCL_SHM_DISABLE": "1"}
        words = [day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.text(), *extra]
        children.append(day.start(words, env))
    try:
        if kill is not None:
            time.sleep(max(0.0, min(kill, day.left() - 15)))
            os.killpg(children[-1].pid, signal.SIGKILL)
        killed = time.monotonic()
        done = [day.finish(child, limit_s if kill is None else 30) for child in children]
    finally:
        day.kill_all()
    codes = [code for code, _ in done]
    output = "".join(text for _, text in done)
    with day.log.open("a") as log:
        log.write(f"\n==== {name}: {codes}\n{output[-100000:]}")
    wanted = [expect] * world if kill is None else [expect] * (world - 1) + [-signal.SIGKILL]
    took = {"ended_after_s": round(time.monotonic() - killed, 1)} if kill is not None else {}
    return day.note(name, codes == wanted, codes=str(codes), seconds=round(time.monotonic() - start, 1), **took, output=output[-4000:])


def nccl(day, world, files, flags, fast=False):
    name = f"nccl-{'-'.join(files).replace('/', '-')}-{world}"
    plans = compile_job(day, name, files, flags)
    if plans is None:
        return
    processes(day, f"{name} in processes is the single plan", plans, world, ("--steps", "3", "--verify-against", "single"))
    if fast:
        processes(day, "a rank that is killed ends the others", plans, world, ("--steps", "1000000"), kill=15, expect=10)


def run(day):
    # In a dry run one of them; the others are compiled alone.
    for name, files, flags in JOBS[:3]:
        if day.dry and name != "dp2":
            continue
        day.section(name, 100, 15, lambda: job(day, name, files, flags))
    day.section("graphs", 120, 20, lambda: graphs(day))
    if day.dry:
        for name, files, flags in JOBS[1:]:
            day.section(name, 60, 0, lambda: compile_job(day, name, files, flags))
        return  # what stands for NCCL there knows threads alone: tests/cuda/nccl_test.cc
    day.section("2 stages over NCCL", 150, 40, lambda: nccl(day, 2, ["1f1b"], JOBS[1][2], fast=True))
    for world in (2, 4):
        day.section(f"{world} replicas over NCCL", 100, 30, lambda: nccl(day, world, ["ddp"], [f"dp={world}"]))
    for name, files, flags in JOBS[3:]:
        day.section(name, 80, 15, lambda: job(day, name, files, flags))
