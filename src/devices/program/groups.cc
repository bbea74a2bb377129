// Pointwise ops -> Fused ops.
#include <algorithm>
#include <map>

#include "piper/ir/ops.h"
#include "steps.h"

namespace piper {
namespace {

constexpr size_t kMaxInputs = 31, kMaxOps = 64;  // of a group

class Grouper {
 public:
  explicit Grouper(FusedProgram& program)
      : program_(program), uses_(program), groups_(program, uses_) {
    for (size_t o = 0; o < program.ops.size(); ++o) fusable_.push_back(is_fusable(o));
  }

  void run(FuseCounts& counts) {
    join_groups();
    std::vector<ProgramOp> ops;
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      const std::vector<size_t>& members = groups_.with(o);
      if (members.size() == 1) {
        ops.push_back(std::move(program_.ops[o]));
      } else if (o == members.back()) {
        ops.push_back(fused(members));
        ++counts.groups;
        counts.ops += static_cast<int64_t>(members.size());
      }
    }
    program_.ops = std::move(ops);
  }

 private:
  const Shape& shape(size_t op) const {
    return program_.values[at(program_.ops[op].outputs[0])].shape;
  }

  void join_groups() {
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      if (!fusable_[o]) continue;
      for (int32_t input : program_.ops[o].inputs) {
        const size_t maker = uses_.maker(input);
        if (maker < o && fusable_[maker] && shape(maker) == shape(o))
          groups_.join(maker, o, [&](const auto& members) { return go_together(members); });
      }
    }
  }

  bool is_fusable(size_t o) const {
    const ProgramOp& op = program_.ops[o];
    if (!word_of(op) || op.outputs.size() != 1 || op.inputs.size() > kMaxInputs) return false;
    if (!uses_.is_settled(op.outputs[0])) return false;
    return std::ranges::all_of(
        op.inputs, [&](int32_t input) { return input >= 0 && uses_.is_settled(input); });
  }

  // Distinct values that the ops read and do not make, in order of appearance.
  std::vector<int32_t> inputs_of(const std::vector<size_t>& members) const {
    std::vector<int32_t> inputs;
    for (size_t o : members)
      for (int32_t input : program_.ops[o].inputs) {
        const bool own = std::ranges::binary_search(members, uses_.maker(input));
        if (!own && std::find(inputs.begin(), inputs.end(), input) == inputs.end())
          inputs.push_back(input);
      }
    return inputs;
  }

  bool go_together(const std::vector<size_t>& members) const {
    return members.size() <= kMaxOps && !reads_own_view(members) &&
           inputs_of(members).size() <= kMaxInputs;
  }

  // Returns whether one op would read what another makes under another shape: that takes two
  // passes.
  bool reads_own_view(const std::vector<size_t>& members) const {
    for (size_t o : members)
      for (int32_t input : program_.ops[o].inputs) {
        const std::vector<size_t>& writers = uses_.writers(input);
        if (!writers.empty() && writers.back() != uses_.maker(input) &&
            std::binary_search(members.begin(), members.end(), writers.back()))
          return true;
      }
    return false;
  }

  ProgramOp fused(const std::vector<size_t>& members) const;

  FusedProgram& program_;
  const ProgramUses uses_;
  OpGroups groups_;
  std::vector<bool> fusable_;  // by op
};

// Writes the expression of a group.
class Writer {
 public:
  Writer(const std::vector<int32_t>& inputs, const std::map<int32_t, const ProgramOp*>& makers,
         const std::map<int32_t, int>& uses)
      : inputs_(inputs), makers_(makers), uses_(uses) {}

  // Leaves the value on the stack.
  void push(int32_t value) {
    const auto maker = makers_.find(value);
    if (maker == makers_.end()) {
      const auto input = std::find(inputs_.begin(), inputs_.end(), value);
      return word(fmt::format("{}", input - inputs_.begin()));
    }
    if (const auto name = names_.find(value); name != names_.end())
      return word(fmt::format("@{}", name->second));
    for (int32_t input : maker->second->inputs) push(input);
    word(*word_of(*maker->second));
    if (uses_.at(value) < 2) return;
    const size_t name = names_.size();
    names_[value] = name;
    word(fmt::format("={}", name));
  }
  std::string text;

 private:
  void word(const std::string& token) { text += (text.empty() ? "" : " ") + token; }

  const std::vector<int32_t>& inputs_;
  const std::map<int32_t, const ProgramOp*>& makers_;
  const std::map<int32_t, int>& uses_;
  std::map<int32_t, size_t> names_;
};

ProgramOp Grouper::fused(const std::vector<size_t>& members) const {
  ProgramOp op{std::string(kFusedOp), {}, inputs_of(members), {}};
  std::map<int32_t, const ProgramOp*> makers;
  std::map<int32_t, int> uses;  // of the group's values: operands in it, and as outputs
  for (size_t o : members) makers[program_.ops[o].outputs[0]] = &program_.ops[o];
  for (size_t o : members) {
    for (int32_t input : program_.ops[o].inputs)
      if (makers.count(input)) ++uses[input];
    const int32_t value = program_.ops[o].outputs[0];
    const int32_t base = uses_.base(value);
    const bool outside = base < program_.num_args || base != value ||
                         std::ranges::any_of(uses_.readers(value), [&](size_t reader) {
                           const auto& inputs = program_.ops[reader].inputs;
                           return !groups_.are_together(reader, o) ||
                                  std::find(inputs.begin(), inputs.end(), value) == inputs.end();
                         });
    if (!outside) continue;
    op.outputs.push_back(value);
    ++uses[value];
  }
  Writer writer(op.inputs, makers, uses);
  for (int32_t output : op.outputs) writer.push(output);
  op.attrs.set("expr", writer.text);
  return op;
}

}  // namespace

std::optional<std::string> word_of(const ProgramOp& op) {
  const OpDef* def = find_op(op.op);
  if (!def || !def->pointwise) return std::nullopt;
  const auto& attrs = op.attrs.items();
  if (attrs.empty()) return op.op;
  if (attrs.size() > 1) return std::nullopt;
  const auto& [name, value] = attrs.front();
  if (const auto* text = std::get_if<std::string>(&value)) return op.op + ":" + *text;
  const auto* flag = std::get_if<int64_t>(&value);  // Mod's "fmod"
  if (!flag || *flag < 0 || *flag > 1) return std::nullopt;
  return *flag ? op.op + ":" + name : op.op;
}

void make_groups(FusedProgram& program, FuseCounts& counts) { Grouper(program).run(counts); }

}  // namespace piper
