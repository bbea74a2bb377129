"""Writes operator_versions.txt: the versions of each operator of ai.onnx, from ONNX's own schemas.

    pip install onnx
    python tests/data/make_operator_versions.py > tests/data/operator_versions.txt
"""
from onnx import defs

versions = {}
for schema in defs.get_all_schemas_with_history():
    if schema.domain == "":
        versions.setdefault(schema.name, set()).add(schema.since_version)
for name in sorted(versions):
    print(name, *sorted(versions[name]))
