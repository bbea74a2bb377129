"""More of what tests/torch/libraries exports: adapters of peft, blocks of diffusers, parts of torchvision's detectors, and losses as people write them."""
import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, WIDTH = 4, 6, 16


class Judged(nn.Module):
    """A mean square of what a module returns."""

    def __init__(self, module, read=lambda out: out):
        super().__init__()
        self.module, self.read = module, read

    def forward(self, *args):
        out = self.read(self.module(*args))
        out = out if isinstance(out, (tuple, list)) else [out]
        return sum((one.tanh() - 0.3).square().mean() for one in out)


def normal(*shapes):
    return lambda g: tuple(torch.randn(BATCH, *shape, generator=g) for shape in shapes)


class Language(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        return F.cross_entropy(self.model(input_ids=ids).logits.flatten(0, 1)[-labels.numel():], labels.flatten())


def language(g):
    return torch.randint(3, 32, (BATCH, LENGTH), generator=g), torch.randint(3, 32, (BATCH, LENGTH), generator=g)


def adapters():
    def llama(make):
        def build():
            import peft
            import transformers
            config = transformers.LlamaConfig(vocab_size=32, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                              num_key_value_heads=2, max_position_embeddings=16, use_cache=False, pad_token_id=0)
            return Language(peft.get_peft_model(transformers.LlamaForCausalLM(config), make(peft))), language
        return build
    to = dict(target_modules=["q_proj", "v_proj"])
    return {f"peft:{name}": llama(make) for name, make in {
        "lora": lambda p: p.LoraConfig(r=4, **to),
        "rslora": lambda p: p.LoraConfig(r=4, use_rslora=True, lora_dropout=0.1, **to),
        "dora": lambda p: p.LoraConfig(r=4, use_dora=True, **to),
        "pissa": lambda p: p.LoraConfig(r=4, init_lora_weights="pissa", **to),
        "lora-embedding": lambda p: p.LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"]),
        "lora-bias": lambda p: p.LoraConfig(r=4, target_modules="all-linear", bias="lora_only", lora_bias=True),
        "loha": lambda p: p.LoHaConfig(r=4, **to),
        "lokr": lambda p: p.LoKrConfig(r=4, **to),
        "oft": lambda p: p.OFTConfig(oft_block_size=8, r=0, **to),
        "boft": lambda p: p.BOFTConfig(boft_block_size=4, **to),
        "ia3": lambda p: p.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
        "vera": lambda p: p.VeraConfig(r=4, **to),
        "adalora": lambda p: p.AdaLoraConfig(init_r=4, target_r=2, total_step=10, **to),
        "fourierft": lambda p: p.FourierFTConfig(n_frequency=8, **to),
        "hra": lambda p: p.HRAConfig(r=4, **to),
        "vblora": lambda p: p.VBLoRAConfig(r=2, num_vectors=8, vector_length=4, topk=2, **to),
        "bone": lambda p: p.MissConfig(r=4, **to),
        "randlora": lambda p: p.RandLoraConfig(r=4, **to),
        "lntuning": lambda p: p.LNTuningConfig(target_modules=["input_layernorm", "norm"]),
        "prompt": lambda p: p.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "ptuning": lambda p: p.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=WIDTH),
        "prefix": lambda p: p.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "trainable-tokens": lambda p: p.TrainableTokensConfig(token_indices=[3, 5, 9], target_modules=["embed_tokens"]),
        "c3a": lambda p: p.C3AConfig(block_size=8, **to),
        "road": lambda p: p.RoadConfig(group_size=4, **to),
        "delora": lambda p: p.DeloraConfig(r=4, **to),
        "gralora": lambda p: p.GraloraConfig(r=4, gralora_k=2, **to),
    }.items()}


