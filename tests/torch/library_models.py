"""Modules of libraries, made small from their configurations, with an example batch: what tests/torch/libraries exports. Each returns the
loss that its library computes, or a mean of what it returns."""
import library_blocks
import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY, PIXELS = 2, 12, 32, 4, 64, 32

# Sizes by the names that configurations use for them.
SMALL = [
    (WIDTH, "hidden_size d_model n_embd dim embed_dim embedding_size word_embed_proj_dim emb_dim encoder_hidden_dim"),
    (2, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers num_local_experts "
        "num_experts_per_tok moe_topk moe_top_k top_k_experts num_key_value_heads num_kv_heads n_head_kv"),
    (4, "num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads num_heads num_experts n_routed_experts "
        "moe_num_experts num_attention_heads_per_layer"),
    (64, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_ff ffn_hidden_size hidden_dim moe_intermediate_size dim_ff "
         "shared_expert_intermediate_size max_position_embeddings n_positions max_seq_len n_ctx"),
    (VOCABULARY, "vocab_size"),
    (8, "head_dim d_kv kv_channels attention_head_size rotary_dim qk_rope_head_dim qk_nope_head_dim v_head_dim patch_size"),
    (16, "q_lora_rank kv_lora_rank state_size mamba_d_state d_state"),
    (PIXELS, "image_size"),
]


def shrink(config):
    for value, names in SMALL:
        for name in names.split():
            if isinstance(getattr(config, name, None), int) and not isinstance(getattr(config, name), bool):
                try:
                    setattr(config, name, value)
                except Exception:  # a property that follows from others
                    pass
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[:2]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, name, None), (int, list)):
            setattr(config, name, 1)
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


class Language(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        out = self.model(input_ids=input_ids)
        logits = out.logits if hasattr(out, "logits") else out[0]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), ignore_index=-100)


class Translation(Language):
    def forward(self, input_ids, decoder_input_ids, labels):
        logits = self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


class Image(Language):
    def forward(self, pixel_values, labels):
        out = self.model(pixel_values)
        logits = getattr(out, "logits", out)
        return F.cross_entropy(logits.reshape(logits.shape[0], -1), labels)


class Plain(Language):
    def forward(self, x, target):
        out = self.model(x)
        out = out[0] if isinstance(out, tuple) else out
        return F.mse_loss(out, torch.zeros_like(out)) + (out * target.reshape(-1, *[1] * (out.dim() - 1))).mean()


def tokens(generator, *shape):
    return torch.randint(3, VOCABULARY, shape, generator=generator)


def language(generator):
    ids, labels = tokens(generator, BATCH, LENGTH), tokens(generator, BATCH, LENGTH)
    labels[:, :3] = -100
    return ids, labels


def transformer(table, wrapper, batch):
    """{name: function that makes (module, args)} of a table of the transformers library."""
    def make(name, cls):
        def build():
            import transformers
            from transformers.models.auto.configuration_auto import CONFIG_MAPPING
            config = shrink(CONFIG_MAPPING[name]())
            return wrapper(getattr(transformers, cls)(config)), batch
        return build
    from transformers.models.auto import modeling_auto
    return {name: make(name, cls if isinstance(cls, str) else cls[0]) for name, cls in getattr(modeling_auto, table).items()}


def image(generator):
    return torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator), torch.randint(0, 2, (BATCH,), generator=generator)


def translation(generator):
    return tokens(generator, BATCH, LENGTH), *language(generator)


def vision(library, names, size=64):
    def make(name):
        def build():
            if library == "torchvision":
                import torchvision
                model = torchvision.models.get_model(name, weights=None, num_classes=4)
            else:
                import timm
                sized = {"img_size": size} if any(part in name for part in ("vit", "swin", "mixer", "gmlp")) else {}
                try:
                    model = timm.create_model(name, pretrained=False, num_classes=4, **sized)
                except TypeError:  # of any size
                    model = timm.create_model(name, pretrained=False, num_classes=4)
            return Image(model), lambda g: (torch.randn(BATCH, 3, size, size, generator=g), torch.randint(0, 4, (BATCH,), generator=g))
        return build
    return {f"{library}:{name}": make(name) for name in names}


