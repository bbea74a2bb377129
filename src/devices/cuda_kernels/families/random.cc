// Random and Dropout: what src/ir/ops/families/random.cc says of keys, steps and places.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Returns whether four elements from a multiple of four on are so in the whole.
bool by_fours(const Draw& draw) {
  return std::ranges::all_of(
      draw.cuts, [](const Draw::Cut& cut) { return cut.run % 4 == 0 && cut.zeros % 4 == 0; });
}

std::string number_of(size_t operand) {
  return fmt::format("static_cast<uint64_t>(p.at<const int64_t>({})[0])", operand);
}

// Returns the expression of the own number.
std::string own_text(const Draw::Cut& cut) {
  if (cut.operand == 0) return "0";
  const std::string number = number_of(cut.operand);
  return cut.unit == 1 ? number : fmt::format("{} / {}ull", number, cut.unit);
}

// Returns a value `lies` of the text's Whole or Parts.
std::string lies_text(const Draw& draw) {
  if (draw.cuts.empty()) return "  constexpr Whole lies{};\n";
  std::vector<int64_t> run, shards, zeros, mirrored;
  std::string own;
  for (const Draw::Cut& cut : draw.cuts) {
    run.push_back(cut.run);
    shards.push_back(cut.shards);
    zeros.push_back(cut.zeros);
    mirrored.push_back(cut.mirrored);
    own += (own.empty() ? "" : ", ") + own_text(cut);
  }
  return fmt::format("  const Parts<{}> lies{{{{{}, {}, {}, {}}}, {{{}}}}};\n", run.size(),
                     list(run), list(shards), list(zeros), list(mirrored), own);
}

void launch_draws(const Draw& draw, const std::string& call, Emitter& emit) {
  launch(emit, "random",
         fmt::format("{}  const uint64_t key = {}, step = {};\n{}", lies_text(draw),
                     number_of(draw.key), number_of(draw.key + 1), call),
         ceil_div(draw.elements, 4));
}

Status make_random(const Use& use, Emitter& emit) {
  const Draw draw = draw_of(use, 0);
  if (draw.elements == 0) return ok_status();
  const bool is_normal = use.attrs.text("distribution", "uniform") == "normal";
  launch_draws(
      draw,
      fmt::format("  draw<{}, {}>(p.at<{}>({}), {}ull, lies, step, key, {}, {});", is_normal,
                  by_fours(draw), type_name(use.outputs[0].dtype), use.inputs.size(), draw.elements,
                  literal(use.attrs.real("shift", 0), DType::kF64),
                  literal(use.attrs.real("scale", 1), DType::kF64)),
      emit);
  return ok_status();
}

Status make_dropout(const Use& use, Emitter& emit) {
  const Draw draw = draw_of(use, 1);
  if (draw.elements == 0) return ok_status();
  const double ratio = use.attrs.real("ratio", 0.5), scale = ratio < 1 ? 1 / (1 - ratio) : 0;
  // An element is kept where its uniform number is at least the ratio.
  const auto threshold = static_cast<uint32_t>(std::ceil(ratio * (1 << 24)));
  const size_t result = use.inputs.size();
  const int64_t bytes = info(use.type()).bytes;
  const bool aligned = common_bytes({emit.operand(0).offset, emit.operand(result).offset,
                                     draw.elements * bytes}) >= 4 * std::min<int64_t>(bytes, 4);
  const int64_t pack = aligned && bytes <= 4 ? 4 : 1;
  launch_draws(
      draw,
      fmt::format("  typedef Pack<{}, {}> Elements;\n"
                  "  dropout<{}>(p.at<const Elements>(0), p.at<Elements>({}), {}ull, lies, "
                  "step, key, {}u, {});",
                  type_name(use.type()), pack, by_fours(draw), result, draw.elements, threshold,
                  literal(scale, compute_type(use.type()))),
      emit);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> random_kernels() {
  return {{"Dropout", make_dropout}, {"Random", make_random}};
}

}  // namespace piper::cuda_kernels
