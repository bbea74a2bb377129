"""Writes slopes.gz: PyTorch's functions at their kinks, ties and zeros, as both exporters write them, with the gradients that
PyTorch has there, in the form of node_cases.h; "grad:NAME" holds the gradient of the parameter NAME.

    pip install torch onnx onnxscript
    python tests/data/make_slopes.py
"""
import gzip
import io
import pathlib
import sys
import tempfile
import warnings

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import nn

warnings.filterwarnings("ignore")
OUT = pathlib.Path(__file__).parent / "slopes.gz"
T = torch.tensor
# All bounds and thresholds of the functions below, and some between.
GRID = T([-100, -30, -20, -6, -3, -2, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 2, 3, 6, 10, 20, 30, 100.0])
SMALL = GRID[4:17]
POSITIVE = T([0, 0.25, 0.5, 1, 2, 3.0])
TIED = T([[0, 1, 1, -1, 1, 0], [2, 2, 2, 2, 2, 2], [-1, 0, 0, -1, -1, 0], [0, 0, 0, 0, 0, 0.0]])
IMAGE = T([0, 1, 1, 0, -1, 1, 1, 1, 2, 2, 0, 0, 2, 2, -1, 0, 0, 0, 1, 0, 0, 0, 0, 3, 3, 0, 1, 1, -1, -1, -1, -1, 2, 0, 2, 0.0])
IMAGES = torch.stack([IMAGE, IMAGE.flip(0)]).reshape(1, 2, 6, 6)
ROWS = T([[0, 0, 0], [1, -1, 0.5], [0.5, 0.5, 0.5], [0, 2, 0.0]])
OTHER = T([[0, 0, 0], [1, -1, 0.5], [0, 0, 0], [1, 2, 0.0]])


class Case(nn.Module):
    """f(w + zero, …), each element of the result with a weight of its own, so that all of their gradients show."""

    def __init__(self, f, values):
        super().__init__()
        self.f = f
        self.w = nn.ParameterList([nn.Parameter(v.clone()) for v in values])

    def forward(self, zero):
        y = self.f(*[w + zero.to(w.dtype) for w in self.w])
        if not y.is_floating_point():
            y = y.to(zero.dtype)
        weights = T([(i % 7 + 1) / 4 for i in range(y.numel())]).to(y.dtype)
        return (y.flatten() * weights).sum()


CASES = {}


def case(name, f, *values):
    CASES[name] = (f, values)


def pointwise(values, **functions):
    for name, f in functions.items():
        case(name, f, values)


