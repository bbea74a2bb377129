"""Functions that torch.onnx does not write, or only by shapes that depend on values, by those that it writes."""
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .errors import NotExported


def attention_of_four_dims(attention, bound):
    """That of one batch dim, one of heads and two, which is what torch.onnx writes."""
    query, mask = bound["query"], bound.get("attn_mask")
    lead = query.shape[:-3]
    if len(lead) < 2 or any(bound[name].shape[:-3] != lead for name in ("key", "value")):
        return attention(**bound)
    bound |= {name: bound[name].flatten(0, -4) for name in ("query", "key", "value")}
    if mask is not None and mask.dim() > 3:
        bound["attn_mask"] = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
    return attention(**bound).unflatten(0, lead)


def clamp(input, min=None, max=None, **others):
    """The elements within bounds that are tensors, which torch.onnx writes as Max and Min: these share the gradient of equal ones."""
    if not any(isinstance(bound, torch.Tensor) for bound in (min, max)):
        return torch.clamp(input, min, max, **others)
    for bound, is_beyond in (min, torch.lt), (max, torch.gt):
        if bound is not None:
            input = torch.where(is_beyond(input, bound), bound, input)
    return input


def distances(x1, x2, p=2.0, compute_mode=None):
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), ord=p, dim=-1)


def distances_within(input, p=2.0):
    first, second = torch.triu_indices(len(input), len(input), 1)
    return torch.linalg.vector_norm(input[first] - input[second], ord=p, dim=-1)


def kth_value(input, k, dim=-1, keepdim=False, result=torch.return_types.kthvalue):
    found = [part.narrow(dim, k - 1, 1) for part in input.sort(dim=dim)]
    return result(found if keepdim else [part.squeeze(dim) for part in found])


