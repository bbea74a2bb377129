"""What a mask chooses of a tensor, x[mask]: how much that is depends on values, which no file can hold. It is computed of all elements, and those
that are not chosen are left out where a sum, a mean or a loss is made of them, or where they are put back, y[mask] = …"""
import builtins
import contextlib
import functools
import math
import weakref

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils.weak import WeakIdKeyDictionary

from .errors import NotExported, place_of_call

POINTWISE = {"abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "atan2", "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or", "bool", "ceil", "celu", "clamp", "clamp_max",
             "clamp_min", "clip", "clone", "contiguous", "cos", "cosh", "detach", "digamma", "div", "double", "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "float", "floor", "floor_divide",
             "fmod", "ge", "gelu", "gt", "half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "int", "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "lgamma", "log", "log10",
             "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsigmoid", "long", "lt", "masked_fill", "maximum", "minimum", "mish", "mul",
             "nan_to_num", "ne", "neg", "pow", "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink",
             "softsign", "sqrt", "square", "sub", "tan", "tanh", "tanhshrink", "to", "true_divide", "trunc", "type_as", "where", "xlogy"}
POINTWISE |= {f"__{name}__" for name in ("abs", "add", "and", "div", "eq", "floordiv", "ge", "gt", "invert", "le", "lt", "mod", "mul", "ne", "neg", "or", "pow", "radd", "rdiv", "rmul", "rpow", "rsub",
                                         "rtruediv", "sub", "truediv")}
# Those that make no finite number, or no finite slope, of some that are.
STEEP = {name + end for name in ("acos", "addcdiv", "asin", "atan2", "cosh", "digamma", "div", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "linalg_norm", "linalg_vector_norm", "log2", "logit", "norm", "normalize", "pow", "reciprocal", "rsqrt", "sinh", "sqrt", "std", "tan", "true_divide", "xlogy")
         for end in ("", "_")}
STEEP |= {f"__{name}__" for name in ("div", "itruediv", "pow", "rdiv", "rpow", "rtruediv", "truediv")}
# Those of one dim or several, with the place of their argument that says so.
OF_DIMS = {"amax": 1, "amin": 1, "argmax": 1, "argmin": 1, "cosine_similarity": 2, "cumprod": 1, "cumsum": 1, "glu": 1, "linalg_norm": 2, "linalg_vector_norm": 2, "log_softmax": 1, "logsumexp": 1, "mean": 1, "norm": 2, "normalize": 2, "prod": 1,
           "softmax": 1, "softmin": 1, "std": 1, "sum": 1, "var": 1}
OF_ROWS = {"layer_norm", "linear", "rms_norm"}
OF_PLACES = {"embedding", "one_hot"}
OF_LABELS = {"cross_entropy", "nll_loss"}
LOSSES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss"}
OVER_ROWS = {"amax", "amin", "mean", "std", "sum", "var"}
REDUCTIONS = OVER_ROWS | {"max", "min", "norm"}


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


COPIES = WeakIdKeyDictionary()  # by mask, the one that was made of it last, with how often it was changed before; None of those themselves


def as_it_is_now(mask):
    """A copy of a mask, which forward may change in place after it has chosen by it: the same copy until then."""
    version, before = version_of(mask), COPIES.get(mask, (None, None))
    if mask.is_inference() or before is None:
        return mask
    if before[0] != version:
        copied = mask.clone()
        if hasattr(mask, "recipe") and mask.recipe[2] == version:
            copied.recipe = *mask.recipe[:2], version_of(copied)
        COPIES[mask], COPIES[copied] = (version, copied), None
    return COPIES[mask][1]


def same(one, other):
    one, other = (as_it_is_now(mask) if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool else mask for mask in (one, other))
    if one is other or not isinstance(one, torch.Tensor):
        return one is other or type(one) is type(other) and one == other
    if not (hasattr(one, "recipe") and hasattr(other, "recipe")) or any(mask.recipe[2] != version_of(mask) for mask in (one, other)):
        return False
    (name, args, _), (other_name, other_args, _) = one.recipe, other.recipe
    return name == other_name and len(args) == len(other_args) and all(
        same(a, b) and (a is not b or version == other_version) for (a, version), (b, other_version) in zip(args, other_args))


