// FLOPs of programs, by the costs of the op table.
#include "piper/plan/flops.h"

#include "piper/ir/ops.h"

namespace piper {
namespace {

class OpFlops {
 public:
  OpFlops(const Program& program, const ProgramOp& op) : program_(program), op_(op) {}

  Result<double> run() const {
    if (op_.outputs.empty()) return 0.0;
    PIPER_ASSIGN(double flops, own());
    if (op_.attrs.integer("accumulate") != 0) flops += elements(type(op_.outputs[0]));
    return flops;
  }

 private:
  const TensorType& type(int32_t value) const {
    return program_.values[static_cast<size_t>(value)];
  }
  static double elements(const TensorType& of) {
    return static_cast<double>(num_elements(of.shape));
  }
  Error unknown(std::string_view name) const {
    return fail("program '{}': there is no op '{}' whose FLOPs are known",
                quote_control(program_.label), quote_control(name));
  }
  Error ill_typed(std::string_view why) const {
    return fail("program '{}': {}: {}", quote_control(program_.label), quote_control(op_.op),
                quote_control(why));
  }

  // Returns the cost without the sum that a product is added to.
  Result<double> own() const {
    const OpDef* def = find_op(op_.op);
    if (!def) return unknown(op_.op);
    if (!def->cost) return 0.0;
    if (op_.op == "MatMul") return product(*def);
    if (op_.op == "Attention") return attention(*def, op_.outputs[0]);
    if (op_.op == "AttentionGrad")
      return op_.inputs.size() > 3 && op_.inputs[3] >= 0 ? attention(*def, op_.inputs[3])
                                                         : ill_typed("it has no result to read");
    OpTypes use;
    for (const int32_t input : op_.inputs) {
      use.present.push_back(input >= 0);
      use.inputs.push_back(input >= 0 ? type(input) : TensorType{});
    }
    for (const int32_t output : op_.outputs) use.outputs.push_back(type(output));
    return def->cost(use).flops;
  }

  // Returns the cost with the first operands only; `like` is the op that they are checked as.
  Result<double> cost_of(const OpDef& def, std::string_view like, OpTypes use,
                         const TensorType& output) const {
    use.present.assign(use.inputs.size(), true);
    if (const auto types = find_op(like)->types(use); !types)
      return ill_typed(types.error().message);
    use.outputs = {output};
    return def.cost(use).flops;
  }

  Result<double> product(const OpDef& def) const {
    if (op_.inputs.size() < 2 || op_.inputs[0] < 0 || op_.inputs[1] < 0)
      return ill_typed("it has no two operands");
    OpTypes use{.inputs = {type(op_.inputs[0]), type(op_.inputs[1])}};
    use.attrs = {{"trans_a", op_.attrs.integer("trans_a")},
                 {"trans_b", op_.attrs.integer("trans_b")}};
    return cost_of(def, "MatMul", std::move(use), type(op_.outputs[0]));
  }

  Result<double> attention(const OpDef& def, int32_t y) const {
    if (op_.inputs.size() < 3 || std::min({op_.inputs[0], op_.inputs[1], op_.inputs[2]}) < 0)
      return ill_typed("it has no three operands");
    OpTypes use{.inputs = {type(op_.inputs[0]), type(op_.inputs[1]), type(op_.inputs[2])}};
    for (const auto& [name, value] : op_.attrs.items()) {
      const bool is_list = name == "tokens_first", is_number = name == "causal" || name == "offset";
      if (is_list ? !std::holds_alternative<std::vector<int64_t>>(value)
                  : is_number && !std::holds_alternative<int64_t>(value))
        return ill_typed(fmt::format("'{}' is of another kind", name));
      if (is_list || is_number) use.attrs.set(name, value);
    }
    return cost_of(def, "Attention", std::move(use), type(y));
  }

  const Program& program_;
  const ProgramOp& op_;
};

}  // namespace

Result<double> program_flops(const Program& program) {
  double flops = 0;
  for (const ProgramOp& op : program.ops) {
    PIPER_ASSIGN(const double one, OpFlops(program, op).run());
    flops += one;
  }
  return flops;
}

Result<std::vector<double>> program_flops(const RoleProgram& role) {
  std::vector<double> flops;
  for (const Program& program : role.programs) {
    PIPER_ASSIGN(flops.emplace_back(), program_flops(program));
  }
  return flops;
}

}  // namespace piper
