// Role programs made by hand, and data whose every value is known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "communicators.h"
#include "piper/base/memory.h"
#include "piper/runtime/job.h"

namespace piper::plans {

// Sample i of step s is 100 s + i + 1 in all its elements.
class Numbers final : public BatchSource {
 public:
  explicit Numbers(std::vector<int64_t> sample_sizes) : widths(std::move(sample_sizes)) {}
  std::vector<int64_t> widths;  // elements of a sample, by input
  int64_t nan_step = -1;
  float offset = 0;
  bool falling = false;  // −s instead

  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    int64_t width = widths[static_cast<size_t>(input)];
    for (int64_t i = 0; i < count; ++i) {
      float value = static_cast<float>(100 * step + first + i + 1) + offset;
      if (falling) value = -static_cast<float>(step);
      if (step == nan_step) value = std::nanf("");
      for (int64_t j = 0; j < width; ++j) std::memcpy(to + (i * width + j) * 4, &value, 4);
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }
};

inline int32_t add_buffer(RoleProgram& role, const char* name, Shape shape,
                          BufferKind kind = BufferKind::kStep, double fill = 0) {
  return role.add_buffer(
      {.name = name, .type = {DType::kF32, std::move(shape)}, .kind = kind, .fill = fill});
}

// c = a + b; or a += b.
inline Program add_program(const Shape& shape, bool accumulate) {
  TensorType type{DType::kF32, shape};
  Program program;
  program.label = accumulate ? "accumulate" : "add";
  program.num_args = accumulate ? 2 : 3;
  program.values.assign(static_cast<size_t>(program.num_args), type);
  ProgramOp op;
  op.op = "Add";
  op.inputs = {0, 1};
  op.outputs = {accumulate ? 0 : 2};
  program.ops = {op};
  program.arg_read = {true, true, false};
  program.arg_written = {accumulate, false, true};
  program.arg_read.resize(program.values.size());
  program.arg_written.resize(program.values.size());
  return program;
}

inline Instruction compute(int32_t program, std::vector<int32_t> args, std::string label,
                           TaskPass pass = TaskPass::kU, int32_t stage = -1, int32_t micro = -1) {
  Instruction made;
  made.program = program;
  made.args = std::move(args);
  made.label = std::move(label);
  made.pass = pass;
  made.stage = stage;
  made.micro = micro;
  return made;
}

inline Instruction message(InstructionKind kind, int32_t arg, int32_t peer, std::string label) {
  Instruction made;
  made.kind = kind;
  made.args = {arg};
  made.peer = {peer};
  made.label = std::move(label);
  made.pass = TaskPass::kMove;
  return made;
}

inline Instruction input(const char* name, int32_t arg, int64_t first, std::vector<int64_t> stride,
                         std::string label) {
  Instruction made;
  made.kind = InstructionKind::kInput;
  made.args = {arg};
  made.input = name;
  made.samples.first = first;
  made.samples.count = 1;
  made.samples.stride = std::move(stride);
  made.label = std::move(label);
  made.pass = TaskPass::kMove;
  return made;
}

// Lays out the buffers one after another.
inline PlanSet finish(std::vector<RoleProgram> roles, std::vector<int32_t> role_of_rank) {
  PlanSet set;
  for (RoleProgram& role : roles) {
    role.streams = {{"compute"}};
    role.workspace_bytes = {0};
    for (Buffer& one : role.buffers) {
      one.offset = role.arena_bytes;
      role.arena_bytes += align_up(role.tensor(one).type.bytes());
    }
  }
  set.manifest.mesh = roles[0].mesh;
  set.manifest.set_id = "hand-made";
  set.roles = std::move(roles);
  set.role_of_rank = std::move(role_of_rank);
  for (RoleProgram& role : set.roles) role.staging_bytes = staging_of(role);
  give_communicators(set);
  return set;
}

// Two ranks: rank 0 reads a sample of one number per microbatch, adds 10 and sends; rank 1 adds 0.5
// and sums into its loss.
inline PlanSet pipeline(int32_t microbatches) {
  RoleProgram first, second;
  first.mesh = second.mesh = {{"pp", 2}};
  first.batch = second.batch = microbatches;
  first.inputs = {{"x", {DType::kF32, {microbatches}}, 0}};
  Shape one = {1};
  first.programs = second.programs = {add_program(one, false), add_program(one, true)};
  add_buffer(first, "w", one, BufferKind::kConstant, 10);
  add_buffer(first, "x", one);
  add_buffer(second, "v", one, BufferKind::kConstant, 0.5);
  for (const char* name : {"y", "z", "sum"}) add_buffer(second, name, one);
  for (int32_t mb = 0; mb < microbatches; ++mb) {
    std::string y_name = fmt::format("y mb={}", mb);
    int32_t y = add_buffer(first, "y", one);
    first.body.push_back(input("x", 1, mb, {0}, fmt::format("x mb={}", mb)));
    first.body.push_back(compute(0, {1, 0, y}, "F stage=0", TaskPass::kF, 0, mb));
    first.body.push_back(message(InstructionKind::kSend, y, 1, y_name));
    second.body.push_back(message(InstructionKind::kRecv, 1, 0, y_name));
    second.body.push_back(compute(0, {1, 0, mb == 0 ? 3 : 2}, "F stage=1", TaskPass::kF, 1, mb));
    if (mb > 0) second.body.push_back(compute(1, {3, 2}, "sum", TaskPass::kF, 1, mb));
  }
  second.reports = {{"loss", 3}};
  return finish({first, second}, {0, 1});
}

// Two ranks: rank 1 adds 0.5 to its sample and sends it on a stream of its own; rank 0 receives it
// on one, makes 20 meanwhile and adds the two.
inline PlanSet meanwhile() {
  RoleProgram first, second;
  first.mesh = second.mesh = {{"pp", 2}};
  first.batch = second.batch = 1;
  second.inputs = {{"x", {DType::kF32, {1}}, 0}};
  first.programs = second.programs = {add_program({1}, false)};
  add_buffer(first, "w", {1}, BufferKind::kConstant, 10);
  for (const char* name : {"y", "v", "z"}) add_buffer(first, name, {1});
  add_buffer(second, "k", {1}, BufferKind::kConstant, 0.5);
  for (const char* name : {"x", "v"}) add_buffer(second, name, {1});
  first.body = {message(InstructionKind::kRecv, 2, 1, "v"), compute(0, {0, 0, 1}, "meanwhile"),
                compute(0, {2, 1, 3}, "sum")};
  second.body = {input("x", 1, 0, {0}, "x"), compute(0, {1, 0, 2}, "v"),
                 message(InstructionKind::kSend, 2, 0, "v")};
  first.body[0].stream = second.body[2].stream = 1;
  first.body[2].waits = {0};
  second.body[2].waits = {1};
  first.reports = {{"loss", 3}};
  PlanSet set = finish({first, second}, {0, 1});
  for (RoleProgram& role : set.roles) {
    role.streams.push_back({"messages"});
    role.workspace_bytes.push_back(0);
  }
  return set;
}

// A parameter p of five elements, held by every rank; each adds the sum over ranks of (x + p), x
// being the rank's sample. The loss is the sum of t over ranks.
inline PlanSet replicas(int32_t ranks) {
  RoleProgram role;
  role.mesh = {{"dp", ranks}};
  role.batch = ranks;
  role.inputs = {{"x", {DType::kF32, {ranks, 5}}, 0}, {"t", {DType::kF32, {ranks}}, 0}};
  role.groups = {{"dp", {0}}};
  Shape five = {1, 5};
  role.programs = {add_program(five, false), add_program(five, true)};
  add_buffer(role, "p", five, BufferKind::kState, 1);
  add_buffer(role, "x", five);
  add_buffer(role, "g", five);
  add_buffer(role, "t", {1});
  role.tensor(0).param = "w.p";
  role.tensor(0).aliases = {"tied.p"};
  Instruction reduce;
  reduce.kind = InstructionKind::kAllReduce;
  reduce.group = 0;
  reduce.args = {2, 3};
  reduce.label = "grad w";
  reduce.pass = TaskPass::kMove;
  role.body = {input("x", 1, 0, {1}, "x"), input("t", 3, 0, {1}, "t"),
               compute(0, {1, 0, 2}, "gradient"), reduce, compute(1, {0, 2}, "update")};
  role.reports = {{"loss", 3}};
  return finish({role}, std::vector<int32_t>(static_cast<size_t>(ranks), 0));
}

// The same on one device, sums in the same order.
inline PlanSet replicas_oracle(int32_t ranks) {
  RoleProgram role = replicas(ranks).roles[0];
  role.mesh = {};
  role.groups = {};
  role.arena_bytes = 0;
  role.programs.push_back(add_program({1}, true));
  add_buffer(role, "t1", {1});
  add_buffer(role, "g1", role.tensor(0).type.shape);
  role.body.clear();
  for (int32_t r = 0; r < ranks; ++r) {
    int32_t t = r == 0 ? 3 : 4;
    int32_t g = r == 0 ? 2 : 5;
    role.body.push_back(input("x", 1, r, {}, "x"));
    role.body.push_back(input("t", t, r, {}, "t"));
    role.body.push_back(compute(0, {1, 0, g}, "gradient"));
    if (r == 0) continue;
    role.body.push_back(compute(1, {2, g}, "sum"));
    role.body.push_back(compute(2, {3, t}, "sum"));
  }
  role.body.push_back(compute(1, {0, 2}, "update"));
  return finish({role}, {0});
}

}  // namespace piper::plans
