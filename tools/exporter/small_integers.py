"""Arithmetic of integers of 8 and 16 bits, which plans do not have: it is that of 32 bits, of which the lowest are taken, as PyTorch takes them."""
import functools

import torch

BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16}
WRAPS = {"add", "sub", "rsub", "mul", "floor_divide", "floordiv", "rfloordiv", "remainder", "mod", "rmod", "fmod", "pow", "neg", "abs", "square", "xor", "rxor", "bitwise_xor", "invert", "bitwise_not",
         "bitwise_and", "and", "rand", "bitwise_or", "or", "ror", "lshift", "rshift", "bitwise_left_shift", "bitwise_right_shift", "radd", "rmul", "true_divide", "div", "clamp", "maximum", "minimum"}


def plain_name(name):
    """Of add, add_, __add__ and __iadd__ the first, and whether it changes its argument."""
    inner = name.strip("_")
    within = name.startswith("__i") and inner[1:] in WRAPS
    return (inner[1:] if within else inner), within or name.endswith("_") and not name.startswith("__")


def of_small_integers(func, name, args, kwargs):
    """What a function makes of integers of a few bits; None of others."""
    name, in_place = plain_name(name)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if name not in WRAPS or kwargs.keys() - {"rounding_mode", "min", "max", "alpha"} or not any(arg.dtype in BITS for arg in tensors) or any(arg.is_floating_point() or arg.is_complex() for arg in tensors):
        return None
    wide = [arg.to(torch.int32) if isinstance(arg, torch.Tensor) and arg.dtype in BITS else arg for arg in args]
    out = func(*(one.clone() if in_place and at == 0 else one for at, one in enumerate(wide)), **kwargs)
    dtype = args[0].dtype if in_place else functools.reduce(torch.result_type, args) if len(args) > 1 and not any(arg is None for arg in args) else args[0].dtype
    if dtype in BITS and not out.is_floating_point():
        out = lowest_bits(out, dtype)
    elif dtype not in BITS and not out.is_floating_point():
        out = out.to(dtype)
    return args[0].copy_(out) if in_place else out


def lowest_bits(value, dtype):
    size = 1 << BITS[dtype]
    middle = 0 if dtype is torch.uint8 else size // 2
    return (torch.remainder(value + middle, size) - middle).to(dtype)
