"""Functions that torch.onnx does not write, or only by shapes that depend on values, by those that it writes."""
import contextlib
import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .errors import NotExported, place_of_call
from .linear_algebra import BY_ELIMINATION
from .selection import as_it_is_now, harmless, is_mask_of, is_plain, noted


def attention_of_four_dims(attention, bound):
    """That of one batch dim, one of heads and two, which is what torch.onnx writes."""
    query, mask = bound["query"], bound.get("attn_mask")
    if all(bound[name].dim() == 3 for name in ("query", "key", "value")):  # of no heads
        bound |= {name: bound[name].unsqueeze(1) for name in ("query", "key", "value")}
        if mask is not None and mask.dim() == 3:
            bound["attn_mask"] = mask.unsqueeze(1)
        return attention(**bound).squeeze(1)
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
        if input.is_floating_point():  # torch.onnx takes no two bounds of two types
            min, max = (float(bound) if type(bound) is int else bound for bound in (min, max))
        return torch.clamp(input, min, max, **others)
    if isinstance(min, torch.Tensor) and isinstance(max, torch.Tensor):
        min = torch.where(min == max, min.detach(), min)  # in PyTorch, a lower bound that is the upper one has no gradient
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
    if dim is None:  # all that are equal to it share the gradient
        equal = input == median(input.detach().flatten(), 0)[0]
        return torch.where(equal, input, 0.0).sum() / equal.sum() if input.is_floating_point() else median(input.flatten(), 0)[0]
    return kth_value(input, (input.shape[dim] + 1) // 2, dim, keepdim, torch.return_types.median)


def cumulated_product(input, dim, dtype=None):
    whole = not input.is_floating_point() and not input.is_complex()
    parts = list(input.to(dtype or (torch.int64 if whole else input.dtype)).unbind(dim))
    for k in range(1, len(parts)):
        parts[k] = parts[k - 1] * parts[k]
    return torch.stack(parts, dim)


def cumulated_extreme(name):
    """The largest numbers up to each, or the smallest, and their places, the last of equal ones: of 2, 4, 8, … numbers, until it is of all."""
    found, beyond = getattr(torch.return_types, name), torch.gt if name == "cummax" else torch.lt
    def apply(input, dim):
        values = input.movedim(dim, -1)
        places, reach = torch.arange(values.shape[-1], device=input.device).expand(values.shape), 1
        while reach < values.shape[-1]:
            earlier, begins = values[..., :-reach], values[..., :reach]
            takes = beyond(earlier, values[..., reach:]) | (earlier != earlier)
            places = torch.cat([places[..., :reach], torch.where(takes, places[..., :-reach], places[..., reach:])], -1)
            values, reach = torch.cat([begins, torch.where(takes, earlier, values[..., reach:])], -1), 2 * reach
        return found([values.movedim(-1, dim), places.movedim(-1, dim)])
    return apply


def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """Means, products, and the largest or smallest, with gradients that equal ones share, of which torch.onnx writes other ones or none."""
    src = src if src.shape == index.shape else src[tuple(slice(0, size) for size in index.shape)]
    count = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(src))
    if reduce == "mean" and input.is_floating_point():
        own = input if include_self else torch.where(count > 0, torch.zeros_like(input), input)
        return own.scatter_add(dim, index, src) / (count + 1 if include_self else count.clamp(min=1))
    if reduce == "prod" and input.is_floating_point():
        place = torch.arange(input.shape[dim], device=index.device)
        chosen = index.movedim(dim, -1).unsqueeze(-2) == place.unsqueeze(-1)  # […, of the result, of the source]
        product = torch.where(chosen, src.movedim(dim, -1).unsqueeze(-2), 1.0).prod(-1).movedim(-1, dim)
        room = [pad for size, of in zip(reversed(input.shape), reversed(product.shape)) for pad in (0, size - of)]
        return (input if include_self else torch.where(count > 0, 1.0, input)) * F.pad(product, room, value=1.0)
    if reduce not in ("amax", "amin") or not input.is_floating_point():
        return input.scatter_reduce(dim, index, src, reduce, include_self=include_self)
    found = input.detach().scatter_reduce(dim, index, src.detach(), reduce, include_self=include_self)
    of_input, of_src = input == found, src == found.gather(dim, index)  # PyTorch shares with an equal element that it does not include, too
    shares = of_input.to(src.dtype).scatter_add(dim, index, of_src.to(src.dtype))
    own = torch.where(of_input, input if include_self else torch.where(count == 0, input, input.detach()), torch.zeros_like(input))
    return own.scatter_add(dim, index, torch.where(of_src, src, torch.zeros_like(src))) / shares