def median(input, dim=None, keepdim=False):
    if dim is None:
        return median(input.flatten(), 0)[0]
    return kth_value(input, (input.shape[dim] + 1) // 2, dim, keepdim, torch.return_types.median)


def cumulated_product(input, dim, dtype=None):
    whole = not input.is_floating_point() and not input.is_complex()
    parts = list(input.to(dtype or (torch.int64 if whole else input.dtype)).unbind(dim))
    for k in range(1, len(parts)):
        parts[k] = parts[k - 1] * parts[k]
    return torch.stack(parts, dim)


def masked_scatter(input, mask, source):
    mask = mask.expand_as(input)
    place = (mask.flatten().to(torch.int64).cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.flatten()[place].view_as(input), input)


def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    counts = (target < 0).to(torch.int64).cumsum(-1) == 0  # up to the first that is none
    label = torch.where(counts, target, torch.zeros_like(target))
    own = ((label.unsqueeze(-1) == torch.arange(input.shape[-1], device=input.device)) & counts.unsqueeze(-1)).any(-2)
    margins = torch.relu(1 - input.gather(-1, label).unsqueeze(-1) + input.unsqueeze(-2))
    margins = torch.where(counts.unsqueeze(-1) & ~own.unsqueeze(-2), margins, torch.zeros_like(margins))
    return reduced(margins.sum((-1, -2)) / input.shape[-1], size_average, reduce, reduction)


def reduced(each, size_average, reduce, reduction):
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return {"none": lambda: each, "sum": each.sum, "mean": each.mean}[reduction]()


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    """With what becomes of its statistics, which the tracer does not see."""
    norm = torch.nn.functional
    if not use_input_stats:
        return norm.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is None:
        return norm.instance_norm(input, None, None, weight, bias, True, momentum, eps)
    kept = running_mean.clone(), running_var.clone()
    flat = input.flatten(2)
    var, mean = torch.var_mean(flat, -1, correction=0)
    with torch.no_grad():
        count = flat.shape[-1]
        running_mean.mul_(1 - momentum).add_(momentum * mean.mean(0))
        running_var.mul_(1 - momentum).add_(momentum * var.mean(0) * count / (count - 1))
    mean, var = (torch.where(evaluates(), one, other) for one, other in zip(kept, (mean, var)))
    out = (flat - mean.unsqueeze(-1)) * torch.rsqrt(var + eps).unsqueeze(-1)
    if weight is not None:
        out = out * weight.unsqueeze(-1)
    if bias is not None:
        out = out + bias.unsqueeze(-1)
    return out.view_as(input)


def evaluates():
    """True in an evaluation alone: a dropout that is on makes of a one two or nothing."""
    return F.dropout(torch.ones(()), 0.5) == 1


def dropout_of_ones(kind, input, p):
    """Dropout of whole channels, and that of self-normalizing networks (Klambauer et al., 2017), by a dropout of ones, which stay ones where nothing is
    dropped: an evaluation leaves all as it is."""
    if p == 1:
        return torch.where(evaluates(), input, torch.zeros_like(input))
    lead = input.dim() if kind == "alpha_dropout" else 1 if (kind, input.dim()) in (("dropout1d", 2), ("dropout3d", 4)) else 2  # one sample's channels
    kept = F.dropout(input.new_ones(input.shape[:lead] + (1,) * (input.dim() - lead)), p)
    if "alpha" not in kind:
        return input * kept
    lowest = -1.7580993408473766  # what SELU tends to
    scale = ((1 - p) * (1 + p * lowest**2)) ** -0.5
    return torch.where(kept == 1, input, torch.where(kept > 0, input, torch.full_like(input, lowest)) * scale - lowest * p * scale)


def shifted_left(input, other):
    return input * 2**other


def shifted_right(input, other):
    return input // 2**other


def bits_and(input, other):
    """Of numbers and booleans, too: the lowest bit of the numbers counts."""
    number, flag = number_and_flag(input, other)
    return torch.bitwise_and(input, other) if flag is None else number.remainder(2) * flag.to(number.dtype)


def bits_or(input, other):
    number, flag = number_and_flag(input, other)
    return torch.bitwise_or(input, other) if flag is None else number + (1 - number.remainder(2)) * flag.to(number.dtype)


def number_and_flag(a, b):
    """A tensor of integers and one of booleans in this order, or nothing."""
    for number, flag in ((a, b), (b, a)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and flag.dtype is torch.bool and number.dtype is not torch.bool:
            return number, flag
    return None, None


def covariance(input, *, correction=1, fweights=None, aweights=None):
    if fweights is not None or aweights is not None:
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input if input.dim() > 1 else input.unsqueeze(0)
    off = rows - rows.mean(1, keepdim=True)
    return (off @ off.mT.conj() / (rows.shape[1] - correction)).squeeze()


def correlation(input):
    found = covariance(input)
    if found.dim() == 0:
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation[:, None] / deviation).clamp(-1, 1)


def matrix_exp(A):
    """By scaling and squaring (Higham, 2005): the series of A·2⁻ⁿ, of a norm of at most 1/2, whose square is taken n times."""
    size = A.detach().abs().sum(-2).amax(-1)[..., None, None].clamp(min=1e-30)
    count = (size.log2().ceil() + 1).clamp(0, 24)
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    scaled, out = A * torch.exp2(-count), one
    for k in range(14, 0, -1):
        out = one + (scaled @ out) / k
    for k in range(24):
        out = torch.where(count > k, out @ out, out)
    return out


def solve(A, B, left=True):
    """By elimination (Gauss-Jordan), with the largest number of each column as its pivot."""
    if not left:
        return solve(A.mT, B.mT).mT
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    size = A.shape[-1]
    lead = torch.broadcast_shapes(A.shape[:-2], right.shape[:-2])
    rows = torch.cat([A.expand(*lead, size, size), right.expand(*lead, size, right.shape[-1])], -1)
    place = torch.arange(size, device=A.device)
    for k in range(size):
        pivot = torch.where(place < k, -1.0, rows[..., k].detach().abs()).argmax(-1, keepdim=True)
        order = torch.where(place == k, pivot, torch.where(place == pivot, torch.full_like(place, k), place))
        rows = rows.gather(-2, order.unsqueeze(-1).expand(*order.shape, rows.shape[-1]))
        row = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = torch.where((place == k).unsqueeze(-1), row, rows - rows[..., k : k + 1] * row)
    found = rows[..., size:]
    return found.squeeze(-1) if vector else found


def inverse(A):
    return solve(A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))


def as_strided(input, size, stride, storage_offset=None):
    """torch.onnx takes what is viewed to lie in memory in the order of its dims: it is viewed in the order in which it lies."""
    own = input.storage_offset()
    order = sorted(range(input.dim()), key=lambda dim: (-input.stride(dim), -input.size(dim)))
    lying = input.permute(order)
    if not lying.is_contiguous() or (storage_offset or own) < own:
        raise NotExported("as_strided of a part of a tensor is not supported: clone() the part first")
    return torch.as_strided(lying if own == 0 else lying.clone(), size, stride, (own if storage_offset is None else storage_offset) - own)


def set_items(input, places, value):
    one = value.dim() == 0 if isinstance(value, torch.Tensor) else isinstance(value, (bool, int, float))
    if one and isinstance(places, torch.Tensor) and places.dtype is torch.bool:
        input.masked_fill_(places.view(places.shape + (1,) * (input.dim() - places.dim())), value)
    elif isinstance(places, torch.Tensor) and places.dtype is torch.bool and isinstance(value, torch.Tensor) and value.dim() <= input.dim() - places.dim():
        input.copy_(torch.where(places.view(places.shape + (1,) * (input.dim() - places.dim())), value.to(input.dtype), input))
    else:
        input[places] = value


