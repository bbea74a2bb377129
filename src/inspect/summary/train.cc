// How parameters are trained, read off the ops of the update.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "piper/ir/optimizers.h"
#include "piper/ir/rate.h"
#include "role.h"

namespace piper {
namespace {

std::string number(double value) { return fmt::format("{}", value); }

// Returns the optimizer that a use of an op is of; null where the op is none.
const OptimizerDef* find_optimizer(const ProgramOp& op) {
  for (const OptimizerDef& def : optimizers()) {
    const auto& fixed = def.fixed.items();
    if (op.op == def.op && std::all_of(fixed.begin(), fixed.end(), [&](const auto& item) {
          const AttrValue* value = op.attrs.find(item.first);
          return value && *value == item.second;
        }))
      return &def;
  }
  return nullptr;
}

std::string attr_text(const AttrValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value)) return number(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return to_string(std::get<std::vector<int64_t>>(value));
}

// Returns the settings in the strategy's words.
Settings settings_of(const OptimizerDef& optimizer, const Attrs& attrs) {
  Settings out{{"optimizer", std::string(optimizer.name)}};
  for (const auto& [name, value] : attrs.items()) {
    if (optimizer.fixed.find(name)) continue;
    if (name == "beta1" || name == "beta2") {
      if (name == "beta1")
        out.emplace_back("betas",
                         fmt::format("[{}, {}]", attr_text(value),
                                     attrs.find("beta2") ? attr_text(*attrs.find("beta2")) : ""));
    } else {
      out.emplace_back(name, attr_text(value));
    }
  }
  return out;
}

// A rate that stays says its number only.
Settings rate_of(const Attrs& attrs) {
  Settings out{{"lr", number(attrs.real("base"))}};
  const Result<Rate> rate = Rate::parse(attrs.text("rate"));
  if (rate && rate->words() != "lr") out.emplace_back("schedule", rate->spelled());
  return out;
}

class TrainingFinder {
 public:
  explicit TrainingFinder(const RoleProgram& role)
      : role_(role), origin_(role.buffers.size(), -1) {}

  Training run() {
    walk(role_.body);
    for (const OuterUpdate& update : role_.outer_updates) walk(update.instructions);
    return std::move(out_);
  }

 private:
  void walk(const std::vector<Instruction>& section) {
    for (const Instruction& one : section) {
      const bool pairs = one.kind == InstructionKind::kOwnPart;
      if (one.kind == InstructionKind::kCopy || pairs)
        for (size_t a = 0; a + 1 < one.args.size(); a += 2)
          origin_[index_of(one.args[a + 1])] = one.args[a];
      if (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kU) visit(one);
    }
  }
  void visit(const Instruction& one) {
    program_ = &role_.programs[index_of(one.program)];
    args_ = one.args;
    local_rates_.clear();
    same_as_.resize(program_->values.size());
    std::iota(same_as_.begin(), same_as_.end(), 0);
    for (const ProgramOp& op : program_->ops) {
      if (op.op == "Cast" && !op.inputs.empty() && op.outputs[0] >= program_->num_args)
        same_as_[index_of(op.outputs[0])] = op.inputs[0];
      if (op.op == "LearningRate" && !op.outputs.empty())
        set_rate(op.outputs[0], rate_of(op.attrs));
      if (op.op == "ClipFactor") share("clip_norm", op.attrs, "max_norm");
      if (op.op == "LossScale" && !op.inputs.empty()) static_scale(op.inputs[0]);
      if (op.op == "NextLossScale") dynamic_scale(op);
      const OptimizerDef* optimizer = find_optimizer(op);
      if (optimizer && op.inputs.size() > 2 + count_states(*find_op(op.op), op.attrs))
        update(*optimizer, op);
    }
  }

