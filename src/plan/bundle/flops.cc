// FLOPs of programs, by the costs of the op table; bytes of instructions.
#include "piper/plan/flops.h"

#include <algorithm>
#include <map>

#include "piper/ir/ops.h"

namespace piper {
namespace {

class WorkCounter {
 public:
  WorkCounter(const Program& program, const ProgramOp& op) : program_(program), op_(op) {}

  Result<OpWork> run() {
    if (op_.outputs.empty()) return work_;
    PIPER_TRY(own());
    const double made = elements(type(op_.outputs[0]));
    if (op_.attrs.integer("accumulate") != 0) work_.flops += made;
    PIPER_TRY(add_words("then", made));
    return work_;
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

  // Counts the op without what it takes along.
  Status own() {
    if (op_.attrs.find("expr")) {
      double most = 0;
      for (const auto* values : {&op_.inputs, &op_.outputs})
        for (const int32_t value : *values)
          if (value >= 0) most = std::max(most, elements(type(value)));
      return add_words("expr", most);
    }
    const OpDef* def = find_op(op_.op);
    if (!def) return unknown(op_.op);
    if (!def->cost) return ok_status();
    if (op_.op == "MatMul") return product(*def);
    if (op_.op == "Attention") return attention(*def, op_.outputs[0]);
    if (op_.op == "AttentionGrad")
      return op_.inputs.size() > 3 && op_.inputs[3] >= 0 ? attention(*def, op_.inputs[3])
                                                         : ill_typed("it has no result to read");
    OpTypes use;
    use.attrs = op_.attrs;
    for (const int32_t input : op_.inputs) {
      use.present.push_back(input >= 0);
      use.inputs.push_back(input >= 0 ? type(input) : TensorType{});
    }
    for (const int32_t output : op_.outputs) use.outputs.push_back(type(output));
    const Cost cost = def->cost(use);
    work_.flops = cost.flops;
    if (cost.is_matmul) rows_by_matrices(use);
    return ok_status();
  }

  // Adds the words of an expression, or of what an op takes along.
  Status add_words(const char* attribute, double count) {
    const AttrValue* const text = op_.attrs.find(attribute);
    if (!text) return ok_status();
    if (!std::holds_alternative<std::string>(*text))
      return ill_typed(fmt::format("'{}' is of another kind", attribute));
    OpTypes of_one{.inputs = {{DType::kF32, {}}}, .present = {true}};
    of_one.outputs = of_one.inputs;
    for (const std::string& word : split_text(std::get<std::string>(*text), ' ')) {
      if (word.empty() || word[0] < 'A' || word[0] > 'Z') continue;
      const OpDef* def = find_op(std::string_view(word).substr(0, word.find(':')));
      if (!def || !def->pointwise) return unknown(word);
      if (def->cost) work_.flops += count * def->cost(of_one).flops;
    }
    return ok_status();
  }

  // Counts products of rows with one matrix, or with the matrix of the expert that each row is for.
  void rows_by_matrices(const OpTypes& use) {
    const Shape& x = use.inputs[0].shape;
    const bool grouped = use.inputs.size() > 1 && !info(use.inputs[1].dtype).is_float;
    const bool grad = grouped && use.attrs.find("groups");
    const TensorType& last = grouped ? use.inputs[2] : use.inputs[1];
    const Shape& matrices = grad ? use.outputs[0].shape : last.shape;
    const Shape& y = grad ? last.shape : use.outputs[0].shape;
    work_.kind = OpWork::kProduct;
    work_.dtype = use.inputs[0].dtype;
    work_.count = grouped ? static_cast<double>(matrices[0]) : 1;
    const auto width = static_cast<double>(x.back());
    work_.m = elements(use.inputs[0]) / std::max(width, 1.0);
    if (grouped && use.attrs.find("rows"))
      work_.m = static_cast<double>(use.attrs.integer("rows")) / work_.count;
    else if (grouped)
      work_.m /= std::max(static_cast<double>(use.attrs.integer("whole")), work_.count);
    work_.n = static_cast<double>(y.back());
    work_.k = width;
    if (grad) std::swap(work_.m, work_.k);
  }

  // Counts with the first operands only; `like` is the op that they are checked as.
  Status cost_of(const OpDef& def, std::string_view like, OpTypes use, const TensorType& output) {
    use.present.assign(use.inputs.size(), true);
    if (const auto types = find_op(like)->types(use); !types)
      return ill_typed(types.error().message);
    use.outputs = {output};
    work_.flops = def.cost(use).flops;
    work_.dtype = use.inputs[0].dtype;
    return ok_status();
  }

  Status product(const OpDef& def) {
    if (op_.inputs.size() < 2 || op_.inputs[0] < 0 || op_.inputs[1] < 0)
      return ill_typed("it has no two operands");
    OpTypes use{.inputs = {type(op_.inputs[0]), type(op_.inputs[1])}};
    use.attrs = {{"trans_a", op_.attrs.integer("trans_a")},
                 {"trans_b", op_.attrs.integer("trans_b")}};
    const Shape a = use.inputs[0].shape;
    const TensorType& made = type(op_.outputs[0]);
    PIPER_TRY(cost_of(def, "MatMul", std::move(use), made));
    work_.kind = OpWork::kProduct;
    const bool by_columns = op_.attrs.integer("trans_a") != 0;
    work_.m = static_cast<double>(a[a.size() - (by_columns ? 1 : 2)]);
    work_.k = static_cast<double>(a[a.size() - (by_columns ? 2 : 1)]);
    work_.n = made.shape.empty() ? 1 : static_cast<double>(made.shape.back());
    work_.count = elements(made) / std::max(work_.m * work_.n, 1.0);
    // Rows of all leading dims meet one matrix.
    if (!by_columns && type(op_.inputs[1]).shape.size() == 2)
      work_.m *= std::exchange(work_.count, 1);
    return ok_status();
  }

  // Operands may be columns of one tensor: then the result tells their sizes.
  Result<std::vector<TensorType>> attention_operands(const TensorType& y) const {
    if (op_.inputs.size() < 3 || std::min({op_.inputs[0], op_.inputs[1], op_.inputs[2]}) < 0)
      return ill_typed("it has no three operands");
    if (!op_.attrs.find("columns"))
      return std::vector{type(op_.inputs[0]), type(op_.inputs[1]), type(op_.inputs[2])};
    const AttrValue* const heads = op_.attrs.find("kv_heads");
    if (!heads || !std::holds_alternative<int64_t>(*heads) || y.shape.size() != 4)
      return ill_typed("its columns do not say their sizes");
    TensorType keys{type(op_.inputs[0]).dtype, y.shape}, queries = keys;
    keys.shape[2] = std::get<int64_t>(*heads);
    return std::vector{queries, keys, keys};
  }

  Status attention(const OpDef& def, int32_t y) {
    OpTypes use;
    PIPER_ASSIGN(use.inputs, attention_operands(type(y)));
    for (const auto& [name, value] : op_.attrs.items()) {
      const bool is_list = name == "tokens_first", is_number = name == "causal" || name == "offset";
      if (is_list ? !std::holds_alternative<std::vector<int64_t>>(value)
                  : is_number && !std::holds_alternative<int64_t>(value))
        return ill_typed(fmt::format("'{}' is of another kind", name));
      if (is_list || is_number) use.attrs.set(name, value);
    }
    const std::vector<int64_t> tokens_first = use.attrs.integers("tokens_first");
    const Shape q = use.inputs[0].shape, v = use.inputs[2].shape;
    PIPER_TRY(cost_of(def, "Attention", std::move(use), type(y)));
    const bool grad = op_.op == "AttentionGrad";
    const bool tokens = !tokens_first.empty() && tokens_first[0] != 0;
    const auto width = static_cast<double>(q[3]), v_width = static_cast<double>(v[3]);
    work_.kind = grad ? OpWork::kAttentionGrad : OpWork::kAttention;
    work_.count = static_cast<double>(q[0] * q[tokens ? 2 : 1]);
    work_.m = static_cast<double>(q[tokens ? 1 : 2]);
    work_.k = (width + v_width) / 2;
    const double of_score = grad ? 6 * width + 4 * v_width : 2 * (width + v_width);
    work_.n = work_.flops / std::max(of_score * work_.count * work_.m, 1.0);
    return ok_status();
  }

  const Program& program_;
  const ProgramOp& op_;
  OpWork work_;
};

}  // namespace

Result<OpWork> work_of(const Program& program, const ProgramOp& op) {
  return WorkCounter(program, op).run();
}

Result<double> program_flops(const Program& program) {
  double flops = 0;
  for (const ProgramOp& op : program.ops) {
    PIPER_ASSIGN(const OpWork one, work_of(program, op));
    flops += one.flops;
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

int64_t bytes_through(const RoleProgram& role, const Instruction& one) {
  const bool brings_second = info(one.kind).whole == 1 || one.kind == InstructionKind::kOwnPart;
  const size_t first = brings_second ? 1 : 0, step = takes_pairs(one.kind) ? 2 : 1;
  const size_t count = takes_index(one.kind)                ? first + 1
                       : one.kind == InstructionKind::kCopy ? 1
                                                            : one.args.size();
  int64_t bytes = 0;
  for (size_t a = first; a < count; a += step) {
    const TensorType& type = role.tensor(one.args[a]).type;
    if (one.count > 0) {  // of each part, if it leaves such
      const int64_t all = num_elements(role.tensor(one.args.back()).type.shape);
      return type.bytes() * one.count / std::max<int64_t>(all, 1);
    }
    bytes += one.scaled == Scaled::kNone ? type.bytes()
                                         : one.in_blocks().bytes(num_elements(type.shape));
  }
  return bytes;
}

int64_t outer_bytes(const RoleProgram& role, const OuterUpdate& update) {
  int64_t bytes = 0;
  for (const Instruction& one : update.instructions)
    if (one.kind == InstructionKind::kSend || is_collective(one.kind))
      bytes += bytes_through(role, one);
  return bytes;
}

std::string way_of(const RoleProgram& role, const Instruction& one) {
  const auto place = [&](size_t arg) {
    return role.tensor(one.args[arg]).host ? "host" : "device";
  };
  if (one.kind == InstructionKind::kInput) return "host to device";
  if (one.kind != InstructionKind::kCopy) return "device";
  return std::string(place(0)) == place(1) ? place(0) : fmt::format("{} to {}", place(0), place(1));
}

double model_flops(const Manifest& manifest) {
  const auto known = manifest.predictions.find("model_flops");
  return known == manifest.predictions.end() ? 0 : known->second;
}

Result<DType> type_of_products(const RoleProgram& role) {
  std::vector<int64_t> runs(role.programs.size());
  for (const Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kF)
      ++runs[static_cast<size_t>(one.program)];
  std::map<DType, double> flops;
  for (size_t p = 0; p < runs.size(); ++p)
    for (const ProgramOp& op : role.programs[p].ops) {
      if (runs[p] == 0) break;
      PIPER_ASSIGN(const OpWork work, work_of(role.programs[p], op));
      if (work.kind != OpWork::kElements)
        flops[work.dtype] += work.flops * static_cast<double>(runs[p]);
    }
  const auto most = std::ranges::max_element(
      flops, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == flops.end() ? DType::kF32 : most->first;
}

Result<double> run_flops(const RoleProgram& role) {
  PIPER_ASSIGN(const std::vector<double> by_program, program_flops(role));
  double all = 0;
  for (const Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute) all += by_program[static_cast<size_t>(one.program)];
  return all;
}

Result<double> flops_of_ranks(const PlanSet& set, Result<double> (*of_role)(const RoleProgram&)) {
  std::vector<double> flops;
  for (const RoleProgram& role : set.roles) {
    PIPER_ASSIGN(flops.emplace_back(), of_role(role));
  }
  double all = 0;
  for (const int32_t role : set.role_of_rank) all += flops[static_cast<size_t>(role)];
  return all;
}

int64_t largest_peak(const PlanSet& set) {
  int64_t peak = 0;
  for (const RoleProgram& role : set.roles) peak = std::max(peak, role.peak_bytes());
  return peak;
}

}  // namespace piper