def choose(input, places):
    """input[places]; of a mask over the first dims all of their elements, [all, …], with the mask, [all]. Others may follow: input[mask, :4]."""
    if isinstance(places, tuple) and places and is_mask_of(places[0], input) and all(is_plain(place) for place in places[1:]):
        places, input = places[0], input[(*[slice(None)] * places[0].dim(), *places[1:])]
    if isinstance(places, tuple) and len(places) == 2 and input.dim() == 2 and is_all(places[0]) and is_mask_of(places[1], input[0]):  # edges of a graph
        mask = as_it_is_now(places[1])
        return noted(input.clone(), mask, mask, along=1)
    if not is_mask_of(places, input):
        return input[places]
    mask = as_it_is_now(places)
    return noted(harmless(input.flatten(0, mask.dim() - 1), mask.flatten()), mask, mask.flatten())


def places_of(mask):
    """Where it is true, by dim: of all elements, with the mask."""
    mask = as_it_is_now(mask) if mask.dtype is torch.bool else mask != 0
    each = torch.meshgrid(*(torch.arange(size, device=mask.device) for size in mask.shape), indexing="ij")
    return tuple(noted(one.flatten(), mask, mask.flatten()) for one in each)


def places_in_rows(mask):
    places = places_of(mask)
    return noted(torch.stack([*places], -1), *places[0].chosen)


def at_places(input, places, mask, rows):
    """input[places] where these are themselves of what a mask chooses; None where others are among them."""
    several = places if isinstance(places, tuple) else (places,)
    if not is_chosen(several[0]) or not all(is_chosen(place) and place.dtype in (torch.int64, torch.int32) and place.dim() == 1 or is_plain(place) for place in several):
        return None
    found = input[tuple(torch.where(rows, place, 0) if is_chosen(place) else place for place in several)]
    return noted(harmless(found, rows), mask, rows)


def is_one(size):
    return isinstance(size, int) and size == 1


def is_in_rows(input, places, mask):
    """Whether it is one element in each row that a mask chooses: logits[mask, labels[mask]]."""
    return (not is_chosen(input) and isinstance(places, tuple) and len(places) == 2 and same(places[0], mask) and is_mask_of(mask, input) and input.dim() == mask.dim() + 1
            and is_chosen(places[1]) and places[1].dim() == 1 and places[1].dtype in (torch.int64, torch.int32))


def in_rows(input, place, rows, value=None):
    """That element, or what becomes of it."""
    whole, place = input.flatten(0, -2), torch.where(rows, place, 0).unsqueeze(1)
    if value is None:
        return noted(harmless(whole.gather(1, place).squeeze(1), rows), rows, rows)
    chosen = (place == torch.arange(whole.shape[1], device=place.device)) & rows.unsqueeze(1)
    value = value.unsqueeze(1) if is_chosen(value) else torch.as_tensor(value)
    return input.copy_(torch.where(chosen, value.to(input.dtype), whole).view(input.shape))


def is_mask_of(places, input):
    return isinstance(places, torch.Tensor) and places.dtype is torch.bool and 0 < places.dim() and places.shape == input.shape[: places.dim()]


def is_all(place):
    return isinstance(place, slice) and place == slice(None)


def is_plain(place):
    return place is None or place is Ellipsis or isinstance(place, (int, slice)) and not isinstance(place, bool)


def harmless(whole, rows):
    """The same, with numbers in the rows that are not chosen of which all functions here make finite ones: a slope of 0 times infinity is none."""
    if not whole.is_floating_point():
        return whole.clone()
    return torch.where(widened(rows, whole), whole, 0.5)


def widened(rows, whole):
    return rows.view(rows.shape + (1,) * (whole.dim() - 1))


def noted(whole, mask, rows, along=0):
    whole.chosen, whole.along = (mask, rows), along
    return whole


def is_chosen(value):
    return isinstance(value, torch.Tensor) and hasattr(value, "chosen")


def leaves_of(args, kwargs):
    """Arguments, and what lists of tensors hold."""
    return [leaf for value in (*args, *kwargs.values()) for leaf in (value if isinstance(value, (list, tuple)) else [value])]


