// What the ranks along one mesh axis make together, each of its own operand: how a value changes
// its layout over that axis. Sharding inserts them after autodiff; no backend has them.
//   AllReduce{over, then?}(x): the sum over the ranks, also those along the axes `then`, which
//     count faster; AllReduceMax{over}(x): the largest.
//   AllGather{over, ranks, dim, outer}(x): blocks of `dim` put together.
//   ReduceScatter{over, ranks, dim, outer}(x): its own block of the sum.
//   OwnBlock{over, ranks, dim, outer}(x): its own block of what all ranks have alike.
//   AllToAll{over, ranks, dim, outer, to_dim, to_outer}(x): what AllGather would put together, of
//     which OwnBlock would take its block of `to_dim`, another dim.
//   Rotate{over, ranks, turn}(x): what the rank `turn` before has; the first one's is the last's.
//   Dispatch{over, ranks, dim, outer, owned}(x, index): of what AllGather would put together the
//     rows whose index names one of the `owned` numbers that the rank owns; others are zero. Rank k
//     owns [k × owned, (k + 1) × owned). The index has a number for each row, and the first dims of
//     x, up to `dim` and perhaps after it, count rows: f32[4,3,8] is of rows of 8 for i64[12].
//   Combine{over, ranks, dim, outer, owned}(x, index): its own block of rows, each from the rank
//     that owns what its index names. One that no rank owns is made of NaN.
//   OwnFirst{over, size, ranks, turn, outer, mirrored}() -> i64[] or, with `outer`, i64[outer]:
//     where its own block of `size` begins in a dim, or that in each of its stretches; with `turn`,
//     that of the rank so many before.
// `over` is an index of the mesh. A dim that is cut is [outer, ranks × block], `mirrored` 0 or 1
// (to_mirrored for to_outer), as Layout says.
#include "rules.h"

namespace piper {
namespace {

struct Blocks {
  size_t dim = 0;
  int64_t outer = 1;
};

Result<Blocks> blocks_of(const OpTypes& use, const std::string& to = "") {
  PIPER_ASSIGN(const size_t d, check_axis(use.attrs, to + "dim", use.inputs[0].shape.size()));
  const int64_t parts = use.attrs.integer(to + "outer", 1);
  if (parts < 1) return fail("{} outer blocks", parts);
  if (use.attrs.integer(to + "mirrored", 0) != 0 && parts % 2 != 0)
    return fail("{} outer blocks of which every second one counts from its end", parts);
  return Blocks{d, parts};
}

Result<int64_t> ranks_of(const OpTypes& use) {
  const int64_t ranks = use.attrs.integer("ranks", 0);
  if (ranks < 1) return fail("{} ranks", ranks);
  return ranks;
}

Status cut(Shape& shape, const Blocks& blocks, int64_t ranks) {
  int64_t& extent = shape[blocks.dim];
  if (extent % (blocks.outer * ranks) != 0)
    return fail("dim {} of {} cannot be cut into {} x {} blocks", blocks.dim, to_string(shape),
                blocks.outer, ranks);
  extent /= ranks;
  return ok_status();
}

Status join(Shape& shape, const Blocks& blocks, int64_t ranks) {
  int64_t& extent = shape[blocks.dim];
  if (extent % blocks.outer != 0)
    return fail("dim {} of {} has no {} outer blocks", blocks.dim, to_string(shape), blocks.outer);
  extent *= ranks;
  return ok_status();
}

TypesResult same_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  return std::vector<TensorType>{use.inputs[0]};
}

TypesResult changed(const OpTypes& use, Status (*change)(Shape&, const Blocks&, int64_t)) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(const Blocks blocks, blocks_of(use));
  PIPER_ASSIGN(const int64_t ranks, ranks_of(use));
  TensorType type = use.inputs[0];
  PIPER_TRY(change(type.shape, blocks, ranks));
  return std::vector<TensorType>{std::move(type)};
}

TypesResult joined_types(const OpTypes& use) { return changed(use, join); }
TypesResult cut_types(const OpTypes& use) { return changed(use, cut); }

TypesResult exchanged_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(const Blocks from, blocks_of(use));
  PIPER_ASSIGN(const Blocks to, blocks_of(use, "to_"));
  PIPER_ASSIGN(const int64_t ranks, ranks_of(use));
  if (from.dim == to.dim) return fail("dim {} is both put together and cut", to.dim);
  TensorType type = use.inputs[0];
  PIPER_TRY(join(type.shape, from, ranks));
  PIPER_TRY(cut(type.shape, to, ranks));
  return std::vector<TensorType>{std::move(type)};
}