def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    shape = [-1 if at == dim % input.dim() else 1 for at in range(input.dim())]
    return scatter_reduce(input, dim, index.view(shape).expand_as(source), source, reduce, include_self=include_self)


def embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", sparse=False, per_sample_weights=None,
                  include_last_offset=False, padding_idx=None):
    """Sums, means or the largest of rows by bag, without those of the place that pads."""
    if max_norm is not None or scale_grad_by_freq:
        raise NotExported(f"embedding_bag with max_norm or scale_grad_by_freq is not supported{place_of_call()}: leave it out, or scale what it returns")
    if input.is_floating_point():  # an older order of the arguments
        input, weight = weight, input
    rows = F.embedding(input, weight, None if padding_idx is None else padding_idx % len(weight))
    counts = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % len(weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == "max":
        rows = torch.where(counts.unsqueeze(-1), rows, -torch.inf)
    elif padding_idx is not None:
        rows = torch.where(counts.unsqueeze(-1), rows, 0.0)
    if input.dim() == 2:
        number, out = counts.sum(1).unsqueeze(-1), rows.max(1)[0] if mode == "max" else rows.sum(1)
    else:
        begins = offsets[:-1] if include_last_offset else offsets
        bag = (torch.arange(len(input), device=input.device).unsqueeze(1) >= begins).sum(1) - 1
        number = torch.zeros_like(begins).index_add(0, bag, counts.to(begins.dtype)).unsqueeze(-1)
        zeros = torch.zeros((len(begins), weight.shape[1]), dtype=rows.dtype, device=rows.device)
        out = scatter_reduce(zeros, 0, bag.unsqueeze(1).expand_as(rows), rows, "amax", include_self=False) if mode == "max" else zeros.index_add(0, bag, rows)
    if mode == "max":
        return torch.where(number > 0, out, 0.0)
    return out / number.clamp(min=1) if mode == "mean" else out


def roll(input, shifts, dims=None):
    """Also by sizes, which torch.onnx takes for numbers."""
    if dims is None or dims == ():
        return roll(input.flatten(), shifts, 0).view_as(input)
    of_dims = zip(*([one] if not isinstance(one, (tuple, list)) else one for one in (shifts, dims)))
    for shift, dim in of_dims:
        lead = (slice(None),) * (dim % input.dim())
        first = input.shape[dim] - shift % input.shape[dim]
        input = torch.cat([input[(*lead, slice(first, None))], input[(*lead, slice(None, first))]], dim)
    return input


def fft_shift(inverse):
    def apply(input, dim=None):
        dims = list(range(input.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
        return roll(input, [(input.shape[one] + inverse) // 2 for one in dims], dims)
    return apply


def hypotenuse(input, other):
    size = torch.maximum(input.detach().abs(), other.detach().abs())
    size = torch.where((size > 0) & (size < torch.inf), size, 1.0)
    return size * ((input / size).square() + (other / size).square()).sqrt()


def sign_bit(input):
    return (input < 0) | (input == 0) & (1 / input < 0)


def copy_sign(input, other):
    size = input.abs()
    return torch.where(sign_bit(torch.as_tensor(other)), -size, size)


def mantissa_and_exponent(input, result=torch.return_types.frexp):
    size = input.detach().abs()
    counts = (size > 0) & (size < torch.inf)
    size = torch.where(counts, size, 0.5)
    power = size.log2().floor() + 1
    for beyond, step in (torch.ge, 1), (torch.lt, -1):  # the logarithm is rounded
        power = power + step * beyond(size / power.exp2(), 1.0 if step > 0 else 0.5)
    power = torch.where(counts, power, 0.0)
    return result([input / power.exp2(), power.to(torch.int32)])


def inverse_of_erf(input):
    """By Giles's approximation (2010) and Newton's steps, of which the last has the gradient."""
    x = input.detach()
    inside = x.abs() < 1
    within = torch.where(inside, x, 0.0)
    w = -((1 - within) * (1 + within)).log()
    near, far, low, high = torch.zeros_like(w), torch.zeros_like(w), w - 2.5, w.clamp(min=5).sqrt() - 3
    for one, other in GILES:
        near, far = one + near * low, other + far * high
    found = torch.where(w < 5, near, far) * within
    slope = lambda at: math.sqrt(math.pi) / 2 * at.square().exp()  # noqa: E731
    for _ in range(2):
        found = found - (found.erf() - within) * slope(found)
    ends = torch.where(x.abs() == 1, x.sign() * torch.inf, torch.nan)
    return torch.where(inside, found, ends) + (input - x) * slope(torch.where(inside, found, 0.0))


# By power, the highest first: in the middle, and near the ends.
GILES = list(zip([2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941],
                 [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682]))


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Without a look at the numbers, which the tracer does not have."""
    var = torch.as_tensor(var, dtype=input.dtype, device=input.device)
    if var.dim() and var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (var.log() + (input - target).square() / var + (math.log(2 * math.pi) if full else 0.0))
    return reduced(loss, None, None, reduction)


def joined(tensors, *dim, **others):
    """Without the empty tensors of one dim, torch.tensor([]), that PyTorch joins with all others, and ONNX with none."""
    parts = [one for one in tensors if one.dim() != 1 or not (isinstance(one.shape[0], int) and one.shape[0] == 0)]
    if len(parts) == len(tensors) or all(one.dim() == 1 for one in parts):
        return torch.cat(tensors, *dim, **others)
    return torch.cat(parts, *dim, **others).to(functools.reduce(torch.promote_types, [one.dtype for one in tensors]))


def in_place(function):
    return lambda input, *args, **kwargs: input.copy_(function(input, *args, **kwargs))


def einsum(equation, *operands):
    """Of operands of one type."""
    if not isinstance(equation, str):
        return torch.einsum(equation, *operands)
    operands = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    dtype = functools.reduce(torch.promote_types, [one.dtype for one in operands])
    operands = [one.to(dtype) for one in operands]
    return torch._VF.einsum(equation, operands, path=order_of_products(equation, operands))


def order_of_products(equation, operands):
    """That which PyTorch asks opt_einsum for where it is installed: of the example's sizes, or it would make constants of them."""
    library = torch.backends.opt_einsum
    if len(operands) <= 2 or not library.is_available() or not library.enabled:
        return None
    shapes = [[size if isinstance(size, int) else size.node.hint or 2 for size in one.shape] for one in operands]
    pairs = library.get_opt_einsum().contract_path(equation, *shapes, shapes=True, optimize=library.strategy)[0]
    return [place for pair in pairs for place in pair]


def search_sorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """How many numbers lie before each: all of them are compared."""
    rows = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    wanted = torch.as_tensor(input, device=rows.device).unsqueeze(-1)
    rows = rows if rows.dim() == 1 else rows.unsqueeze(-2)
    before = rows <= wanted if right or side == "right" else rows < wanted
    return before.to(torch.int32 if out_int32 else torch.int64).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def is_in(elements, test_elements, *, assume_unique=False, invert=False):
    found = (torch.as_tensor(elements).unsqueeze(-1) == torch.as_tensor(test_elements).flatten()).any(-1)
    return ~found if invert else found


def combinations(input, r=2, with_replacement=False):
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = torch.tensor(list(choose(range(len(input)), r)), device=input.device).reshape(-1, r)
    return input[chosen]


def log_gamma(input):
    """By Stirling's series of numbers from 8 on, to which others are shifted; of those below 1/2 by Euler's reflection."""
    turned = input < 0.5
    z, shifted = positive_and_shifted(input, turned)
    small = z < 8
    series = (shifted - 0.5) * shifted.log() - shifted + 0.5 * math.log(2 * math.pi)
    series = series + (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / shifted**2) / shifted**2) / shifted**2) / shifted
    for k in range(8):
        series = series - torch.where(small, z + k, torch.ones_like(z)).log()
    sine = torch.where(turned, (math.pi * input).sin().abs(), torch.ones_like(input))
    return torch.where(turned, math.log(math.pi) - sine.log() - series, series)


def digamma(input):
    """The derivative of log_gamma."""
    turned = input < 0.5
    z, shifted = positive_and_shifted(input, turned)
    small, square = z < 8, shifted**-2
    series = shifted.log() - 0.5 / shifted - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    for k in range(8):
        series = series - torch.where(small, 1 / (z + k), torch.zeros_like(z))
    angle = torch.where(turned, math.pi * input, torch.full_like(input, math.pi / 4))
    return torch.where(turned, series - math.pi / angle.tan(), series)


def positive_and_shifted(input, turned):
    z = torch.where(turned, 1 - input, input)
    return z, torch.where(z < 8, z + 8, z)


def adaptive_max_pool(count):
    """Where windows have several sizes, each by a pool of its own."""
    own, pool = getattr(F, f"adaptive_max_pool{count}d"), getattr(F, f"max_pool{count}d")
    def apply(input, output_size, return_indices=False):
        sizes = input.shape[-count:]
        wanted = [output_size] * count if isinstance(output_size, int) else [size if n is None else n for n, size in zip(output_size, sizes)]
        if return_indices or all(size % n == 0 for n, size in zip(wanted, sizes)):
            return own(input, output_size, return_indices)
        spans = [[(k * size // n, -(-(k + 1) * size // n)) for k in range(n)] for n, size in zip(wanted, sizes)]
        pooled = [pool(input[(..., *(slice(*span) for span in window))], [end - begin for begin, end in window]).flatten(-count)
                  for window in itertools.product(*spans)]
        return torch.cat(pooled, -1).unflatten(-1, wanted)
    return apply


@contextlib.contextmanager
def adaptive_softmax_whole():
    """AdaptiveLogSoftmaxWithLoss picks of all labels' probabilities: which clusters a batch has depends on its labels."""
    kind = torch.nn.AdaptiveLogSoftmaxWithLoss
    own = kind.forward

    def forward(self, input_, target_):
        whole = self.log_prob(input_ if target_.dim() else input_.unsqueeze(0))
        picked = whole.gather(1, target_.reshape(-1, 1)).reshape(target_.shape)
        return torch.nn.modules.adaptive._ASMoutput(picked, (-picked).mean())

    kind.forward = forward
    try:
        yield
    finally:
        kind.forward = own


@contextlib.contextmanager
def averages_of_all_steps():
    """Batch norms with momentum=None, whose share of a step is one of as many as they have seen: a number to PyTorch, which the tracer does not have."""
    kind = torch.nn.modules.batchnorm._BatchNorm
    own = kind.forward

    def forward(self, input):
        if self.momentum is not None or not self.training or self.running_mean is None:
            return own(self, input)
        self._check_input_dim(input)
        dims, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
        var, mean = torch.var_mean(input, dims, correction=0)
        kept, count = (self.running_mean.clone(), self.running_var.clone()), input.numel() / input.shape[1]
        with torch.no_grad():
            share = 1 / self.num_batches_tracked.add_(1).to(mean.dtype)
            self.running_mean.mul_(1 - share).add_(share * mean)
            self.running_var.mul_(1 - share).add_(share * var * count / (count - 1))
        mean, var = (torch.where(evaluates(), one, other).view(shape) for one, other in zip(kept, (mean, var)))
        out = (input - mean) * torch.rsqrt(var + self.eps)
        return out if self.weight is None else out * self.weight.view(shape) + self.bias.view(shape)

    kind.forward = forward
    try:
        yield
    finally:
        kind.forward = own


def adaptive_avg_pool3d(input, output_size):
    """Along one dim after the other: a mean of means over windows of one size is the mean of all."""
    wanted = [output_size] * 3 if isinstance(output_size, int) else output_size
    for dim, count in zip((-3, -2, -1), wanted):
        size = input.shape[dim]
        count = size if count is None else count
        place = torch.arange(size)
        first, last = torch.arange(count) * size // count, -(-(torch.arange(count) + 1) * size // count)
        within = ((place[:, None] >= first) & (place[:, None] < last)).to(input.dtype)
        input = (input.movedim(dim, -1) @ (within / (last - first))).movedim(-1, dim)
    return input


def fill_diagonal(input, value, wrap=False):
    if input.dim() != 2 or wrap:
        return input.fill_diagonal_(value, wrap)
    rows, columns = (torch.arange(size, device=input.device) for size in input.shape)
    return input.masked_fill_(rows[:, None] == columns, value)


def bin_count(input, weights=None, minlength=0):
    """As many as are asked for, whatever the largest number is."""
    if not minlength:
        return torch.bincount(input, weights)
    found = input.unsqueeze(-1) == torch.arange(minlength, device=input.device)
    if weights is None:
        return found.sum(0)
    weights = weights if weights.dtype is torch.float32 else weights.double()
    return torch.where(found, weights.unsqueeze(-1), torch.zeros_like(weights).unsqueeze(-1)).sum(0)


def pairs_of(value, count=2):
    return [value] * count if isinstance(value, int) else [*value]


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """A group for each sample, [1, batch·channels, …], by products: ONNX has no number of groups that is left open."""
    if isinstance(groups, int):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    count, (height, width) = weight.shape[0] // groups, weight.shape[2:]
    stride, dilation = pairs_of(stride), pairs_of(dilation)
    if isinstance(padding, str):
        whole = [each * (size - 1) for each, size in zip(dilation, (height, width))] if padding == "same" else [0, 0]
        input, padding = F.pad(input, [whole[1] // 2, whole[1] - whole[1] // 2, whole[0] // 2, whole[0] - whole[0] // 2]), 0
    padding = pairs_of(padding)
    rows = input.reshape(input.shape[0] * groups, weight.shape[1], *input.shape[2:])
    sizes = [(size + 2 * pad - step * (kernel - 1) - 1) // by + 1
             for size, pad, step, kernel, by in zip(input.shape[2:], padding, dilation, (height, width), stride)]
    found = weight.reshape(groups, count, -1) @ F.unfold(rows, (height, width), dilation, padding, stride).unflatten(0, (input.shape[0], groups))
    found = found.reshape(input.shape[0], weight.shape[0], *sizes)
    return found if bias is None else found + bias[:, None, None]


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if isinstance(groups, int):
        return F.conv1d(input, weight, bias, stride, padding, dilation, groups)
    stride, padding, dilation = (each if isinstance(each, (int, str)) else each[0] for each in (stride, padding, dilation))
    padding = padding if isinstance(padding, str) else (0, padding)
    return conv2d(input.unsqueeze(2), weight.unsqueeze(2), bias, (1, stride), padding, (1, dilation), groups).squeeze(2)


def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """As conv2d."""
    if isinstance(groups, int):
        return F.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)
    inner, count, kernel = weight.shape[0] // groups, weight.shape[1], weight.shape[2:]
    stride, padding, more, dilation = map(pairs_of, (stride, padding, output_padding, dilation))
    sizes = [(size - 1) * by - 2 * pad + step * (of - 1) + 1 + end
             for size, by, pad, step, of, end in zip(input.shape[2:], stride, padding, dilation, kernel, more)]
    rows = input.reshape(input.shape[0], groups, inner, -1)
    columns = weight.reshape(groups, inner, -1).mT @ rows
    found = F.fold(columns.flatten(0, 1), sizes, kernel, dilation, padding, stride).reshape(input.shape[0], groups * count, *sizes)
    return found if bias is None else found + bias[:, None, None]


def dense(indices, values, size=None, **options):
    """A sparse tensor as one that has its zeros: sums and products of both are the same."""
    if size is None:
        raise NotExported(f"sparse_coo_tensor without a size is not supported{place_of_call()}, as values decide how large it is: give it the size")
    values = torch.as_tensor(values)
    places = torch.as_tensor(indices)
    return torch.zeros(tuple(size), dtype=values.dtype, device=values.device).index_put(tuple(places.unbind(0)), values, accumulate=True)


def window(first, second, third=0.0):
    """Of a sum of cosines."""
    def apply(window_length, periodic=True, alpha=first, beta=second, *, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
        dtype = dtype or torch.get_default_dtype()
        if window_length == 1:
            return torch.ones(1, dtype=dtype, device=device)
        turns = torch.arange(window_length, dtype=dtype, device=device) * (2 * math.pi / (window_length if periodic else window_length - 1))
        return alpha - beta * turns.cos() + third * (2 * turns).cos()
    return apply


def as_it_is(input, *args, **kwargs):
    return input


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


def as_strided(input, size, stride, storage_offset=None):
    """torch.onnx takes what is viewed to lie in memory in the order of its dims: it is viewed in the order in which it lies."""
    own = input.storage_offset()
    order = sorted(range(input.dim()), key=lambda dim: (-input.stride(dim), -input.size(dim)))
    lying = input.permute(order)
    if not lying.is_contiguous() or (storage_offset or own) < own:
        raise NotExported(f"as_strided of a part of a tensor is not supported{place_of_call()}: clone() the part first")
    return torch.as_strided(lying if own == 0 else lying.clone(), size, stride, (own if storage_offset is None else storage_offset) - own)


def set_items(input, places, value):
    if isinstance(places, tuple) and places and is_mask_of(places[0], input) and all(map(is_plain, places[1:])):  # input[mask, :4] = value
        return set_items(input[(*[slice(None)] * places[0].dim(), *places[1:])], places[0], value)
    one = value.dim() == 0 if isinstance(value, torch.Tensor) else isinstance(value, (bool, int, float))
    if one and isinstance(places, torch.Tensor) and places.dtype is torch.bool:
        input.masked_fill_(places.view(places.shape + (1,) * (input.dim() - places.dim())), value)
    elif isinstance(places, torch.Tensor) and places.dtype is torch.bool and isinstance(value, torch.Tensor) and value.dim() <= input.dim() - places.dim():
        input.copy_(torch.where(places.view(places.shape + (1,) * (input.dim() - places.dim())), value.to(input.dtype), input))
    else:
        input[places] = value


def sort(input, dim=-1, descending=False, stable=False):
    """ONNX puts the first of equal numbers first, as a stable order does, and has no order of booleans."""
    if input.dtype is torch.bool:
        values, places = torch.sort(input.to(torch.int32), dim=dim, descending=descending)
        return torch.return_types.sort([values.bool(), places])
    return torch.sort(input, dim=dim, descending=descending)


def index_put(input, indices, values, accumulate=False):
    if len(indices) != 1 or not is_mask_of(indices[0], input) or accumulate or values.dim() > input.dim() - indices[0].dim():
        return torch.index_put(input, indices, values, accumulate)
    return torch.where(indices[0].view(indices[0].shape + (1,) * (input.dim() - indices[0].dim())), values, input)


def masked_select(input, mask):
    """The elements, as those of input[mask] are had."""
    values, wide = torch.broadcast_tensors(input, mask)
    mask = as_it_is_now(mask if mask.shape == wide.shape else wide)
    rows = mask.flatten()
    return noted(harmless(values.flatten(), rows), mask, rows)


def extreme(name):
    """Of all, too, of which torch.onnx asks for the dims."""
    own = getattr(torch, name)
    return lambda input, dim=(), keepdim=False: own(input, [*range(input.dim())] if dim in ((), [], None) else dim, keepdim)


def apart(joined, lengths):
    """Targets of ctc_loss that are joined to one dim, as rows: those that a mask selects of rows, at the front of these."""
    if hasattr(joined, "chosen") and joined.chosen[0].dim() == 2:
        mask = joined.chosen[0]
        rows = joined.view(mask.shape)
        order = torch.where(mask, 0, mask.shape[1]) + torch.arange(mask.shape[1])
        return rows.gather(1, order.sort(dim=1).indices)
    if free_unbacked_symbols(joined.shape[0]):
        raise NotExported(f"ctc_loss of targets that are joined to one dim, as many as values decide, is not supported{place_of_call()}: give them as [batch, length], padded")
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
def projected_lstm(input, states, weights, has_biases, layers, dropout, training, bidirectional, batch_first):
    """Of an LSTM with proj_size, which ONNX has not. It is one whose weights of the states take the projection in: its states are not projected, and its results
    are, afterwards. Projected states that it begins with are further numbers of the first step's input."""
    steps, directions, each, last = input.transpose(0, 1) if batch_first else input, 1 + bidirectional, 5 if has_biases else 3, []
    for layer in range(layers):
        if layer and dropout and training:
            steps = F.dropout(steps, dropout)
        of_layer = []
        for at in range(layer * directions, (layer + 1) * directions):
            of_input, of_states, *biases, projection = weights[at * each:(at + 1) * each]
            hidden, cell = (one[at:at + 1] for one in states)
            turned = steps.flip(0) if at % directions else steps
            begun = torch.cat([turned, F.pad(hidden, (0, 0, 0, 0, 0, len(steps) - 1))], -1)
            of_both = [torch.cat([of_input, of_states], 1), of_states @ projection, *biases]
            out, _, cell = torch.lstm(begun, (torch.zeros_like(cell), cell), of_both, has_biases, 1, 0.0, training, False, False)
            out = F.linear(out, projection)
            last.append((out[-1], cell[0]))
            of_layer.append(out.flip(0) if at % directions else out)
        steps = torch.cat(of_layer, -1)
    return steps.transpose(0, 1) if batch_first else steps, *(torch.stack(one) for one in zip(*last))


def at_least(dims):
    """Of so many dims, one tensor or several: torch.onnx writes these, and what joins them, as a graph for each."""
    def of_one(value):
        if dims == 3 and value.dim() == 1:
            return value[None, :, None]
        for _ in range(dims - value.dim()):
            value = value.unsqueeze(-1 if value.dim() == 2 else 0)
        return value

    def apply(*values):
        values = values[0] if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
        return of_one(values[0]) if len(values) == 1 and isinstance(values[0], torch.Tensor) else tuple(map(of_one, values))
    return apply


def side_by_side(dims):
    """Joined along the second dim, or that of their last one."""
    def apply(tensors):
        parts = at_least(dims)([*tensors])
        return joined([*parts], dims - 1 if dims == 3 else 0 if dims == 2 or parts[0].dim() == 1 else 1)
    return apply


def as_columns(tensors):
    return joined([one.reshape(-1, 1) if one.dim() < 2 else one for one in tensors], 1)


def along_diagonal(*tensors):
    parts, before = at_least(2)([*tensors]), 0
    whole, rows = sum(one.shape[1] for one in parts), []
    for one in parts:
        rows.append(F.pad(one, (before, whole - before - one.shape[1])))
        before = before + one.shape[1]
    return joined(rows, 0)


EQUIVALENTS = BY_ELIMINATION | {
    **{f"atleast_{count}d": at_least(count) for count in (1, 2, 3)}, "block_diag": along_diagonal, "column_stack": as_columns, "dstack": side_by_side(3), "hstack": side_by_side(1),
    "row_stack": side_by_side(2), "vstack": side_by_side(2),
    "__and__": bits_and, "__lshift__": shifted_left, "__or__": bits_or, "__rlshift__": lambda input, other: shifted_left(other, input),
    "__rrshift__": lambda input, other: shifted_right(other, input), "__rshift__": shifted_right, "__setitem__": set_items, "amax": extreme("amax"), "amin": extreme("amin"), "argsort": lambda *args, **kwargs: sort(*args, **kwargs)[1], "as_strided": as_strided,
    **{f"adaptive_max_pool{count}d": adaptive_max_pool(count) for count in (1, 2, 3)}, "adaptive_avg_pool3d": adaptive_avg_pool3d, "bincount": bin_count, "bitwise_and": bits_and, "bitwise_left_shift": shifted_left,
    "bitwise_or": bits_or, "bitwise_right_shift": shifted_right, "blackman_window": window(0.42, 0.5, 0.08), "cat": joined, "cdist": distances, "clamp": clamp, "clip": clamp,
    "coalesce": as_it_is, "combinations": combinations, "concat": joined, "concatenate": joined, "conv1d": conv1d, "conv2d": conv2d, "conv_transpose2d": conv_transpose2d, "copysign": copy_sign, "corrcoef": correlation, "cov": covariance, "ctc_loss": ctc_loss, "cummax": cumulated_extreme("cummax"),
    "cummin": cumulated_extreme("cummin"), "cumprod": cumulated_product, "digamma": digamma, "einsum": einsum, "embedding_bag": embedding_bag, "erfinv": inverse_of_erf,
    "fill_diagonal_": fill_diagonal, "fft_fftshift": fft_shift(0), "fft_ifftshift": fft_shift(1), "frexp": mantissa_and_exponent, "gaussian_nll_loss": gaussian_nll_loss, "hamming_window": window(0.54, 0.46),
    "hann_window": window(0.5, 0.5), "hypot": hypotenuse, "index_put": index_put, "index_put_": in_place(index_put), "index_reduce": index_reduce, "isin": is_in, "kthvalue": kth_value, "lgamma": log_gamma, "masked_scatter": masked_scatter,
    "masked_select": masked_select, "median": median, "multilabel_margin_loss": multilabel_margin_loss, "pdist": distances_within, "roll": roll,
    "scatter_reduce": scatter_reduce, "scatter_reduce_": in_place(scatter_reduce), "searchsorted": search_sorted, "signbit": sign_bit, "sort": sort, "sparse_coo_tensor": dense,
    "_sparse_mm": torch.matmul, "special_digamma": digamma, "special_erfinv": inverse_of_erf, "special_gammaln": log_gamma,
}
