"""piper-run evaluates what PyTorch does after module.eval(): GPT-2 and Llama of the transformers library, networks with batch norms and with what else has
a way of its own then, exported as they train, with dropout; before training, and after some steps, when what Piper has saved is loaded into the module.

  evaluation_test.py ROOT BIN    77 where no python here has PyTorch; one that PYTHON names serves
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from own_process import find_python

NEEDED = ["torch", "onnx", "onnxscript", "safetensors", "transformers"]
ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
BATCH, TIME, VOCABULARY, BOUND = 8, 8, 32, 1e-6

find_python(ROOT, NEEDED)
sys.path.insert(0, str(ROOT / "tools"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from export import export  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM  # noqa: E402


class Causal(nn.Module):
    """A language model of the library, and its loss over labels that are shifted already."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids=input_ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(TIME), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3))
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        for block in self.h:
            x = x + block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


class DropPath(nn.Module):
    """Leaves out samples, by Bernoulli numbers, by comparing numbers or by rounding them."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x, keep=0.75):
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.dim() - 1)
        if self.way == "bernoulli":
            return x * x.new_empty(shape).bernoulli_(keep).div_(keep)
        drawn = torch.rand(shape, dtype=x.dtype)
        return x / keep * ((drawn + keep).floor() if self.way == "floor" else (drawn > 1 - keep).to(x.dtype))


class Rare(nn.Module):
    """Dropout of channels and that of self-normalizing networks, and of samples; instance norms with running statistics."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.linears = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.norms = nn.ModuleList([nn.InstanceNorm1d(TIME, affine=True, track_running_stats=True), nn.InstanceNorm1d(TIME, track_running_stats=True)])
        self.dropped = nn.ModuleList([nn.Dropout1d(0.2), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)])
        self.paths = nn.ModuleList(map(DropPath, ("bernoulli", "floor", "compare")))

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        for linear, norm in zip(self.linears, self.norms):
            x = x + norm(linear(x))
        for dropout, path in zip(self.dropped, self.paths):
            x = x + path(dropout(x).tanh())
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


def gpt2():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=TIME, n_embd=32, n_layer=2, n_head=2, attn_implementation="eager")
    return Causal(GPT2LMHeadModel(config))  # with its dropout of 0.1


def llama():
    return Causal(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                               num_key_value_heads=2, max_position_embeddings=TIME, attention_dropout=0.1)))


STRATEGIES = {"one": "", "stages": "include: <1f1b>\nparams: {stages: 2, microbatches: COUNT}\n",
              "parts": "include: <zero3>\nparams: {dp: 2, microbatches: COUNT}\n"}


def batch(ignored):
    labels = torch.randint(0, VOCABULARY, (BATCH, TIME))
    labels[torch.rand(BATCH, TIME) < ignored] = -100
    return {"input_ids": torch.randint(0, VOCABULARY, (BATCH, TIME)), "labels": labels}


def write(path, batches):
    save_file({f"batch/{k}/{key}": value for k, one in enumerate(batches) for key, value in one.items()}, path)


def loss_of(module, batches):
    module = module.double().eval()
    with torch.no_grad():
        counts = [int((one["labels"] >= 0).sum()) for one in batches]
        return float(sum(module(**one) * count for one, count in zip(batches, counts)) / sum(counts))


def program(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def evaluations(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["loss"] for line in lines if "evaluation" in line]


def compare(name, make, folder):
    torch.manual_seed(7)
    module = make().train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    training, valid = [batch(0.2) for _ in range(3)], [batch(ignored) for ignored in (0, 0.9, 0.5)]
    export(module, tuple(training[0].values()), folder / "model.onnx", log=lambda text: None)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    write(folder / "training.safetensors", training)
    write(folder / "valid.safetensors", valid)
    worst, count = 0, "1" if name in ("norms", "rare") else "2"  # which need all samples at once
    for strategy, text in STRATEGIES.items():
        (folder / "strategy.yaml").write_text(f"piper: 1\n{text.replace('COUNT', count)}train: {{global_batch: {BATCH}, optimizer: {{sgd: {{lr: 0.1}}}}}}\n")
        plans, saved, metrics = folder / strategy, folder / f"{strategy}.safetensors", folder / f"{strategy}.jsonl"
        program(BIN / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", plans, "--eval")
        program(BIN / "piper-run", plans, "--eval-only", "--eval-data", folder / "valid.safetensors", "--metrics", metrics)
        program(BIN / "piper-run", plans, "--data", folder / "training.safetensors", "--eval-data", folder / "valid.safetensors", "--steps", 3,
                "--metrics", metrics, "--save", saved)
        first, last = evaluations(metrics)
        module.load_state_dict(before)
        wanted = loss_of(module, valid)
        module.float().load_state_dict({**before, **load_file(saved)})
        trained = loss_of(module, valid)
        module.float()
        if wanted == trained:
            sys.exit(f"{name}: nothing was learned")
        worst = max(worst, abs(first - wanted), abs(last - trained))
        if worst > BOUND:
            sys.exit(f"{name}, {strategy}: evaluated as {first} and {last}, in PyTorch {wanted} and {trained}")
    print(f"{name}: within {worst:.1e} of PyTorch before training and after it")


for name, make in (("gpt2", gpt2), ("llama", llama), ("norms", Norms), ("rare", Rare)):
    with tempfile.TemporaryDirectory() as folder:
        compare(name, make, pathlib.Path(folder))