TypesResult rotated_types(const OpTypes& use) {
  PIPER_ASSIGN(const int64_t ranks, ranks_of(use));
  const int64_t turn = use.attrs.integer("turn", 0);
  if (turn < 1 || turn >= ranks) return fail("{} ranks before, of {}", turn, ranks);
  return same_types(use);
}

// Returns how many of the first dims count the rows, of the whole, that the index has numbers for.
Result<size_t> row_dims(const Shape& whole, const TensorType& index, size_t dim) {
  int64_t rows = 1;
  for (size_t d = 0; d < whole.size(); ++d) {
    rows *= whole[d];
    if (d >= dim && rows == num_elements(index.shape)) return d + 1;
  }
  return fail("{} is no index of the rows of {}", to_string(index), to_string(whole));
}

template <Status (*change)(Shape&, const Blocks&, int64_t), bool joins>
TypesResult routed_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_index(use, 1));
  if (use.attrs.integer("owned", 0) < 1) return fail("ranks that own no number");
  OpTypes alone = use;
  alone.inputs.resize(1), alone.present.resize(1);
  PIPER_ASSIGN(const std::vector<TensorType> made, changed(alone, change));
  const Shape& whole = (joins ? made : use.inputs)[0].shape;
  PIPER_ASSIGN([[maybe_unused]] const size_t dims,
               row_dims(whole, use.inputs[1], static_cast<size_t>(use.attrs.integer("dim"))));
  return made;
}

TypesResult first_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 0, 0));
  if (use.attrs.integer("size", -1) < 0) return fail("attribute 'size' must be at least 0");
  const int64_t turn = use.attrs.integer("turn", 0);
  if (turn < 0 || turn >= use.attrs.integer("ranks", 1)) return fail("{} ranks before", turn);
  const int64_t outer = use.attrs.integer("outer", 0);
  if (outer < 0 || (use.attrs.integer("mirrored", 0) != 0 && (outer == 0 || outer % 2 != 0)))
    return fail("{} outer blocks", outer);
  return std::vector<TensorType>{{DType::kI64, outer == 0 ? Shape{} : Shape{outer}}};
}

LoopRule collective_sum_loops(const OpTypes& use) { return pointwise_loops(use, {{0}}); }

// Returns the stretches that a dim is cut in; -1: it is not cut.
int64_t stretches_of(const OpTypes& use, size_t d) {
  int64_t outer = -1;
  for (const char* to : {"", "to_"})
    if (use.attrs.integer(std::string(to) + "dim", -1) == static_cast<int64_t>(d))
      outer = use.attrs.integer(std::string(to) + "outer", 1) /
              (use.attrs.integer(std::string(to) + "mirrored", 0) != 0 ? 2 : 1);
  return outer;
}

// Returns how much of a dim is in one block of an exchange, of which each rank has one, or two that
// are counted from both ends; 0: it is no exchange.
int64_t block_of(const OpTypes& use, size_t d) {
  if (!use.attrs.find("to_dim")) return 0;
  const std::string to = use.attrs.integer("dim") == static_cast<int64_t>(d) ? "" : "to_";
  const int64_t whole = std::max(use.inputs[0].shape[d], use.outputs[0].shape[d]);
  return whole / (use.attrs.integer("ranks") * use.attrs.integer(to + "outer", 1));
}

// Dims outside of the blocks pass through; the blocks themselves are whole, and so are two
// neighbours, of which one counts from its end. What is within each block of an exchange passes
// through: beside those of other ranks it is cut in as many stretches.
LoopRule block_loops(const OpTypes& use) {
  LoopBuilder build;
  const Shape& shape = use.inputs[0].shape;
  Dims dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t outer = stretches_of(use, d);
    if (outer < 0) {
      dims.push_back({build.letter(shape[d])});
    } else if (outer > 1) {
      dims.push_back({build.letter(outer), build.whole(shape[d] / outer)});
    } else if (const int64_t block = block_of(use, d); block > 0) {
      dims.push_back({build.whole(shape[d] / block), build.letter(block)});
    } else {
      dims.push_back({build.whole(shape[d])});
    }
  }
  build.rule.inputs = {dims};
  build.rule.outputs = {dims};
  build.rule.linear = {{0}};
  return std::move(build.rule);
}