def diffusion():
    def one(make, inputs, read=lambda out: out):
        def build():
            import diffusers.models as models
            return Judged(make(models), read), inputs
        return build
    image, steps = (8, 8, 8), lambda g: torch.randint(0, 1000, (BATCH,), generator=g)
    sample = lambda out: out.sample  # noqa: E731
    from importlib import import_module
    at = lambda path: import_module(f"diffusers.models.{path}")  # noqa: E731
    small = dict(sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4)
    return {f"diffusers:{name}": make for name, make in {
        "resnet": one(lambda m: at("resnet").ResnetBlock2D(in_channels=8, temb_channels=16, groups=4), normal(image, (16,))),
        "downsample": one(lambda m: at("downsampling").Downsample2D(8, use_conv=True), normal(image)),
        "upsample": one(lambda m: at("upsampling").Upsample2D(8, use_conv=True), normal(image)),
        "transformer2d": one(lambda m: at("transformers.transformer_2d").Transformer2DModel(2, 4, in_channels=8, norm_num_groups=4, cross_attention_dim=16),
                             normal(image, (LENGTH, 16)), sample),
        "block": one(lambda m: at("attention").BasicTransformerBlock(16, 2, 8, activation_fn="geglu"), normal((LENGTH, 16))),
        "block-ada": one(lambda m: at("attention").BasicTransformerBlock(16, 2, 8, activation_fn="gelu-approximate"), normal((LENGTH, 16))),
        "unet2d": one(lambda m: Timed(m.UNet2DModel(**small, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))),
                      lambda g: (torch.randn(BATCH, 4, 8, 8, generator=g), steps(g)), sample),
        "unet-condition": one(lambda m: m.UNet2DConditionModel(**small, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=16,
                                                               up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=4),
                              lambda g: (torch.randn(BATCH, 4, 8, 8, generator=g), steps(g), torch.randn(BATCH, LENGTH, 16, generator=g)), sample),
        "vae": one(lambda m: m.AutoencoderKL(in_channels=3, out_channels=3, block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
                                             up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=4, sample_size=8),
                   normal((3, 8, 8)), sample),
        "vq": one(lambda m: m.VQModel(block_out_channels=(8,), norm_num_groups=4, num_vq_embeddings=16, latent_channels=4), normal((3, 8, 8)), sample),
        "tiny-vae": one(lambda m: m.AutoencoderTiny(encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
                                                    num_decoder_blocks=(1, 1)), normal((3, 8, 8)), sample),
        "dit": one(lambda m: Classed(m.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=1, sample_size=8, patch_size=2,
                                                             norm_num_groups=4, num_embeds_ada_norm=1000)),
                   lambda g: (torch.randn(BATCH, 4, 8, 8, generator=g), steps(g), torch.randint(0, 10, (BATCH,), generator=g)), sample),
        "sd3": one(lambda m: Joint(m.SD3Transformer2DModel(sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
                                                           joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16, out_channels=4)),
                   lambda g: (torch.randn(BATCH, 4, 8, 8, generator=g), torch.randn(BATCH, LENGTH, 16, generator=g), torch.randn(BATCH, 16, generator=g), steps(g)),
                   sample),
        "prior": one(lambda m: Prior(m.PriorTransformer(num_attention_heads=2, attention_head_dim=8, num_layers=1, embedding_dim=16, num_embeddings=LENGTH)),
                     lambda g: (torch.randn(BATCH, 16, generator=g), steps(g), torch.randn(BATCH, 16, generator=g), torch.randn(BATCH, LENGTH, 16, generator=g)),
                     lambda out: out.predicted_image_embedding),
    }.items()}


class Timed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        return self.model(*args)


class Classed(Timed):
    def forward(self, x, t, y):
        return self.model(x, timestep=t, class_labels=y)


class Joint(Timed):
    def forward(self, x, text, pooled, t):
        return self.model(x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t)


class Prior(Timed):
    def forward(self, x, t, image, text):
        return self.model(x, timestep=t, proj_embedding=image, encoder_hidden_states=text)


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork
        self.net = FeaturePyramidNetwork([4, 8], 8)

    def forward(self, a, b):
        return list(self.net({"a": a, "b": b}).values())


class Boxes(nn.Module):
    """A regression of boxes by a loss of torchvision."""

    def __init__(self, loss):
        super().__init__()
        self.fc, self.loss = nn.Linear(WIDTH, 4), loss

    def forward(self, x, wanted):
        import torchvision
        box = lambda out: torch.cat([out[..., :2].sigmoid(), out[..., :2].sigmoid() + out[..., 2:].exp()], -1)  # noqa: E731
        return getattr(torchvision.ops, self.loss)(box(self.fc(x)), box(wanted), reduction="mean")


class Detector(nn.Module):
    """The maps that a detector of torchvision makes, without its choice of boxes."""

    def __init__(self, name):
        super().__init__()
        import torchvision
        whole = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=3)
        self.backbone, self.head = whole.backbone, getattr(whole, "head", None) or whole.rpn.head

    def forward(self, x):
        out = self.head(list(self.backbone(x).values()))
        return list(out.values()) if isinstance(out, dict) else [one for part in out for one in part]


