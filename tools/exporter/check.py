"""Trains the file for one step by Piper and the module by PyTorch, and compares the loss, each gradient and each buffer."""
import copy
import math
import pathlib
import subprocess
import tempfile

import torch
import torch.nn.attention
from torch.utils import _pytree as pytree

from .arguments import find_loss, output_names, tensors_of
from .errors import Differs, NotExported, first_line
from .kept import are_equal, copy_of
from .programs import evaluate_in_piper, loss_of_file, train_in_piper
from .watching import Quiet, Asked, Watch, experts_in_batches, quietly

# Between a tensor of Piper's step and of PyTorch's, of the largest number in it. Files hold their constants in float32.
BOUND = {torch.float64: 1e-4, torch.float32: 2e-3, None: 3e-2}  # None: of the types that the module has, some of 16 bits
ROUNDINGS = 10  # of those that PyTorch shows: what Piper rounds otherwise
NUDGES = 1 + 2**-20, 1 - 2**-21


def compare_with_pytorch(job, path, tools):
    """What is to be said of the file that `job` has written to `path`; Differs where it trains another model."""
    said = compare_training(job, path, tools)
    if job.loss is None or not any(part.training for part in job.module.modules()):
        return said
    with tempfile.TemporaryDirectory() as folder:
        return said + compare_evaluation(job, path, tools, pathlib.Path(folder))


def compare_evaluation(job, path, tools, folder):
    """What is to be said where plans of the file evaluate otherwise than the module does after eval(), which may take other ways in forward."""
    name = type(job.module).__name__
    for dtype in (torch.float64, torch.float32):  # in one of which it may not run, or round otherwise
        try:
            with Watch() as watch, Asked():  # what it draws: its results are those of the exporter's own functions, which are not compared with themselves
                evaluated(job, dtype)
            out = evaluated(job, dtype)
            leaves = pytree.tree_leaves(out)
            at = find_loss(leaves, output_names(out))
            wanted = None if at is None else leaves[at].item()
            loss = evaluate_in_piper(tools, path, folder, batch_of(job), job.size, dtype is torch.float64)
        except NotExported as error:
            return f"\n  it cannot be evaluated: {error}"
        except Exception as error:
            said = f"\n  its evaluation is not compared: after eval(), {name} does not run on these arguments ({first_line(error)})"
            continue
        if watch.draws or watch.dropout:
            return f"\n  its evaluation is not compared: after eval(), {name} draws random numbers, too, which piperc --eval replaces by their mean"
        if wanted is None:
            return f"\n  its evaluation is not compared: after eval(), {name} returns no loss"
        if abs(loss - wanted) <= BOUND[dtype] * abs(wanted) or not math.isfinite(wanted):
            return ""
        said = (f"\n  warning: piperc --eval evaluates another model than {name} is after eval(): its loss is {loss:.6g}, that of PyTorch {wanted:.6g}. "
                "Training is not concerned. To evaluate, export it with training=False, too, and load by --init what was trained")
    return said


def evaluated(job, dtype):
    """What a copy of the module returns after eval()."""
    module, args, kwargs = widened(job, dtype)
    with quietly(), torch.set_grad_enabled(bool(job.watch.gradients)), experts_in_batches(module), by_definition():
        return tensors_of(module.eval()(*args, **kwargs))


def batch_of(job):
    return {f"batch/0/{name}": value for name, value in job.inputs.items()}


def widened(job, dtype):
    """A copy of the module, and its arguments, with floats of that type, or of their own (None)."""
    module = copy_of(job.module)
    for norm in module.modules():  # that of the type of its input, which is another one here
        if isinstance(norm, torch.nn.RMSNorm) and norm.eps is None:
            norm.eps = torch.finfo(norm.weight.dtype if norm.weight is not None else torch.get_default_dtype()).eps

    def widen(leaf):
        if isinstance(leaf, torch.Tensor) and dtype is None:
            return leaf.detach().clone()
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        return leaf.detach().to(dtype.to_complex() if leaf.is_complex() else dtype)  # of complex numbers, module.to(dtype) keeps the real parts

    def own(leaf):  # forward may write into its inputs
        return widen(leaf.detach().clone()) if isinstance(leaf, torch.Tensor) else leaf

    return module._apply(widen), *pytree.tree_map(own, (job.args, job.kwargs))


def types_of(module):
    """Those of its floats."""
    return {value.dtype for value in (*module.parameters(), *module.buffers()) if value.is_floating_point()}


