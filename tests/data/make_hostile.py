"""Writes hostile/TARGET/NAME: files made to do harm, each named for what it would do. hostile_test reads them all.

    pip install onnx==1.23.2 protobuf
    protoc --python_out=/tmp -I formats formats/plan.proto && PYTHONPATH=/tmp python tests/data/make_hostile.py
"""
import json
import math
import pathlib
import struct
import onnx
from onnx import TensorProto, helper
import plan_pb2

OUT = pathlib.Path(__file__).parent / "hostile"
F32 = TensorProto.FLOAT


def write(target, name, data):
    (OUT / target).mkdir(parents=True, exist_ok=True)
    (OUT / target / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- ONNX ---------------------------------------------------------------------------------------


def model(nodes, initializers=(), functions=(), inputs=None, outputs=("loss",), opset=17):
    inputs = inputs or [helper.make_tensor_value_info("x", F32, [8, 4])]
    graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_tensor_value_info(o, F32, []) for o in outputs],
                              list(initializers))
    return helper.make_model(graph, functions=list(functions), opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]).SerializeToString()


def tensor(name, dims, data=b"", dtype=F32, **external):
    made = onnx.TensorProto(name=name, data_type=dtype, dims=dims)
    if external:
        made.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            made.external_data.add(key=key, value=str(value))
    else:
        made.raw_data = data
    return made


def ints(name, values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


node, LOSS = helper.make_node, [helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)]


def product(w):  # y = x @ w
    return model([node("MatMul", ["x", "w"], ["y"]), *LOSS], [w])