def detection():
    def one(make, inputs):
        return lambda: (Judged(make()), inputs)
    from torchvision import models, ops
    return {f"detection:{name}": make for name, make in {
        "pyramid": one(Pyramid, normal((4, 8, 8), (8, 4, 4))),
        "ciou": lambda: (Boxes("complete_box_iou_loss"), normal((WIDTH,), (4,))),
        "diou": lambda: (Boxes("distance_box_iou_loss"), normal((WIDTH,), (4,))),
        "giou": lambda: (Boxes("generalized_box_iou_loss"), normal((WIDTH,), (4,))),
        "squeeze": one(lambda: ops.SqueezeExcitation(8, 4), normal((8, 6, 6))),
        "frozen-norm": one(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), ops.FrozenBatchNorm2d(4), ops.Permute([0, 2, 3, 1])), normal((3, 6, 6))),
        "mlp": one(lambda: ops.MLP(WIDTH, [8, 4], norm_layer=nn.LayerNorm), normal((WIDTH,))),
        "ssdlite": one(lambda: Detector("ssdlite320_mobilenet_v3_large"), normal((3, 64, 64))),
        "fcos": one(lambda: models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).classifier,
                    lambda g: ({"low": torch.randn(BATCH, 40, 8, 8, generator=g), "high": torch.randn(BATCH, 960, 4, 4, generator=g)},)),
        "vit": one(lambda: models.vision_transformer.EncoderBlock(2, WIDTH, 32, 0.0, 0.0), normal((LENGTH, WIDTH))),
        "swin": one(lambda: models.swin_transformer.SwinTransformerBlockV2(WIDTH, 2, [4, 4], [2, 2]), normal((8, 8, WIDTH))),
        "maxvit": one(lambda: models.maxvit.PartitionAttentionLayer(WIDTH, 8, 4, "window", (8, 8), 2, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0),
                      normal((WIDTH, 8, 8))),
    }.items()}


def info_nce(a, b, y):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


def siglip(a, b, y):
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * 10 - 10
    return -F.logsigmoid((2 * torch.eye(len(a)) - 1) * logits).sum(-1).mean()


def barlow(a, b, y):
    c = ((a - a.mean(0)) / (a.std(0) + 1e-5)).T @ ((b - b.mean(0)) / (b.std(0) + 1e-5)) / len(a)
    return (c.diagonal() - 1).square().sum() + 0.005 * (c - torch.diag(c.diagonal())).square().sum()


def vicreg(a, b, y):
    spread = sum(F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in (a, b))
    covariance = sum((torch.cov(z.T) - torch.diag(z.var(0))).square().sum() / z.shape[1] for z in (a, b))
    return 25 * F.mse_loss(a, b) + 25 * spread + covariance


def triplet_hard(a, b, y):
    distance = torch.cdist(a, a)
    same = y[:, None] == y[None]
    near = torch.where(same, torch.full_like(distance, 1e9), distance).amin(1)
    return F.relu(torch.where(same, distance, torch.zeros_like(distance)).amax(1) - near + 0.3).mean()


def supervised_contrast(a, b, y):
    logits = F.normalize(a, dim=-1) @ F.normalize(a, dim=-1).T / 0.5
    other = ~torch.eye(len(a), dtype=torch.bool)
    logs = logits - torch.logsumexp(logits.masked_fill(~other, -1e9), 1, keepdim=True)
    same = (y[:, None] == y[None]) & other
    return -(logs * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


def dino(a, b, y):
    return -(F.softmax((b - b.mean(0)).detach() / 0.04, -1) * F.log_softmax(a / 0.1, -1)).sum(-1).mean()


def dpo(a, b, y):
    kept = lambda z: F.log_softmax(z, -1).gather(-1, y[:, None]).squeeze(-1)  # noqa: E731
    return -F.logsigmoid(0.1 * ((kept(a) - kept(b)) - (kept(a) - kept(b)).detach() * 0.5)).mean()


def grpo(a, b, y):
    logs, old = (F.log_softmax(z, -1).gather(-1, y[:, None]).squeeze(-1) for z in (a, b.detach()))
    gain = (y.float() - y.float().mean()) / (y.float().std() + 1e-4)
    ratio = torch.exp(logs - old)
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + 0.04 * (torch.exp(old - logs) - (old - logs) - 1).mean()


def focal(a, b, y):
    p, each = a.sigmoid(), F.binary_cross_entropy_with_logits(a, (b > 0).float(), reduction="none")
    return ((1 - torch.where(b > 0, p, 1 - p)) ** 2 * each).sum() / (b > 0).sum().clamp(min=1)


def dice(a, b, y):
    p, t = a.sigmoid(), b.sigmoid()
    return 1 - ((2 * (p * t).sum(-1) + 1) / (p.sum(-1) + t.sum(-1) + 1)).mean()


def tversky(a, b, y):
    p, t = a.softmax(-1), F.one_hot(y, a.shape[-1]).to(a.dtype)
    return 1 - ((p * t).sum() / ((p * t).sum() + 0.3 * (p * (1 - t)).sum() + 0.7 * ((1 - p) * t).sum()))


def distillation(a, b, y):
    return F.kl_div(F.log_softmax(a / 2, -1), F.log_softmax(b / 2, -1), reduction="batchmean", log_target=True) * 4 + F.cross_entropy(a, y, label_smoothing=0.1)


def poly(a, b, y):
    each = F.cross_entropy(a, y, reduction="none")
    return (each + 1 - F.softmax(a, -1).gather(1, y[:, None]).squeeze(1)).mean()


def arcface(a, b, y):
    cosine = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T
    angle = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))
    return F.cross_entropy(torch.where(torch.eye(len(a), dtype=torch.bool), torch.cos(angle + 0.3), cosine) * 8, torch.arange(len(a)))


