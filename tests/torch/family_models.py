"""The models of tests/torch/families: tiny ones of the transformers library, built from their configurations, and modules as people write
them by hand. Each takes tensors whose first dim is the batch and returns a scalar loss."""
import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, VOCABULARY, LENGTH, PIXELS = 32, 4, 64, 12, 16


def token_loss(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


class Causal(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        # Without a mask the library looks for packed sequences, by an operator that the older exporter does not know.
        older = torch.jit.is_tracing() and hasattr(self.model, "config")
        out = self.model(input_ids, **(dict(attention_mask=torch.ones_like(input_ids)) if older else {}))
        return token_loss(getattr(out, "logits", out), labels)


class Masked(Causal):
    def forward(self, input_ids, attention_mask, labels):
        return token_loss(self.model(input_ids=input_ids, attention_mask=attention_mask).logits, labels)


class Encoded(Causal):
    """An encoder of texts alone: the mean square of its distance from a target vector."""

    def forward(self, input_ids, attention_mask, target):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (out.mean(1) - target).square().mean()


class Sequences(Causal):
    def forward(self, input_ids, decoder_input_ids, labels):
        return token_loss(self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits, labels)


class Heard(Causal):
    def forward(self, input_features, decoder_input_ids, labels):
        out = self.model(input_features=input_features, decoder_input_ids=decoder_input_ids, use_cache=False)
        return token_loss(out.logits, labels)


class Classified(Causal):
    def forward(self, pixel_values, labels):
        out = self.model(pixel_values)
        return F.cross_entropy(getattr(out, "logits", out), labels)


class Pictured(Causal):
    def forward(self, pixel_values, target):
        out = self.model(pixel_values).last_hidden_state
        return (out.flatten(2).mean(-1) if out.dim() == 4 else out.mean(1)).sub(target).square().mean()


class Paired(Causal):
    """Texts beside pictures. Each pair for itself: a loss over all pairs of the batch couples its samples."""

    def forward(self, input_ids, pixel_values, target):
        out = self.model(input_ids=input_ids, pixel_values=pixel_values)
        both = (out.text_embeds * out.image_embeds).sum(-1) * self.model.logit_scale.exp()
        return (both - target).square().mean()


class Waves(Causal):
    def forward(self, input_values, target):
        return (self.model(input_values).last_hidden_state.mean(1) - target).square().mean()


class Regression(Causal):
    def forward(self, x, y):
        return F.mse_loss(self.model(x), y)


def library(wrapper, name, model, **options):
    """NAMEConfig(**options) in `wrapper`, with attention in the form that both exporters write."""
    def make():
        import transformers
        config = getattr(transformers, name + "Config")(**options)
        for one in [config, *(getattr(config, part, None) for part in ("text_config", "vision_config"))]:
            if one is None:
                continue
            one._attn_implementation = "eager"
            one._experts_implementation = "batched_mm"  # "grouped_mm" knows no float64 and is not exported, "eager" loops by value
            for key in list(vars(one)):
                if "dropout" in key and isinstance(getattr(one, key), float):
                    setattr(one, key, 0.0)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return wrapper(getattr(transformers, model)(config))
    return make


def decoder(name, model=None, **options):
    common = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS,
                  num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return library(Causal, name, model or name + "ForCausalLM", **common | options)


def encoder(name, model=None, wrapper=Masked, **options):
    common = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS,
                  max_position_embeddings=32, pad_token_id=0)
    return library(wrapper, name, model or name + "ForMaskedLM", **common | options)


def seq2seq(name, model=None, **options):
    common = dict(vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
                  decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, pad_token_id=0,
                  bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
    return library(Sequences, name, model or name + "ForConditionalGeneration", **common | options)


def picture(name, model=None, wrapper=Classified, **options):
    common = dict(hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS, image_size=PIXELS,
                  patch_size=4, num_channels=3, num_labels=10)
    return library(wrapper, name, model or name + "ForImageClassification", **common | options)


# ---- Modules as people write them ---------------------------------------------------------------

class RmsNorm(nn.Module):
    def __init__(self, width, plus_one=False):
        super().__init__()
        self.plus_one = plus_one
        self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * (1.0 + self.weight) if self.plus_one else x * self.weight


class HandBlock(nn.Module):
    def __init__(self, norm, qkv):
        super().__init__()
        self.n1, self.n2 = norm(), norm()
        self.qkv, self.out = qkv, nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(d // HEADS)).masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class HandGpt(nn.Module):
    """In the manner of minGPT: a position table that is sliced, a head that is the embedding's transpose."""

    def __init__(self, norm=lambda: nn.LayerNorm(WIDTH), qkv=lambda: nn.Linear(WIDTH, 3 * WIDTH), layers=2, looped=False):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.h = nn.ModuleList(HandBlock(norm, qkv()) for _ in range(1 if looped else layers))
        self.loops = layers if looped else 1
        self.norm = norm()

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for _ in range(self.loops):
            for block in self.h:
                x = block(x)
        return self.norm(x) @ self.emb.weight.t()


class Lora(nn.Module):
    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_A = nn.Parameter(torch.randn(rank, inputs) * 0.1)
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


class Experts(nn.Module):
    """Each token's probabilities weigh all experts, as small mixtures are written."""

    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 64) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 64, WIDTH) * 0.1)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        hidden = F.silu(torch.einsum("bd,edf->bef", x, self.up))
        return torch.einsum("bef,efd,be->bd", hidden, self.down, weights)


