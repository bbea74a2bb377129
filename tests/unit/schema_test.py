"""strategy.schema.json as an editor's YAML language server uses it: a JSON-Schema validator accepts every
strategy of the repository and refuses wrong ones at the right place; every key explains itself.

  schema_test.py ROOT      77 when this python has no jsonschema or yaml
"""
import json
import pathlib
import re
import sys

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(missing)
    sys.exit(77)


class Loader(yaml.SafeLoader):
    """YAML 1.2, where 'on' and 'yes' are texts."""


Loader.yaml_implicit_resolvers = {}
for tag, pattern in [("bool", r"true|false"), ("int", r"[-+]?[0-9]+"), ("null", r"null|~|"),
                     ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")]:
    Loader.add_implicit_resolver("tag:yaml.org,2002:" + tag, re.compile(rf"^(?:{pattern})$"), None)

# A wrong strategy, the path of what is wrong, what the validator says.
WRONG = [
    ("mesh: {pp: 2}", "", "'piper' is a required property"),
    ("piper: 1\nmeshes: {pp: 2}", "", "'meshes' was unexpected"),
    ("piper: 1\nmesh: [2]", "mesh", "is not of type 'object'"),
    ("piper: 1\ntrain: {optimizer: {adam: {}, sgd: {}}}", "train/optimizer", "has too many properties"),
    ("piper: 1\ntrain: {optimizer: {adamw: {rate: 1}}}", "train/optimizer/adamw", "'rate' was unexpected"),
    ("piper: 1\ntrain: {clip_norm: [1]}", "train/clip_norm", "is not of type 'number', 'string'"),
    ("piper: 1\ninputs: {x: {dtype: f33}}", "inputs/x/dtype", "is not one of ['f32'"),
    ("piper: 1\nparameters: [{tie: 3}]", "parameters/0/tie", "is not of type 'string'"),
    ("piper: 1\ndirectives: [{replicat: {over: dp}}]", "directives/0", "'replicat' was unexpected"),
    ("piper: 1\ndirectives: [{split: {dim: batch, into: 2}, place: {on: {pp: 0}}}]", "directives/0",
     "is valid under each of"),
    ("piper: 1\ndirectives: [{name: x, when: 1}]", "directives/0", "is a required property"),
    ("piper: 1\ndirectives: [{drop: [1]}]", "directives/0/drop/0", "is not of type 'string'"),
    ("piper: 1\nrequire: [{that: 1, why: x, when: [1]}]", "require/0/when", "is not of type 'boolean'"),
    ("piper: 1\nparameters: [{tie: [a, b], freeze: a, when: n > 1}]", "parameters/0", "is valid under each of"),
    ("piper: 1\ndirectives: [{split: {dim: batch}}]", "directives/0/split", "'into' is a required property"),
    ("piper: 1\ndirectives: [{split: {dim: [1], into: 2}}]", "directives/0/split/dim",
     "is not one of ['batch', 'tokens', 'samples']"),
    ("piper: 1\ndirectives: [{replicate: {over: dp, gather: {when: per_day}}}]",
     "directives/0/replicate/gather/when", "is not one of ['per_pass'"),
    ("piper: 1\ndirectives: [{replicate: {over: dp, shard: [weights]}}]",
     "directives/0/replicate/shard/0", "is not one of ['optimizer'"),
    ("piper: 1\ndirectives: [{order: {each: pp, policy: {prefer: [W]}}}]",
     "directives/0/order/policy/prefer/0", "is not one of ['F'"),
    ("piper: 1\ndirectives: [{precision: {compute: f16, loss_scale: dynamc}}]",
     "directives/0/precision/loss_scale", "is not one of ['dynamic'"),
    ("piper: 1\nparams: {lr: [1]}", "params/lr", "is not of type 'number', 'string'"),
    ("piper: 1\ndirectives: [{place: {where: {pass: X}, on: {pp: 0}}}]",
     "directives/0/place/where/pass", "is not one of ['F'"),
    ("piper: 1\ndirectives: [{place: {where: {stage: {a: 1}}, on: {pp: 0}}}]",
     "directives/0/place/where/stage", "is not of type"),
]


def innermost(error):
    """Of the alternatives of a value the one that gets furthest, and its first complaint."""
    while error.context:
        error = max(error.context, key=lambda e: (len(e.absolute_path), -e.schema_path[0]))
    return error


def explanations(schema, path=""):
    """Keys without a description, references to nothing."""
    for key, value in schema.get("properties", {}).items():
        if not re.search(r"\w+.*\.$", value.get("description", "")):
            yield f"{path}/{key}: no description that ends as a sentence"
        yield from explanations(value, f"{path}/{key}")


def problems(root):
    schema = json.loads((root / "formats/strategy.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    yield from explanations(schema)
    for name, definition in schema["definitions"].items():
        yield from explanations(definition, name)
    for name in set(re.findall(r"#/definitions/(\w+)", json.dumps(schema))) - set(schema["definitions"]):
        yield f"no definition '{name}'"
    folders = "strategies", "samples", "tests/data/schedules"
    others = "clusters", "spaces"  # that are no strategies
    files = sorted(file for folder in folders for file in root.glob(folder + "/**/*.yaml") if file.parent.name not in others)
    if len(files) < 2:
        yield "no strategies"
    for file in files:
        for error in validator.iter_errors(yaml.load(file.read_text(), Loader)):
            yield f"{file}: {'/'.join(map(str, error.absolute_path))}: {error.message}"
    for text, path, message in WRONG:
        errors = list(validator.iter_errors(yaml.load(text, Loader)))
        # That none of the keys is there follows from a key that is unknown.
        errors = [innermost(e) for e in errors if e.validator != "oneOf" or len(errors) == 1]
        found = [("/".join(map(str, e.absolute_path)), e.message) for e in errors]
        if len(found) != 1 or found[0][0] != path or message not in found[0][1]:
            yield f"{text!r}: {found}"


if __name__ == "__main__":
    said = list(problems(pathlib.Path(sys.argv[1])))
    print("\n".join(said) or "the schema is right")
    sys.exit(1 if said else 0)