TORCHVISION = """resnet18 resnext50_32x4d mobilenet_v2 mobilenet_v3_small squeezenet1_1 shufflenet_v2_x0_5 mnasnet0_5 densenet121 efficientnet_b0
regnet_y_400mf convnext_tiny vgg11 alexnet googlenet""".split()
TIMM = """resnet10t.c3_in1k convnext_atto vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 mobilenetv3_small_050 mobilenetv4_conv_small
efficientnet_lite0 ghostnet_050 edgenext_xx_small poolformerv2_s12 fastvit_t8 repvit_m0_9 regnetx_002 lcnet_035 tinynet_e
hardcorenas_a semnasnet_050 fbnetc_100 mobileone_s0 levit_128s xcit_nano_12_p16_224 pit_ti_224 cait_xxs24_224 visformer_tiny
swin_tiny_patch4_window7_224 pvt_v2_b0 coat_lite_tiny nest_tiny botnet26t_256 halonet26t eca_halonext26ts resnest14d skresnet18 cspresnet50
dla34 dpn68 vovnet39a hrnet_w18_small inception_v3 rexnet_100 selecsls42b tresnet_m nfnet_l0 convmixer_768_32 sequencer2d_s
starnet_s1 mambaout_femto efficientvit_b0 efficientformerv2_s0 shvit_s1 swiftformer_xs mobilevitv2_050 mobilenetv1_100 gmlp_ti16_224
vit_tiny_patch16_224.augreg_in21k fasternet_t0 repghostnet_050 ghostnetv3_100 hgnetv2_b0 focalnet_tiny_srf""".split()


def modules():
    def one(make, *shape):
        return lambda: (Plain(make()), lambda g: (torch.randn(BATCH, *shape, generator=g), torch.randn(BATCH, generator=g)))
    layer = lambda **o: nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0, batch_first=True, **o)  # noqa: E731
    return {"torch:" + name: make for name, make in {
        "encoder": one(lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), LENGTH, WIDTH),
        "encoder-dropout": one(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.1, batch_first=True), 2), LENGTH, WIDTH),
        "lstm": one(lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), LENGTH, WIDTH),
        "gru": one(lambda: nn.GRU(WIDTH, WIDTH, 2, batch_first=True), LENGTH, WIDTH),
        "rnn": one(lambda: nn.RNN(WIDTH, WIDTH, batch_first=True), LENGTH, WIDTH),
        "batchnorm": one(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)), WIDTH),
        "weightnorm": one(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), WIDTH),
        "spectral": one(lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), WIDTH),
        "orthogonal": one(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), 8),
        "prelu": one(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.PReLU(8), nn.RReLU(0.1, 0.1), nn.Softplus(), nn.GELU("tanh")), WIDTH),
        "convs": one(lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.ConvTranspose1d(8, 4, 3), nn.InstanceNorm1d(4, affine=True)), 4, 16),
        "convs3d": one(lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.MaxPool3d(2), nn.SiLU(), nn.Conv3d(4, 2, 2)), 2, 8, 8, 8),
        "unfold": one(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.PixelShuffle(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2)), 3, 10, 10),
    }.items()}


def all_cases():
    cases = modules()
    for kind, table, wrapper, batch in (("lm", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", Language, language),
                                        ("mlm", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", Language, language),
                                        ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", Translation, translation),
                                        ("image", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", Image, image)):
        cases |= {f"{kind}:{name}": make for name, make in transformer(table, wrapper, batch).items()}
    return cases | vision("torchvision", TORCHVISION) | vision("timm", TIMM) | library_blocks.all_cases()