class Gates(nn.Module):
    """Parameters behind functions: positive scales, decays, gates, rates."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.log_scale = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.decay = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.gate = nn.Parameter(torch.randn(WIDTH) * 0.1)

    def forward(self, x):
        h = self.inner(x) * self.log_scale.exp()
        h = h * torch.exp(-torch.exp(self.decay)) + x * torch.sigmoid(self.gate)
        return x + torch.tanh(self.log_scale) * h


class Mixer(nn.Module):
    def __init__(self, tokens=16):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens)) for _ in range(2))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x).mean(1))


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.n1, self.n2 = norm(outputs), norm(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.n2(self.two(F.relu(self.n1(self.one(x))))) + self.skip(x))


def residual(norm):
    return nn.Sequential(ConvBlock(3, 8, 1, norm), ConvBlock(8, 16, 2, norm), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class UNet(nn.Module):
    """A denoiser in the manner of diffusion models: group norms, a time embedding, skips, nearest upsampling."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.up, self.last = (nn.Conv2d(i, o, 3, s, 1) for i, o, s in ((3, 16, 1), (16, 32, 2), (48, 16, 1), (16, 3, 1)))
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for c in (16, 32, 16))
        self.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))

    def forward(self, x, time):
        a = F.silu(self.norms[0](self.first(x)))
        b = F.silu(self.norms[1](self.down(a)) + self.time(time)[:, :, None, None])
        c = torch.cat([F.interpolate(b, scale_factor=2.0, mode="nearest"), a], 1)
        return self.last(F.silu(self.norms[2](self.up(c))))


class Denoised(Causal):
    def forward(self, x, time, y):
        return F.mse_loss(self.model(x, time), y)


class DiT(nn.Module):
    """Adaptive norms whose modulation starts at zero."""

    def __init__(self):
        super().__init__()
        self.inp, self.cond, self.out = nn.Linear(8, WIDTH), nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
        self.mod = nn.Linear(WIDTH, 3 * WIDTH)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU("tanh"), nn.Linear(64, WIDTH))

    def forward(self, x, time):
        h = self.inp(x)
        shift, scale, gate = self.mod(F.silu(self.cond(time))).unsqueeze(1).chunk(3, -1)
        return self.out(h + gate * self.mlp(self.norm(h) * (1 + scale) + shift))


class Uncertain(nn.Module):
    """A Gaussian head whose deviation is a softplus of zeros at first."""

    def __init__(self):
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.spread.weight)
        nn.init.zeros_(self.spread.bias)

    def forward(self, x, y):
        h = torch.tanh(self.body(x))
        deviation = F.softplus(self.spread(h)) + 1e-3
        return (deviation.log() + 0.5 * ((y - self.mean(h)) / deviation).square()).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Codebook(nn.Module):
    """A running mean that forward changes, as codebooks and observers do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return self.inner(x - self.mean)


class ChannelNorm(nn.Module):
    """A norm of images in several calls, its weight and bias behind other shapes."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = x - x.mean(1, keepdim=True)
        return self.weight[:, None, None] * x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) + self.bias[:, None, None]


class NextBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels), ChannelNorm(channels)
        self.up, self.down = nn.Conv2d(channels, 4 * channels, 1), nn.Conv2d(4 * channels, channels, 1)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels, 1, 1))

    def forward(self, x):
        return x + self.gamma * self.down(F.gelu(self.up(self.norm(self.conv(x)))))


