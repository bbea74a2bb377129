// GroupedMatMul{trans_b}(x, index, w, first?): each row of x[…, k] times the matrix w[index] of
// w[groups, k, n], or [groups, n, k] with trans_b, as the experts of a mixture work on their
// tokens. GroupedMatMulGrad{trans_b, groups, to}(x, index, dy, first?) is the gradient of w; `to`
// is that of MatMul.
// With `first`, the matrices are those from that number on of `whole`: rows of others are zero, or
// left out of the sum. With `rows`, an even load is so many rows of these matrices: the cost counts
// them, and not all that x has room for.
// RowPlaces{over, ranks, owned, rows}(index) -> (places, packed): how a rank sends its rows to the
// ranks along mesh axis `over`, of which rank k owns the numbers [k × owned, (k + 1) × owned):
// there is room for `rows` rows for each. A place is that of a row of the index among [ranks ×
// rows]: after the rows before it that have the same owner. Beyond the room, or without an owner,
// it is ranks × rows, which is no place: a Gather makes such rows NaN, and a GatherGrad leaves them
// out. `packed`, [ranks, rows], has the numbers at their places, and ranks × owned where there is
// none.
#include "rules.h"

namespace piper {
namespace {

constexpr size_t kX = 0, kIndex = 1, kLast = 2, kFirst = 3;  // w, or dy in the gradient

Status check_rows(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 4));
  PIPER_TRY(check_float(use, kX));
  PIPER_TRY(check_index(use, kIndex));
  if (use.attrs.integer("rows", 0) < 0) return fail("attribute 'rows' must be at least 0");
  const TensorType &x = use.inputs[kX], &last = use.inputs[kLast];
  Shape rows = x.shape;
  if (!rows.empty()) rows.pop_back();
  if (x.shape.empty() || rows != use.inputs[kIndex].shape || last.dtype != x.dtype)
    return fail("no rows with an index each: {}", operands(use));
  return ok_status();
}

TypesResult grouped_types(const OpTypes& use) {
  PIPER_TRY(check_rows(use));
  const Shape &x = use.inputs[kX].shape, &w = use.inputs[kLast].shape;
  const bool trans = use.attrs.integer("trans_b");
  if (w.size() != 3 || w[trans ? 2 : 1] != x.back())
    return fail("rows of {} have no product with matrices {}{}", to_string(x), to_string(w),
                trans ? " (trans_b=1)" : "");
  PIPER_TRY(check_part(use, kFirst));
  Shape made = x;
  made.back() = w[trans ? 1 : 2];
  return std::vector<TensorType>{{use.inputs[kX].dtype, std::move(made)}};
}

TypesResult grouped_grad_types(const OpTypes& use) {
  PIPER_TRY(check_rows(use));
  const int64_t groups = use.attrs.integer("groups", -1);
  const Shape &x = use.inputs[kX].shape, &dy = use.inputs[kLast].shape;
  if (groups < 0 || dy.size() != x.size() || !std::equal(x.begin(), x.end() - 1, dy.begin()))
    return fail("{} with {} groups is not the gradient of a GroupedMatMul", operands(use), groups);
  PIPER_TRY(check_part(use, kFirst));
  Shape made{groups, x.back(), dy.back()};
  if (use.attrs.integer("trans_b")) std::swap(made[1], made[2]);
  PIPER_ASSIGN(const DType dtype, product_type(use));
  return std::vector<TensorType>{{dtype, std::move(made)}};
}

Grads grouped_gradient(Builder& build, const GradientArgs& args) {
  const ValueId x = args.inputs[kX], index = args.inputs[kIndex], w = args.inputs[kLast],
                dy = args.output_grads[0];
  const int64_t trans = args.attrs.integer("trans_b");
  Grads grads(3);
  if (args.wanted[kX])
    grads[kX] = build.op1("GroupedMatMul", {dy, index, w}, {{"trans_b", 1 - trans}});
  if (args.wanted[kLast])
    grads[kLast] = build.op1("GroupedMatMulGrad", {x, index, dy},
                             {{"trans_b", trans}, {"groups", build.shape(w)[0]}});
  return grads;
}

struct GroupedLetters {
  LoopBuilder build;
  Dims rows, x, y, w;
};
GroupedLetters grouped_letters_of(const OpTypes& use, const Shape& w) {
  GroupedLetters l;
  const bool trans = use.attrs.integer("trans_b");
  l.rows = l.build.letters(use.inputs[kIndex].shape);
  const char group = l.build.letter(w[0]), k = l.build.letter(w[trans ? 2 : 1]),
             n = l.build.letter(w[trans ? 1 : 2]);
  l.x = l.y = l.rows;
  l.x.push_back({k});
  l.y.push_back({n});
  l.w = trans ? Dims{{group}, {n}, {k}} : Dims{{group}, {k}, {n}};
  l.build.rule.firsts = {{group, static_cast<int>(kFirst)}};
  l.build.rule.picks = kIndex;
  l.build.rule.linear = {{static_cast<int>(kX)}, {static_cast<int>(kLast)}};
  return l;
}