def onnx_files():
    plain = product(tensor("w", [4, 3], bytes(48)))
    write("onnx", "truncated.onnx", plain[:len(plain) * 2 // 3])
    write("onnx", "huge_dims.onnx", product(tensor("w", [4, 2 ** 62])))
    write("onnx", "dims_overflow_to_few.onnx", product(tensor("w", [2 ** 32, 2 ** 32], bytes(48))))
    write("onnx", "negative_dim.onnx", product(tensor("w", [-4, -3], bytes(48))))
    write("onnx", "many_dims.onnx", product(tensor("w", [1] * 20000, bytes(4))))
    write("onnx", "less_data_than_dims.onnx", product(tensor("w", [4, 3], bytes(47))))
    outside = dict(location="../../../../etc/passwd")
    write("onnx", "external_outside.onnx", product(tensor("w", [4, 3], **outside)))
    write("onnx", "external_absolute.onnx", product(tensor("w", [4, 3], location="/etc/passwd")))
    here = dict(location="model.onnx.data")
    write("onnx", "external_beyond_the_end.onnx", product(tensor("w", [4, 3], **here, offset=2 ** 40, length=48)))
    write("onnx", "external_negative.onnx", product(tensor("w", [4, 3], **here, offset=-48, length=48)))
    write("onnx", "external_sum_overflows.onnx", product(tensor("w", [4, 3], **here, offset=2 ** 63 - 16, length=48)))
    write("onnx", "external_of_itself.onnx", product(tensor("w", [4, 3], location="model.onnx", offset=0, length=48)))
    many = [tensor(f"w{i}", [1000, 1000], **here, offset=4 * i, length=4000000) for i in range(200)]  # all the same megabytes
    sums = [node("ReduceSum", [f"w{i}"], [f"s{i}"], keepdims=0) for i in range(200)]
    write("onnx", "external_overlapping.onnx", model([*sums, node("Sum", [f"s{i}" for i in range(200)], ["loss"])], many))

    graph = onnx.load_from_string(plain)
    graph.graph.node[0].input[0] = "loss"
    write("onnx", "cycle.onnx", graph.SerializeToString())

    def branch(depth):
        inner = [node("Identity", ["x"], [f"y{depth}"])]
        if depth > 0:
            inner = [node("If", ["c"], [f"y{depth}"], then_branch=branch(depth - 1), else_branch=branch(0))]
        return helper.make_graph(inner, f"b{depth}", [], [helper.make_tensor_value_info(f"y{depth}", F32, None)])

    yes = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    deep = [node("If", ["c"], ["y"], then_branch=branch(20), else_branch=branch(0)), *LOSS]
    write("onnx", "nested_ifs.onnx", model(deep, [yes]))

    def function(name, calls):
        return helper.make_function("own", name, ["a"], ["b"], calls, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)])

    def call(name, a, b):
        return node(name, [a], [b], domain="own")

    f, g = function("f", [call("g", "a", "b")]), function("g", [call("f", "a", "b")])
    write("onnx", "functions_in_a_circle.onnx", model([call("f", "x", "y"), *LOSS], [], [f, g]))
    write("onnx", "function_of_itself.onnx", model([call("f", "x", "y"), *LOSS], [], [function("f", [call("f", "a", "b")])]))
    doubling = [function("f0", [node("Relu", ["a"], ["b"])])]
    for i in range(1, 60):
        doubling.append(function(f"f{i}", [call(f"f{i - 1}", "a", "m"), call(f"f{i - 1}", "m", "b")]))
    write("onnx", "functions_that_double.onnx", model([call("f59", "x", "y"), *LOSS], [], doubling))

    grown = [node("Expand", ["x", "s"], ["y"]), *LOSS]
    write("onnx", "expand_to_terabytes.onnx", model(grown, [ints("s", [2 ** 20, 2 ** 20, 8, 4])]))
    of_shape = [node("ConstantOfShape", ["s"], ["z"]), node("CumSum", ["z", "a"], ["q"]), node("ReduceSum", ["q"], ["loss"], keepdims=0)]
    axis = helper.make_tensor("a", TensorProto.INT64, [], [0])
    write("onnx", "constant_of_gigabytes.onnx", model(of_shape, [ints("s", [2 ** 31]), axis]))
    write("onnx", "tile_by_a_billion.onnx", model([node("Tile", ["x", "s"], ["y"]), *LOSS], [ints("s", [2 ** 30, 2 ** 30])]))
    number = lambda name, value: helper.make_tensor(name, TensorProto.INT64, [], [value])
    endless = [number("s", 0), number("l", 2 ** 62), number("d", 1)]
    write("onnx", "endless_range.onnx",
          model([node("Range", ["s", "l", "d"], ["r"]), node("Cast", ["r"], ["y"], to=F32), *LOSS], endless))
    write("onnx", "pad_overflows.onnx",
          model([node("Pad", ["x", "s"], ["y"]), *LOSS], [ints("s", [2 ** 62, 2 ** 62, 2 ** 62, 2 ** 62])]))
    write("onnx", "window_of_a_trillion.onnx", model(
        [node("Reshape", ["x", "s"], ["i"]), node("MaxPool", ["i"], ["y"], kernel_shape=[2 ** 40], pads=[2 ** 40 - 1] * 2), *LOSS],
        [ints("s", [8, 1, 4])]))
    write("onnx", "split_into_millions.onnx",
          model([node("Split", ["x"], ["y"] + [f"z{i}" for i in range(2000)], axis=1, num_outputs=2001), *LOSS], opset=18))
    bad = model([node("Dropout", ["x", "r", "t"], ["y"]), *LOSS],
                [helper.make_tensor("r", F32, [], [float("nan")]), helper.make_tensor("t", TensorProto.BOOL, [], [True])])
    write("onnx", "dropout_of_nan.onnx", bad)
    write("onnx", "random_terabytes.onnx", model([node("RandomNormal", [], ["y"], shape=[2 ** 20, 2 ** 30]), *LOSS]))
    write("onnx", "einsum_of_all_letters.onnx", model(
        [node("Einsum", ["x", "x"], ["y"], equation="ab,cd->" + "abcd" * 9), *LOSS]))


# ---- Strategies ---------------------------------------------------------------------------------