def masked_select(input, mask):
    """The same, which knows of what it was selected: how much that is depends on values."""
    out = torch.masked_select(input, mask)
    out.selected = input, mask
    return out


def apart(joined, lengths):
    """Targets of ctc_loss that are joined to one dim, as rows: those that a mask selects of rows, at the front of these."""
    if hasattr(joined, "selected") and joined.selected[0].dim() == 2:
        rows, mask = torch.broadcast_tensors(*joined.selected)
        order = torch.where(mask, 0, mask.shape[1]) + torch.arange(mask.shape[1])
        return rows.gather(1, order.sort(dim=1).indices)
    if free_unbacked_symbols(joined.shape[0]):
        raise NotExported("ctc_loss of targets that are joined to one dim, as many as values decide, is not supported: give them as [batch, length], padded")
    at = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(joined.shape[0])
    return joined[at.clamp(max=joined.shape[0] - 1)]


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """By the forward variables of Graves et al. (2006), in logarithms, over the labels with blanks between them."""
    if log_probs.dim() == 2:
        loss = ctc_loss(log_probs.unsqueeze(1), targets.reshape(1, -1), input_lengths, target_lengths, blank, reduction, zero_infinity)
        return loss.squeeze(0) if reduction == "none" else loss
    if targets.dim() == 1:
        targets = apart(targets, torch.as_tensor(target_lengths).reshape(-1))
    inputs, lengths = (torch.as_tensor(each).reshape(-1) for each in (input_lengths, target_lengths))
    padded = torch.where(torch.arange(targets.shape[1]) < lengths[:, None], targets, torch.full_like(targets, blank))
    labels = F.pad(torch.stack([torch.full_like(padded, blank), padded], -1).flatten(1), (0, 1), value=blank)
    never = -1e30  # of no probability, but with gradients that are numbers
    skips = F.pad(labels[:, 2:] != labels[:, :-2], (2, 0)) & (labels != blank)
    before = torch.where(torch.arange(labels.shape[1]) < 1, 0.0, never).to(log_probs.dtype).expand(labels.shape)
    for t, of_labels in enumerate(log_probs.gather(2, labels.expand(log_probs.shape[0], *labels.shape)).unbind(0)):
        ways = [before, F.pad(before[:, :-1], (1, 0), value=never), torch.where(skips, F.pad(before[:, :-2], (2, 0), value=never), never)]
        after = torch.logsumexp(torch.stack(ways if t else [ways[0], ways[1]]), 0) + of_labels
        before = torch.where(t < inputs[:, None], after, before)
    last = before.gather(1, 2 * lengths[:, None]).squeeze(1)
    last_label = torch.where(lengths > 0, before.gather(1, (2 * lengths[:, None] - 1).clamp(min=0)).squeeze(1), never)
    loss = -torch.logaddexp(last, last_label)
    loss = torch.where(loss < -never / 2, loss + of_softmax(log_probs, inputs), 0.0 if zero_infinity else torch.inf)
    return {"none": lambda: loss, "sum": loss.sum, "mean": lambda: (loss / lengths.clamp(min=1)).mean()}[reduction]()


def of_softmax(log_probs, lengths):
    """Zero, with the gradient that PyTorch adds to that of ctc_loss: what log_softmax in front of it takes away again."""
    sums = torch.where(torch.arange(log_probs.shape[0])[:, None] < lengths, log_probs.exp().sum(-1), 0.0).sum(0)
    return sums - sums.detach()


# Functions that torch.onnx does not write, or only by shapes that depend on values, by those that it does.
EQUIVALENTS = {
    "__and__": bits_and, "__lshift__": shifted_left, "__or__": bits_or, "__rlshift__": lambda input, other: shifted_left(other, input),
    "__rrshift__": lambda input, other: shifted_right(other, input), "__rshift__": shifted_right, "__setitem__": set_items, "as_strided": as_strided,
    "bitwise_and": bits_and, "bitwise_left_shift": shifted_left, "bitwise_or": bits_or, "bitwise_right_shift": shifted_right,
    "cdist": distances, "clamp": clamp, "clip": clamp, "corrcoef": correlation, "cov": covariance, "ctc_loss": ctc_loss, "cumprod": cumulated_product, "inverse": inverse,
    "kthvalue": kth_value, "linalg_inv": inverse, "linalg_matrix_exp": matrix_exp, "linalg_solve": solve, "masked_scatter": masked_scatter, "masked_select": masked_select,
    "matrix_exp": matrix_exp, "median": median, "multilabel_margin_loss": multilabel_margin_loss, "pdist": distances_within,
}