def circle(a, b, y):
    s = F.normalize(a, dim=-1) @ F.normalize(a, dim=-1).T
    same = y[:, None] == y[None]
    near = torch.logsumexp(torch.where(same, -8 * (1.25 - s).detach().clamp(min=0) * (s - 0.75), torch.full_like(s, -1e4)), 1)
    far = torch.logsumexp(torch.where(same, torch.full_like(s, -1e4), 8 * (s + 0.25).detach().clamp(min=0) * (s - 0.25)), 1)
    return F.softplus(near + far).mean()


def sinkhorn(a, b, y):
    cost = torch.cdist(a, b)
    log_k, u, v = -cost, torch.zeros(len(a)), torch.zeros(len(b))
    for _ in range(4):
        u = -torch.logsumexp(log_k + v, 1)
        v = -torch.logsumexp(log_k + u[:, None], 0)
    return (torch.exp(log_k + u[:, None] + v) * cost).sum()


def wing(a, b, y):
    off = (a - b).abs()
    return torch.where(off < 1, 2 * torch.log1p(off / 0.5), off - 0.2).mean()


def gaussian_mixture(a, b, y):
    mean, scale = a[:, :8], F.softplus(a[:, 8:]) + 1e-3
    return -torch.logsumexp(torch.distributions.Normal(mean, scale).log_prob(b[:, :1]), -1).mean()


def evidential(a, b, y):
    alpha = F.softplus(a) + 1
    t = F.one_hot(y, a.shape[-1]).to(a.dtype)
    return (t * (torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha))).sum(-1).mean()


def quantiles(a, b, y):
    q = torch.tensor([0.1, 0.5, 0.9])
    off = b[:, :1] - a[:, :3]
    return torch.maximum(q * off, (q - 1) * off).mean()


def cox(a, b, y):
    order = b[:, 0].argsort(descending=True)
    risk = a[order, 0]
    return -(risk - torch.logcumsumexp(risk, 0)).mean()


def listwise(a, b, y):
    return -(F.softmax(b.detach(), -1) * F.log_softmax(a, -1)).sum(-1).mean() + F.relu(0.1 - (a[:, :1] - a[:, 1:]) * torch.sign(b[:, :1] - b[:, 1:])).mean()


def lovasz(a, b, y):
    error = (1 - a.sigmoid()) * (b > 0) + a.sigmoid() * (b <= 0)
    sorted_error, order = error.flatten().sort(descending=True)
    truth = (b > 0).to(a.dtype).flatten()[order]
    inside, union = truth.sum() - truth.cumsum(0), truth.sum() + (1 - truth).cumsum(0)
    jaccard = 1 - inside / union
    return (sorted_error * torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]]).detach()).sum()


def total_variation(a, b, y):
    z = a.view(len(a), 4, 4)
    return z.diff(dim=1).abs().mean() + z.diff(dim=2).abs().mean() + F.huber_loss(a, b, delta=0.5)


def spectral(a, b, y):
    return (torch.fft.rfft(a, dim=-1).abs() - torch.fft.rfft(b, dim=-1).abs()).abs().mean()


def ctc(a, b, y):
    logs = F.log_softmax(a.view(-1, 4, 4).transpose(0, 1), -1)
    return F.ctc_loss(logs, y[:, None] % 3 + 1, torch.full_like(y, 4), torch.full_like(y, 1))


LOSSES = [info_nce, siglip, barlow, vicreg, triplet_hard, supervised_contrast, dino, dpo, grpo, focal, dice, tversky, distillation, poly, arcface, circle, sinkhorn, wing,
          gaussian_mixture, evidential, quantiles, cox, listwise, lovasz, total_variation, spectral, ctc]


class Pair(nn.Module):
    """Two views through one network, and a loss of both."""

    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH)), loss

    def forward(self, one, two, y):
        return self.loss(self.net(one), self.net(two), y)


def losses():
    batch = lambda g: (*normal((WIDTH,), (WIDTH,))(g), torch.randint(0, 3, (BATCH,), generator=g))  # noqa: E731
    return {f"loss:{loss.__name__}": lambda loss=loss: (Pair(loss), batch) for loss in LOSSES}


def all_cases():
    return losses() | adapters() | detection() | diffusion()