HEAD = "piper: 1\ntrain: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}\n"
ORDER = "directives:\n  - order:\n      each: pp\n      program: |\n        "


def strategy_files():
    def put(name, text):
        write("strategy", name + ".yaml", text)

    put("nested_lists", "piper: " + "[" * 20000)
    put("nested_maps", HEAD + "params: " + "{a: " * 20000)
    put("nested_by_indentation", "\n".join(" " * i + "a:" for i in range(300)))
    put("aliases_that_double", "a: &a [x, x]\n" + "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]"
                                                             for i in range(24)))
    put("includes_itself", "piper: 1\ninclude: strategy.yaml\n")
    put("includes_everything", "piper: 1\ninclude: /dev/zero\n")
    put("mesh_of_all_devices", HEAD + "mesh: {pp: 4611686018427387904, dp: 4611686018427387904}\n")
    put("batch_cut_into_atoms", HEAD + "directives: [{split: {dim: batch, into: 9223372036854775807}}]\n")
    put("parentheses", HEAD + "mesh: {pp: \"" + "(" * 10000 + "1" + ")" * 10000 + "\"}\n")
    put("minus_signs", HEAD + "mesh: {pp: \"" + "-" * 20000 + "1\"}\n")
    put("overflow", HEAD + "params: {a: 9223372036854775807}\nmesh: {pp: \"a * a + a - -a\"}\n")
    put("least_number_divided", HEAD + "mesh: {pp: \"(-9223372036854775807 - 1) / -1\"}\n")
    put("globs_of_stars", HEAD + "annotate: [{match: \"" + "**/*a*a*a*a*a*a/" * 400 + "b\", tags: {stage: 0}}]\n")
    put("many_stages", HEAD + "mesh: {pp: 16}\nannotate: [{balance: {tag: stage, into: 1000000000}}]\n")
    put("place_out_of_reach", HEAD + "mesh: {pp: 2}\nannotate: [{match: \"**\", tags: {stage: 9223372036854775807}}]\n"
        "directives: [{place: {where: {stage: s}, on: {pp: \"s + 1\"}}}]\n")
    put("bucket_of_everything", HEAD + "mesh: {dp: 2}\ndirectives: [{replicate: {over: dp, bucket: 9223372036854775807GiB}}]\n")
    put("order_without_end", HEAD + "mesh: {pp: 2}\n" + ORDER + "repeat 9223372036854775807: F\n")
    put("nul", HEAD + "mesh: {p\0p: 2}\n")
    put("not_utf8", HEAD.encode() + b"mesh: {\xff\xfe: 2}\n")

    def order(name, text):
        write("order", name, text)

    order("repeat_without_end", "repeat 9223372036854775807: F B\n")
    order("a_million_items", "repeat 1000000: F[chunk=1, mb=2]\n")
    order("nothing_without_end", "for i in 0..9223372036854775807:\n  if 0: F\n")
    order("nested_loops", "".join(" " * d + f"for i{d} in 0..10:\n" for d in range(30)) + " " * 30 + "F\n")
    order("nested_blocks", "".join(" " * d + "if 1:\n" for d in range(300)) + " " * 300 + "F\n")
    order("nested_on_a_line", "if 1: " * 4000 + "F\n")
    order("parentheses", "repeat " + "(" * 10000 + "1" + ")" * 10000 + ": F\n")
    order("question_marks", "repeat " + "1 ? " * 5000 + "1: F\n")
    order("numbers_that_double", "let a0 = 2\n" + "".join(f"let a{i + 1} = a{i} * a{i}\n" for i in range(70)) + "repeat a70: F\n")
    order("tags_without_end", "F[" + ", ".join(f"t{i}=1" for i in range(5000)) + "]\n")
    order("pairs_without_end", "F & " * 5000 + "B\n")


# ---- Plans --------------------------------------------------------------------------------------


