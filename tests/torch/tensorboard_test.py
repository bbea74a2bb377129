"""TensorBoard's own reader finds what metrics.jsonl has: each step once, with its numbers, also of a job that was killed and resumed.

  tensorboard_test.py ROOT BIN    77 where no python here has TensorBoard; one that PYTHON names serves
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from own_process import find_python

ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
find_python(ROOT, ["tensorboard"])
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

STRATEGY = "piper: 1\ninclude: <ddp>\nparams: {dp: 2}\ntrain: {optimizer: {adamw: {lr: 1e-3}}, global_batch: 8, clip_norm: 1}\n"


def run(folder, steps, fault=""):
    out, data = folder / "out", f"{ROOT}/README.md:u8"
    return subprocess.run([BIN / "piper-run", folder / "plans", "--data", data, "--eval-data", data, "--eval-batches", "1", "--eval-every", "2",
                           "--steps", str(steps), "--out", out, "--every", "4", "--resume-or-start", out],
                          env=os.environ | {"PIPER_FAULT": fault}, capture_output=True, text=True)


def as_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "strategy.yaml").write_text(STRATEGY)
        subprocess.run([BIN / "piperc", ROOT / "tests/data/small_gpt/model.onnx", folder / "strategy.yaml", "-o", folder / "plans", "--eval",
                        "--no-oracles"], check=True, capture_output=True)
        assert run(folder, 12, "kill@0:7:after").returncode != 0
        resumed = run(folder, 12)
        assert resumed.returncode == 0, resumed.stderr
        reader = EventAccumulator(str(folder / "out"), size_guidance={"scalars": 0})
        reader.Reload()
        lines = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
        steps = {line["step"]: line for line in lines if "step_ms" in line}
        evaluations = {line["step"]: line for line in lines if "evaluation" in line}
        assert sorted(steps) == list(range(1, 13)), sorted(steps)
        assert sorted(evaluations) == [2, 4, 6, 8, 10, 12], sorted(evaluations)
        for tag, series, key in (("loss", steps, "loss"), ("grad_norm", steps, "grad_norm"), ("learning_rate", steps, "learning_rate"),
                                 ("evaluation_loss/valid", evaluations, "loss")):
            events = reader.Scalars(tag)
            assert [event.step for event in events] == sorted(series), (tag, [event.step for event in events])
            for event in events:
                assert as_f32(event.value) == as_f32(series[event.step][key]), (tag, event)
        print("TensorBoard reads 12 steps and 6 evaluations, each once")


main()
