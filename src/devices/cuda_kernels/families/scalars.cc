// The scalars of a step: sums of squares, norms, clipping, learning rate, loss scale, counters.
#include <fmt/format.h>

#include <algorithm>

#include "families.h"
#include "piper/ir/rate.h"
#include "tensors.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

constexpr int64_t kChunk = 16384;  // elements that a block adds

// Emits a statement that one thread runs.
Status make_scalar(std::string_view family, std::string_view statement, Emitter& emit) {
  emit.kernel({.family = family,
               .body = fmt::format("  if (threadIdx.x == 0) {}", statement),
               .threads = 32});
  return ok_status();
}

// Holds the runs of several tensors, as the text has them.
struct Runs {
  std::vector<int64_t> counts, run, chunks, blocks;

  void add(const Use& use) {
    const int64_t count = num_elements(use.in(0));
    const int64_t parts = std::max<int64_t>(use.attrs.integer("parts"), 1);
    counts.push_back(count);
    run.push_back(std::max<int64_t>(ceil_div(count, parts), 1));
    chunks.push_back(ceil_div(run.back(), kChunk));
    blocks.push_back(ceil_div(count, run.back()) * chunks.back());
  }
  std::string text() const {
    return fmt::format("  static constexpr Runs<{}> runs{{{}, {{{}}}, {{{}}}}};\n", counts.size(),
                       tensors_text(blocks, counts), fmt::join(run, ", "), fmt::join(chunks, ", "));
  }
};

Status make_sum_squares(const Run& run, Emitter& emit) {
  Runs runs;
  for (const Use& use : run.uses) runs.add(use);
  const int64_t chunks = sum_of(runs.blocks);
  const DeviceOperand partial = emit.scratch(chunks * info(DType::kF64).bytes);
  const size_t operands = 2 * run.uses.size();
  emit.kernel(
      {.family = "scalars",
       .body = fmt::format("{}  sum_chunk<{}, {}, {}>(p, runs, p.at<double>({}));", runs.text(),
                           type_name(run.uses[0].type()), kThreads, kChunk, operands),
       .blocks = chunks,
       .threads = kThreads,
       .extra = {partial}});
  emit.kernel({.family = "scalars",
               .body = fmt::format("{}  sum_runs<{}>(p, runs, p.at<double>({}));", runs.text(),
                                   kThreads, operands),
               .blocks = static_cast<int64_t>(run.uses.size()),
               .threads = kThreads,
               .extra = {partial}});
  return ok_status();
}

// Emits as many kernels as there must be for so many sums, each of which begins with what the one
// before it made.
Status make_global_norm(const Use& use, Emitter& emit) {
  const size_t count = use.inputs.size();
  const DeviceOperand carried = emit.scratch(info(DType::kF64).bytes);
  for (size_t first = 0; first < count; first += kMostPointers) {
    const size_t last = std::min(count, first + kMostPointers);
    std::vector<DeviceOperand> operands;
    std::vector<int64_t> elements;
    for (size_t i = first; i < last; ++i) {
      operands.push_back(emit.operand(i));
      elements.push_back(num_elements(use.in(i)));
    }
    const bool ends = last == count;
    operands.push_back(carried);
    operands.push_back(ends ? emit.operand(count) : carried);
    const size_t inputs = last - first;
    emit.kernel(
        {.family = "scalars",
         .body = fmt::format("  static constexpr {} vectors{};\n"
                             "  const double sum = add_in_order<{}>(p, vectors, {});\n"
                             "  if (threadIdx.x == 0) *p.at<double>({}) = {};",
                             tensors_type(inputs), tensors_text(elements, elements), kThreads,
                             first == 0 ? "0.0" : fmt::format("*p.at<const double>({})", inputs),
                             inputs + 1, ends ? "sqrt(sum)" : "sum"),
         .threads = kThreads,
         .operands = std::move(operands)});
  }
  return ok_status();
}

Status make_clip_factor(const Use& use, Emitter& emit) {
  return make_scalar("scalars",
                     fmt::format("*p.at<double>(1) = clip_factor(*p.at<const double>(0), {});",
                                 real(use, "max_norm")),
                     emit);
}

Status make_learning_rate(const Use& use, Emitter& emit) {
  PIPER_ASSIGN(const Rate rate, Rate::parse(use.attrs.text("rate")));
  return make_scalar(
      "scalars",
      fmt::format("{{\n"
                  "    const double step = static_cast<double>(*p.at<const int64_t>(0)), lr = {};\n"
                  "    *p.at<double>(1) = {};\n"
                  "  }}",
                  real(use, "base"), rate.code()),
      emit);
}

Status make_loss_scale(const Use&, Emitter& emit) {
  return make_scalar("", "*p.at<double>(1) = *p.at<const float>(0);", emit);
}

Status make_next_loss_scale(const Use& use, Emitter& emit) {
  return make_scalar(
      "scalars",
      fmt::format("{{\n"
                  "    const ScaleRule rule{{{}, {}, {}LL}};\n"
                  "    const Scaling next = rule.next({{*p.at<const float>(0), "
                  "*p.at<const int64_t>(1)}}, *p.at<const bool>(2));\n"
                  "    *p.at<float>(3) = next.scale;\n"
                  "    *p.at<int64_t>(4) = next.good;\n"
                  "  }}",
                  real(use, "growth", 2), real(use, "backoff", 0.5), use.attrs.integer("interval")),
      emit);
}

Status make_next_step(const Use& use, Emitter& emit) {
  const std::string_view more = !use.has(1) ? "1" : "(*p.at<const bool>(1) ? 0 : 1)";
  return make_scalar(
      "",
      fmt::format("*p.at<int64_t>({}) = *p.at<const int64_t>(0) + {};", use.inputs.size(), more),
      emit);
}

Status make_not_finite(const Use&, Emitter& emit) {
  return make_scalar("scalars", "*p.at<bool>(1) = !is_finite(*p.at<const double>(0));", emit);
}

}  // namespace

std::vector<MakerRow> scalars_kernels() {
  return {{"ClipFactor", make_clip_factor},        {"GlobalNorm", make_global_norm},
          {"LearningRate", make_learning_rate},    {"LossScale", make_loss_scale},
          {"NextLossScale", make_next_loss_scale}, {"NextStep", make_next_step},
          {"NotFinite", make_not_finite},          {"SumSquares", make_sum_squares}};
}

}  // namespace piper::cuda_kernels