def role(**changes):
    made = plan_pb2.RoleProgram(batch=4, arena_bytes=768, workspace_bytes=[64], scratch_bytes=1 << 22, staging_bytes=64, target=b"cpu")
    made.streams.add(name=b"compute")
    made.mesh.add(name=b"dp", size=1)
    f32 = plan_pb2.TensorType(dtype=0, shape=[4, 2])
    made.inputs.add(name=b"x", type=f32, batch_dim=0, low=0, high=-1, share=0, shares=1)
    for i, name in enumerate((b"w", b"x", b"y")):
        made.tensors.add(name=name, type=f32, kind=0 if i == 0 else 2, part_of=-1, previous_of=-1, copy_of=-1)
        made.buffers.add(tensor=i, micro=-1, offset=256 * i)
    program = made.programs.add(label=b"F", num_args=3, arg_read=[True, True, False], arg_written=[False, False, True])
    for _ in range(4):
        program.values.add().CopyFrom(f32)
    program.ops.add(op=b"Mul", inputs=[0, 1], outputs=[3])
    program.ops.add(op=b"Neg", inputs=[3], outputs=[2])
    samples = plan_pb2.SampleRange(count=4, stride=[0])
    made.body.add(kind=1, program=-1, args=[1], input=b"x", samples=samples, group=-1, communicator=-1, stage=-1, micro=-1, micros=1)
    made.body.add(kind=0, program=0, args=[0, 1, 2], group=-1, communicator=-1, stage=-1, micro=-1, micros=1)
    return made


def to_another(r):  # the first rank of two sends its samples
    r.mesh[0].size = 2
    made = r.communicators.add(streams=[0, 0])
    getattr(made, "from").append(0)
    made.to.append(1)
    r.body.add(kind=2, program=-1, args=[1], peer=[1], group=-1, communicator=0, stage=-1, micro=-1, micros=1)


def bytes_of(made):  # every instruction is of a forward
    for one in made.body:
        setattr(one, "pass", ord("F"))
    return made.SerializeToString()


