// Compares states, inputs, sums and reports with those of the plan for one device.
#include "single.h"

#include <map>
#include <set>

#include "travel.h"

namespace piper {
namespace {

using Tensors = std::map<std::string, const Tensor*>;  // by identity

// Versions and copies of parameters are not compared: plans may differ in which of them they keep,
// and rules structure and sum check them.
bool is_kept(const RoleProgram& role, const Tensor& tensor) {
  const Tensor& original = role.original(tensor);
  return tensor.kind != BufferKind::kStep && (&original == &tensor || original.param.empty());
}
Tensors kept_of(const RoleProgram& role) {
  Tensors kept;
  for (const Tensor& tensor : role.tensors)
    if (is_kept(role, tensor)) kept.emplace(identity_of(role, tensor), &tensor);
  return kept;
}
// Returns how a tensor differs from that on one device; empty: it does not.
std::string difference(const Tensor& own, const Tensor& other) {
  if (own.kind != other.kind)
    return own.kind == BufferKind::kState ? "is a state, not a constant"
                                          : "is a constant, not a state";
  if (own.init != other.init)
    return fmt::format("starts with the values '{}', not '{}'", quote_control(own.init),
                       quote_control(other.init));
  if (own.fill != other.fill) return fmt::format("starts at {}, not {}", own.fill, other.fill);
  if (own.aliases != other.aliases) return "has other aliases";
  if (own.whole_type() != other.whole_type())
    return fmt::format("is {}, not {}", to_string(own.whole_type()), to_string(other.whole_type()));
  return "";
}

class NameCheck {
 public:
  NameCheck(const Model& model, const Single& single, Findings& findings)
      : model_(model),
        single_(single.model),
        role_(*single.model.cells[0].role),
        findings_(findings) {}

  void run() {
    std::set<const RoleProgram*> seen;
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c) {
      const RoleProgram& role = *model_.cells[c].role;
      if (!seen.insert(&role).second) continue;
      check_tensors(c, role);
      check_inputs(c, role);
      for (const Report& report : role.reports) reports_.insert(report.name);
    }
    for (const auto& [name, tensor] : of_one_)
      if (tensor->kind == BufferKind::kState && !found_.contains(name))
        add("no rank keeps the {}, which one device does", quote_control(name));
    check_sums();
    check_delays();
    std::set<std::string_view> wanted;
    for (const Report& report : role_.reports) wanted.insert(report.name);
    check_same(reports_, wanted, "report");
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    findings_.add("single", text, std::forward<Args>(args)...);
  }
  void check_tensors(int32_t c, const RoleProgram& role) {
    for (const Tensor& tensor : role.tensors) {
      if (!is_kept(role, tensor)) continue;
      const auto other = of_one_.find(identity_of(role, tensor));
      if (other == of_one_.end()) {
        add("'{}' on {} is not kept on one device", quote_control(tensor.name), model_.who(c));
        continue;
      }
      found_.insert(other->first);
      const std::string what = difference(tensor, *other->second);
      if (!what.empty()) add("'{}' on {} {}", quote_control(tensor.name), model_.who(c), what);
    }
  }
  void check_inputs(int32_t c, const RoleProgram& role) {
    if (role.batch != role_.batch)
      add("the batch has {} samples on {}, {} on one device", role.batch, model_.who(c),
          role_.batch);
    for (const DataInput& input : role.inputs)
      if (std::find(role_.inputs.begin(), role_.inputs.end(), input) == role_.inputs.end())
        add("data input '{}' of {} differs from that of the plan for one device",
            quote_control(input.name), model_.who(c));
  }
  void check_sums() {
    std::set<std::string_view> own, wanted;
    for (size_t t = 0; t < model_.targets.size(); ++t)
      own.insert(model_.targets[static_cast<int32_t>(t)]);
    for (const SumTarget& sum : role_.sum_targets) {
      wanted.insert(sum.name);
      const int32_t target = model_.targets.find(sum.name);
      if (target >= 0 && model_.uses[target] != sum.uses)
        add("the sum '{}' has {} uses, {} on one device", quote_control(sum.name),
            model_.uses[target], sum.uses);
    }
    check_same(own, wanted, "sum");
  }
  // Returns of how many updates ago microbatches read a parameter: the age of its oldest version.
  static std::map<std::string_view, int32_t> delays_in(const Model& model) {
    std::map<std::string_view, int32_t> delays;
    std::set<const RoleProgram*> seen;
    for (const Cell& cell : model.cells) {
      if (!seen.insert(cell.role).second) continue;
      for (const Tensor& tensor : cell.role->tensors)
        if (tensor.previous_of >= 0) {
          int32_t& delay = delays[cell.role->original(tensor).param];
          delay = std::max(delay, cell.role->age(tensor));
        }
    }
    delays.erase("");  // numbers
    return delays;
  }
  void check_delays() {
    const auto own = delays_in(model_), wanted = delays_in(single_);
    const auto compare = [&](const auto& some, const auto& others, bool is_own) {
      for (const auto& [param, delay] : some) {
        const auto found = others.find(param);
        const int32_t other = found == others.end() ? 0 : found->second;
        if (delay != other && (is_own || found == others.end()))
          add("microbatches read '{}' as it is {} updates before a step, {} on one device",
              quote_control(param), is_own ? delay : other, is_own ? other : delay);
      }
    };
    compare(own, wanted, true);
    compare(wanted, own, false);
  }
  void check_same(const std::set<std::string_view>& own, const std::set<std::string_view>& wanted,
                  const char* what) {
    for (const std::string_view name : own)
      if (!wanted.contains(name)) add("one device has no {} '{}'", what, quote_control(name));
    for (const std::string_view name : wanted)
      if (!own.contains(name))
        add("no rank has the {} '{}' of one device", what, quote_control(name));
  }

