"""A batch of packed documents trains as its documents do apart: a small attention model, exported, learns from packed sequences with Piper, and
in PyTorch from each document by itself. The sequences are packed here once more, by the rule of formats/data.md.

  packing_test.py ROOT BIN    77 where no python here has PyTorch; one that PYTHON names serves
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from own_process import find_python

ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
find_python(ROOT, ["torch", "onnx", "onnxscript", "safetensors"])
sys.path.insert(0, str(ROOT / "tools"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from export import export  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

BATCH, TIME, VOCABULARY, WIDTH, STEPS, RATE, END = 4, 12, 17, 16, 4, 0.3, 0


class Model(nn.Module):
    """Attention within documents, and positions that begin anew with each."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, position_ids, document_ids, labels):
        x = self.tokens(input_ids) + self.places(position_ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        order = torch.arange(TIME)
        seen = (document_ids[:, :, None] == document_ids[:, None, :]) & (order[:, None] >= order[None, :])
        scores = (q @ k.transpose(1, 2)) / WIDTH**0.5
        x = x + torch.softmax(scores.masked_fill(~seen, -1e9), dim=-1) @ v
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


def pack(documents):
    """Best fit decreasing: lists of (document, its tokens)."""
    parts = []
    for one in documents:
        for at in range(0, len(one) - 1, TIME):
            parts.append(one[at:at + TIME + 1])
    sequences = []
    for part in sorted(parts, key=lambda part: -len(part)):  # stable
        fits = [s for s in sequences if s["room"] >= len(part) - 1]
        if fits:
            least = min(s["room"] for s in fits)
            best = min((s for s in fits if s["room"] == least), key=lambda s: s["since"])
        else:
            best = {"room": TIME, "parts": [], "since": 0}
            sequences.append(best)
        best["parts"].append(part)
        best["room"] -= len(part) - 1
        pack.clock += 1
        best["since"] = pack.clock  # among equal rooms the one that has had this room longest
    return [s["parts"] for s in sequences]


pack.clock = 0


def inputs_of(sequences, documents_apart=True):
    rows = {name: [] for name in ("input_ids", "position_ids", "document_ids", "labels")}
    for parts in sequences:
        row = {"input_ids": [], "position_ids": [], "document_ids": [], "labels": []}
        for number, part in enumerate(parts):
            row["input_ids"] += part[:-1]
            row["labels"] += part[1:]
            row["position_ids"] += range(len(part) - 1)
            row["document_ids"] += [number if documents_apart else 0] * (len(part) - 1)
        rest = TIME - len(row["labels"])
        row["input_ids"] += [0] * rest
        row["labels"] += [-100] * rest
        row["position_ids"] += range(rest)
        row["document_ids"] += [len(parts)] * rest
        for name, values in row.items():
            rows[name].append(values)
    return {name: torch.tensor(values) for name, values in rows.items()}


def train(start, losses_of):
    model = Model()
    model.load_state_dict(start)
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = losses_of(model, step)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    return losses, model.state_dict()


def main(folder):
    random.seed(5)
    torch.manual_seed(5)
    documents = [[random.randrange(1, VOCABULARY) for _ in range(random.choice([1, 2, 3, 4, 6, 9, 20]))] + [END] for _ in range(60)]
    sequences = pack(documents)
    assert len(sequences) >= STEPS * BATCH, len(sequences)
    batches = [sequences[s * BATCH:(s + 1) * BATCH] for s in range(STEPS)]
    start = Model()
    state = {name: value.clone() for name, value in start.state_dict().items()}

    def apart(model, step):
        total, count = 0, 0
        for parts in batches[step]:
            for part in parts:
                alone = inputs_of([[part]])
                total = total + model(**alone) * (len(part) - 1)
                count += len(part) - 1
        return total / count

    losses, expected = train(state, apart)
    mixed, _ = train(state, lambda model, step: model(**inputs_of(batches[step], documents_apart=False)))
    assert max(abs(a - b) for a, b in zip(losses, mixed)) > 1e-3, "documents that see each other learn something else"

    export(start, tuple(inputs_of(batches[0]).values()), str(folder / "model.onnx"))
    (folder / "text.bin").write_bytes(bytes(token for one in documents for token in one))
    save_file(state, folder / "start.safetensors")
    for name, head in (("one", ""), ("replicas", "mesh: {dp: 2}\ndirectives: [{replicate: {over: dp}}]\n")):
        (folder / f"{name}.yaml").write_text(f"piper: 1\n{head}train: {{optimizer: {{sgd: {{lr: {RATE}}}}}, global_batch: {BATCH}}}\n")
        subprocess.run([BIN / "piperc", folder / "model.onnx", folder / f"{name}.yaml", "-o", folder / name], check=True)
        subprocess.run([BIN / "piper-run", folder / name, "--data", f"{folder}/text.bin:u8:separator={END}:pack", "--no-shuffle", "--steps",
                        str(STEPS), "--init", folder / "start.safetensors", "--save", folder / "trained.safetensors", "--metrics",
                        folder / f"{name}.jsonl"], check=True)
        lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        found = [line["loss"] for line in lines if "loss" in line]
        worst = max(abs(a - b) for a, b in zip(losses, found, strict=True))
        assert worst < 1e-5, (name, losses, found)
        trained = load_file(folder / "trained.safetensors")
        for key, value in expected.items():
            assert torch.allclose(trained[key], value, atol=2e-5), (name, key, (trained[key] - value).abs().max())
        print(f"{name}: losses of {STEPS} steps differ by {worst:.1e} at most from those of documents apart")


with tempfile.TemporaryDirectory() as path:
    main(pathlib.Path(path))