def of_chosen(func, name, args, kwargs):
    """What a function makes of arguments of which some are chosen."""
    flat = leaves_of(args, kwargs)
    mask, rows = next(value.chosen for value in flat if is_chosen(value))
    together = all(same(value.chosen[0], mask) for value in flat if is_chosen(value))
    whole = max((value for value in flat if is_chosen(value)), key=torch.Tensor.dim)
    others = [value for value in flat if isinstance(value, torch.Tensor) and not is_chosen(value)]
    first = args[0] if args else None
    known = of_shape(func, name, args, kwargs) if is_chosen(first) else NotImplemented
    if known is NotImplemented and name in ("cat", "concat", "concatenate") and args and not kwargs.keys() - {"dim"}:
        known = joined(first, last_dim(args, kwargs, 1, 0))
    if known is NotImplemented and any(is_chosen(value) and value.along for value in flat):
        known = of_columns(func, name, args, kwargs)
    if known is not NotImplemented:
        return known
    if name in ("argwhere", "nonzero") or name == "where" and len(args) == 1:
        raise NotExported(f"{name}() of elements that a mask chooses is not supported{place_of_call()}: choose once, by both masks (x[first & second])")
    if together and name in ("__getitem__", "__setitem__") and is_in_rows(first, args[1], mask):
        return in_rows(first, args[1][1], rows, *args[2:])
    if name == "__setitem__" and is_chosen(first) and is_chosen(args[1]) and args[1].dtype is torch.bool and args[1].dim() == 1 and not first.along:
        return of_fewer(first, *args[1:])
    if together and name == "__setitem__" and not is_chosen(first) and same(args[1], mask) and is_chosen(args[2]):
        wide = mask.view(mask.shape + (1,) * (first.dim() - mask.dim()))
        return first.copy_(torch.where(wide, args[2].view(first.shape).to(first.dtype), first))
    if name == "__setitem__" and is_chosen(first) and together and keeps_rows("__getitem__", first, args, kwargs) and all(value.dim() == 0 for value in others):
        return func(*args)
    if name in ("all", "any") and is_chosen(first) and len(args) == 1 and not kwargs:
        wide = widened(rows, first).expand_as(first)
        return (first.bool() | ~wide).all() if name == "all" else (first.bool() & wide).any()
    in_place = name.endswith("_") and not name.endswith("__") and is_chosen(first)  # of a tensor of its own
    if together and name in STEEP:
        if in_place:
            first.copy_(harmless(first, rows))
        mild = lambda value: noted(harmless(value, rows), mask, rows) if is_chosen(value) and not (in_place and value is first) else value  # noqa: E731
        args, kwargs = [mild(value) for value in args], {key: mild(value) for key, value in kwargs.items()}
        first = args[0]
    pointwise = name in POINTWISE or in_place and name[:-1] in POINTWISE or name in ("max", "min") and len(args) > 1 and isinstance(args[1], torch.Tensor)
    if together and pointwise and all(value.dim() < whole.dim() or value.dim() == whole.dim() and is_one(value.shape[0]) for value in others):
        return noted(func(*args, **kwargs), mask, rows)
    if together and name == "__getitem__":
        found = at_places(first, args[1], mask, rows) if not is_chosen(first) else fewer(first, args[1], rows) if is_chosen(args[1]) else None
        if found is not None:
            return found
    if together and name.rstrip("_") in ("index_add", "scatter_add") and not is_chosen(first) and not kwargs and args[1] % first.dim() == 0 and all(map(is_chosen, args[2:4])):
        zeros, place = torch.zeros_like(args[3]), torch.where(widened(rows, args[2]), args[2], 0)
        return func(first, args[1], place, torch.where(widened(rows, args[3]), args[3], zeros))
    if together and name == "__setitem__" and not is_chosen(first) and isinstance(args[1], tuple) and 1 < len(args[1]) <= first.dim() and all(is_places(place) for place in args[1]):
        return at_several(func, first, *args[1:], mask, rows)
    if together and name.rstrip("_") in ("scatter_reduce", "index_copy", "index_put", "index_reduce") or together and name == "__setitem__":
        found = beyond(func, name, args, kwargs, rows)
        if found is not None:
            return found
    if name in ("reshape", "view") and is_chosen(first) and not kwargs:
        sizes = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
        if isinstance(sizes[0], torch.SymInt) and COUNTS.get(key_of(sizes[0])) is rows:
            return noted(func(first, (rows.shape[0], *sizes[1:])), mask, rows)
    if together and name == "index_select" and not is_chosen(first) and not kwargs and args[1] % first.dim() == 0:
        found = at_places(first, args[2], mask, rows)
        if found is not None:
            return found
    if together and name == "expand_as" and all(map(is_chosen, args)):
        return noted(func(*args), mask, rows)
    if together and name == "dot" and all(map(is_chosen, args)):
        return torch.where(rows, args[0] * args[1], torch.zeros_like(args[0])).sum()
    if name in ("flatten", "reshape", "view") and is_chosen(first) and len(args) == 1 + (name != "flatten") and not kwargs and (name == "flatten" or args[1] in (-1, (-1,), [-1])):
        return noted(first.flatten(), mask, widened(rows, first).expand_as(first).flatten())
    if together and is_chosen(first) and (keeps_rows(name, first, args, kwargs) or name == "gather" and is_chosen(args[2]) and args[1] % first.dim()):
        if name in OF_PLACES or name == "gather":
            args = [torch.where(widened(rows, value), value, 0) if is_chosen(value) and not value.is_floating_point() else value for value in args]
        return noted(func(*args, **kwargs), mask, rows)
    if together and name in ("cat", "concat", "concatenate", "stack") and not others:
        dim = last_dim(args, kwargs, 1, 0)
        if dim % (whole.dim() + (name == "stack")):
            return noted(func([value.clone() for value in first], dim), mask, rows)
    if name in REDUCTIONS and is_chosen(first) and first.is_floating_point() and sum(isinstance(value, torch.Tensor) for value in flat) == 1:
        dim, keepdim = kwargs.get("dim") if name == "norm" else last_dim(args, kwargs, 1), kwargs.get("keepdim", False)
        rest = [*args[1 if name == "norm" else 2:], *(value for key, value in kwargs.items() if key not in ("dim", "keepdim") and value not in (None, "fro"))]
        if not rest and (dim is None and not keepdim or dim == 0 and type(dim) is int and name in OVER_ROWS):
            return reduced(first, rows, name, dim, keepdim)
    if name == "numel":
        return counted(widened(rows, first).expand_as(first).sum(), None)
    weighs = name in OF_LABELS and len(others) == 1 and kwargs.get("weight") is others[0]
    weighs = weighs or name in LOSSES and all(value.dim() < whole.dim() for value in others) and is_chosen(first) and is_chosen(args[1] if len(args) > 1 else None)
    if together and name in OF_LABELS | LOSSES and (weighs or not others) and len(args) <= 2:
        return loss(func, name, args, kwargs, mask, rows)
    if in_place or name == "__setitem__" and is_chosen(first):
        raise NotExported(f"{name}() on elements that a mask chooses is not supported{place_of_call()}: compute it without changing them in place, or by torch.where")
    return func(*map(really, args), **{key: really(value) for key, value in kwargs.items()})