pointwise(
    GRID,
    relu=F.relu, relu6=F.relu6, hardtanh=F.hardtanh, hardtanh_wide=lambda x: F.hardtanh(x, -2, 3), hardsigmoid=F.hardsigmoid,
    hardswish=F.hardswish, clamp=lambda x: x.clamp(-1, 1), clamp_min=lambda x: x.clamp(min=0.5),
    clamp_max=lambda x: x.clamp(max=3),
    clamp_relu=lambda x: x.clamp(min=0), clamp_tensors=lambda x: torch.clamp(x, x.detach() * 0 - 1, x.detach() * 0 + 1),
    leaky_relu=lambda x: F.leaky_relu(x, 0.1), rrelu=lambda x: F.rrelu(x, 0.1, 0.3), elu=F.elu,
    elu_half=lambda x: F.elu(x, 0.5),
    celu=F.celu, celu_two=lambda x: F.celu(x, 2.0), selu=F.selu, gelu=F.gelu, gelu_tanh=lambda x: F.gelu(x, approximate="tanh"),
    silu=F.silu, mish=F.mish, softplus=F.softplus, softplus_steep=lambda x: F.softplus(x, beta=2.0),
    softplus_threshold=lambda x: F.softplus(x, beta=2.0, threshold=1.0), softplus_early=lambda x: F.softplus(x, threshold=-1.0),
    softplus_flat=lambda x: F.softplus(x, beta=0.5, threshold=3.0),
    softplus_negative=lambda x: F.softplus(x, beta=-1.0, threshold=2.0),
    softplus_written=lambda x: torch.log1p(torch.exp(-x.abs())) + F.relu(x),
    logsigmoid=F.logsigmoid, sigmoid=torch.sigmoid, log_of_sigmoid=lambda x: torch.log(torch.sigmoid(x / 32)), tanh=torch.tanh,
    tanhshrink=F.tanhshrink, softsign=F.softsign, softshrink=F.softshrink, softshrink_wide=lambda x: F.softshrink(x, 2.0),
    hardshrink=F.hardshrink, hardshrink_zero=lambda x: F.hardshrink(x, 0.0), threshold=lambda x: F.threshold(x, 0.5, -1.0),
    abs=torch.abs, sign=torch.sign, square=torch.square, floor=torch.floor, ceil=torch.ceil, round=torch.round,
    trunc=torch.trunc,
    frac=torch.frac, fmod=lambda x: torch.fmod(x, 2.0), remainder=lambda x: torch.remainder(x, 2.0), sinc=torch.sinc,
    relu_squared=lambda x: F.relu(x).square(), where_positive=lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    maximum_zero=lambda x: torch.maximum(x, torch.zeros_like(x)),
    minimum_half=lambda x: torch.minimum(x, torch.full_like(x, 0.5)),
    maximum_self=lambda x: torch.maximum(x, x.flip(0)), minimum_scalar=lambda x: torch.minimum(x, torch.tensor(0.5)),
    maximum_scaled=lambda x: torch.maximum(x, x * 0.1), fmax=lambda x: torch.fmax(x, torch.zeros_like(x)),
    fmin=lambda x: torch.fmin(x, torch.full_like(x, 0.5)), logaddexp=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    logaddexp_self=lambda x: torch.logaddexp(x, -x), erf=torch.erf, exp=lambda x: torch.exp(x / 32),
    expm1=lambda x: torch.expm1(x / 32),
    nan_to_num=torch.nan_to_num, sgn=torch.sgn,
    power_0=lambda x: x**0, power_1=lambda x: x**1, power_2=lambda x: x**2, power_3=lambda x: x**3, power_4=lambda x: x**4,
    power_5=lambda x: x.pow(5.0), powers=lambda x: x.unsqueeze(1) ** torch.arange(4), two_to=lambda x: 2.0 ** (x / 8),
    guarded_sqrt=lambda x: torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0),
    guarded_rsqrt=lambda x: torch.where(x > 0, torch.rsqrt(x.clamp(min=0.25)), 0.0), glu=lambda x: F.glu(x, 0), atan=torch.atan,
    sqrt_of_square=lambda x: (x * x + 1e-6).sqrt(), abs_power=lambda x: x.abs() ** 1.5,
    log1p_abs=lambda x: torch.log1p(x.abs()),
    sinh=lambda x: torch.sinh(x / 32), asinh=torch.asinh, logit=lambda x: torch.logit(x, eps=0.25),
    logcosh=lambda x: x + F.softplus(-2 * x))
pointwise(
    POSITIVE, sqrt=torch.sqrt, power_half=lambda x: x**0.5, power_1h=lambda x: x**1.5, power_quarter=lambda x: x**0.25,
    rsqrt=torch.rsqrt, xlogy=lambda x: torch.xlogy(x, x),
    prod=lambda x: x.prod(), cumprod=lambda x: x.cumprod(0), x_power_x=lambda x: torch.pow(x, T([0, 0, 1, 2, 0.5, 3.0])))
pointwise(
    T([-1, -0.5, 0, 0.5, 1.0]),
    asin=torch.asin, acos=torch.acos, atanh=lambda x: torch.atanh(x / 2), logit_clamped=lambda x: torch.logit(x, 1e-6))
case("topk", lambda x: x.topk(3).values, SMALL)
case("topk_least", lambda x: x.topk(2, largest=False).values, SMALL)
case("prelu", lambda x, a: F.prelu(x, a), GRID, T([0.25]))
case("prelu_channels", lambda x, a: F.prelu(x, a), ROWS, T([0.25, 0.5, -1.0]))
case("logaddexp_far", torch.logaddexp, T([-1e6, 0.3, -1e4, 20, 2.0]), T([0.3, -1e6, 0.25, -1e6, 2.0]))
case("logaddexp_of_nothing", torch.logaddexp, T([-torch.inf, 0.3, 1.0]), T([0.3, -torch.inf, 1.0]))
# Corners of the image, its inside and its outside.
PLACES = T([[-1, -1], [1, 1], [0, 0.3], [-1, 0.5], [2, -2], [0.25, 1.0]]).reshape(1, 1, 6, 2)
for padding in ("border", "reflection"):
    case(f"grid_{padding}", lambda x, places, padding=padding: F.grid_sample(x, places, padding_mode=padding, align_corners=True), IMAGES, PLACES)