  void share(std::string name, const Attrs& attrs, const char* attr) {
    if (const AttrValue* value = attrs.find(attr)) set_shared(std::move(name), attr_text(*value));
  }
  void set_shared(std::string name, std::string value) {
    for (const auto& [known, old] : out_.shared)
      if (known == name) return;
    out_.shared.emplace_back(std::move(name), std::move(value));
  }
  void static_scale(int32_t value) {
    for (const auto& [literal, bytes] : program_->literals) {
      float scale = 0;
      if (literal != value || bytes.size() != sizeof scale) continue;
      std::memcpy(&scale, bytes.data(), sizeof scale);
      set_shared("loss_scale", fmt::format("static {}", scale));
    }
  }
  void dynamic_scale(const ProgramOp& op) {
    std::string text;
    const int32_t scale = op.inputs.empty() ? -1 : buffer_of(op.inputs[0]);
    if (scale >= 0) text = "init_scale=" + number(role_.tensor(scale).fill);
    for (const auto& [attr, word] : {std::pair("backoff", "backoff_factor"),
                                     {"growth", "growth_factor"},
                                     {"interval", "growth_interval"}})
      if (const AttrValue* value = op.attrs.find(attr))
        text += fmt::format("{}{}={}", text.empty() ? "" : " ", word, attr_text(*value));
    set_shared("loss_scale", std::move(text));
  }

  // Returns the parameter that the value is, is a part of or converted from; -1: none.
  int32_t buffer_of(int32_t value) const {
    for (size_t steps = 0; value >= program_->num_args && steps < same_as_.size(); ++steps)
      value = same_as_[index_of(value)];
    return value >= 0 && value < program_->num_args ? args_[index_of(value)] : -1;
  }
  void set_rate(int32_t value, Settings rate) {
    if (const int32_t buffer = buffer_of(value); buffer >= 0) rates_[buffer] = rate;
    local_rates_[value] = std::move(rate);
  }
  Settings rate(int32_t value) const {
    if (const auto local = local_rates_.find(value); local != local_rates_.end())
      return local->second;
    const auto found = rates_.find(buffer_of(value));
    return found == rates_.end() ? Settings() : found->second;
  }

  // Returns the parameter that a buffer is, or is a copy or a part of; null where it is none.
  const Tensor* state_of(int32_t buffer) const {
    for (size_t steps = 0; buffer >= 0 && steps < origin_.size(); ++steps) {
      const Tensor& tensor = role_.tensor(buffer);
      if (tensor.kind == BufferKind::kState || !tensor.param.empty()) return &tensor;
      buffer = origin_[index_of(buffer)];
    }
    return nullptr;
  }

  void update(const OptimizerDef& optimizer, const ProgramOp& op) {
    const Tensor* weight = state_of(buffer_of(op.inputs[0]));
    if (!weight || weight->param.empty()) return;
    Training::Update update{weight->param, settings_of(optimizer, op.attrs), 0};
    const size_t states = count_states(*find_op(op.op), op.attrs);
    const Settings of_rate = rate(op.inputs[2 + states]);
    update.settings.insert(update.settings.begin() + 1, of_rate.begin(), of_rate.end());
    for (size_t s = 2; s < 2 + states; ++s)
      if (const int32_t state = buffer_of(op.inputs[s]); state >= 0) {
        add_bytes(role_.tensor(state).type.bytes(), update.state_bytes);
        if (const Tensor* held = state_of(state))
          for (const OptimizerSetting& setting : optimizer.settings)
            if (setting.fills)
              update.settings.emplace_back(std::string(setting.key), number(held->fill));
      }
    out_.updates.push_back(std::move(update));
  }

  const RoleProgram& role_;
  std::vector<int32_t> origin_;                      // by buffer: what it is a copy or a part of
  std::map<int32_t, Settings> rates_, local_rates_;  // by buffer; by value of the program
  const Program* program_ = nullptr;
  std::vector<int32_t> same_as_;  // by value of the program: what it is a view or a cast of
  std::span<const int32_t> args_;
  Training out_;
};

}  // namespace

Training find_training(const RoleProgram& role) { return TrainingFinder(role).run(); }

}  // namespace piper
