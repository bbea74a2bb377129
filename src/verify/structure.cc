#include <algorithm>
#include <set>

#include "cells.h"

namespace piper::verify {
namespace {

size_t num_args(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kReduceScatter:
    case InstructionKind::kAllGather:
    case InstructionKind::kAllToAll:
    case InstructionKind::kCopy: return 2;
    default: return 1;
  }
}

void check_program(const RoleProgram& role, size_t index, Report& report) {
  const Program& program = role.programs[index];
  const auto bad = [&](const std::string& what) { report.find("structure", "program {} '{}': {}", index, program.label, what); };
  const auto n = static_cast<int32_t>(program.values.size());
  if (program.num_args < 0 || program.num_args > n || program.offsets.size() != program.values.size() ||
      program.arg_read.size() != static_cast<size_t>(program.num_args) || program.arg_written.size() != program.arg_read.size())
    return bad("its tables have different lengths");
  std::vector<bool> defined(program.values.size());
  std::vector<bool> writes(static_cast<size_t>(program.num_args)), reads(static_cast<size_t>(program.num_args));
  for (int32_t a = 0; a < program.num_args; ++a) defined[static_cast<size_t>(a)] = true;
  for (const auto& [value, bytes] : program.literals) {
    if (value < program.num_args || value >= n) return bad("a literal is no local value");
    if (static_cast<int64_t>(bytes.size()) != program.values[static_cast<size_t>(value)].bytes()) return bad("a literal has the wrong size");
    defined[static_cast<size_t>(value)] = true;
  }
  for (const ProgramOp& op : program.ops) {
    for (int32_t input : op.inputs) {
      if (input < -1 || input >= n) return bad("an op reads a value that does not exist");
      if (input >= 0 && !defined[static_cast<size_t>(input)]) return bad(op.op + " reads a value before it is written");
      if (input >= 0 && input < program.num_args && !writes[static_cast<size_t>(input)]) reads[static_cast<size_t>(input)] = true;
    }
    for (int32_t output : op.outputs) {
      if (output < 0 || output >= n) return bad("an op writes a value that does not exist");
      if (output >= program.num_args && defined[static_cast<size_t>(output)]) return bad(op.op + " writes a value twice");
      defined[static_cast<size_t>(output)] = true;
      if (output < program.num_args) writes[static_cast<size_t>(output)] = true;
    }
  }
  if (writes != program.arg_written || reads != program.arg_read) bad("its arguments are not read and written as declared");
}

void check_instruction(const Model& model, Place place, Report& report) {
  const Cell& cell = model.cells[static_cast<size_t>(place.cell)];
  const RoleProgram& role = *cell.role;
  const Instruction& instruction = model.at(place);
  const auto bad = [&](const std::string& what) { report.find("structure", "{}: {}", model.name(place), what); };
  if (instruction.stream < 0 || static_cast<size_t>(instruction.stream) >= role.streams.size()) return bad("no such stream");
  for (int32_t wait : instruction.waits)
    if (wait < 0 || wait >= place.at) return bad("waits for an instruction that does not come before it");
  for (int32_t arg : instruction.args)
    if (arg < 0 || static_cast<size_t>(arg) >= role.buffers.size()) return bad("no such buffer");
  if (instruction.kind == InstructionKind::kCompute) {
    if (instruction.program < 0 || static_cast<size_t>(instruction.program) >= role.programs.size()) return bad("no such program");
    const Program& program = role.programs[static_cast<size_t>(instruction.program)];
    if (instruction.args.size() != static_cast<size_t>(program.num_args)) return bad("wrong number of arguments");
    std::set<int32_t> seen;
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const Buffer& buffer = role.buffers[static_cast<size_t>(instruction.args[a])];
      if (buffer.type != program.values[a])
        return bad(fmt::format("argument {} is {}, the program wants {}", buffer.name, to_string(buffer.type), to_string(program.values[a])));
      if (!seen.insert(instruction.args[a]).second) return bad(fmt::format("binds {} twice", buffer.name));
      if (program.arg_written[a] && buffer.kind == BufferKind::kConstant) return bad(fmt::format("writes the constant {}", buffer.name));
    }
    return;
  }
  if (instruction.args.empty() || (instruction.kind != InstructionKind::kAllReduce && instruction.args.size() != num_args(instruction.kind)))
    return bad("wrong number of arguments");
  const bool transfer = instruction.kind == InstructionKind::kSend || instruction.kind == InstructionKind::kRecv;
  if (transfer && instruction.peer.size() != model.mesh.size()) return bad("its peer has no place in the mesh");
  for (size_t a = 0; transfer && a < instruction.peer.size(); ++a)
    if (instruction.peer[a] < -1 || instruction.peer[a] >= model.mesh[a].second) return bad("its peer is outside the mesh");
  const bool collective = !transfer && instruction.kind != InstructionKind::kInput && instruction.kind != InstructionKind::kCopy;
  if (collective && (instruction.group < 0 || static_cast<size_t>(instruction.group) >= role.groups.size())) return bad("no such group");
  if (instruction.kind == InstructionKind::kInput) {
    const auto known = std::find_if(role.inputs.begin(), role.inputs.end(),
                                    [&](const DataInput& input) { return input.name == instruction.input; });
    if (known == role.inputs.end()) return bad(fmt::format("no such input '{}'", instruction.input));
    if (instruction.samples.stride.size() != model.mesh.size()) return bad("its samples have no place in the mesh");
  }
  if (!transfer && instruction.kind != InstructionKind::kSend)
    for (int32_t arg : instruction.args)
      if (role.buffers[static_cast<size_t>(arg)].kind == BufferKind::kConstant) bad("writes a constant");
}

}  // namespace

void check_structure(const Model& model, Report& report) {
  std::set<const RoleProgram*> seen;
  for (size_t c = 0; c < model.cells.size(); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    if (!seen.insert(&role).second) continue;
    for (const Group& group : role.groups)
      for (int32_t axis : group.axes)
        if (axis < 0 || static_cast<size_t>(axis) >= model.mesh.size()) report.find("structure", "group '{}' names no axis", group.name);
    if (!report.clean()) return;
    for (size_t p = 0; p < role.programs.size(); ++p) check_program(role, p, report);
    for (size_t i = 0; i < role.body.size(); ++i)
      check_instruction(model, {static_cast<int32_t>(c), static_cast<int32_t>(i)}, report);
    for (const piper::Report& r : role.reports)
      if (r.buffer < 0 || static_cast<size_t>(r.buffer) >= role.buffers.size()) report.find("structure", "report '{}' has no buffer", r.name);
  }
}

}  // namespace piper::verify