case("base_zero", lambda x, p: torch.pow(x, p), T([0, 0, 0, 1, 2.0]), T([0, 1, 2, 0, 3.0]))
case("maximum", torch.maximum, SMALL, SMALL.flip(0))
case("minimum", torch.minimum, SMALL, T(0.5))
case("maximum_row", torch.maximum, TIED, TIED[0])
case("clamp_by_parameters", lambda x, a, b: torch.clamp(x, a, b), SMALL, T(-1.0), T(1.0))
case("atan2", torch.atan2, T([0, 1, -1, 2.0]), T([1, 0.5, 2, -1.0]))
case("hypot", torch.hypot, T([0, 1, -1, 2.0]), T([1, 0, 2, -1.0]))
pointwise(
    TIED, max_dim=lambda x: x.max(1).values, min_dim=lambda x: x.min(1).values, max_keepdim=lambda x: x.max(0, keepdim=True)[0],
    min_keepdim=lambda x: x.min(-1, keepdim=True)[0], max_inner=lambda x: x.reshape(2, 2, 6).max(1).values,
    amax=lambda x: x.amax(1), amin=lambda x: x.amin(0), amax_two=lambda x: x.reshape(2, 2, 6).amax((0, 2)),
    max_all=lambda x: x.max(), min_all=lambda x: x.min(), max_and_argmax=lambda x: x.max(1).values + x.max(1).indices,
    sort=lambda x: x.sort(dim=1, stable=True).values,
    sort_descending=lambda x: x.sort(dim=1, descending=True, stable=True).values,
    cummax=lambda x: x.cummax(1).values, cummin=lambda x: x.cummin(1).values, logsumexp=lambda x: x.logsumexp(1),
    kthvalue=lambda x: x.kthvalue(3, 1).values,
    norm_2=lambda x: x.norm(dim=1), norm_1=lambda x: x.norm(p=1, dim=1), norm_3=lambda x: x.norm(p=3, dim=1),
    norm_all=lambda x: x.norm(), norm_zero=lambda x: x[3].norm(),
    norm_inf=lambda x: x.norm(p=float("inf"), dim=1), norm_half=lambda x: (x[:2] + 2).norm(p=0.5, dim=1),
    linalg_norm=lambda x: torch.linalg.vector_norm(x, dim=1),
    linalg_inf=lambda x: torch.linalg.vector_norm(x, ord=float("inf"), dim=1),
    normalize=lambda x: F.normalize(x, dim=1), normalize_1=lambda x: F.normalize(x, p=1, dim=1), std=lambda x: x.std(1),
    std_all=lambda x: x.std(),
    std_biased=lambda x: x.std(1, correction=0), var=lambda x: x.var(1), layer_norm=lambda x: F.layer_norm(x, (6,)),
    rms_norm=lambda x: F.rms_norm(x, (6,), eps=1e-5),
    softmax=lambda x: x.softmax(1), log_softmax=lambda x: x.log_softmax(1), softmin=lambda x: F.softmin(x, 1),
    prod_dim=lambda x: x.prod(1), aminmax=lambda x: torch.aminmax(x, dim=1).max,
    argmax_gather=lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    median=lambda x: x[:, :5].median(1).values, max_of_three=lambda x: torch.maximum(torch.maximum(x[:, 0], x[:, 1]), x[:, 2]),
    max_of_slices=lambda x: torch.max(x[:, :3], x[:, 3:]), std_mean=lambda x: torch.std_mean(x, 1)[0])
