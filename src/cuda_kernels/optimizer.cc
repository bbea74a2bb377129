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

// `rule` has a type of the text and its numbers; of the inputs `states` are states or absent.
Status make_updates(std::span<const Use> uses, size_t states, const std::string& rule,
                    Emitter& emit) {
  const Use& first = uses[0];
  std::vector<int64_t> counts, blocks;
  for (const Use& use : uses) {
    counts.push_back(num_elements(use.in(0)));
    blocks.push_back(ceil_div(counts.back(), kElements));
  }
  emit.kernel({.family = "optimizer",
               .body = fmt::format("  static constexpr {} tensors{};\n"
                                   "  constexpr {};\n"
                                   "  update<{}, {}, {}, {}, {}>(p, tensors, rule);",
                                   tensors_type(uses.size()), tensors_text(blocks, counts), rule,
                                   type_name(first.type()), type_name(first.type(1)), states,
                                   first.inputs.size(), kElements),
               .blocks = sum_of(blocks),
               .threads = kThreads});
  return ok_status();
}

std::string adam_rule(const Use& use, double eps, std::string_view kind) {
  return fmt::format("AdamRule rule{{{}, {}, {}, {}, {}, {}LL, AdamRule::{}}}",
                     real(use, "beta1", 0.9), real(use, "beta2", 0.999), real(use, "eps", eps),
                     real(use, "weight_decay"), real(use, "weight_decay_after"),
                     use.attrs.integer("count"), kind);
}

}  // namespace

Status make_adagrad(std::span<const Use> uses, Emitter& emit) {
  const Use& use = uses[0];
  const std::string rule =
      fmt::format("AdagradRule rule{{{}, {}, {}, {}LL}}", real(use, "lr_decay"),
                  real(use, "eps", 1e-6), real(use, "weight_decay"), use.attrs.integer("count"));
  return make_updates(uses, 1, rule, emit);
}

Status make_adamw(std::span<const Use> uses, Emitter& emit) {
  const bool decoupled = uses[0].attrs.integer("decoupled", 1) != 0;
  return make_updates(uses, 2, adam_rule(uses[0], 1e-8, decoupled ? "kDecoupled" : "kJoined"),
                      emit);
}

Status make_onnx_adam(std::span<const Use> uses, Emitter& emit) {
  return make_updates(uses, 2, adam_rule(uses[0], 1e-6, "kOnnx"), emit);
}

Status make_sgd(std::span<const Use> uses, Emitter& emit) {
  const Use& use = uses[0];
  const std::string rule =
      fmt::format("SgdRule<{}> rule{{{}, {}, {}, {}LL, {}}}", use.present[2], real(use, "momentum"),
                  real(use, "dampening"), real(use, "weight_decay"), use.attrs.integer("count"),
                  use.attrs.integer("nesterov") != 0);
  return make_updates(uses, 1, rule, emit);
}

}  // namespace piper::cuda_kernels
