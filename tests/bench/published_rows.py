"""Steps of training that others have published, as rows for tests/bench/published: model, strategy and cluster as their sources say, and the
tokens that a GPU took in a second. A table has one source and one kind of software, and all its rows one cluster file."""
import itertools
from dataclasses import dataclass, field


@dataclass
class Row:
    name: str
    model: list        # arguments of samples/models/generate
    include: list      # strategy files
    params: dict
    train: dict
    gpus: int
    tokens: int        # of a sequence
    measured: float    # tokens a second and GPU
    directives: list = field(default_factory=list)
    annotate: list = field(default_factory=list)
    quick: bool = False  # compiled by the test, too


@dataclass
class Table:
    name: str
    source: str
    cluster: str
    devices: dict = field(default_factory=dict)  # entries of the cluster file that the source's devices have otherwise
    rows: list = field(default_factory=list)


ADAMW = {"adamw": {"lr": 3e-4}}
BF16_SUMS = [{"precision": {"compute": "bf16", "reduce": "bf16"}}]  # FSDP's mixed precision "PURE"


def replicas(*shard, **reduce):
    """Replicas whose gradients NCCL adds up, in an order of its own."""
    gather = {"gather": {"when": "per_pass", "prefetch": 1}} if "parameters" in shard else {}
    return [{"name": "replicate", "replicate": {"over": "dp", "bucket": "25MiB", **({"shard": list(shard)} if shard else {}), **gather,
                                                "reduce": {"sum": "fast", **reduce}}}]


FSDP = replicas("optimizer", "gradients", "parameters", when="per_microbatch")
ZERO1 = replicas("optimizer")
ZERO2 = replicas("optimizer", "gradients")


def again(layers, *ops):
    """Each layer keeps its inputs alone, or does without what the ops make."""
    return [{"recompute": {"match": layers, **({"ops": list(ops)} if ops else {})}}]


