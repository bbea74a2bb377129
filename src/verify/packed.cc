// Rule structure, for packed copies: what writes one packs the state that it is a copy of, always
// alike; what reads one is a product that expects it, of that matrix. (That a copy is made before
// it is read, in each step, is rule order's; that it is of the state before its update, rule
// sum's.)
#include "model.h"

namespace piper {
namespace {

// How a program reads an argument: as a packed operand of products, or otherwise.
struct Reading {
  bool otherwise = false;
  int64_t form = 0;  // what `packed_b` says: 1 packed as it is stored, 2 transposed; 0: it is none
  Shape shape;       // of the matrix, as it is stored
  bool operator==(const Reading&) const = default;
};

std::vector<Reading> readings_of(const Program& program) {
  std::vector<Reading> readings(static_cast<size_t>(program.num_args));
  const std::vector<int32_t> bases = program.bases();
  for (const ProgramOp& op : program.ops)
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const int32_t value = op.inputs[i];
      if (value < 0 || bases[value] >= program.num_args) continue;
      Reading& reading = readings[bases[value]];
      Reading one;
      one.form = op.op == "MatMul" && i == 1 ? op.attrs.integer("packed_b") : 0;
      const Shape &b = program.values[value].shape, &out = program.values[op.outputs[0]].shape;
      one.otherwise = one.form == 0 || value != bases[value] || b.empty() || out.empty();
      if (!one.otherwise && one.form == 2) one.shape = {out.back(), b[0]};
      if (!one.otherwise && one.form != 2) one.shape = {b[0], out.back()};
      if (reading != Reading{} && reading != one) one.otherwise = true;
      one.form = std::max(one.form, reading.form);
      reading = std::move(one);
    }
  return readings;
}

class PackedCheck {
 public:
  PackedCheck(const Model& model, int32_t cell, Findings& findings)
      : model_(model), cell_(cell), role_(*model.cells[cell].role), findings_(findings) {
    for (const Program& program : role_.programs) readings_.push_back(readings_of(program));
    transposed_.assign(role_.buffers.size(), -1);
  }

  void run(const Section& section) {
    const auto& steps = section.steps[cell_];
    const auto each = [&](bool writes, auto check) {
      for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
        const auto args = section.args_of(cell_, steps[i]);
        const Access access = access_of(*model_.cells[cell_].facts, steps[i]);
        for (size_t a = 0; a < args.size(); ++a)
          if (access[a] & (writes ? kWrites : kReads)) check(section.at({cell_, i}), args[a], a);
      }
    };
    each(true, [&](const Instruction& one, int32_t b, size_t) {
      if (role_.tensor(b).packed_of >= 0) check_write(one, b);
    });
    each(false, [&](const Instruction& one, int32_t b, size_t a) { check_read(one, b, a); });
  }

 private:
  std::string name(int32_t b) const { return quote_control(role_.name(b)); }

  void check_write(const Instruction& one, int32_t b) {
    const int32_t source = role_.tensor(b).packed_of;
    const bool computes = one.kind == InstructionKind::kCompute;
    const Program* program = computes ? &role_.programs[one.program] : nullptr;
    if (!program || program->ops.size() != 1 || program->ops[0].op != "Pack" ||
        one.args != std::vector<int32_t>{source, b} ||
        program->ops[0].inputs != std::vector<int32_t>{0} ||
        program->ops[0].outputs != std::vector<int32_t>{1})
      return findings_.add("structure", "{} on {} writes '{}', but does not pack '{}' into it",
                           name_of(one), model_.who(cell_), name(b), name(source));
    const int transposed = program->ops[0].attrs.integer("trans_b") != 0;
    if (transposed_[b] >= 0 && transposed_[b] != transposed)
      findings_.add("structure", "{} on {} packs '{}' otherwise than another instruction does",
                    name_of(one), model_.who(cell_), name(source));
    transposed_[b] = transposed;
  }

  void check_read(const Instruction& one, int32_t b, size_t arg) {
    const int32_t source = role_.tensor(b).packed_of;
    if (source < 0 && one.kind != InstructionKind::kCompute) return;
    const Reading reading =
        one.kind == InstructionKind::kCompute ? readings_[one.program][arg] : Reading{true, 0, {}};
    if (source < 0 && reading.form == 0) return;
    if (source < 0)
      return findings_.add("structure", "{} on {} takes '{}' for a packed copy", name_of(one),
                           model_.who(cell_), name(b));
    if (reading.otherwise)
      return findings_.add("structure", "{} on {} reads the packed copy '{}' as if it were none",
                           name_of(one), model_.who(cell_), name(b));
    if (transposed_[b] < 0) return;  // nothing packs it: rule order says so
    const Shape& from = role_.tensor(source).type.shape;
    if (reading.form != 1 + transposed_[b] || reading.shape != from)
      findings_.add("structure", "{} on {} reads the packed copy '{}' as one of {}{}, not of {}{}",
                    name_of(one), model_.who(cell_), name(b), to_string(reading.shape),
                    reading.form == 2 ? "ᵀ" : "", to_string(from), transposed_[b] == 1 ? "ᵀ" : "");
  }

  const Model& model_;
  const int32_t cell_;
  const RoleProgram& role_;
  Findings& findings_;
  std::vector<std::vector<Reading>> readings_;  // by program and argument
  std::vector<int> transposed_;                 // by buffer; -1: not packed yet
};

// Whether there is anything to look at.
bool packs(const RoleProgram& role) {
  return std::any_of(role.tensors.begin(), role.tensors.end(),
                     [](const Tensor& tensor) { return tensor.packed_of >= 0; }) ||
         std::any_of(role.programs.begin(), role.programs.end(), [](const Program& program) {
           return std::any_of(program.ops.begin(), program.ops.end(), [](const ProgramOp& op) {
             return op.attrs.find("packed_b") != nullptr;
           });
         });
}

}  // namespace

void check_packed_copies(const Model& model, std::span<const Section> sections,
                         Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    if (!packs(*model.cells[c].role)) continue;
    PackedCheck check(model, c, findings);
    for (const Section& section : sections) check.run(section);
  }
}

}  // namespace piper