def really(value):
    """What is chosen itself."""
    if is_chosen(value):
        return value[:, value.chosen[1]] if value.along else value[value.chosen[1]]
    return type(value)(map(really, value)) if type(value) in (list, tuple) else value


ATTRIBUTES = {"device", "dtype", "is_cuda", "is_sparse", "layout", "ndim", "requires_grad"}
MAKES = {"full", "new_full", "new_ones", "new_zeros", "ones", "zeros"}
KINDS = {"data_ptr", "dim", "get_device", "is_complex", "is_contiguous", "is_floating_point", "ndimension", "untyped_storage"}
IS_SOME = []  # not empty while masks are taken to choose something
COUNTS = weakref.WeakValueDictionary()  # by how many they are, which is a name to the tracer, the rows that are chosen


def of_shape(func, name, args, kwargs):
    """What is asked of the shape and the type of what is chosen, or made like it."""
    first = args[0]
    if name in KINDS or name == "__get__" and func.__self__.__name__ in ATTRIBUTES:
        return func(*args, **kwargs)
    if name == "size" or name == "__get__" and func.__self__ is torch.Tensor.shape:
        dim = last_dim(args, kwargs, 1) if name == "size" else None
        if dim is not None and dim % first.dim() != first.along:
            return first.shape[dim]
        sizes = [count_of(*first.chosen) if at == first.along else size for at, size in enumerate(first.shape)]
        return torch.Size(sizes) if dim is None else sizes[dim]
    return func(*args, **kwargs) if name in MAKES else NotImplemented


