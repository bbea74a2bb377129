"""Packed sequences: how many elements they have depends on lengths, which are values, and no file can hold that. The tracer gets all sequences as long
as they were given, with a mask of the steps that count, as x[mask] is had."""
import contextlib

import torch
import torch.nn.functional as F
from torch.nn.utils import rnn

from .errors import NotExported
from .selection import harmless, noted, widened, with_recipe

CELLS = {name: getattr(torch, f"{name}_cell") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


@contextlib.contextmanager
def packed_whole():
    """pack_padded_sequence leaves nothing out. Modules hold the function by a name of their own: it gets other code."""
    checks = [(kind, kind.check_forward_args) for kind in (torch.nn.RNNBase, torch.nn.LSTM)]
    code, rnn.pack_whole = rnn.pack_padded_sequence.__code__, pack_whole
    rnn.pack_padded_sequence.__code__ = of_rnn.__code__
    for kind, _ in checks:  # of sizes, by numbers that the tracer has as names
        kind.check_forward_args = lambda *_: None
    try:
        yield
    finally:
        rnn.pack_padded_sequence.__code__ = code
        del rnn.pack_whole
        for kind, check in checks:
            kind.check_forward_args = check


def of_rnn(input, lengths, batch_first=False, enforce_sorted=True):
    """The code that pack_padded_sequence gets, whose names are those of its file."""
    return pack_whole(input, lengths, batch_first)  # noqa: F821


def pack_whole(input, lengths, batch_first):
    steps = input.transpose(0, 1) if batch_first else input
    count, batch = steps.shape[:2]
    counts = torch.as_tensor(lengths)
    mask = with_recipe(torch.arange(count)[:, None] < counts, "packed", (lengths, count))
    sizes = torch.zeros(count, dtype=torch.int64)
    sizes.packed = batch, counts, mask
    return rnn.PackedSequence(chosen_of(steps, mask), sizes)


def chosen_of(steps, mask):
    rows = mask.flatten()
    return noted(harmless(steps.flatten(0, 1), rows), mask, rows)


def is_packed(value):
    return isinstance(value, torch.Tensor) and hasattr(value, "packed")


def of_packed(name, args):
    """What functions make of the sizes of such a sequence, and those that take both; None of others."""
    if name == "__getitem__" and args[1] == 0:
        return args[0].packed[0]
    if name in CELLS:
        return recurrent(name, *args)
    return padded(*args) if name == "_pad_packed_sequence" else None


def steps_of(data, sizes):
    batch, _, mask = sizes.packed
    return data.unflatten(0, (len(sizes), batch)), mask


def padded(data, sizes, batch_first, padding_value, total_length):
    steps, mask = steps_of(data, sizes)
    steps = torch.where(widened(mask.flatten(), data).unflatten(0, mask.shape), steps, padding_value)
    steps = F.pad(steps, (0, 0) * (steps.dim() - 1) + (0, total_length - len(sizes)), value=padding_value)
    return steps.transpose(0, 1) if batch_first else steps, sizes.packed[1]


def recurrent(name, data, sizes, states, weights, has_biases, layers, dropout, training, bidirectional):
    """Step by step: behind its end, a sequence keeps its state, and from there it begins in the other direction."""
    steps, mask = steps_of(data, sizes)
    states, directions, each = states if name == "lstm" else (states,), 1 + bidirectional, 4 if has_biases else 2
    if len(weights) != each * layers * directions:
        raise NotExported("forward gives packed sequences to an LSTM with proj_size, which projects its states: that is not supported. Give it the padded tensor, "
                          "or leave proj_size out")
    last = []
    for layer in range(layers):
        if layer and dropout and training:
            steps = F.dropout(steps, dropout)
        of_layer = []
        for at in range(layer * directions, (layer + 1) * directions):
            state, out = [one[at] for one in states], [None] * len(sizes)
            for k in range(len(sizes)) if at % directions == 0 else reversed(range(len(sizes))):
                counts = mask[k].unsqueeze(-1)
                found = CELLS[name](steps[k], state if name == "lstm" else state[0], *weights[at * each:(at + 1) * each])
                state = [torch.where(counts, new, old) for new, old in zip(found if name == "lstm" else [found], state)]
                out[k] = state[0]
            of_layer.append(torch.stack(out))
            last.append(state)
        steps = torch.cat(of_layer, -1)
    return chosen_of(steps, mask), *(torch.stack(one) for one in zip(*last))
