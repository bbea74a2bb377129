// Updates of many parameters as one kernel, and the table of optimizers.
#include <fmt/format.h>

#include "families.h"
#include "tensors.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

constexpr int64_t kElements = 4096;  // that a block updates

// Returns a bit for each state that is kept in bf16. All uses of a run are alike.
unsigned halves_of(const Use& use, size_t states) {
  unsigned halves = 0;
  for (size_t s = 0; s < states; ++s)
    if (use.present[2 + s] && use.type(2 + s) == DType::kBF16) halves |= 1u << s;
  return halves;
}

// `rule` is the text's type, `numbers` its value for a use; of the inputs `states` are states or
// absent.
Status make_updates(const Run& run, size_t states, std::string_view rule,
                    std::string (*numbers)(const Use&), Emitter& emit) {
  const Use& first = run.uses[0];
  std::vector<int64_t> counts, blocks;
  std::vector<std::string> rules;
  for (const Use& use : run.uses) {
    counts.push_back(num_elements(use.in(0)));
    blocks.push_back(ceil_div(counts.back(), kElements));
    const bool averages = use.attrs.find("ema") != nullptr;
    rules.push_back(averages ? fmt::format("{{{}}}, {}", numbers(use), real(use, "ema"))
                             : numbers(use));
  }
  emit.kernel({.family = "optimizer",
               .body = fmt::format(
                   "  static constexpr {} tensors{};\n"
                   "  static constexpr {} rules[] = {{{{{}}}}};\n"
                   "  static constexpr int copies[] = {{{}}};\n"
                   "  update<{}, {}, {}, {}, {}, {}, {}>(p, tensors, rules, "
                   "copies);",
                   tensors_type(run.uses.size()), tensors_text(blocks, counts), rule,
                   fmt::join(rules, "}, {"), fmt::join(run.copies, ", "), type_name(first.type()),
                   type_name(first.type(1)), run.copy_type ? type_name(*run.copy_type) : "None",
                   halves_of(first, states), states, first.inputs.size(), kElements),
               .blocks = sum_of(blocks),
               .threads = kThreads});
  return ok_status();
}

std::string adam_rule(const Use& use, double eps, std::string_view kind) {
  return fmt::format("{}, {}, {}, {}, {}, {}LL, AdamRule::{}", real(use, "beta1", 0.9),
                     real(use, "beta2", 0.999), real(use, "eps", eps), real(use, "weight_decay"),
                     real(use, "weight_decay_after"), use.attrs.integer("count"), kind);
}
std::string adamw_rule(const Use& use) {
  return adam_rule(use, 1e-8, use.attrs.integer("decoupled", 1) != 0 ? "kDecoupled" : "kJoined");
}
std::string onnx_adam_rule(const Use& use) { return adam_rule(use, 1e-6, "kOnnx"); }

std::string adagrad_rule(const Use& use) {
  return fmt::format("{}, {}, {}, {}LL", real(use, "lr_decay"), real(use, "eps", 1e-6),
                     real(use, "weight_decay"), use.attrs.integer("count"));
}
std::string sgd_rule(const Use& use) {
  return fmt::format("{}, {}, {}, {}LL, {}", real(use, "momentum"), real(use, "dampening"),
                     real(use, "weight_decay"), use.attrs.integer("count"),
                     use.attrs.integer("nesterov") != 0);
}

std::string lion_rule(const Use& use) {
  return fmt::format("{}, {}, {}", real(use, "beta1"), real(use, "beta2"),
                     real(use, "weight_decay"));
}

std::string muon_rule(const Use& use) {
  return fmt::format("{}, {}, false", real(use, "scale", 1), real(use, "weight_decay"));
}
std::string adafactor_rule(const Use& use) {
  return fmt::format("1.0, {}, true", real(use, "weight_decay"));
}

// Describes an optimizer's op: its states, the type of its text, and the value of that.
struct UpdateRule {
  std::string_view op;
  size_t states;
  std::string_view text;
  std::string (*numbers)(const Use&);
};
constexpr UpdateRule kRules[] = {{"Adafactor", 0, "DirectedRule", adafactor_rule},
                                 {"Adagrad", 1, "AdagradRule", adagrad_rule},
                                 {"AdamW", 2, "AdamRule", adamw_rule},
                                 {"Lion", 1, "LionRule", lion_rule},
                                 {"Muon", 0, "DirectedRule", muon_rule},
                                 {"OnnxAdam", 2, "AdamRule", onnx_adam_rule},
                                 {"Sgd", 1, "SgdRule<true>", sgd_rule}};

Status make_update(const Run& run, Emitter& emit) {
  const Use& first = run.uses[0];
  for (const UpdateRule& rule : kRules)
    if (rule.op == first.op) {
      const bool has_buffer = rule.op != "Sgd" || first.present[2];
      const std::string text(has_buffer ? rule.text : "SgdRule<false>");
      if (!first.attrs.find("ema")) return make_updates(run, rule.states, text, rule.numbers, emit);
      return make_updates(run, rule.states + 1, fmt::format("Averaged<{}>", text), rule.numbers,
                          emit);
    }
  return fail("'{}' updates no parameter", first.op);
}

}  // namespace

std::vector<MakerRow> optimizer_kernels() {
  std::vector<MakerRow> rows;
  for (const UpdateRule& rule : kRules) rows.emplace_back(rule.op, make_update);
  return rows;
}

}  // namespace piper::cuda_kernels