def count_of(mask, rows):
    if not hasattr(rows, "count"):
        rows.count = rows.nonzero().shape[0]
        if mask is not rows:
            rows.mask = mask
        if isinstance(rows.count, torch.SymInt):
            COUNTS[key_of(rows.count)] = rows
            if IS_SOME:
                torch._check(rows.count > 0)
    return rows.count


def key_of(size, expression=None):
    return id(size.node.shape_env), str(size.node.expr if expression is None else expression)


def counted(count, rows):
    """A tensor that says how many elements are chosen, or `rows` of them."""
    count.counted, count.of = True, rows
    return count


@contextlib.contextmanager
def lengths_of_chosen():
    """len(x) of what is chosen is a tensor, of which Python would make a number; and so are max(1, n) and min(1, n) of a tensor."""
    length, own = builtins.len, {"max": builtins.max, "min": builtins.min}

    def length_of(value):
        return counted(value.chosen[1].sum(), value.chosen) if is_chosen(value) and not value.along else length(value)

    def extreme(name, bound):
        def apply(*values, **options):
            tensors = [value for value in values if isinstance(value, torch.Tensor) and not value.dim() and value.dtype is not torch.bool]
            numbers = [value for value in values if isinstance(value, (int, float))]
            return tensors[0].clamp(**{bound: numbers[0]}) if tensors and numbers and length(values) == 2 and not options else own[name](*values, **options)
        return apply

    builtins.len, builtins.max, builtins.min = length_of, extreme("max", "min"), extreme("min", "max")
    try:
        yield
    finally:
        builtins.len, builtins.max, builtins.min = length, own["max"], own["min"]


@contextlib.contextmanager
def choosing_some():
    """Sizes of what is chosen are not zero, which forward asks."""
    IS_SOME.append(True)
    try:
        yield
    finally:
        IS_SOME.pop()


ARITHMETIC = {"add", "div", "floordiv", "mul", "rdiv", "rmul", "rsub", "rtruediv", "sub", "true_divide", "truediv"}


def by_counts(args):
    """The arguments, with sizes that are how many elements are chosen as tensors."""
    return [number_of(arg) if isinstance(arg, torch.SymInt) else arg for arg in args]


def number_of(size):
    found = {str(symbol): COUNTS.get(key_of(size, symbol)) for symbol in free_unbacked_symbols(size)}
    if not found or any(rows is None for rows in found.values()):
        return size
    extreme = lambda by: lambda *values: functools.reduce(by, map(torch.as_tensor, values))  # noqa: E731
    names = {name: rows.sum() for name, rows in found.items()} | dict(Max=extreme(torch.maximum), Min=extreme(torch.minimum))
    return eval(str(size.node.expr), {}, names)


def as_many(func, name, args, kwargs):
    """A tensor of as many rows as are chosen elsewhere, which are of all then; None of others."""
    at = 1 if name.startswith("new_") else 0
    if len(args) <= at or "size" in kwargs:
        return None
    several = isinstance(args[at], (tuple, list))
    sizes = [*args[at]] if several else [*args[at:]]
    first = sizes[0] if sizes else None
    rows = COUNTS.get(key_of(first)) if isinstance(first, torch.SymInt) else None
    mask, rows = (None if rows is None else getattr(rows, "mask", rows), rows) if not getattr(first, "counted", False) else first.of or (None, None)
    if rows is None:
        return None
    rest = args[at + 1:] if several else ()
    return noted(func(*args[:at], (rows.shape[0], *sizes[1:]), *rest, **kwargs), mask, rows)