pointwise(
    IMAGES,
    max_pool1=lambda x: F.max_pool1d(x[0], 2), max_pool=lambda x: F.max_pool2d(x, 2), max_pool_over=lambda x: F.max_pool2d(x, 3, stride=1, padding=1),
    max_pool_apart=lambda x: F.max_pool2d(x, 2, stride=3, dilation=2),
    max_pool_up=lambda x: F.max_pool2d(x, 4, stride=3, ceil_mode=True),
    max_pool_3=lambda x: F.max_pool3d(x.reshape(1, 2, 3, 2, 6), 2, stride=1), adaptive_max=nn.AdaptiveMaxPool2d(1),
    adaptive_max_2=lambda x: F.adaptive_max_pool2d(x, 2),
    global_amax=lambda x: x.amax((2, 3)), flat_max=lambda x: x.flatten(2).max(2).values,
    avg_pool=lambda x: F.avg_pool2d(x, 3, 2, 1), lp_pool=lambda x: F.lp_pool2d(x, 2.0, 2))
case("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, dim=1), ROWS[:2], T([[0, 0, 0], [2, 1, 0.5]]))
case("pairwise_distance", lambda a, b: F.pairwise_distance(a, b), ROWS, OTHER)
case("cdist", lambda a, b: torch.cdist(a, b), ROWS, OTHER)
case("cdist_1", lambda a, b: torch.cdist(a, b, p=1.0), ROWS, OTHER)
case("dist", lambda a, b: torch.dist(a[:1], b[:1]) + torch.dist(a, b), ROWS, OTHER)
case("l2_by_hand", lambda a, b: ((a - b) ** 2).sum(1).clamp(min=1e-12).sqrt(), ROWS, OTHER)

HALF = T([0, 1, 0.5, 0.25, 1, 0, 0, 1, 1, 0, 1, 0, 0.5])
SIGNS = T([1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1, -1.0])
CLASSES = T([1, 0, 5, 2])
SHARES = T([[0.5, 0.25, 0, 0.25, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0.5, 0, 0.5, 0], [0.25, 0.25, 0.25, 0.25, 0, 0]])


def loss(name, f, values=SMALL, reduction="none"):
    case(name, lambda x: f(x, reduction), values)


loss("bce_logits", lambda x, r: F.binary_cross_entropy_with_logits(x, HALF, reduction=r))
loss("bce_logits_mean", lambda x, r: F.binary_cross_entropy_with_logits(x, HALF, reduction=r), reduction="mean")
loss("bce_weighted", lambda x, r: F.binary_cross_entropy_with_logits(x, HALF, weight=HALF + 1, pos_weight=T([3.0]), reduction=r))
loss("bce", lambda x, r: F.binary_cross_entropy(torch.sigmoid(x), HALF.to(x.dtype), reduction=r))
loss("l1", lambda x, r: F.l1_loss(x, HALF, reduction=r))
loss("mse", lambda x, r: F.mse_loss(x, HALF, reduction=r))
loss("smooth_l1", lambda x, r: F.smooth_l1_loss(x, torch.zeros_like(x), reduction=r))
loss("smooth_l1_narrow", lambda x, r: F.smooth_l1_loss(x, torch.zeros_like(x), beta=0.5, reduction=r))
loss("smooth_l1_none", lambda x, r: F.smooth_l1_loss(x, torch.zeros_like(x), beta=0.0, reduction=r))
loss("huber", lambda x, r: F.huber_loss(x, torch.zeros_like(x), delta=2.0, reduction=r))
loss("hinge_embedding", lambda x, r: F.hinge_embedding_loss(x, SIGNS, reduction=r))
loss("soft_margin", lambda x, r: F.soft_margin_loss(x, SIGNS, reduction=r))
loss("margin_ranking", lambda x, r: F.margin_ranking_loss(x, torch.zeros_like(x), SIGNS, margin=0.5, reduction=r))
loss("poisson", lambda x, r: F.poisson_nll_loss(x, HALF, reduction=r))
loss("gaussian", lambda x, r: F.gaussian_nll_loss(HALF, HALF * 2, x.abs(), eps=0.5, reduction=r))
loss("kl_div", lambda x, r: F.kl_div(x, HALF, reduction=r))
loss("multilabel_soft_margin", lambda x, r: F.multilabel_soft_margin_loss(x, (OTHER.repeat(1, 2) > 0).to(x.dtype), reduction=r), TIED)
loss("triplet", lambda x, r: F.triplet_margin_loss(x, ROWS.to(x.dtype), OTHER.to(x.dtype), reduction=r), ROWS * 0)
loss("cross_entropy", lambda x, r: F.cross_entropy(x, CLASSES, reduction=r), TIED)
loss("cross_entropy_soft", lambda x, r: F.cross_entropy(x, SHARES.to(x.dtype), weight=SHARES[0].to(x.dtype), reduction=r), TIED)
loss("cross_entropy_soft_mean", lambda x, r: F.cross_entropy(x, SHARES.to(x.dtype), label_smoothing=0.1, reduction=r), TIED, "mean")
loss("cross_entropy_smooth", lambda x, r: F.cross_entropy(x, CLASSES, label_smoothing=0.1, reduction=r), TIED)


# What the older exporter writes as another function: without a threshold, an epsilon, a magnitude or no_grad, with bounds that may
# be clamp's or hardtanh's, extremes that may be max's or amax's.
NOT_OLDER = {"cdist_1", "aminmax", "amax", "amin", "amax_two", "clamp_tensors", "gaussian", "global_amax",
             "hardtanh", "hardtanh_wide", "logit",
             "logit_clamped", "pairwise_distance", "softplus_early", "softplus_flat", "softplus_negative", "softplus_threshold"}


class Group(nn.Module):
    """The sum of several; each has an element of its own of what they read, so that nothing of them is common."""

    def __init__(self, names):
        super().__init__()
        self.cases = nn.ModuleDict({name: Case(*CASES[name]) for name in names})

    def forward(self, zero):
        return sum(case(zero[i]) for i, case in enumerate(self.cases.values()))


def gradients(group):
    group(torch.zeros(len(group.cases), dtype=torch.float64)).backward()
    return {n: (torch.zeros_like(p) if p.grad is None else p.grad).float() for n, p in group.named_parameters()}


def exported(group, dynamo):
    zero = torch.zeros(len(group.cases))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        more = {"external_data": False, "opset_version": 18, "verbose": False} if dynamo else {"opset_version": 17}
        torch.onnx.export(group, (zero,), str(path), dynamo=dynamo, input_names=["zero"], **more)
        return onnx.load(path)


def models(names, dynamo):
    """Of groups as large as the exporter takes."""
    try:
        return [(names, exported(Group(names).eval(), dynamo))]
    except Exception as error:
        if len(names) == 1:
            print("left out:", names[0], "dynamo" if dynamo else "older", str(error).strip().splitlines()[0][:100])
            return []
    half = len(names) // 2
    return models(names[:half], dynamo) + models(names[half:], dynamo)


KEPT = ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")


def stripped(model):
    """Without what no importer reads: most of the file."""
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if p.key in KEPT or "AdaptiveMaxPool" in p.value]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    graph_kept = [p for p in model.graph.metadata_props if "graph_signature" in p.key]
    del model.graph.metadata_props[:]
    model.graph.metadata_props.extend(graph_kept)
    for info in model.graph.value_info:
        kept = [p for p in info.metadata_props if "folded_from" in p.key]
        del info.metadata_props[:]
        info.metadata_props.extend(kept)
    noted = [info for info in model.graph.value_info if info.metadata_props]
    del model.graph.value_info[:]
    model.graph.value_info.extend(noted)
    return model


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def packed(names, model, title):
    model.graph.name = title
    tensors = [numpy_helper.from_array(torch.zeros(len(names)).numpy(), "in:zero")]
    tensors += [numpy_helper.from_array(g.numpy(), f"grad:{n}") for n, g in gradients(Group(names).double().eval()).items()]
    model.graph.initializer.extend(tensors)
    data = model.SerializeToString(deterministic=True)
    return varint(len(data)) + data


def main(chosen):
    raw, count = io.BytesIO(), 0
    names = [name for name in CASES if not chosen or name in chosen]
    # The older exporter stores equal tensors once: one case a file.
    for exporter, size in (("dynamo", 16), ("older", 1)):
        here = [name for name in names if exporter == "dynamo" or name not in NOT_OLDER]
        for at in range(0, len(here), size):
            for group, model in models(here[at : at + size], exporter == "dynamo"):
                raw.write(packed(group, stripped(model), f"{exporter}/{group[0]}"))
                count += len(group)
    with open(OUT, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as out:
        out.write(raw.getvalue())
    print(count, "cases,", OUT.stat().st_size, "bytes")


main(sys.argv[1:])