LoopRule grouped_rule(const OpTypes& use) {
  GroupedLetters l = grouped_letters_of(use, use.inputs[kLast].shape);
  l.build.rule.inputs = {l.x, l.rows, l.w};
  if (use.inputs.size() > kFirst) l.build.rule.inputs.push_back({});
  l.build.rule.outputs = {l.y};
  return std::move(l.build.rule);
}

LoopRule grouped_grad_rule(const OpTypes& use) {
  GroupedLetters l = grouped_letters_of(use, use.outputs[0].shape);
  l.build.rule.inputs = {l.x, l.rows, l.y};
  if (use.inputs.size() > kFirst) l.build.rule.inputs.push_back({});
  l.build.rule.outputs = {l.w};
  return std::move(l.build.rule);
}

Attrs grouped_grad_localise(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  attrs.set("groups", local_outputs[0][0]);
  return attrs;
}

// Counts all rows, as if the matrices of all of them were on this rank, or those of an even load.
Cost grouped_cost(const OpTypes& use) {
  const Shape& x = use.inputs[kX].shape;
  const bool forward = use.outputs[0].shape.size() == x.size() && !use.attrs.find("groups");
  const Shape& y = forward ? use.outputs[0].shape : use.inputs[kLast].shape;
  const int64_t rows = use.attrs.integer("rows", num_elements(use.inputs[kIndex].shape));
  return {.flops = 2.0 * static_cast<double>(rows * x.back()) * static_cast<double>(y.back()),
          .is_matmul = true};
}

TypesResult row_places_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_index(use, 0));
  constexpr int64_t kMost = INT32_MAX;  // an index may be of i32, and has numbers behind all others
  const int64_t ranks = use.attrs.integer("ranks", 0);
  for (const char* name : {"ranks", "owned", "rows"})
    if (const int64_t count = use.attrs.integer(name, 0); count < 1 || count > kMost)
      return fail("attribute '{}' must be at least 1 and below 2^31", name);
  for (const char* name : {"owned", "rows"})
    if (ranks * use.attrs.integer(name) > kMost)
      return fail("attribute '{}' of {} ranks is above 2^31", name, ranks);
  if (use.attrs.integer("over", -1) < 0) return fail("attribute 'over' names no axis");
  const TensorType& index = use.inputs[0];
  return std::vector<TensorType>{
      index, {index.dtype, {use.attrs.integer("ranks"), use.attrs.integer("rows")}}};
}

LoopRule row_places_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims rows = build.whole_letters(use.inputs[0].shape);
  build.rule.inputs = {rows};
  build.rule.outputs = {rows, build.whole_letters(use.outputs[1].shape)};
  return std::move(build.rule);
}

}  // namespace

std::vector<OpDef> grouped_ops() {
  OpDef def{.name = "GroupedMatMul",
            .types = grouped_types,
            .gradient = grouped_gradient,
            .loops = grouped_rule};
  def.cost = grouped_cost;
  def.autocast = OpDef::Autocast::kLow;
  OpDef grad{.name = "GroupedMatMulGrad", .types = grouped_grad_types, .loops = grouped_grad_rule};
  grad.cost = grouped_cost;
  grad.localise = grouped_grad_localise;
  const Attrs plain{{"trans_b", int64_t{0}}}, trans{{"trans_b", int64_t{1}}};
  def.samples = {{.inputs = {f64({6, 4}), i64({6}), f64({3, 4, 2})}, .attrs = plain},
                 {.inputs = {f64({2, 3, 4}), i64({2, 3}), f64({6, 2, 4})}, .attrs = trans}};
  const auto of = [](Attrs attrs, int64_t groups) {
    attrs.set("groups", groups);
    return attrs;
  };
  grad.samples = {{.inputs = {f64({6, 4}), i64({6}), f64({6, 2})}, .attrs = of(plain, 3)},
                  {.inputs = {f64({2, 3, 4}), i64({2, 3}), f64({2, 3, 2})}, .attrs = of(trans, 6)}};
  def.attributes = {{"trans_b"}, whole_of_parts(), {"rows"}};
  grad.attributes = {{"trans_b"}, whole_of_parts(), {"groups"}, {"rows"}, {"to", kText}};
  OpDef places{.name = "RowPlaces", .types = row_places_types, .loops = row_places_rule};
  places.cost = moves;
  places.attributes = {{"over"}, {"ranks"}, {"owned"}, {"rows"}};
  const auto room = [](int64_t rows) {
    return Attrs{
        {"over", int64_t{0}}, {"ranks", int64_t{2}}, {"owned", int64_t{1}}, {"rows", rows}};
  };
  places.samples = {{.inputs = {i64({12})}, .attrs = room(3)},
                    {.inputs = {i64({2, 700})}, .attrs = room(600)}};
  return {def, grad, places};
}

}  // namespace piper