class Queries(nn.Module):
    """Learned queries, repeated for each sample, attend to the input; two tokens beside it start equal."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Embedding(4, WIDTH)
        self.first, self.last = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.one, self.two = (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
        self.mix, self.head = nn.Linear(LENGTH + 2, LENGTH + 2), nn.Linear(WIDTH, 4)

    def forward(self, x):
        b = x.shape[0]
        x = torch.cat([self.first.expand(b, -1, -1), x, self.last.expand(b, -1, -1)], 1)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        q = self.queries.weight.unsqueeze(0).repeat(b, 1, 1)
        for attention in (self.one, self.two):
            q = q + attention(q, x, x, need_weights=False)[0]
        return self.head(q)


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x * self.scale + self.shift


class Branches(nn.Module):
    """Equal modules of several calls on one input."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.inner, self.head = Affine(), Affine(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.inner(self.a(x)) - torch.tanh(self.b(x)))


class Flow(nn.Module):
    """Scales whose logarithms are a term of the loss: zeros at first."""

    def __init__(self):
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, x):
        x = (x + self.shift) * torch.exp(self.log_scale)
        a, b = x.chunk(2, -1)
        shift, scale = self.net(a).chunk(2, -1)
        scale = torch.tanh(scale)
        change = self.log_scale.sum() + scale.sum(-1)
        return (0.5 * (a.square() + (b * scale.exp() + shift).square()).sum(-1) - change).mean()


class Merged(nn.Module):
    """Weights made of several parameters: of an adapter, and of a direction and a length."""

    def __init__(self):
        super().__init__()
        self.weight, self.up, self.down = (nn.Parameter(torch.randn(*s) * 0.1) for s in ((WIDTH, WIDTH), (WIDTH, 4), (4, WIDTH)))
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(LENGTH, LENGTH, 3, padding=1))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.conv(F.linear(x, self.weight + 0.5 * self.up @ self.down))))


def by_hand(make, wrapper=Regression):
    return lambda: wrapper(make())


def clip(name):
    def make():
        import transformers
        text = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS,
                    max_position_embeddings=32, eos_token_id=2, bos_token_id=1, pad_token_id=0, projection_size=WIDTH)
        vision = dict(hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS, image_size=PIXELS, patch_size=4)
        extra = dict(projection_dim=WIDTH) if name == "CLIP" else {}
        return library(Paired, name, name + "Model", text_config=text, vision_config=vision, **extra)()
    return make


CAUSAL, MASKED, SEQUENCES = ("input_ids", "labels"), ("input_ids", "attention_mask", "labels"), ("input_ids", "decoder_input_ids", "labels")
IMAGES, ENCODED, PICTURED, PAIRED = ("pixel_values", "labels:10"), ("input_ids", "attention_mask", "target"), ("pixel_values", "target"), ("input_ids", "pixel_values", "target:1")
TOKENS = ("x:12,32", "y:12,4")
gpt_sizes = dict(n_positions=32, n_embd=WIDTH, n_layer=2, n_head=HEADS)

