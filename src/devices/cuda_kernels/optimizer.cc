// AdamW, OnnxAdam, Sgd, Adagrad: the updates of many parameters as one kernel.
#include <fmt/format.h>

#include "families.h"
#include "tensors.h"

namespace piper::cuda_kernels {
namespace {

constexpr int32_t kThreads = 256;
constexpr int64_t kElements = 4096;  // that a block updates

std::string real(const Use& use, std::string_view name, double otherwise = 0) {
  return literal(use.attrs.real(name, otherwise), DType::kF64);
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
    rules.push_back(numbers(use));
  }
  emit.kernel({.family = "optimizer",
               .body = fmt::format("  static constexpr {} tensors{};\n"
                                   "  static constexpr {} rules[] = {{{{{}}}}};\n"
                                   "  static constexpr int copies[] = {{{}}};\n"
                                   "  update<{}, {}, {}, {}, {}, {}>(p, tensors, rules, copies);",
                                   tensors_type(run.uses.size()), tensors_text(blocks, counts),
                                   rule, fmt::join(rules, "}, {"), fmt::join(run.copies, ", "),
                                   type_name(first.type()), type_name(first.type(1)),
                                   run.copy_type ? type_name(*run.copy_type) : "None", states,
                                   first.inputs.size(), kElements),
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

}  // namespace

Status make_adagrad(const Run& run, Emitter& emit) {
  return make_updates(run, 1, "AdagradRule", adagrad_rule, emit);
}
Status make_adamw(const Run& run, Emitter& emit) {
  return make_updates(run, 2, "AdamRule", adamw_rule, emit);
}
Status make_onnx_adam(const Run& run, Emitter& emit) {
  return make_updates(run, 2, "AdamRule", onnx_adam_rule, emit);
}
Status make_sgd(const Run& run, Emitter& emit) {
  const std::string_view rule = run.uses[0].present[2] ? "SgdRule<true>" : "SgdRule<false>";
  return make_updates(run, 1, rule, sgd_rule, emit);
}

}  // namespace piper::cuda_kernels