def mpt():
    """FSDP of PyTorch 2 by its eager mode. Columns: layers, width, heads, then of each row tokens, GPUs, sequences of a GPU at once, how often,
    recomputation, tokens a second and GPU. Models have no biases and no table of positions; ours have, which are no work. Their attention was
    Triton's (attn_impl of submit_benchmarks.py), of which FlashAttention-2, in the cluster file, takes 1.3 to 2.5 times the speed (Dao, 2023,
    section 4.1): 1.8 times. Parameters are split from a flat one (FlatParamHandle of torch/distributed/fsdp/_flat_param.py), whose gradient autograd
    makes of theirs (split_with_sizes_backward, a copy of all)."""
    sizes = {"760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
             "70b": (80, 8192, 64)}
    rows = [("760m", 1024, 8, 48, 2, 0, 78581), ("760m", 2048, 8, 24, 2, 0, 63147), ("760m", 4096, 8, 12, 2, 0, 55459),
            ("760m", 2048, 32, 24, 1, 0, 67971), ("1b", 512, 8, 56, 4, 0, 52275), ("1b", 2048, 8, 14, 1, 0, 45455), ("1b", 8192, 8, 3, 4, 0, 29157),
            ("1b", 2048, 16, 20, 1, 0, 46037), ("1b", 2048, 64, 20, 1, 0, 44402), ("3b", 1024, 8, 20, 6, 0, 27046), ("3b", 4096, 8, 5, 6, 0, 20964),
            ("3b", 2048, 64, 6, 3, 0, 22525), ("7b", 1024, 8, 64, 2, 1, 10203), ("7b", 2048, 8, 6, 1, 0, 10643), ("7b", 8192, 8, 8, 2, 1, 6935),
            ("13b", 2048, 8, 2, 1, 0, 4792), ("13b", 2048, 64, 2, 1, 0, 4800), ("13b", 4096, 8, 10, 3, 1, 4717), ("30b", 2048, 32, 14, 3, 1, 2308),
            ("70b", 2048, 64, 8, 4, 1, 1039),
            ("760m", 512, 8, 96, 2, 0, 83749), ("760m", 16384, 8, 3, 2, 0, 27815), ("1b", 4096, 8, 7, 4, 0, 38535), ("3b", 2048, 16, 10, 3, 0, 24142),
            ("3b", 8192, 8, 3, 6, 0, 16578), ("7b", 4096, 8, 16, 2, 1, 8611), ("13b", 1024, 8, 40, 3, 1, 5502), ("13b", 16384, 8, 3, 3, 1, 2985),
            ("30b", 1024, 8, 6, 21, 1, 2084), ("70b", 2048, 32, 2, 16, 1, 882)]
    table = Table("MPT", "mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16", "<h100x2048-eager>",
                  {"attention: 0.56, attention_grad: 0.48": "attention: 0.31, attention_grad: 0.27",
                   "    score: 250\n": "    score: 250\n    copies: [reduced]\n"})
    for size, tokens, gpus, micro, rounds, recompute, measured in rows:
        layers, width, heads = sizes[size]
        table.rows.append(Row(f"{size}, {tokens} tokens, {gpus} GPUs",
                              ["gpt2", "--layers", layers, "--hidden", width, "--heads", heads, "--tokens", tokens, "--vocab", 50368],
                              ["memory/zero3"], {"dp": gpus},
                              {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": micro, "global_batch": micro * rounds * gpus},
                              gpus, tokens, measured, FSDP + BF16_SUMS + again("transformer/h/{layer}/**") * recompute, quick=size == "1b" and gpus == 8))
    return table


def nanotron_stages(layers, hidden, inner, vocab, stages):
    """The cut of nanotron's build_model: a stage gets layers until the parameters of its products, with those before it, exceed its share."""
    layer, head = 4 * hidden * hidden + 3 * inner * hidden, vocab * hidden
    ends = []
    for k in range(layers):
        if (k + 1) * layer * stages > (layers * layer + head) * (len(ends) + 1):
            ends.append(k + 1)
    bounds = [0, *ends[:stages - 1], layers]
    rules = [{"match": f"model/layers/{{{a}..{b - 1}}}/**", "tags": {"stage": s}} for s, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b]
    return rules + [{"match": f"{module}/**", "tags": {"stage": stage}}
                    for module, stage in [("model/embed_tokens", 0), ("model/norm", stages - 1), ("lm_head", stages - 1)]]


def nanotron():
    """Pipelines, tensor parallelism with cut sequences and ZeRO-1 by PyTorch's eager mode; 4.19 million tokens a step. The vocabulary of GPT-2 is
    extended to a multiple of the ranks that share it, which leaves each an odd part. Norms and rotations have
    kernels of their own (TritonRMSNorm, FlashAttention's)."""
    rows = [(4, 2, 1, 8, 33.2), (2, 4, 1, 8, 27.8), (1, 4, 2, 8, 25.9), (2, 1, 4, 2, 23.4), (1, 2, 4, 4, 22.2), (1, 8, 1, 8, 20.0), (1, 1, 8, 4, 18.0),
            (2, 2, 2, 1, 11.2), (1, 8, 1, 32, 5.7)]
    table = Table("nanotron", "huggingface.co/nanotron/old_bench, llama-1B/8_GPUS; sizes from huggingface/bench_cluster, create_configs.py",
                  "<h100x2048-eager>", {"{RmsNorm: 4, RmsNormGradX: 3, RmsNormGradScale: 3, Rotary: 5, SwiGlu: 2}": "{SwiGlu: 2}"})
    layers, hidden, inner, vocab = 24, 2048, 4096, 50257
    for dp, tp, pp, micro, measured in rows:
        table.rows.append(Row(f"dp {dp}, tp {tp}, pp {pp}, {micro} at once",
                              ["llama3-8b", "--layers", layers, "--hidden", hidden, "--heads", 32, "--kv-heads", 32, "--inner", inner, "--tokens", 4096,
                               "--vocab", vocab],
                              ["schedules/1f1b", "memory/zero1", "tensor/sequence", "tensor/vocabulary", "numerics/bf16"],
                              {"dp": dp, "tp": tp, "stages": pp, "microbatches": 1024 // dp // micro},
                              {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": micro}, 8, 4096, measured * 1e3, ZERO1,
                              nanotron_stages(layers, hidden, inner, vocab, pp), micro == 8))
    return table


LAYERS = again("model/layers/{layer}/**")

# TorchTitan's selective recomputation keeps the results of attentions and of every other product of a layer.
SELECTIVE = again("model/layers/{layer}/**", "RmsNorm", "Rotary", "SwiGlu", "Add")
for product in ("self_attn/k_proj", "self_attn/o_proj", "mlp/up_proj"):
    SELECTIVE += again(f"model/layers/{{layer}}/{product}/**")


def titan_8b(gpus, measured, quick=False):
    return Row(f"Llama 8B, {gpus} GPUs", ["llama3-8b"], ["memory/zero3", "numerics/bf16"], {"dp": gpus},
               {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": 2, "global_batch": 2 * gpus}, gpus, 8192, measured,
               FSDP + SELECTIVE, quick=quick)


# Large products reach 0.6 of the peak there (pytorch/ao of 2024, float8/roofline_utils.py), 0.67 with the clock of 700 W.
TITANS_H100 = {"bandwidth: 3.35 TB/s": "bandwidth: 2.4 TB/s", "memory: 80 GB": "memory: 96 GB", "power: 700 W": "power: 700 W\n    power_limit: 500 W",
               "product: 0.73": "product: 0.67"}
# FSDP2's buffers hold several parameters or gradients (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: split_with_sizes_copy behind
# all-gathers, _chunk_cat in front of reduce-scatters). Sequences are the second dim, which functional collectives bring to the front and back.
FSDP2 = {"    score: 250\n": "    score: 250\n    copies: [gathered, reduced, strided]\n"}
# torch.compile fuses passes; products and attentions are those of PyTorch's eager mode.
COMPILED = {"    per_op: 10 us  # of Python, autograd, dispatch and launch\n": "",
            "    composed: {RmsNorm: 4, RmsNormGradX: 3, RmsNormGradScale: 3, Rotary: 5, SwiGlu: 2}\n": ""}


def titan():
    """FSDP with compiled programs, and with tensor parallelism."""
    table = Table("TorchTitan", "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md and asyncTP_llama3_h100_2025-06_torchtitan.md, bf16",
                  "<h100x2048-eager>", TITANS_H100 | FSDP2 | COMPILED)
    for gpus, measured in [(8, 6667), (128, 6514)]:
        table.rows.append(titan_8b(gpus, measured, gpus == 8))
    for size, dp, micro, more, recompute, measured in [("8b", 8, 12, [], SELECTIVE, 4378), ("70b", 32, 16, [], LAYERS, 597),
                                                       ("70b", 32, 16, ["parts/async-tp"], LAYERS, 652)]:
        table.rows.append(Row(f"Llama {size.upper()}, {dp * 8} GPUs, {'AsyncTP' if more else 'tp'} 8", [f"llama3-{size}"],
                              ["meshes/fsdp-tp", "tensor/vocabulary", "numerics/bf16", *more], {"dp": dp, "tp": 8, "stages": 1, "microbatches": 1},
                              {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": micro}, dp * 8, 8192, measured, FSDP + recompute))
    return table


def large():
    """Interleaved pipelines with tensor parallelism by libraries of fused kernels. Utilisation is published; Llama's is 6 FLOPs for each parameter
    and 12 for each score of the whole square; Megatron's row has the parallelism of its paper's largest models (Narayanan et al., 2021)."""
    table = Table("large", "Grattafiori et al., 2024, table 4; NVIDIA/Megatron-LM, README, strong scaling; karpathy/llm.c, run_gpt2_1558M.sh", "<h100x2048>")
    llama = 6 * 405.9e9 + 12 * 126 * 16384 * 8192
    for gpus, micro, tflops in [(8192, 32, 430), (16384, 16, 400)]:
        table.rows.append(Row(f"Llama 405B, {gpus} GPUs", ["llama3-405b"],
                              ["schedules/interleaved-1f1b", "memory/zero2", "tensor/sequence", "tensor/vocabulary", "numerics/bf16"],
                              {"stages": 16, "chunks": 8, "tp": 8, "dp": gpus // 128, "microbatches": micro},
                              {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": 1}, gpus, 8192, tflops * 1e12 / llama, ZERO2))
    gpt = 6 * 177e9 + 12 * 96 * 12288 * 4096
    table.rows.append(Row("GPT-3 175B, 4608 GPUs", ["gpt3-175b", "--tokens", 4096, "--vocab", 131072],
                          ["schedules/interleaved-1f1b", "memory/zero1", "tensor/sequence", "tensor/vocabulary", "numerics/bf16"],
                          {"stages": 12, "chunks": 8, "tp": 8, "dp": 48, "microbatches": 24, "out": -1, "in": 0},
                          {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": 1}, 4608, 4096, 0.42 * 989e12 / gpt, ZERO1))
    table.rows.append(Row("GPT-2 1558M, 8 GPUs", ["gpt2-xl"], ["memory/zero1", "numerics/bf16"], {"dp": 8},
                          {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": 16, "global_batch": 1024}, 8, 1024, 46800, ZERO1, quick=True))
    return table


def nemo():
    """Megatron-Core by NeMo: keys and values go in a ring (context_parallel_size), and the distributed optimizer sends sums in bf16
    (grad_sync_dtype). Columns: name, model, tokens, then tp, cp, pp, chunks, sequences at once, how often, and of each row GPUs and seconds a
    step. Nemotron's layers square ReLUs; gated ones of two thirds of the width have as many products and elements. NeMo hides messages of tensor
    parallelism (ub_tp_comm_overlap) and between stages (overlap_p2p_comm), these plans do not: parts/async-tp has its parts one after the other,
    which leaves processors idle where Transformer Engine's run side by side, and a ring in zigzag order makes its sums whole."""
    nemotron = ["llama3-8b", "--kv-heads", 8, "--tokens", 4096, "--vocab", 256000]
    table = Table("NeMo", "NVIDIA/dgxc-benchmarking, READMEs of llama3.1, nemotron and nemo_megatron, 24.09 to 24.12, H100 BF16", "<h100x2048>")
    models = [("Llama 8B", ["llama3-8b"], 8192, 1, 2, 1, 1, 1, 32, [(8, 12.91), (32, 13.05), (128, 13.10)]),
              ("Llama 70B", ["llama3-70b"], 8192, 4, 2, 4, 5, 1, 64, [(64, 14.72), (2048, 14.98)]),
              ("Llama 405B", ["llama3-405b"], 8192, 8, 2, 9, 7, 1, 63, [(576, 17.20)]),
              ("Nemotron 15B", [*nemotron, "--layers", 32, "--hidden", 6144, "--heads", 48, "--inner", 16384], 4096, 4, 1, 1, 1, 4, 4,
               [(16, 2.812), (1024, 2.895)]),
              ("Nemotron 340B", [*nemotron, "--layers", 96, "--hidden", 18432, "--heads", 96, "--inner", 49152], 4096, 8, 1, 8, 12, 1, 16,
               [(128, 4.61), (2048, 4.84)]),
              ("GPT-3 175B", ["gpt3-175b", "--vocab", 51200], 2048, 4, 1, 8, 12, 1, 64, [(128, 8.309), (2048, 8.49)])]
    for name, model, tokens, tp, cp, pp, chunks, micro, rounds, steps in models:
        include = ["schedules/interleaved-1f1b", "memory/zero1"] + ["context/ring"] * (cp > 1) + ["tensor/sequence", "tensor/vocabulary"] * (tp > 1)
        params = {"stages": pp, "chunks": chunks, "microbatches": rounds} | ({"out": -1, "in": 0} if name.startswith("GPT") else {})
        params |= {axis: ranks for axis, ranks in [("tp", tp), ("cp", cp)] if ranks > 1}
        for gpus, seconds in steps:
            dp = gpus // (tp * cp * pp)
            table.rows.append(Row(f"{name}, {gpus} GPUs", model, include, params | {"dp": dp},
                                  {"optimizer": ADAMW, "clip_norm": 1.0, "microbatch_size": micro}, gpus, tokens,
                                  dp * micro * rounds * tokens / gpus / seconds, ZERO1 + BF16_SUMS))
    return table


def titan_eager():
    """The same without compiled programs."""
    table = Table("TorchTitan eager", "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, bf16, tables 1 and 3", "<h100x2048-eager>", TITANS_H100 | FSDP2)
    for gpus, measured in [(8, 5762), (128, 5605)]:
        table.rows.append(titan_8b(gpus, measured))
    return table


TABLES = [mpt(), nanotron(), titan(), titan_eager(), large(), nemo()]