def by_definition():
    """Attention not by the fused kernels, whose gradients of rows that a mask of large numbers hides are those of rounding errors."""
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def compare_training(job, path, tools):
    if job.loss is None:
        done = subprocess.run([tools / "piperc", path, "--describe"], capture_output=True, text=True)
        if done.returncode:
            raise NotExported(f"piperc does not read {path}:\n{done.stderr.strip()}")
        return "  read back; nothing is compared without a loss"
    if job.watch.draws:
        return f"  not compared with PyTorch: forward draws numbers of its own ({', '.join(sorted(job.watch.draws))})"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if job.watch.dropout:
            twin = copy.copy(job)
            twin.quiet, path = True, folder / "model.onnx"
            twin.write(path)
        where = ", with its dropout off" if job.watch.dropout else ""
        try:
            step = agree_on_a_step(job, tools, path, folder, torch.float64)
        except Exception as error:  # forward's own, or a difference: where it makes tensors of float32 it may not run in float64, or round there
            if isinstance(error, NotExported) and not isinstance(error, Differs):
                raise
            try:
                step = agree_on_a_step(job, tools, path, folder, torch.float32)
                where += ", in float32, in which forward computes also where its parameters are float64"
            except Differs as second:
                raise (error if isinstance(error, Differs) else second) from None
            except NotExported:
                if len(types_of(job.module)) < 2:
                    raise
                step = agree_on_a_step(job, tools, path, folder, None)
                where += ", in the types that the parameters of its parts have"
    return f"  one step of Piper is one of PyTorch{where}: {step}"


class Step:
    """One step of PyTorch: the loss, the gradient of each parameter that has one, by its first name, and what
    buffers become, and frozen parameters that forward changes."""

    def __init__(self, job, dtype, nudge=1.0):
        module, args, kwargs = widened(job, dtype)
        with torch.no_grad():
            for value in filter(torch.is_floating_point, module.parameters()):
                value.mul_(nudge)
        kept = lambda: dict((*module.named_buffers(), *((name, value) for name, value in module.named_parameters() if not value.requires_grad)))  # noqa: E731
        before = {name: value.clone() for name, value in kept().items()}
        with quietly(), torch.enable_grad(), Quiet(), experts_in_batches(module), by_definition():
            loss = pytree.tree_leaves(tensors_of(module(*args, **kwargs)))[job.loss]
            loss.backward()
        self.dtype, self.loss = dtype, loss.item()
        self.gradients = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
        self.buffers = {name: value for name, value in kept().items() if name in before and not are_equal(value, before[name])}  # not caches that forward registers

    def not_finite(self):
        """What of it is no number, if anything is."""
        if not math.isfinite(self.loss):
            return "its loss"
        return next((f"the gradient of '{name}'" for name, value in self.gradients.items() if not value.isfinite().all()), None)


def agree_on_a_step(job, tools, path, folder, dtype):
    """What the step is on which Piper and PyTorch agree."""
    try:
        wanted = Step(job, dtype)
    except Exception as error:
        if dtype is torch.float64:
            raise
        raise NotExported(f"PyTorch does not train {type(job.module).__name__} for a step: {first_line(error)}") from error
    endless = wanted.not_finite()
    if endless:
        raise (ValueError if dtype is torch.float64 else NotExported)(
            f"nothing is compared: in PyTorch itself {endless} is not finite on these arguments. Give an example batch on which the module trains "
            "(where all labels are ignored, the loss is a mean of nothing), or pass check=False (--no-check); the file is written")
    refuse_what_does_not_repeat(job, wanted, dtype)
    # So long a step that nothing is left of the digits of the parameters themselves: each gradient is read as exactly as it was computed.
    rate = min(2.0**40 / (max(map(largest, wanted.gradients.values()), default=0) or 1), 2.0**99)  # piperc takes no longer one
    try:
        loss, saved = train_in_piper(tools, path, folder, batch_of(job), job.size, rate, dtype is torch.float64)
    except NotExported as error:
        raise (NotExported(f"{error}\n  = note: {own_gradient(job)}") if job.backwards else error) from None
    compared = Comparison(job, wanted, [rounded_otherwise(job, dtype, nudge) for nudge in NUDGES])
    wrong = [*compared.loss(loss, path), *compared.gradients(saved, rate), *compared.buffers(saved)]
    if wrong:
        own = [own_gradient(job)] if job.backwards else []
        raise Differs("\n  ".join(["Piper would train another model:", *wrong[:8], *(["…"] if len(wrong) > 8 else []), *own]))
    zero = f", {compared.zeros} of them zero but for rounding" if compared.zeros else ""
    return f"loss {wanted.loss:.6g}, {len(wanted.gradients)} gradients{zero}"


