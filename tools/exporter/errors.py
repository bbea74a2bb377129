"""How an export fails, and what an error says of its cause."""
import importlib.util
import os
import re
import traceback


class NotExported(Exception):
    """What cannot be exported, or not be trained as the module is, and why. The file is left where it is if it was written."""


class Differs(NotExported):
    """A step of Piper and one of PyTorch are not the same."""


def first_line(error):
    """Of what was at fault first, with its place in the program."""
    error = cause_of(error)
    asked = re.search(r'call raised this error:\s*File "([^"]*)", line (\d+).*\n\s*(.*)', str(error))
    if depends_on_values(error):
        where = f": {asked[3]} ({asked[1]}:{asked[2]})" if asked else place_of_error(error)
        return (f"what it does there depends on values that inputs or parameters decide{where}. Compute it for all values and choose by "
                "torch.where, or leave out the branch that the training does not take. A place that a buffer counts, as that in a queue, stays a tensor: "
                "queue.index_copy_(0, (place + torch.arange(n)) % len(queue), rows)")
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    said = lines[0].strip() if lines else type(error).__name__
    if "unhashable type: non-nested Sym" in said:
        return (f"it compares sizes or numbers that values or the batch decide, as a set or the keys of a dict do{place_of_error(error)}. Compute for the longest, and "
                "hide the rest by a mask")
    taken = re.search(r"attribute '(\w+)' already exists", said)
    if taken:
        return f"a parameter, buffer or part of it is called '{taken[1]}', as something of the tracer's is: call it otherwise"
    if said.startswith("No ONNX function found for"):
        return "ONNX has no such function. Compute it by others in forward, or outside of the module"
    if makes_a_constant(error):
        return "it makes a constant of the size, as a loop over the samples does, and x.shape[0] does not"
    if re.fullmatch(r"\w+\.\w+\.\w+", said):
        said = f"what {said} returns depends on values: write it by other functions"
    return said + place_of_error(error)


def cause_of(error):
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def makes_a_constant(error):
    """Of the tracer's, where the size of the batch was to be left open."""
    return str(cause_of(error)).strip().startswith("Constraints violated (batch)")


def depends_on_values(error):
    """Of the tracer's, at a branch or loop."""
    return "data-dependent" in str(cause_of(error))


def is_transformed(error):
    """Of the tracer's, within a transform by torch.func."""
    return any(frame.filename.endswith(os.path.join("_functorch", "eager_transforms.py")) for frame in traceback.extract_tb(error.__traceback__))


def place_of_error(error):
    """The last line outside of the exporters that was under way, or nothing."""
    return last_of_program(traceback.extract_tb(error.__traceback__))


def place_of_call():
    """The line of the program that is under way."""
    return last_of_program(traceback.extract_stack())


def last_of_program(frames):
    specs = [importlib.util.find_spec(name) for name in ("torch", "onnx", "onnxscript", "onnx_ir", __package__)]
    libraries = tuple(os.path.join(os.path.dirname(spec.origin), "") for spec in specs if spec)
    frames = [frame for frame in frames if not frame.filename.startswith((*libraries, "<"))]
    return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def place_of_node(error, program):
    """The function that torch.onnx does not write, with the line of the module that calls it, where the error says which it is."""
    traced = re.findall(r'File "([^"]*)", line (\d+).*\n\s*(.*)', str(cause_of(error)).partition("Original traceback:")[2])
    if traced:
        return "({}:{}: {}) ".format(*traced[-1])
    while error is not None:
        said = re.search(r"Error when translating node %(\w+) : .*?target=torch\.ops\.([\w.]+?)(?:\.default)?\]", str(error))
        if said:
            traces = [node.meta.get("stack_trace") or "" for node in program.graph.nodes if node.name == said[1]]
            lines = re.findall(r'File "([^"]*)", line (\d+).*\n\s*(.*)', "".join(traces[:1]))
            return f"{said[2]}" + (f" ({lines[-1][0]}:{lines[-1][1]}: {lines[-1][2]})" if lines else "") + ": "
        error = error.__cause__
    return ""
