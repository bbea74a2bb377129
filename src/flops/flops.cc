#include "piper/flops.h"

#include "piper/ops.h"

namespace piper {
namespace {

class OpFlops {
 public:
  OpFlops(const Program& program, const ProgramOp& op) : program_(program), op_(op) {}

  Result<double> run() const {
    if (op_.op == "Pack" || op_.outputs.empty()) return 0.0;
    if (op_.op == "Fused") return words(op_.attrs.text("expr"));
    PIPER_ASSIGN(double flops, own());
    if (op_.attrs.integer("accumulate") != 0) flops += elements(type(op_.outputs[0]));
    PIPER_ASSIGN(const double behind, words(op_.attrs.text("then")));
    return flops + behind;
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

  // Pointwise ops on elements of the result; what pushes and names operands is free.
  Result<double> words(std::string_view text) const {
    double flops = 0;
    for (const std::string& word : split_text(text, ' ')) {
      if (word.empty() || std::string_view("=@0123456789").find(word[0]) != std::string::npos)
        continue;
      const OpDef* def = find_op(std::string_view(word).substr(0, word.find(':')));
      if (!def || !def->cost || !def->pointwise) return unknown(word);
      const TensorType& result = type(op_.outputs[0]);
      flops += def->cost({.inputs = {result}, .present = {true}, .outputs = {result}}).flops;
    }
    return flops;
  }

  // Without what is fused behind it.
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

  // With the first operands alone; `like` is the op that they are checked as.
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
    int64_t transposed = op_.attrs.integer("trans_b");
    const TensorType& result = type(op_.outputs[0]);
    // A packed operand has more columns than the matrix that it was made of.
    if (op_.attrs.integer("packed_b") != 0) {
      if (use.inputs[1].shape.empty() || result.shape.empty()) return ill_typed("it is no matrix");
      use.inputs[1].shape = {use.inputs[1].shape.front(), result.shape.back()};
      transposed = 0;
    }
    use.attrs = {{"trans_a", op_.attrs.integer("trans_a")}, {"trans_b", transposed}};
    return cost_of(def, "MatMul", std::move(use), result);
  }

  // Of operands that may be columns of one tensor: all sizes follow from the result's shape.
  Result<double> attention(const OpDef& def, int32_t y) const {
    if (op_.inputs.size() < 3 || std::min({op_.inputs[0], op_.inputs[1], op_.inputs[2]}) < 0)
      return ill_typed("it has no three operands");
    OpTypes use{.inputs = {type(op_.inputs[0]), type(op_.inputs[1]), type(op_.inputs[2])}};
    if (op_.attrs.find("columns")) {
      const TensorType& q = type(y);
      if (q.shape.size() != 4) return ill_typed("its result has no four dims");
      use.inputs = {q, q, q};
      for (const size_t i : {1, 2}) use.inputs[i].shape[2] = op_.attrs.integer("kv_heads");
    }
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