# name: (module, inputs). An input is NAME or NAME:SIZES, without the batch.
FAMILIES = {
    "gpt2": (library(Causal, "GPT2", "GPT2LMHeadModel", vocab_size=VOCABULARY, **gpt_sizes), CAUSAL),
    "gpt-neo": (library(Causal, "GPTNeo", "GPTNeoForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=2, num_heads=HEADS,
                        attention_types=[[["global", "local"], 1]], window_size=4, max_position_embeddings=32, intermediate_size=64), CAUSAL),
    "gpt-j": (library(Causal, "GPTJ", "GPTJForCausalLM", vocab_size=VOCABULARY, rotary_dim=4, **gpt_sizes), CAUSAL),
    "gpt-neox": (decoder("GPTNeoX"), CAUSAL),
    "bloom": (library(Causal, "Bloom", "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=HEADS), CAUSAL),
    "opt": (library(Causal, "OPT", "OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, ffn_dim=64, num_hidden_layers=2,
                    num_attention_heads=HEADS, max_position_embeddings=32, word_embed_proj_dim=WIDTH), CAUSAL),
    "falcon": (decoder("Falcon"), CAUSAL),
    "mpt": (library(Causal, "Mpt", "MptForCausalLM", vocab_size=VOCABULARY, d_model=WIDTH, n_layers=2, n_heads=HEADS, max_seq_len=32, expansion_ratio=2), CAUSAL),
    "phi": (decoder("Phi"), CAUSAL),
    "phi3": (decoder("Phi3"), CAUSAL),
    "qwen2": (decoder("Qwen2"), CAUSAL),
    "qwen3": (decoder("Qwen3", head_dim=8), CAUSAL),
    "llama": (decoder("Llama"), CAUSAL),
    "mistral": (decoder("Mistral", sliding_window=4), CAUSAL),
    "gemma": (decoder("Gemma", head_dim=8), CAUSAL),
    "gemma2": (decoder("Gemma2", head_dim=8, sliding_window=4), CAUSAL),
    "gemma3": (decoder("Gemma3Text", "Gemma3ForCausalLM", head_dim=8, sliding_window=4), CAUSAL),
    "olmo2": (decoder("Olmo2"), CAUSAL),
    "stablelm": (decoder("StableLm"), CAUSAL),
    "starcoder2": (decoder("Starcoder2"), CAUSAL),
    "cohere": (decoder("Cohere", use_qk_norm=True), CAUSAL),
    "granite": (decoder("Granite"), CAUSAL),
    "nemotron": (decoder("Nemotron"), CAUSAL),
    "mixtral": (decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2), CAUSAL),
    "qwen3-moe": (decoder("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16), CAUSAL),
    "deepseek-v3": (decoder("DeepseekV3", num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                            moe_intermediate_size=16, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8,
                            qk_rope_head_dim=4, v_head_dim=8), CAUSAL),
    "gpt-oss": (decoder("GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4), CAUSAL),
    "mamba": (library(Causal, "Mamba", "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=4, num_hidden_layers=2), CAUSAL),
    "rwkv": (library(Causal, "Rwkv", "RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, context_length=32), CAUSAL),
    "bert": (encoder("Bert"), MASKED),
    "roberta": (encoder("Roberta"), MASKED),
    "distilbert": (library(Masked, "DistilBert", "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=HEADS,
                           hidden_dim=64, max_position_embeddings=32), MASKED),
    "albert": (encoder("Albert", embedding_size=16), MASKED),
    "electra": (encoder("Electra", embedding_size=16), MASKED),
    "deberta-v2": (encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=8), MASKED),
    "mpnet": (encoder("MPNet"), MASKED),
    # Windows that hold nothing but padding have losses that are no numbers: no mask.
    "modernbert": (encoder("ModernBert", wrapper=Causal, local_attention=4, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2), CAUSAL),
    "t5": (library(Sequences, "T5", "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2,
                   num_heads=HEADS, decoder_start_token_id=0), SEQUENCES),
    "bart": (seq2seq("Bart"), SEQUENCES),
    "mbart": (seq2seq("MBart"), SEQUENCES),
    "marian": (seq2seq("Marian", "MarianMTModel"), SEQUENCES),
    "pegasus": (seq2seq("Pegasus"), SEQUENCES),
    "whisper": (library(Heard, "Whisper", "WhisperForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2,
                        decoder_layers=2, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64,
                        num_mel_bins=8, max_source_positions=12, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                        decoder_start_token_id=2, suppress_tokens=[], begin_suppress_tokens=[]), ("input_features:8,24", "decoder_input_ids", "labels")),
    "vit": (picture("ViT"), IMAGES),
    "deit": (picture("DeiT"), IMAGES),
    "dinov2": (picture("Dinov2"), IMAGES),
    "beit": (picture("Beit"), IMAGES),
    "swin": (library(Classified, "Swin", "SwinForImageClassification", image_size=PIXELS, patch_size=2, embed_dim=16, depths=[1, 1],
                     num_heads=[2, 2], window_size=4, num_labels=10), IMAGES),
    "swinv2": (library(Classified, "Swinv2", "Swinv2ForImageClassification", image_size=PIXELS, patch_size=2, embed_dim=16, depths=[1, 1],
                       num_heads=[2, 2], window_size=4, num_labels=10), IMAGES),
    "convnext": (library(Classified, "ConvNext", "ConvNextForImageClassification", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2,
                         image_size=PIXELS, num_labels=10), IMAGES),
    "resnet": (library(Classified, "ResNet", "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                       layer_type="basic", num_labels=10), IMAGES),
    "siglip-vision": (picture("SiglipVision", "SiglipVisionModel", Pictured), PICTURED),
    "clip": (clip("CLIP"), PAIRED),
    "siglip": (clip("Siglip"), PAIRED),
    "wav2vec2": (library(Waves, "Wav2Vec2", "Wav2Vec2Model", hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                         intermediate_size=64, conv_dim=[16, 16], conv_stride=[4, 2], conv_kernel=[8, 3], num_feat_extract_layers=2,
                         num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, layerdrop=0.0), ("input_values:256", "target")),
    "hand-gpt": (by_hand(HandGpt, Causal), CAUSAL),
    "hand-llama": (by_hand(lambda: HandGpt(lambda: RmsNorm(WIDTH)), Causal), CAUSAL),
    "hand-gemma": (by_hand(lambda: HandGpt(lambda: RmsNorm(WIDTH, True)), Causal), CAUSAL),
    "hand-lora": (by_hand(lambda: HandGpt(qkv=lambda: Lora(WIDTH, 3 * WIDTH)), Causal), CAUSAL),
    "hand-looped": (by_hand(lambda: HandGpt(looped=True), Causal), CAUSAL),
    "hand-experts": (by_hand(lambda: nn.Sequential(nn.Linear(8, WIDTH), Experts(), nn.Linear(WIDTH, 4))), ("x:8", "y:4")),
    "hand-gates": (by_hand(lambda: nn.Sequential(Gates(), Gates(), nn.Linear(WIDTH, 4))), TOKENS),
    "mixer": (by_hand(Mixer, Classified), IMAGES),
    "group-resnet": (by_hand(lambda: residual(lambda c: nn.GroupNorm(4, c)), Classified), IMAGES),
    "batch-resnet": (by_hand(lambda: residual(nn.BatchNorm2d), Classified), IMAGES),
    "unet": (by_hand(UNet, Denoised), ("x:3,16,16", "time:8", "y:3,16,16")),
    "dit": (by_hand(DiT, Denoised), ("x:6,8", "time:8", "y:6,8")),
    "gaussian": (Uncertain, ("x:32", "y:1")),
    "hand-next": (by_hand(lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 4), ChannelNorm(8), NextBlock(8), NextBlock(8), ChannelNorm(8), nn.Flatten(),
                                                nn.Linear(128, 10)), Classified), IMAGES),
    "hand-queries": (by_hand(Queries), ("x:12,32", "y:4,4")),
    "hand-branches": (by_hand(Branches), TOKENS),
    "hand-flow": (Flow, ("x:8",)),
    "hand-merged": (by_hand(Merged), TOKENS),
    "torch-encoder": (by_hand(Encoder), TOKENS),
    "lstm": (by_hand(lambda: Recurrent(nn.LSTM)), TOKENS),
    "gru": (by_hand(lambda: Recurrent(nn.GRU)), TOKENS),
    "codebook": (by_hand(Codebook), TOKENS),
}


def build(name, weights):
    """`used` weights are all different, as after some training; `fresh` ones as they are initialised."""
    torch.manual_seed(0)
    module = FAMILIES[name][0]().eval()
    if weights == "used":
        with torch.no_grad():
            for value in filter(lambda value: value.requires_grad, module.parameters()):
                value.add_(torch.randn_like(value) * 0.05)
    return module


def batches(name, count, size):
    generator = torch.Generator().manual_seed(1)
    return [{key.partition(":")[0]: make_input(key, size, generator) for key in FAMILIES[name][1]} for _ in range(count)]


def make_input(key, size, generator):
    name, _, sizes = key.partition(":")
    if name == "labels" and sizes:
        return torch.randint(0, int(sizes), (size,), generator=generator)
    if name == "labels":
        labels = torch.randint(3, VOCABULARY, (size, LENGTH), generator=generator)
        return torch.where(torch.rand(labels.shape, generator=generator) < 0.2, -100, labels)
    if name.endswith("input_ids"):
        return torch.randint(3, VOCABULARY, (size, LENGTH), generator=generator)
    if name == "attention_mask":
        return (torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (size, 1), generator=generator)).long()
    shape = {"pixel_values": (3, PIXELS, PIXELS), "target": (WIDTH,)}.get(name)
    if sizes:
        shape = tuple(int(part) for part in sizes.split(","))
    return torch.randn((size,) if name == "target" and shape == (1,) else (size, *shape), generator=generator)
