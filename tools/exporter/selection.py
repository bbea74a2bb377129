"""What a mask chooses of a tensor, x[mask]: how much that is depends on values, which no file can hold. It is computed of all elements, and those
that are not chosen are left out where a sum, a mean or a loss is made of them, or where they are put back, y[mask] = …"""
import torch

from .errors import NotExported

POINTWISE = {"abs", "add", "clamp", "clip", "detach", "div", "double", "eq", "exp", "float", "ge", "gelu", "gt", "le", "leaky_relu", "log", "log1p", "logsigmoid",
             "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal", "relu", "rsqrt", "rsub", "sigmoid", "silu", "softplus", "sqrt", "square", "sub",
             "tanh", "to", "true_divide", "type_as", "where"}
POINTWISE |= {f"__{name}__" for name in ("abs", "add", "div", "eq", "ge", "gt", "le", "lt", "mul", "ne", "neg", "pow", "radd", "rdiv", "rmul", "rpow", "rsub",
                                         "rtruediv", "sub", "truediv")}
# Those that make no finite number, or no finite slope, of some that are.
STEEP = {name + end for name in ("div", "exp", "log", "log1p", "pow", "reciprocal", "rsqrt", "sqrt", "true_divide") for end in ("", "_")}
STEEP |= {f"__{name}__" for name in ("div", "itruediv", "pow", "rdiv", "rpow", "rtruediv", "truediv")}
OF_ROWS = {"amax", "layer_norm", "linear", "log_softmax", "logsumexp", "mean", "softmax", "sum"}  # of the last dim
OF_LABELS = {"cross_entropy", "nll_loss"}
LOSSES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"}


COMPARES = {"eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or", "lt", "ne"}
COMPARES |= {f"__{name}__" for name in ("and", "eq", "ge", "gt", "invert", "le", "lt", "ne", "or")}


def with_recipe(out, name, args):
    """A mask with what it was made of, by which two that are written twice, y[x > 0] and z[x > 0], are known to be the same."""
    if isinstance(out, torch.Tensor) and out.dtype is torch.bool:
        out.recipe = name, [(arg, version_of(arg)) for arg in args], version_of(out)
    return out


def version_of(value):
    """How often it was changed in place; of a tensor that does not count that, what equals nothing."""
    if not isinstance(value, torch.Tensor):
        return None
    return object() if value.is_inference() else value._version


def same(one, other):
    if one is other or not isinstance(one, torch.Tensor):
        return one is other or type(one) is type(other) and one == other
    if not (hasattr(one, "recipe") and hasattr(other, "recipe")) or any(mask.recipe[2] != version_of(mask) for mask in (one, other)):
        return False
    (name, args, _), (other_name, other_args, _) = one.recipe, other.recipe
    return name == other_name and len(args) == len(other_args) and all(
        same(a, b) and (a is not b or version == other_version) for (a, version), (b, other_version) in zip(args, other_args))


def choose(input, places):
    """input[places]; of a mask over the first dims all of their elements, [all, …], with the mask, [all]."""
    is_mask = isinstance(places, torch.Tensor) and places.dtype is torch.bool and 0 < places.dim() and places.shape == input.shape[: places.dim()]
    if not is_mask:
        return input[places]
    return noted(harmless(input.flatten(0, places.dim() - 1), places.flatten()), places, places.flatten())


def harmless(whole, rows):
    """The same, with numbers in the rows that are not chosen of which all functions here make finite ones: a slope of 0 times infinity is none."""
    if not whole.is_floating_point():
        return whole.clone()
    return torch.where(widened(rows, whole), whole, 0.5)


def widened(rows, whole):
    return rows.view(rows.shape + (1,) * (whole.dim() - 1))


def noted(whole, mask, rows):
    whole.chosen = mask, rows
    return whole


def is_chosen(value):
    return isinstance(value, torch.Tensor) and hasattr(value, "chosen")


def of_chosen(func, name, args, kwargs):
    """What a function makes of arguments of which some are chosen."""
    flat = [*args, *kwargs.values()]
    mask, rows = next(value.chosen for value in flat if is_chosen(value))
    together = all(same(value.chosen[0], mask) for value in flat if is_chosen(value))
    whole = max((value for value in flat if is_chosen(value)), key=torch.Tensor.dim)
    others = [value for value in flat if isinstance(value, torch.Tensor) and not is_chosen(value)]
    first = args[0] if args else None
    if together and name == "__setitem__" and not is_chosen(first) and same(args[1], mask) and is_chosen(args[2]):
        wide = mask.view(mask.shape + (1,) * (first.dim() - mask.dim()))
        return first.copy_(torch.where(wide, args[2].view(first.shape).to(first.dtype), first))
    in_place = name.endswith("_") and not name.endswith("__") and is_chosen(first)  # of a tensor of its own
    if together and name in STEEP:
        if in_place:
            first.copy_(harmless(first, rows))
        mild = lambda value: noted(harmless(value, rows), mask, rows) if is_chosen(value) and not (in_place and value is first) else value  # noqa: E731
        args, kwargs = [mild(value) for value in args], {key: mild(value) for key, value in kwargs.items()}
    if together and (name in POINTWISE or in_place and name[:-1] in POINTWISE) and all(value.dim() < whole.dim() for value in others):
        return noted(func(*args, **kwargs), mask, rows)
    if together and name in OF_ROWS and is_chosen(first) and first.dim() > 1 and (name in ("layer_norm", "linear") or last_dim(args, kwargs) in (-1, first.dim() - 1)):
        return noted(func(*args, **kwargs), mask, rows)
    if name in ("mean", "sum") and is_chosen(first) and len(args) == 1 and not kwargs:
        return reduced(first, rows, name)
    weighs = name in OF_LABELS and len(others) == 1 and kwargs.get("weight") is others[0]
    if together and name in OF_LABELS | LOSSES and (weighs or not others) and len(args) <= 2:
        return loss(func, name, args, kwargs, mask, rows)
    if in_place:
        raise NotExported(f"{name}() on elements that a mask chooses is not supported: compute it without changing them in place, or by torch.where")
    really = lambda value: value[value.chosen[1]] if is_chosen(value) else value  # noqa: E731
    return func(*map(really, args), **{key: really(value) for key, value in kwargs.items()})


def last_dim(args, kwargs):
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


def reduced(whole, rows, reduction):
    wide = widened(rows, whole).expand_as(whole)
    total = torch.where(wide, whole, torch.zeros_like(whole)).sum()
    return total if reduction == "sum" else total / wide.sum()


def loss(func, name, args, kwargs, mask, rows):
    if name in OF_LABELS:
        bound = dict(zip(("input", "target"), args)) | kwargs
        target, ignored = bound["target"], bound.get("ignore_index", -100)
        wide = widened(rows, target)
        if not target.is_floating_point():
            out = func(**bound | {"target": torch.where(wide, target, ignored)})
            return noted(out, mask, rows) if bound.get("reduction") == "none" else out
    reduction = kwargs.get("reduction", "mean")
    each = func(*args, **kwargs | {"reduction": "none"})
    return noted(each, mask, rows) if reduction == "none" else reduced(each, rows, reduction)