def joined(parts, dim):
    """Rows that are chosen and others, one after the other along their dim."""
    chosen = [part for part in parts if is_chosen(part)]
    count = chosen[0].dim()
    if any(part.dim() != count for part in parts) or any(dim % count != part.along for part in chosen):
        return NotImplemented
    each = [part.chosen if is_chosen(part) else (part.shape[dim], torch.ones(part.shape[dim], dtype=torch.bool, device=part.device)) for part in parts]
    rows = torch.cat([rows for _, rows in each])
    rows.recipe = "cat", [(mask, version_of(mask)) for mask, _ in each], version_of(rows)
    return noted(torch.cat([part.clone() for part in parts], dim), rows, rows, along=dim % count)


def of_columns(func, name, args, kwargs):
    """What is made of a matrix of which columns are chosen: its rows, and matrices of the same columns."""
    first = args[0] if args else None
    alone = is_chosen(first) and not any(is_chosen(value) for value in args[1:])
    if name == "sparse_coo_tensor":
        bound = dict(zip(("indices", "values", "size"), args)) | kwargs
        places, values = bound["indices"], torch.as_tensor(bound["values"])
        if is_chosen(places) and is_chosen(values) and same(values.chosen[0], places.chosen[0]):
            rows, zeros = places.chosen[1], torch.zeros_like(values)
            return func(**bound | {"indices": torch.where(rows, places, 0), "values": torch.where(widened(rows, values), values, zeros)})
    if not alone:
        return func(*map(really, args), **{key: really(value) for key, value in kwargs.items()})
    if name == "__getitem__" and isinstance(args[1], int) or name == "select" and args[1] == 0 and not kwargs:
        return noted(func(*args), *first.chosen)
    if name == "unbind" and last_dim(args, kwargs, 1, 0) == 0:
        return tuple(noted(row, *first.chosen) for row in func(*args, **kwargs))
    if name in ("clone", "contiguous", "detach", "int", "long", "to") or name == "flip" and args[1:] in ((0,), ([0],), ((0,),)):
        return noted(func(*args, **kwargs), *first.chosen, along=1)
    return func(*map(really, args), **{key: really(value) for key, value in kwargs.items()})


def beyond(func, name, args, kwargs, rows):
    """Into a tensor, by the places and with the values of what is chosen: all others are put into a row behind it, which is left out."""
    input = args[0]
    if name == "__setitem__" or name.startswith("index_put"):
        place, source, *rest = args[1:]
        place = place[0] if isinstance(place, (tuple, list)) and len(place) == 1 else place
        dim, given = 0, lambda place, source: (place if name == "__setitem__" else (place,), source, *rest)
    else:
        dim, place, source, *rest = args[1:]
        dim, given = dim % input.dim(), lambda place, source: (dim, place, source, *rest)
    if dim or is_chosen(input) or not is_chosen(place) or place.dtype not in (torch.int64, torch.int32) or isinstance(source, torch.Tensor) and source.dim() and not is_chosen(source):
        return None
    wide = torch.cat([input, input.narrow(dim, 0, 1)], dim)
    place = torch.where(widened(rows, place), place, input.shape[dim])
    source = torch.where(widened(rows, source), source, torch.zeros_like(source)) if is_chosen(source) else source
    out = func(wide, *given(place, source), **kwargs)
    out = (wide if name == "__setitem__" else out).narrow(dim, 0, input.shape[dim])
    return input.copy_(out) if name == "__setitem__" or name.endswith("_") else out


def is_places(value):
    return is_chosen(value) and value.dtype in (torch.int64, torch.int32) and value.dim() == 1


def at_several(func, input, places, value, mask, rows):
    """input[a, b] = value, where a mask chooses the places: into all its elements in one row."""
    place = 0
    for size, one in zip(input.shape, places):
        place = place * size + torch.where(one < 0, one + size, one)
    flat = input.flatten(0, len(places) - 1).clone()
    flat = beyond(func, "__setitem__", (flat, noted(place, mask, rows), value), {}, rows)
    return func(input, *map(really, (places, value))) if flat is None else input.copy_(flat.view(input.shape))