def plan_files():
    def put(name, change):
        made = role()
        change(made)
        write("plan", name, bytes_of(made))

    whole = bytes_of(role())
    write("plan", "as_it_should_be", whole)
    put("as_it_should_be_with_a_message", to_another)
    write("plan", "truncated", whole[:len(whole) // 2])
    write("plan", "length_beyond_the_end", b"\x0a\xff\xff\xff\xff\x0f")
    write("plan", "nested_messages", b"".join(b"\x2a" + bytes([120]) for _ in range(5000)))
    put("mesh_of_all_devices", lambda r: setattr(r.mesh[0], "size", 2 ** 62))
    put("mesh_that_overflows", lambda r: [r.mesh.add(name=b"a%d" % i, size=2 ** 40) for i in range(4)])
    put("negative_mesh", lambda r: setattr(r.mesh[0], "size", -1))
    put("huge_buffer", lambda r: r.tensors[2].type.shape.__setitem__(0, 2 ** 61))
    put("buffer_that_overflows", lambda r: r.tensors[2].type.shape.extend([2 ** 32, 2 ** 32]))
    put("negative_buffer", lambda r: r.tensors[2].type.shape.__setitem__(0, -4))
    put("buffer_of_many_dims", lambda r: r.tensors[2].type.shape.extend([1] * 30000))
    put("buffer_of_no_type", lambda r: setattr(r.tensors[2].type, "dtype", 77))
    put("buffer_beyond_the_arena", lambda r: setattr(r.buffers[2], "offset", 2 ** 62))
    put("buffer_before_the_arena", lambda r: setattr(r.buffers[2], "offset", -256))
    put("arena_of_everything", lambda r: setattr(r, "arena_bytes", 2 ** 63 - 1))
    put("memory_that_overflows", lambda r: (setattr(r, "transport_bytes", 2 ** 62), setattr(r, "scratch_bytes", 2 ** 62)))
    put("args_beyond_the_buffers", lambda r: r.body[1].args.__setitem__(2, 2 ** 30))
    put("negative_arg", lambda r: r.body[1].args.__setitem__(2, -1))
    put("program_beyond_the_programs", lambda r: setattr(r.body[1], "program", 99))
    put("stream_beyond_the_streams", lambda r: setattr(r.body[1], "stream", -7))
    put("waits_for_itself", lambda r: r.body[1].waits.append(1))
    put("waits_for_the_future", lambda r: r.body[0].waits.append(1))
    put("value_beyond_the_values", lambda r: r.programs[0].ops[0].inputs.__setitem__(0, 2 ** 31 - 1))
    put("more_args_than_values", lambda r: setattr(r.programs[0], "num_args", 2 ** 31 - 1))
    put("literal_of_no_value", lambda r: r.programs[0].literals.add(value=-5, data=b"1234"))
    put("samples_beyond_the_batch", lambda r: setattr(r.body[0].samples, "first", 2 ** 62))
    put("samples_that_overflow", lambda r: (to_another(r), r.body[0].samples.stride.__setitem__(0, 2 ** 63 - 1)))
    put("negative_samples", lambda r: setattr(r.body[0].samples, "count", -4))
    put("sum_of_a_billion_uses", lambda r: (r.sum_targets.add(name=b"s", uses=2 ** 31 - 1),
                                            r.body[1].contributions.add(arg=2, target=0, use=2 ** 31 - 1)))
    put("group_of_no_axis", lambda r: r.groups.add(name=b"g", axes=[-3, 99]))
    put("axis_twice_in_a_group", lambda r: r.groups.add(name=b"g", axes=[0, 0]))
    put("copy_of_no_buffer", lambda r: setattr(r.tensors[2], "copy_of", 2 ** 31 - 1))
    put("copy_of_itself", lambda r: setattr(r.tensors[2], "copy_of", 2))
    put("cut_over_no_axis", lambda r: (r.tensors[0].whole.extend([8, 2]),
                                       r.tensors[0].cuts.add(axis=2 ** 31 - 1, dim=0, outer=1)))
    put("cut_that_overflows", lambda r: (r.tensors[0].whole.extend([4, 2]), setattr(r.mesh[0], "size", 2 ** 20),
                                         r.tensors[0].cuts.add(axis=0, dim=1, outer=2 ** 62)))
    put("blocks_before_the_dims", lambda r: (r.groups.add(name=b"g", axes=[0]), r.communicators.add(axes=[0], streams=[0]), r.body.add(
        kind=5, program=-1, args=[1, 2], group=0, communicator=0, stage=-1, micro=-1, micros=1,
        blocks=plan_pb2.Blocks(dim=-2 ** 31, outer=-2 ** 63))))
    put("input_without_a_name", lambda r: setattr(r.inputs[0], "name", b""))
    put("share_beyond_the_shares", lambda r: setattr(r.inputs[0], "share", 2 ** 63 - 1))
    put("share_before_the_first", lambda r: setattr(r.inputs[0], "share", -2 ** 63))
    put("shares_without_end", lambda r: setattr(r.inputs[0], "shares", 2 ** 63 - 1))
    put("no_shares", lambda r: setattr(r.inputs[0], "shares", 0))
    put("outer_steps_before_the_first", lambda r: r.outer_updates.add(every=-2 ** 63, offset=-1))
    put("outer_steps_of_nothing", lambda r: r.outer_updates.add())
    put("batch_dim_of_no_dim", lambda r: setattr(r.inputs[0], "batch_dim", 2 ** 31 - 1))
    put("unknown_kind", lambda r: setattr(r.body[1], "kind", 2 ** 31 - 1))
    put("sends_to_nobody", lambda r: (to_another(r), r.body.add(kind=2, program=-1, args=[1], peer=[2 ** 31 - 1], group=-1)))
    put("communicator_beyond_the_communicators", lambda r: (to_another(r), setattr(r.body[2], "communicator", 2 ** 31 - 1)))
    put("communicator_of_no_stream", lambda r: (to_another(r), r.communicators[0].streams.__setitem__(0, 2 ** 31 - 1)))
    put("communicator_outside_the_mesh", lambda r: (to_another(r), r.communicators[0].to.__setitem__(0, 2 ** 31 - 1)))
    put("staging_of_everything", lambda r: setattr(r, "staging_bytes", 2 ** 63 - 1))

    deep = "[" * 20000
    write("plan_set", "manifest_nested", "m" + deep)
    far = "[" * 100000 + "]" * 100000
    write("plan_set", "raw_manifest_nested_before_others", f'M{{"format": "piper plan", "files": {far}, "a": 1, "b": 2, "c": 3}}')
    write("plan_set", "manifest_of_numbers", 'm{"format_version": 1e999, "mesh": [["dp", -1e300]]}')
    write("plan_set", "manifest_with_paths", 'm{"files": {"../../etc/passwd": "0", "/etc/passwd": "0"}, "roles": ["../../x"]}')
    write("plan_set", "raw_manifest_cut", 'M{"format": "piper plan')
    write("plan_set", "header_of_garbage", b"h\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
    write("plan_set", "header_cut", "HPIPRPLN1")
    write("plan_set", "role_of_garbage", b"rPIPRROL1\2\0\0\0" + b"\xff" * 8 + b"0" * 32)
    write("plan_set", "params_with_a_header_of_everything", b"p" + struct.pack("<Q", 2 ** 63 - 1) + b"{}")

    write("plan_text", "numbers_beyond", "plan batch=99999999999999999999999 arena=-9223372036854775808\n")
    write("plan_text", "positions_beyond", "plan batch=1\nbuffer 4294967295 \"w\" f32[1] step at=0\n")
    write("plan_text", "list_without_end", "plan batch=1\nbuffer 0 \"w\" f32[" + "1," * 10000)
    write("plan_text", "blocks_of_nothing",
          'plan workspace=[0]\naxis "tp" 2\nstream 0 "compute"\n'
          'buffer 0 "w" f32[1152921504606846975,0] state at=0 '
          'cuts=[S0/1152921504606846975@0] whole=[2305843009213693950,0]\n')
    write("plan_text", "quote_without_end", "plan batch=1\naxis \"" + "x" * 50000)


# ---- Data, kernels, runs ------------------------------------------------------------------------


def data_files():
    def tensors(header, data=b"\0" * 96):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return b"s" + struct.pack("<Q", len(text)) + text + data

    entry = lambda begin, end, dtype="I64", shape=(2, 4): {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    write("data", "header_of_everything", b"s" + struct.pack("<Q", 2 ** 64 - 1) + b"{}")
    write("data", "header_nested", tensors(b'{"a":' * 5000))
    write("data", "overlapping", tensors({"batch/0/ids": entry(0, 64), "batch/0/labels": entry(32, 64, "I32")}))
    write("data", "offsets_backwards", tensors({"batch/0/ids": entry(64, 0)}))
    write("data", "offsets_beyond", tensors({"batch/0/ids": entry(0, 2 ** 62, shape=(2 ** 59,))}))
    write("data", "shape_overflows", tensors({"batch/0/ids": entry(0, 64, shape=(2 ** 33, 2 ** 33))}))
    write("data", "shape_negative", tensors({"batch/0/ids": entry(0, 64, shape=(-2, -4))}))
    write("data", "batch_of_a_billion", tensors({"batch/999999999999/ids": entry(0, 64)}))

    def npy(header, body=b"\3" * 64):
        return b"n\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + body

    line = "{'descr': '<i8', 'fortran_order': False, 'shape': (%s), }\n"
    write("data", "npy_huge", npy(line % "4611686018427387904, 4"))
    write("data", "npy_overflows", npy(line % "4294967296, 4294967296, 4"))
    write("data", "npy_negative", npy(line % "-2, -4"))
    write("data", "npy_nested", npy(line % ("(" * 5000)))
    write("data", "npy_header_beyond", b"n\x93NUMPY\1\0\xff\xff{")
    write("data", "no_token", b"1")
    write("data", "half_a_token", b"2\1\2\3")


def checkpoint_files():
    def put(name, box):
        write("checkpoint", name, "b" + (box if isinstance(box, str) else json.dumps({"w": box})))

    most = 2 ** 63 - 1
    put("as_it_should_be", {"shape": [12], "blocks": [[0, 1, 6, 1]], "range": [0, 6]})
    put("shape_of_everything", {"shape": [most], "blocks": [], "range": [0, 6]})
    put("shape_overflows", {"shape": [2 ** 32, 2 ** 32], "blocks": [], "range": [0, 6]})
    put("shape_of_many_dims", {"shape": [1] * 20000, "blocks": [], "range": [0, 1]})
    put("range_overflows", {"shape": [12], "blocks": [], "range": [most, most]})
    put("runs_without_end", {"shape": [2 * 10 ** 12], "blocks": [[0, 10 ** 12, 1, 0]], "range": [0, 10 ** 12]})
    put("padding_without_end", {"shape": [2 * 10 ** 12], "blocks": [[0, 10 ** 12, 2, 1]], "range": [0, 2 * 10 ** 12]})
    put("blocks_without_end", {"shape": [12], "blocks": [[0, 1, 12, 0]] * 2000, "range": [0, 6]})
    put("block_of_nothing", {"shape": [12], "blocks": [[0, 1, 0, 0]], "range": [0, 0]})
    put("block_beyond", {"shape": [12], "blocks": [[0, 1, 6, most]], "range": [0, 6]})
    put("nested", '{"w": ' + "[" * 60000 + "]" * 60000 + ', "v": 1}')
    write("checkpoint", "manifest_nested", 'm{"format": "piper checkpoint", "step": ' + "[" * 60000 + "]" * 60000 + ', "samples": 1}')
    write("checkpoint", "manifest_cut", 'm{"format": "piper checkpoint", "format_version": 1, "files": [{"na')
    header = b'{"a":' + b'[' * 60000 + b']' * 60000 + b',"b":1,"c":2,"d":3}'
    write("checkpoint", "header_nested", b"s" + struct.pack("<Q", len(header)) + header)


def kernel_files():
    uses = {
        "rows_of_nothing": "Asinh f64[4,3,1] -> f64[4,3,0]",
        "attention_without_heads": "AttentionGrad {scale=0.4, tokens_first=[0,1,0,1]} f64[2,0,0,3] f64[2,6,2,3] f64[2,2,6,3] "
                                   "f64[2,0,0,3] f64[2,0,0] f64[2,0,0,3] -> f64[2,0,0,3] f64[2,6,2,3] f64[2,2,6,3]",
        "result_nowhere": "CrossEntropySum {ignore_index=-100} f32[5] i64[] -> _ f32[]",
        "more_rows_than_elements": "Dropout {ratio=0.5, rows=9223372036854775807, shards=9223372036854775807} f32[4,2] i64[] i64[] "
                                   "i64[3] -> f32[4,2]",
        "rows_of_no_length": "Random {distribution=\"uniform\", dtype=\"f32\", rows=4, shape=[0,4], shards=2} i64[] i64[] i64[1] -> f32[0,4]",
        "sizes_that_overflow": "Reshape {shape=[4294967296,4294967296]} f32[0] -> f32[4294967296,4294967296]",
        "indices_of_an_empty_table": "Gather {axis=0} f32[0,4] i64[6] -> f32[6,4]",
        "slice_by_the_least_number": "Slice {ends=[-9223372036854775808], starts=[9223372036854775807], "
                                     "steps=[-9223372036854775808]} f32[4] -> f32[0]",
        "pad_by_the_greatest_number": "Pad {after=[9223372036854775807], before=[9223372036854775807]} f32[4] -> f32[2]",
        "a_place_in_nothing": "TopK {axis=0, k=3} f32[0,2] -> f32[3,2] i64[3,2]",
        "window_of_nothing": "Unfold {dilations=[0], kernel=[0], pads=[0,0], strides=[0]} f32[1,1,4] -> f32[1,1,0,4]",
        "attention_behind_all_keys": "Attention {causal=1, offset=9223372036854775807, tokens_first=[1,0,1,0]} f32[2,3,4,3] "
                                     "f32[2,2,4,3] f32[2,4,2,5] -> f32[2,4,3,5] f32[2,4,3]",
        "strides_that_overflow": "Log f64[0,3] -> f64[0,3,9223372036854775807]",
        "slice_whose_reach_overflows": "Slice {ends=[9], starts=[0], steps=[9223372036854775807]} f32[4] -> f32[3]",
        "slice_of_nothing_backwards": "Slice {ends=[-1,-1], starts=[5,1], steps=[-2,-1]} f64[0,2] -> f64[3,2]",
        "fused_beyond_the_stack": "Fused {expr=\"Add Add @7 =99999999999 5\"} f32[4] -> f32[4]",
    }
    for name, use in uses.items():
        write("kernel", name, use)


def run_files():
    # A step of one instruction on the input x, which holds numbers from anywhere, and on states, which hold zeros.
    def put(name, buffers, op):
        arena = 256 * len(buffers)  # none has more
        text = f"plan batch=4 arena={arena} workspace=[0] staging=64 scratch=4194304 target=\"cpu\"\naxis \"dp\" 1\nstream 0 \"compute\"\n"
        text += "input \"x\" i64[4]\n"
        for i, (buffer, kind, _) in enumerate(buffers):
            text += f"buffer {i} \"{buffer}\" {kind} {'step' if buffer in 'xy' else 'state'} at={256 * i}\n"
        text += f"program 0 label=\"F\" args={len(buffers)}\n"
        text += "".join(f"  value {v} {kind} {use}\n" for v, (_, kind, use) in enumerate(buffers))
        x = [buffer[0] for buffer in buffers].index("x")
        text += f"  op {op}\nbody\n  0 input label=\"input x\" args=[{x}] input=\"x\" count=4\n"
        write("run", name, text + f"  1 compute label=\"F\" program=0 args=[{','.join(map(str, range(len(buffers))))}] pass=\"F\"\n")

    x = ("x", "i64[4]", "read")
    put("rows_beyond_the_table", [("t", "f32[3,2]", "read"), x, ("y", "f32[4,2]", "written")], "Gather in=[0,1] out=[2] {axis=0}")
    put("adds_rows_beyond_the_table", [("d", "f32[4,2]", "read"), x, ("y", "f32[3,2]", "written")],
        "GatherGrad in=[0,1] out=[2] {axis=0, size=3}")
    put("labels_beyond_the_classes", [("l", "f32[4,2]", "read"), x, ("y", "f32[]", "written"), ("s", "f32[4]", "written")],
        "CrossEntropySum in=[0,1] out=[2,3] {ignore_index=-100}")
    put("reads_what_it_writes", [("t", "f32[4,2]", "read written"), x], "Gather in=[0,1] out=[0] {axis=0}")
    put("writes_over_a_neighbour", [("t", "f32[3,2]", "read"), x, ("y", "f32[4,2]", "written")],
        "Expand in=[0] out=[2] {shape=[4,2]}")
    put("draws_for_all_samples_there_are", [("k", "i64[]", "read"), ("n", "i64[]", "read"), x, ("y", "f32[4,2]", "written")],
        'Random in=[0,1,2] out=[3] {distribution="uniform", dtype="f32", rows=4, shape=[4,2], shards=1}')


onnx_files()
run_files()
strategy_files()
plan_files()
data_files()
checkpoint_files()
kernel_files()
