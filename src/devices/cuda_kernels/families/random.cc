// Random and Dropout: what src/ir/ops/families/random.cc says of keys, steps and places.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Says where a use finds its key, and which elements of the whole tensor it has.
struct Draw {
  struct Cut {
    int64_t run = 1, shards = 1, zeros = 0;
    bool mirrored = false;
    std::string own = "0";  // an expression: the own number
  };
  std::vector<Cut> cuts;  // the last one first
  size_t key = 0;         // operand
  int64_t elements = 0;

  // Returns whether four elements from a multiple of four on are so in the whole.
  bool by_fours() const {
    return std::all_of(cuts.begin(), cuts.end(),
                       [](const Cut& cut) { return cut.run % 4 == 0 && cut.zeros % 4 == 0; });
  }
};

std::string number_of(size_t operand) {
  return fmt::format("static_cast<uint64_t>(p.at<const int64_t>({})[0])", operand);
}

Draw draw_of(const Use& use, size_t key) {
  const std::vector<int64_t> cuts = use.attrs.integers("cuts"), zeros = use.attrs.integers("zeros");
  Draw draw{.key = key, .elements = num_elements(use.out())};
  int64_t elements = draw.elements;  // of what cuts have left so far
  const auto without_zeros = [&](size_t after) {
    for (size_t z = zeros.size() / 3; z-- > 0;) {
      if (zeros[3 * z] != static_cast<int64_t>(after)) continue;
      const int64_t rows = zeros[3 * z + 1], behind = zeros[3 * z + 2];
      draw.cuts.push_back({.run = elements / rows, .zeros = behind});
      elements -= rows * behind;
    }
  };
  without_zeros(cuts.size() / 2);
  for (size_t c = cuts.size() / 2; c-- > 0;) {
    draw.cuts.push_back({.run = std::max<int64_t>(elements / std::abs(cuts[2 * c]), 1),
                         .shards = cuts[2 * c + 1],
                         .mirrored = cuts[2 * c] < 0,
                         .own = number_of(key + 3 + c)});
    elements *= cuts[2 * c + 1];
    without_zeros(c);
  }
  const int64_t rows = use.attrs.integer("rows", 1), shards = use.attrs.integer("shards", 1);
  const bool is_cut = !is_absent(use, key + 2);
  if (!is_cut && rows == 1) return draw;  // the run is all there is
  Draw::Cut samples{.run = std::max<int64_t>(elements / rows, 1), .shards = shards};
  if (is_cut) samples.own = fmt::format("{} / {}ull", number_of(key + 2), use.in(key + 2)[0]);
  draw.cuts.push_back(samples);
  return draw;
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
    own += (own.empty() ? "" : ", ") + cut.own;
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
                  draw.by_fours(), type_name(use.outputs[0].dtype), use.inputs.size(),
                  draw.elements, literal(use.attrs.real("shift", 0), DType::kF64),
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
                  type_name(use.type()), pack, draw.by_fours(), result, draw.elements, threshold,
                  literal(scale, compute_type(use.type()))),
      emit);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> random_kernels() {
  return {{"Dropout", make_dropout}, {"Random", make_random}};
}

}  // namespace piper::cuda_kernels