// The elements of a row pass through.
LoopRule routed_loops(const OpTypes& use) {
  LoopBuilder build;
  const Shape &from = use.inputs[0].shape, &to = use.outputs[0].shape,
              &whole = num_elements(from) < num_elements(to) ? to : from;
  const auto dim = static_cast<size_t>(use.attrs.integer("dim"));
  const Result<size_t> known = row_dims(whole, use.inputs[1], dim);
  const size_t rows = known ? *known : whole.size();
  Dims dims;
  for (size_t d = 0; d < from.size(); ++d)
    dims.push_back({d < rows ? build.whole(from[d]) : build.letter(from[d])});
  build.rule.inputs = {dims, build.whole_letters(use.inputs[1].shape)};
  build.rule.outputs = {dims};
  build.rule.linear = {{0}};
  return std::move(build.rule);
}

// If the outer blocks are cut, a rank has fewer of them; where they are padded with zeros, it has
// more.
Attrs collective_localise(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  for (const std::string to : {"", "to_"}) {
    if (!attrs.find(to + "dim")) continue;
    const auto dim = static_cast<size_t>(attrs.integer(to + "dim"));
    const int64_t whole = use.outputs[0].shape[dim], local = local_outputs[0][dim],
                  outer = attrs.integer(to + "outer", 1);
    const int64_t one_block = attrs.integer(to + "mirrored", 0) != 0 ? 2 : 1;
    if (local != whole && local > 0 && outer > one_block)
      attrs.set(to + "outer", outer * local / whole);
  }
  return attrs;
}

OpDef collective(std::string_view name, TypesResult (*types)(const OpTypes&), Shape shape,
                 Attrs attrs) {
  OpDef def{.name = name, .types = types, .loops = block_loops};
  def.cost = moves;
  def.localise = collective_localise;
  def.collective = true;
  attrs.set("over", int64_t{0});
  def.samples = {{.inputs = {f64(std::move(shape))}, .attrs = std::move(attrs)}};
  return def;
}

}  // namespace

std::vector<OpDef> collective_ops() {
  const Attrs blocks{{"ranks", int64_t{2}}, {"dim", int64_t{1}}, {"outer", int64_t{3}}};
  OpDef sum = collective("AllReduce", same_types, {4, 6}, {});
  sum.loops = collective_sum_loops;
  OpDef greatest = collective("AllReduceMax", same_types, {4, 6}, {});
  greatest.loops = [](const OpTypes& use) { return pointwise_loops(use, {}); };
  OpDef rotate =
      collective("Rotate", rotated_types, {4, 6}, {{"ranks", int64_t{2}}, {"turn", int64_t{1}}});
  rotate.loops = collective_sum_loops;
  rotate.localise = nullptr;
  OpDef first = collective("OwnFirst", first_types, {}, {{"size", int64_t{4}}});
  first.samples = {{.inputs = {}, .attrs = {{"over", int64_t{0}}, {"size", int64_t{4}}}}};
  first.loops = [](const OpTypes& use) { return pointwise_loops(use, {}); };
  first.localise = nullptr;
  Attrs rows{
      {"ranks", int64_t{2}}, {"dim", int64_t{0}}, {"outer", int64_t{2}}, {"owned", int64_t{2}}};
  OpDef dispatch = collective("Dispatch", routed_types<join, true>, {4, 6}, rows);
  OpDef combine = collective("Combine", routed_types<cut, false>, {8, 6}, rows);
  for (OpDef* def : {&dispatch, &combine}) {
    def->loops = routed_loops;
    def->localise = nullptr;
    def->samples[0].inputs.push_back(i64({8}));
  }
  Attrs exchange = blocks;
  exchange.set("to_dim", int64_t{0});
  exchange.set("to_outer", int64_t{2});
  return {sum,
          greatest,
          rotate,
          first,
          dispatch,
          combine,
          collective("AllGather", joined_types, {4, 6}, blocks),
          collective("ReduceScatter", cut_types, {4, 12}, blocks),
          collective("OwnBlock", cut_types, {4, 12}, blocks),
          collective("AllToAll", exchanged_types, {8, 6}, exchange)};
}

}  // namespace piper