def fewer(whole, mask, rows):
    """whole[mask] of what another mask chooses, as this one is."""
    if mask.dtype is not torch.bool or mask.shape != whole.shape[: mask.dim()]:
        return None
    left = (widened(rows, mask) & mask).flatten()
    return noted(harmless(whole.flatten(0, mask.dim() - 1), left), mask, left)


def of_fewer(whole, mask, value):
    """whole[mask] = value of what another mask chooses, as this one is."""
    of_whole, of_mask = whole.chosen[0], mask.chosen[0]
    if not same(of_whole, of_mask) or isinstance(value, torch.Tensor) and (not same(value.chosen[0], mask) if is_chosen(value) else value.dim() >= whole.dim()):
        raise NotExported(f"x[mask] = … of elements that another mask chooses is not supported{place_of_call()}: choose once, by both masks, or by torch.where")
    value = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    return whole.copy_(torch.where(widened(mask, whole), value.to(whole.dtype), whole))


def last_dim(args, kwargs, at, otherwise=None):
    return kwargs.get("dim", args[at] if len(args) > at else otherwise)


def keeps_rows(name, whole, args, kwargs):
    """Whether what it makes of a row is a row, whatever the others are."""
    count = whole.dim()
    if name in OF_PLACES:
        return True
    if name in OF_DIMS and count > 1:
        dim = last_dim(args, kwargs, OF_DIMS[name], {"normalize": 1, "cosine_similarity": 1, "glu": -1}.get(name))
        dims = [dim] if isinstance(dim, int) and not isinstance(dim, bool) else dim if isinstance(dim, (list, tuple)) else []
        return bool(dims) and all(one % count for one in dims)
    if name == "pad":
        return len(args[1]) < 2 * count and len(args) + len(kwargs) < 5
    if name in ("matmul", "__matmul__"):
        return count > 1 and not is_chosen(args[1]) and args[1].dim() <= 2
    if name == "unsqueeze":
        return last_dim(args, kwargs, 1) not in (0, -count - 1)
    if name == "squeeze":
        return count > 1 and last_dim(args, kwargs, 1) in (-1, *range(1, count))
    if name in ("reshape", "view"):
        sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        inner = sizes[1:]
        return len(sizes) > 1 and all(isinstance(size, int) and size > 0 for size in inner) and sizes[0] == -1 and math.prod(inner) == math.prod(whole.shape[1:])
    if name == "flatten":
        return count > 1 and (kwargs.get("start_dim") == 1 or args[1:] in ((1,), [1]))
    if name == "__getitem__":
        places = args[1] if isinstance(args[1], tuple) else (args[1],)
        return places[0] == slice(None) if len(places) > 1 and is_plain(places[0]) and places[0] is not Ellipsis and all(map(is_plain, places)) else (
            places[0] is Ellipsis and len(places) == 2 and (count > 1 or places[1] is None) and is_plain(places[1]))
    return name in OF_ROWS and count > 1


def reduced(whole, rows, reduction, dim=None, keepdim=False):
    wide = widened(rows, whole).expand_as(whole)
    over = [*range(whole.dim())] if dim is None else [dim]
    if reduction in ("amax", "amin", "max", "min"):
        end = reduction[-3:]
        return getattr(torch.where(wide, whole, -torch.inf if end == "max" else torch.inf), f"a{end}")(over, keepdim)
    total, count = torch.where(wide, whole, torch.zeros_like(whole)), wide.sum(over, keepdim)
    if reduction == "norm":
        return total.norm()
    if reduction in ("std", "var"):
        off = torch.where(wide, whole - total.sum(over, True) / wide.sum(over, True), torch.zeros_like(whole))
        spread = off.square().sum(over, keepdim) / (count - 1)
        return spread if reduction == "var" else spread.sqrt()
    total = total.sum(over, keepdim)
    return total if reduction == "sum" else total / count


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
    if reduction == "batchmean":
        return reduced(each, rows, "sum") / rows.sum()
    return noted(each, mask, rows) if reduction == "none" else reduced(each, rows, reduction)
