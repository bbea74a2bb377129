// What the passes of a program move.
#include <algorithm>
#include <set>

#include "piper/ir/ops.h"
#include "steps.h"

namespace piper {
namespace {

// "Cast:f32 Add" of an expression "0 Cast:f32 1 Add =0 @0".
std::string words_of(const std::string& expression) {
  std::vector<std::string> words;
  for (std::string& word : split_text(expression, ' '))
    if (word[0] >= 'A' && word[0] <= 'Z') words.push_back(std::move(word));
  return join(words, " ");
}

// Returns whether the op moves elements only.
bool computes_nothing(const OpDef& def, const OpTypes& use) {
  return !is_product(def) && (!def.cost || def.cost(use).flops == 0);
}

}  // namespace

bool is_product(const OpDef& def) {
  if (!def.cost || def.samples.empty()) return false;
  const OpSample& sample = def.samples[0];
  OpTypes use{sample.inputs, std::vector<bool>(sample.inputs.size(), true), {}, sample.attrs};
  for (const int absent : sample.absent) use.present[static_cast<size_t>(absent)] = false;
  auto outputs = def.types(use);
  if (!outputs) return false;
  use.outputs = *std::move(outputs);
  return def.cost(use).is_matmul;
}

std::vector<PassTraffic> traffic_of(const FusedProgram& program) {
  const std::vector<int32_t> bases = program.bases();
  const std::vector<bool> inside = program.inside();
  const auto base = [&](int32_t value) { return bases[static_cast<size_t>(value)]; };
  const auto type = [&](int32_t value) -> const TensorType& {
    return program.values[static_cast<size_t>(value)];
  };
  std::vector<PassTraffic> result;
  std::set<int32_t> known;  // values that the pass has made or read
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const OpDef* def = find_op(op.op);
    if (program.pass_of(o) == result.size()) {
      result.emplace_back();
      known.clear();
    }
    PassTraffic& pass = result.back();
    pass.kind +=
        (pass.kind.empty() ? "" : " ") +
        (op.op == kFusedOp ? words_of(op.attrs.text("expr")) : word_of(op).value_or(op.op));
    pass.is_product |= def && is_product(*def);
    int64_t made = 0;  // elements
    for (const int32_t output : op.outputs) made += num_elements(type(output).shape);
    // What only moves elements looks at no more of them than it makes.
    const bool moves =
        def && computes_nothing(*def, use_of(program.values, op.inputs, op.outputs, op.attrs));
    for (const int32_t input : std::set<int32_t>(op.inputs.begin(), op.inputs.end())) {
      if (input < 0 || known.contains(base(input)) || !known.insert(input).second) continue;
      const int64_t all = num_elements(type(input).shape), read = moves ? std::min(all, made) : all;
      pass.read.emplace_back(base(input), read * info(type(input).dtype).bytes);
    }
    for (const int32_t output : op.outputs) {
      known.insert(base(output));
      if (!inside[static_cast<size_t>(base(output))])
        pass.written.emplace_back(base(output), type(output).bytes());
    }
  }
  return result;
}

}  // namespace piper
