"""Whether ranks that share one device give the bits of the single plan, between threads and between processes over NCCL, and whether a
rank that is killed is named by the others."""

import os
import re
import signal
import socket
import time

from correctness import SAMPLE, plans_of_sample
from session import ROOT

# name: files of strategies/, flags, and what `replicate` says otherwise than they do
JOBS = {"dp2": (["ddp"], ["dp=2"]),
        "pp2-1f1b": (["1f1b"], ["stages=2", "dp=1", "microbatches=4"]),
        "pp2-many": (["1f1b"], ["stages=2", "dp=1", "microbatches=8"]),
        "zero3": (["zero3"], ["dp=2"]),
        "zero3-int8": (["zero3"], ["dp=2"], "{over: dp, shard: [optimizer, gradients, parameters], gather: {dtype: int8, lossy: true}, "
                                            "reduce: {dtype: int8, lossy: true}}"),
        "tp2": (["tensor/sequence"], ["tp=2"]),
        "offload": (["schedules/gpipe", "memory/offload"], ["stages=2", "microbatches=8"]),
        "dualpipe": (["dualpipe"], ["stages=2", "dp=1", "microbatches=8"]),
        "dualpipev": (["dualpipev"], ["stages=2", "dp=1", "microbatches=8"]),
        "zb-h1": (["zb-h1"], ["stages=2", "dp=1", "microbatches=4"]),
        "2bw": (["pipedream-2bw"], ["stages=2", "dp=1", "microbatches=4"])}


# What job scripts for other programs say, and piper-run sets otherwise.
FOR_OTHERS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_GRAPH_MIXING_SUPPORT": "0", "NCCL_LAUNCH_ORDER_IMPLICIT": "1", "NCCL_MIN_CTAS": "32"}


def compile_job(session, name):
    """Returns the plans of the sample, in a dry run of a smaller model."""
    files, flags, *replicate = JOBS[name]
    directives = f"directives:\n  - name: replicate\n    replicate: {replicate[0]}\n" if replicate else ""
    loss = "loss: {cross_entropy: {logits: logits, labels: labels}}" if session.dry else ""
    text = f"""piper: 1
include: [{", ".join(f"{ROOT}/strategies/{file}.yaml" for file in files)}]
{loss}
train: {{optimizer: {{adamw: {{lr: 1e-3}}}}, clip_norm: 1.0, global_batch: {8 if session.dry else 16}}}
{directives}"""
    model = session.model() / "model.onnx" if session.dry else SAMPLE
    return session.compile(name, model, session.strategy(name, text), *(word for flag in flags for word in ("-D", flag)))


def threads(session, name):
    plans = compile_job(session, name)
    if plans is None:
        return
    session.check(f"{name} between threads on one device is the single plan",
                  [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", session.tokens() if session.dry else session.text(),
                   "--steps", "1" if session.dry else "3", "--verify-against", "single", "--start-timeout", "120", "--timeout", "60"], 100)


def memory_calls(session):
    """A step takes no memory and gives none back: more steps make no more such calls. The faked driver counts them."""
    plans, counts = plans_of_sample(session, "bf16"), []
    for steps in (3, 3, 6):  # the first compiles kernels
        words = [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", session.tokens(), "--steps", steps]
        output = session.check(f"calls of {steps} steps", words, 60, env={"FAKE_CUDA_COUNT": "1"}) or ""
        counts += [tuple(map(int, found)) for found in re.findall(r"fake cuda: (\d+) calls, (\d+) of them for memory", output)]
    session.note("no memory is taken in a step", len(counts) == 3 and counts[1][0] < counts[2][0] and counts[1][1] == counts[2][1],
                 counts=str(counts))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processes(session, name, plans, world, extra=(), kill=None, limit_s=60, fault=None, codes=None):
    """Runs a process for each rank, all on one device, which NCCL allows where it takes them for different hosts. `kill`: ends the last
    rank after so many seconds; the others are to end with 10 and its name. `fault` is PIPER_FAULT; `codes` are how the ranks are to end."""
    port, start, children = free_port(), time.monotonic(), []
    for rank in range(world):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "NCCL_HOSTID": str(rank), "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1",
               "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "WARN", **FOR_OTHERS, **({"PIPER_FAULT": fault} if fault else {})}
        words = [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", session.text(), *extra]
        children.append(session.start(words, env))
    killed = start
    try:
        if kill is not None:
            time.sleep(max(0.0, min(kill, session.left() - 15)))
            os.killpg(children[-1].pid, signal.SIGKILL)
            killed = time.monotonic()
        done = [session.finish(child, limit_s if kill is None else 30) for child in children]
    finally:
        for child in children:
            session.kill(child)
    ended, output = [code for code, _ in done], "".join(text for _, text in done)
    session.write_log(f"{name}: {ended}", output)
    wanted = codes or ([0] * world if kill is None else [10] * (world - 1) + [-signal.SIGKILL])
    facts = {"seconds": round(time.monotonic() - start, 1)}
    if kill is not None:
        facts["ended_after_s"] = round(time.monotonic() - killed, 1)
        facts["names_it"] = f"rank {world - 1}" in done[0][1]
    return session.note(name, ended == wanted and facts.get("names_it", True), codes=str(ended), **facts, output=output[-4000:])


def nccl(session, name, world=2):
    """One job over NCCL, checked against the single plan."""
    if session.dry:  # the faked NCCL knows processes by a folder alone: tests/cuda/nccl_processes_test.cc
        return compile_job(session, name)
    plans = compile_job(session, name)
    if plans is not None:
        processes(session, f"{name} between {world} processes over NCCL is the single plan", plans, world,
                  ("--steps", "3", "--verify-against", "single"))
    return plans


def nccl_all(session):
    for name in ("dp2", "pp2-1f1b", "dualpipe", "zero3-int8"):
        session.section(f"{name} over NCCL", 40, 12, lambda name=name: nccl(session, name))
    if session.dry:
        return
    plans = compile_job(session, "dp2")
    session.section("dp2 over NCCL, op by op", 30, 10, lambda: processes(
        session, "dp2 over NCCL, op by op, is the single plan", plans, 2, ("--steps", "3", "--verify-against", "single", "--graphs", "off")))
    session.section("a killed rank", 50, 25, lambda: processes(
        session, "a killed rank ends the others, which name it", compile_job(session, "pp2-1f1b"), 2, ("--steps", "1000000"), kill=12))
