// Rule microbatch, for random numbers: what a backward draws again, a forward has drawn, with the
// same op, key and count of steps. (Of which samples, rule sum says.)
#include <set>

#include "model.h"
#include "piper/ops.h"
#include "values.h"

namespace piper {
namespace {

struct Draw {
  size_t op = 0;
  int32_t key = -1, step = -1;  // arguments, or -1
};
std::vector<Draw> draws_of(const Program& program) {
  std::vector<Draw> draws;
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const OpDef* def = find_op(op.op);
    if (!def || def->draws < 0 || op.inputs.size() < static_cast<size_t>(def->draws) + 2) continue;
    const auto arg = [&](int i) {
      const int32_t input = op.inputs[static_cast<size_t>(i)];
      return input < program.num_args ? input : -1;
    };
    draws.push_back({o, arg(def->draws), arg(def->draws + 1)});
  }
  return draws;
}

}  // namespace

void check_draws(const Model& model, Findings& findings) {
  std::set<uint64_t> drawn, said;
  const auto visit = [&](int32_t cell, const Instruction& one, const Draw& draw) {
    const RoleProgram& role = *model.cells[cell].role;
    const ProgramOp& op = role.programs[static_cast<size_t>(one.program)].ops[draw.op];
    const auto kept = [&](int32_t arg) -> const Tensor* {
      if (arg < 0) return nullptr;
      const Tensor& tensor = role.tensor(one.args[static_cast<size_t>(arg)]);
      // The newest version is the count of the next step, as that finds it.
      return tensor.previous_of < 0 ? &tensor : &role.tensor(tensor.previous_of);
    };
    const Tensor *key = kept(draw.key), *step = kept(draw.step);
    // Parts may be drawn otherwise than before: rule layout knows which.
    uint64_t symbol = join_symbols(symbol_of(op.op),
                                   symbol_of(print_attrs(without(op.attrs, {"cuts", "zeros"}))));
    if (key) symbol = join_symbols(symbol, symbol_of(key->init.empty() ? key->name : key->init));
    if (step) symbol = join_symbols(symbol, symbol_of(step->name));
    if (one.pass == 'F')
      drawn.insert(symbol);
    else if (!drawn.contains(symbol) && said.insert(symbol).second)
      findings.add("microbatch", "{} on {} draws {} by key '{}' and step '{}', as no forward does",
                   name_of(one), model.who(cell), op.op, key ? quote_control(key->name) : "",
                   step ? quote_control(step->name) : "");
  };
  for (const bool forward : {true, false})
    for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
      const RoleProgram& role = *model.cells[c].role;
      std::vector<std::vector<Draw>> draws;
      for (const Program& program : role.programs) draws.push_back(draws_of(program));
      for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
        for (const Instruction& one : *list)
          if (one.kind == InstructionKind::kCompute && (one.pass == 'F') == forward)
            for (const Draw& draw : draws[static_cast<size_t>(one.program)]) visit(c, one, draw);
    }
}

}  // namespace piper