  const Model &model_, &single_;
  const RoleProgram& role_;
  Findings& findings_;
  const Tensors of_one_ = kept_of(role_);
  std::set<std::string_view> found_, reports_;
};

class EffectCheck {
 public:
  EffectCheck(const Model& model, const Section& section, const Single* single,
              const LayoutsFound* layouts, Findings& findings)
      : model_(model),
        section_(section),
        single_(single),
        findings_(findings),
        effects_(follow(model, section, 1, single && model.followed != 0,
                        single ? &single->effects : nullptr, layouts)) {}

  void run() {
    check_sums();
    if (!single_) return;
    if (effects_.strange_square.valid())
      add("{} sums the squares of another value than one device does",
          name(effects_.strange_square));
    if (effects_.rounds || single_->effects.rounds)
      check_travel(model_, section_, *single_, findings_);
    check_states();
    check_reports();
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    findings_.add(single_ ? "single" : "microbatch", text, std::forward<Args>(args)...);
  }
  std::string name(Spot place) const { return name_of(model_, section_, place); }

  // Returns, as the end of an error text, the first computation that differs.
  std::string origin() const {
    if (!effects_.strange.valid()) return "";
    const Spot place = effects_.strange;
    const int32_t buffer = section_.at(place).args[effects_.strange_arg];
    return fmt::format("; {} is the first that does, with '{}'", name(place),
                       quote_control(model_.cells[place.cell].role->name(buffer)));
  }
  // Without a plan for one device, blocks are compared with the first block of samples.
  void check_sums() {
    std::map<std::pair<int32_t, int32_t>, const Effects::Added*> wanted;  // by step and sum
    for (size_t i = 0; single_ && i < single_->effects.added.size(); ++i) {
      const Effects::Added& one = single_->effects.added[i];
      wanted.try_emplace({one.step, model_.targets.find(single_->model.targets[one.target])}, &one);
    }
    std::set<int32_t> said;  // sums
    for (const Effects::Added& one : effects_.added) {
      const Effects::Added& known = *wanted.try_emplace({one.step, one.target}, &one).first->second;
      if (one.symbol == known.symbol && one.count == known.count) continue;
      if (single_ && !said.insert(one.target).second) continue;
      const std::string sum = quote_control(model_.targets[one.target]);
      const std::string other = single_ ? "one device" : name(known.last);
      if (one.count != known.count)
        add("{} adds to '{}' for {} samples, where {} does for {}", name(one.last), sum, one.count,
            other, known.count);
      else
        add("{} adds to '{}' something else than {} does{}", name(one.last), sum, other, origin());
    }
  }
  void check_states() {
    std::map<std::pair<std::string, DType>, uint64_t> wanted;  // a copy has another type
    const auto key = [](const RoleProgram& role, const Tensor& tensor) {
      return std::pair(identity_of(role, tensor), tensor.type.dtype);
    };
    const Cell& cell = single_->model.cells[0];
    for (const int32_t b : cell.facts->kept)
      wanted.emplace(key(*cell.role, cell.role->tensor(b)), single_->effects.held[0][b]);
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c)
      for (const int32_t b : model_.cells[c].facts->kept) {
        const RoleProgram& role = *model_.cells[c].role;
        const Tensor& tensor = role.tensor(b);
        const auto other = wanted.find(key(role, tensor));
        if (tensor.kind != BufferKind::kState || other == wanted.end()) continue;
        if (other->second != effects_.held[c][b])
          add("'{}' on {} becomes something else than on one device", quote_control(tensor.name),
              model_.who(c));
      }
  }
  // Reports of sums are left out: rules sum and update follow the sum to its report.
  void check_reports() {
    std::map<std::pair<int32_t, std::string_view>, uint64_t> wanted;
    for (const Effects::Reported& one : single_->effects.reported)
      wanted.emplace(std::pair(one.step, one.name), one.symbol);
    for (const Effects::Reported& one : effects_.reported) {
      const auto other = wanted.find({one.step, one.name});
      if (is_shown_sum(one.name) || other == wanted.end() || other->second == one.symbol) continue;
      add("{} reports as '{}' something else than one device does", model_.who(one.cell),
          quote_control(one.name));
    }
  }

  const Model& model_;
  const Section& section_;
  const Single* const single_;
  Findings& findings_;
  const Effects effects_;
};

}  // namespace

void check_names(const Model& model, const Single& single, Findings& findings) {
  NameCheck(model, single, findings).run();
}

void check_effects(const Model& model, const Section& section, const Single* single,
                   const LayoutsFound* layouts, Findings& findings) {
  EffectCheck(model, section, single, layouts, findings).run();
}

}  // namespace piper