def own_gradient(job):
    return f"the module's gradient is that of {', '.join(job.backwards)} (torch.autograd.Function), which the file does not have: Piper differentiates its forward"


def refuse_what_does_not_repeat(job, wanted, dtype):
    """What differs from one step of PyTorch to the same step again would pass for rounding."""
    again, most = Step(job, dtype), 1e-9 if dtype is torch.float64 else 1e-5
    scale = max(map(largest, wanted.gradients.values()), default=0) + 1e-2 * abs(wanted.loss)  # where all gradients are those of rounding
    same = wanted.gradients.keys() == again.gradients.keys() and all(
        largest(value - again.gradients[name]) <= most * scale for name, value in wanted.gradients.items())
    if not same or abs(again.loss - wanted.loss) > most * abs(wanted.loss):
        raise NotExported(f"nothing is compared: forward does not do the same twice on these arguments, even with its dropout off: its loss is {wanted.loss:.8g}, then "
                          f"{again.loss:.8g}. It draws random numbers out of the exporter's sight, as functions of torch.jit.script do: draw them in forward itself, "
                          "by torch.rand or dropout; check=False (--no-check) writes the file as it is")


def rounded_otherwise(job, dtype, nudge):
    """The step again, in float32, its parameters a few roundings away."""
    try:
        return Step(job, torch.float32, nudge)
    except Exception:  # forward runs in float64 alone, or in types of its own
        return Step(job, dtype, nudge if dtype else 1 + (nudge - 1) * 2**12)


class Comparison:
    """Compares each tensor by its own scale. How much roundings change it, PyTorch shows in further steps: a gradient that is zero but for
    them (of a bias in front of a norm, of an attention's keys) is any number of that size."""

    def __init__(self, job, wanted, others):
        self.job, self.wanted, self.others, self.zeros = job, wanted, others, 0

    def noise(self, value, others, scale):
        """What roundings change in a tensor that was computed of others whose largest number is `scale`."""
        changed = [largest(other.double() - value.double()) for other in others if other is not None]
        return ROUNDINGS * max(changed, default=0.0) + 4 * torch.finfo(torch.float64).eps * scale

    def is_far(self, off, value, noise):
        return not off <= BOUND[self.wanted.dtype] * largest(value) + noise  # also where it is no number

    def loss(self, loss, path):
        wanted, *others = (torch.tensor(step.loss, dtype=torch.float64) for step in (self.wanted, *self.others))
        if self.is_far(abs(loss - wanted.item()), wanted, self.noise(wanted, others, largest(wanted))):
            program, of_file = loss_of_file(path, self.job.inputs)
            if abs(of_file - loss) <= BOUND[torch.float32] * abs(loss):
                raise Differs(f"torch.onnx wrote another model than {type(self.job.module).__name__}: the loss of the file is {loss:.8g}, by {program} as by "
                              f"Piper, and that of the module {wanted.item():.8g}. It writes some function of the loss wrong: write that one by others in forward")
            yield f"the loss is {loss:.8g}, that of PyTorch {wanted.item():.8g}"

    def gradients(self, saved, rate):
        scale = max(map(largest, self.wanted.gradients.values()), default=0)
        for name, value in ((name, value) for name, value in self.job.module.named_parameters() if name not in self.wanted.buffers):
            gradient = self.wanted.gradients.get(name)
            if name not in saved:
                if gradient is not None and largest(gradient) > 0:
                    yield f"'{name}' is not trained"
                continue
            if saved[name].shape != value.shape:
                yield f"'{name}' is saved as {list(saved[name].shape)}, not {list(value.shape)}"
                continue
            gradient = torch.zeros_like(value) if gradient is None else gradient
            noise = self.noise(gradient, [step.gradients.get(name) for step in self.others], scale)
            self.zeros += name in self.wanted.gradients and largest(gradient) <= noise
            off = largest((value.detach().double() - saved[name].double()) / rate - gradient.double())
            if self.is_far(off, gradient, noise):
                yield f"the gradient of '{name}' differs by {off:.2g} of {largest(gradient):.2g}, where rounding changes {noise:.1g}"

    def buffers(self, saved):
        scale = max(map(largest, self.wanted.buffers.values()), default=0)
        for name, value in self.wanted.buffers.items():
            if name not in saved:
                yield f"the buffer '{name}', which forward changes, is not saved"
                continue
            noise = self.noise(value, [step.buffers.get(name) for step in self.others], scale)
            if self.is_far(largest(saved[name].double() - value.double()), value.double(), noise):
                yield f"the buffer '{name}' becomes another value"


def largest(tensor):
    return tensor.detach().double().abs().max().item() if tensor.numel() else 0.0
