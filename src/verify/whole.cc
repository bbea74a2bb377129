#include "whole.h"

#include <numeric>

namespace piper {
namespace {

// The part of an extent that so many elements are: the same of a part as of the whole.
uint64_t share_symbol(int64_t count, int64_t extent) {
  const int64_t common = std::max<int64_t>(1, std::gcd(count, extent));
  return join_symbols(static_cast<uint64_t>(count / common),
                      static_cast<uint64_t>(extent / common));
}

// Added to an element, it leaves nothing of its exponential, in f16 too.
constexpr double kLeast = -60000;

// Where ranks have terms of a sum in 16 bits, these are rounded elsewhere than on one device: what
// is rounded, and when, does not count.
bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Without what is of the part: extents, and numbers that say which part it is. Dims count from the
// end: rows may lie in more dims than one, or in one.
Attrs of_whole(const OpDef* def, const Attrs& attrs, size_t dims) {
  Attrs rest = without(attrs, {"whole", "cuts", "zeros", "rows", "keys", "parts", "blocks"});
  const auto from_end = [&](int64_t dim) {
    return dim < 0 ? dim : dim - static_cast<int64_t>(dims);
  };
  if (const auto* axis = attrs.find("axis"); axis && std::holds_alternative<int64_t>(*axis))
    rest.set("axis", from_end(std::get<int64_t>(*axis)));
  if (std::vector<int64_t> axes = attrs.integers("axes"); !axes.empty()) {
    std::transform(axes.begin(), axes.end(), axes.begin(), from_end);
    rest.set("axes", std::move(axes));
  }
  if (def && def->localise) rest = without(rest, {"shape", "size", "sizes", "groups"});
  for (const char* name : {"trans_a", "trans_b"})
    if (attrs.integer(name) == 0) rest = without(rest, {name});
  if (const auto to = parse_dtype(attrs.text("to")); to && def && !def->pointwise)
    rest = without(rest, {"to"});
  return rest;
}

// Absent outputs have no type.
bool are(const std::vector<TensorType>& made, const std::vector<TensorType>& outputs) {
  return std::equal(
      made.begin(), made.end(), outputs.begin(), outputs.end(),
      [](const TensorType& a, const TensorType& b) { return a == b || b == TensorType{}; });
}

// The inputs that count: all but those that say where a part begins.
std::vector<bool> inputs_of_whole(const OpDef& def, const OpTypes& types) {
  std::vector<bool> counts = types.present;
  const auto leave_out = [&](int input) {
    if (input >= 0 && static_cast<size_t>(input) < counts.size())
      counts[static_cast<size_t>(input)] = false;
  };
  const LoopRule rule = def.loops ? def.loops(types) : LoopRule();
  for (const auto& [letter, input] : rule.firsts) leave_out(input);
  if (rule.turns) leave_out(rule.turns->first);
  for (size_t i = static_cast<size_t>(def.draws + 3); def.draws >= 0 && i < counts.size(); ++i)
    counts[i] = false;
  return counts;
}

}  // namespace

WholeRun::WholeRun(Values& values, const Program& program, std::span<const uint64_t> args,
                   std::span<const int32_t> sums)
    : values_(values), program_(program), sums_(sums), held_(args.begin(), args.end()) {
  held_.resize(program.values.size());
  for (const auto& [value, bytes] : program.literals)
    held_[static_cast<size_t>(value)] = symbol_of(bytes);
}

std::vector<uint64_t> WholeRun::run() {
  for (const ProgramOp& op : program_.ops) {
    const Made made = results(op);
    for (size_t i = 0; i < op.outputs.size(); ++i)
      if (op.outputs[i] >= 0) {
        held_[static_cast<size_t>(op.outputs[i])] = i < made.size() ? made[i] : 0;
        if (i < made.size()) note(made[i], type(op.outputs[i]).shape);
      }
  }
  held_.resize(static_cast<size_t>(program_.num_args));
  return std::move(held_);
}

// Of one device.
void WholeRun::note(uint64_t symbol, const Shape& shape) {
  if (values_.made) values_.made->insert(symbol);
  if (!values_.shapes) return;
  std::vector<Shape>& shapes = (*values_.shapes)[symbol];
  if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
}

WholeRun::Operand WholeRun::operand(const ProgramOp& op, size_t i) const {
  if (i >= op.inputs.size() || op.inputs[i] < 0) return {};
  return {held_[static_cast<size_t>(op.inputs[i])], &type(op.inputs[i])};
}

bool WholeRun::adds_to_sum(const ProgramOp& op, size_t to) const {
  if (to >= op.inputs.size() || op.inputs[to] < 0) return false;
  const int32_t arg = op.outputs[0];
  return op.inputs[to] == arg && std::find(sums_.begin(), sums_.end(), arg) != sums_.end();
}

WholeRun::Made WholeRun::results(const ProgramOp& op) {
  const bool adds = op.op == "Add" && op.inputs.size() == 2;
  for (const size_t to : {0, 1})
    if (adds && op.inputs[1 - to] >= 0 && adds_to_sum(op, to))
      return {operand(op, 0).symbol + operand(op, 1).symbol};
  if (op.op == "GlobalNorm") return norm(op);
  if (op.op == "MatMul" && op.attrs.integer("accumulate") != 0) return product(op);
  Use use{op.op, op.attrs, {}, {}};
  for (size_t i = 0; i < op.inputs.size(); ++i) use.inputs.push_back(operand(op, i));
  for (const int32_t output : op.outputs)
    use.outputs.push_back(output < 0 ? TensorType{} : type(output));
  Made made = make(use);
  if (op.op == "SumSquares" && !use.inputs.empty()) {
    values_.squared.push_back(use.inputs[0].symbol);
    values_.squares[made[0]] = use.inputs[0].symbol;
  }
  return made;
}

WholeRun::Made WholeRun::norm(const ProgramOp& op) {
  values_.normed.clear();
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (const auto known = values_.squares.find(operand(op, i).symbol);
        known != values_.squares.end())
      values_.normed.push_back(known->second);
  return {values_.norm};
}

WholeRun::Made WholeRun::product(const ProgramOp& op) {
  const Attrs attrs = without(op.attrs, {"accumulate"});
  const Made made = make({op.op, attrs, {operand(op, 0), operand(op, 1)}, {type(op.outputs[0])}});
  const uint64_t sum = operand(op, 2).symbol;
  return {adds_to_sum(op, 2) ? made[0] + sum : join_symbols(made[0], sum)};
}

// What is made of a part in turn is one, until all are brought together.
WholeRun::Made WholeRun::make(Use use) {
  const auto is_turn = [&](const Operand& one) { return values_.of_turn(one.symbol).has_value(); };
  const bool any = std::any_of(use.inputs.begin(), use.inputs.end(), is_turn),
             all = std::all_of(use.inputs.begin(), use.inputs.end(), is_turn);
  if (!any) return make_one(use);
  for (Operand& one : use.inputs) one.symbol = values_.of_turn(one.symbol).value_or(one.symbol);
  const size_t half = use.inputs.size() / 2;
  bool same = use.op == "Add" || use.op == "AttentionMerge";
  for (size_t i = 0; i < half; ++i)
    same = same && use.inputs[i].symbol == use.inputs[half + i].symbol;
  Made made;
  for (size_t i = 0; same && i < half; ++i) made.push_back(use.inputs[i].symbol);
  if (!same) made = make_one(use);
  for (uint64_t& symbol : made)
    if (!same || all) symbol = values_.in_turn(symbol);
  return made;
}

WholeRun::Made WholeRun::make_one(const Use& use) {
  const OpDef* def = find_op(use.op);
  OpTypes types;
  types.attrs = use.attrs;
  for (const Operand& one : use.inputs) {
    types.inputs.push_back(one.type ? *one.type : TensorType{});
    types.present.push_back(one.type != nullptr);
  }
  const auto made = def ? def->types(types) : Result<std::vector<TensorType>>(fail("unknown"));
  if (!made || !are(*made, use.outputs)) return named(def, use, types.present);
  if (const auto same = without_padding(use)) return {*same};
  if (use.op == "Reshape" || use.op == "Expand") return {use.inputs[0].symbol};
  if (use.op == "Cast") return {cast(use)};
  if (use.op == "Slice") return {sliced(use)};
  if (use.op == "Pad") return {padded(use)};
  if (use.op == "Concat") return {concatenated(use)};
  types.outputs = *made;
  if (def->apart)
    if (auto steps = apart(*def, types, use)) return *std::move(steps);
  return named(def, use, inputs_of_whole(*def, types));
}

// Ranks do so in steps what one device does at once.
std::optional<WholeRun::Made> WholeRun::apart(const OpDef& def, const OpTypes& types,
                                              const Use& use) {
  const OpDef::Steps steps = def.apart(types);
  if (steps.steps.empty()) return std::nullopt;
  std::vector<Made> made;
  std::vector<std::vector<TensorType>> made_types;
  for (const OpDef::Step& step : steps.steps) {
    Use one{step.op, step.attrs, {}, {}};
    OpTypes its;
    its.attrs = step.attrs;
    for (const auto& [from, index] : step.inputs) {
      const auto at = static_cast<size_t>(index);
      one.inputs.push_back(from < 0 ? use.inputs[at]
                                    : Operand{made[static_cast<size_t>(from)][at],
                                              &made_types[static_cast<size_t>(from)][at]});
      its.inputs.push_back(one.inputs.back().type ? *one.inputs.back().type : TensorType{});
      its.present.push_back(one.inputs.back().type != nullptr);
    }
    auto outputs = find_op(step.op)->types(its);
    if (!outputs) return std::nullopt;
    one.outputs = *outputs;
    made.push_back(make_one(one));
    for (size_t o = 0; o < made.back().size(); ++o) note(made.back()[o], (*outputs)[o].shape);
    made_types.push_back(*std::move(outputs));
  }
  Made results;
  for (const auto& [from, index] : steps.outputs)
    results.push_back(made[static_cast<size_t>(from)][static_cast<size_t>(index)]);
  return results;
}

WholeRun::Made WholeRun::named(const OpDef* def, const Use& use, const std::vector<bool>& counts) {
  const bool has_dims = !use.inputs.empty() && use.inputs[0].type;
  const size_t dims = has_dims ? use.inputs[0].type->shape.size() : 0;
  const std::string word = word_of(use.op, of_whole(def, use.attrs, dims));
  std::vector<Operand> inputs = use.inputs;
  if (use.op == "GeluGrad" && inputs.size() == 2) {
    inputs[0].symbol = slope_symbol(std::string_view(word).substr(8), inputs[0].symbol);
    static const Attrs none;
    return named(find_op("Mul"), {"Mul", none, inputs, use.outputs}, counts);
  }
  if (use.op == "GeluAndSlope" && inputs.size() == 1) {
    const std::string form = word.substr(use.op.size());
    return {join_symbols(symbol_of("Gelu" + form), join_symbols(1, inputs[0].symbol)),
            slope_symbol(form, inputs[0].symbol)};
  }
  if (def && def->commutes && inputs.size() == 2 && inputs[0].symbol > inputs[1].symbol)
    std::swap(inputs[0], inputs[1]);
  uint64_t symbol = symbol_of(word);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (counts[i]) symbol = join_symbols(symbol, join_symbols(i + 1, inputs[i].symbol));
  if (use.op == "Fill") {
    const double value = use.attrs.real("value");
    values_.rows.try_emplace(symbol, Values::Row{value, value, 0});
  }
  if (use.outputs.size() == 1) return {symbol};
  Made made;
  for (size_t o = 0; o < use.outputs.size(); ++o) made.push_back(join_symbols(symbol, o));
  return made;
}

// ---- Ops that only move elements ----------------------------------------------------------------

uint64_t WholeRun::cast(const Use& use) {
  const DType from = use.inputs[0].type->dtype, to = use.outputs[0].dtype;
  if (from == to || is_half(from) || is_half(to)) return use.inputs[0].symbol;
  const uint64_t made = values_.cast(use.inputs[0].symbol, info(to).name);
  if (const auto row = values_.rows.find(use.inputs[0].symbol); row != values_.rows.end())
    values_.rows.try_emplace(made, row->second);
  return made;
}

uint64_t WholeRun::sliced(const Use& use) {
  const Shape &from = use.inputs[0].type->shape, &to = use.outputs[0].shape;
  const std::vector<int64_t> starts = use.attrs.integers("starts"),
                             steps = use.attrs.integers("steps");
  uint64_t how = symbol_of("Slice");
  bool cuts = false;
  const auto joins = values_.concats.find(use.inputs[0].symbol);
  for (size_t d = 0; d < from.size() && d < to.size() && d < starts.size(); ++d) {
    const int64_t step = d < steps.size() ? steps[d] : 1;
    if (to[d] == from[d] && step == 1) continue;
    if (joins != values_.concats.end() && joins->second.axis == d && !cuts) {
      int64_t first = 0;
      for (const auto& [symbol, extent] : joins->second.parts) {
        const bool rest = std::equal(from.begin() + static_cast<std::ptrdiff_t>(d) + 1, from.end(),
                                     to.begin() + static_cast<std::ptrdiff_t>(d) + 1, to.end());
        if (rest && first == starts[d] && extent == to[d]) return symbol;
        first += extent;
      }
    }
    cuts = true;
    how = join_symbols(how, d);
    if (step == 1) {
      how = join_symbols(how, share_symbol(starts[d], from[d]));
      how = join_symbols(how, share_symbol(to[d], from[d]));
    } else {
      for (const int64_t number : {starts[d], to[d], step})
        how = join_symbols(how, static_cast<uint64_t>(number));
    }
  }
  return cuts ? values_.moved(how, {use.inputs[0].symbol}) : use.inputs[0].symbol;
}

uint64_t WholeRun::padded(const Use& use) {
  const std::vector<int64_t> before = use.attrs.integers("before"),
                             after = use.attrs.integers("after");
  const Shape& shape = use.inputs[0].type->shape;
  uint64_t how = symbol_of(word_of("Pad", without(use.attrs, {"before", "after"})));
  for (size_t d = 0; d < shape.size() && d < before.size() && d < after.size(); ++d) {
    how = join_symbols(how, share_symbol(before[d], shape[d]));
    how = join_symbols(how, share_symbol(after[d], shape[d]));
  }
  const uint64_t made = join_symbols(how, use.inputs[0].symbol);
  const bool at_end = std::all_of(before.begin(), before.end(), [](int64_t n) { return n == 0; });
  if (const auto row = values_.rows.find(use.inputs[0].symbol);
      at_end && row != values_.rows.end() && row->second.there == row->second.behind)
    values_.rows.try_emplace(
        made, Values::Row{row->second.there, use.attrs.real("value"), num_elements(shape)});
  return made;
}

// Elements behind the end that a cut has put there become what counts as none: the least number
// where it is added, or zeros instead of what an op has made of zeros. On one device there are
// none.
std::optional<uint64_t> WholeRun::without_padding(const Use& use) const {
  const auto is_row = [&](size_t i, double there, double behind) {
    const auto row = values_.rows.find(use.inputs[i].symbol);
    return row != values_.rows.end() && row->second.there == there && row->second.behind == behind;
  };
  const auto ends = [&](size_t i, uint64_t symbol) {
    return ends_where(values_.rows.at(use.inputs[i].symbol).count, *use.inputs[i].type, symbol);
  };
  if (use.op == "Add" && is_row(1, 0, kLeast) && ends(1, use.inputs[0].symbol))
    return use.inputs[0].symbol;
  if (use.op == "Where" && is_row(0, 1, 0) && is_row(2, 0, 0) && ends(0, use.inputs[1].symbol))
    return use.inputs[1].symbol;
  return std::nullopt;
}

// Whether a row has so many elements before the zeros as the value has on one device in the row's
// first dim; or its part of them, where axes beside this one cut them.
bool WholeRun::ends_where(int64_t count, const TensorType& row, uint64_t symbol) const {
  const auto known =
      values_.whole_shapes ? values_.whole_shapes->find(symbol) : Values::Shapes::const_iterator();
  if (!values_.whole_shapes || known == values_.whole_shapes->end() || count <= 0) return false;
  return std::any_of(known->second.begin(), known->second.end(), [&](const Shape& shape) {
    if (shape.size() < row.shape.size() || row.shape.empty()) return false;
    const int64_t extent = shape[shape.size() - row.shape.size()];
    return extent >= count && extent % count == 0 && values_.ranks % (extent / count) == 0;
  });
}

uint64_t WholeRun::concatenated(const Use& use) {
  int64_t axis = use.attrs.integer("axis"), all = 0;
  Values::Joined joins;
  std::vector<uint64_t> of;
  for (const Operand& one : use.inputs) {
    const auto rank = static_cast<int64_t>(one.type ? one.type->shape.size() : 0);
    if (axis < 0) axis += rank;
    const int64_t extent =
        axis >= 0 && axis < rank ? one.type->shape[static_cast<size_t>(axis)] : 0;
    joins.parts.emplace_back(one.symbol, extent);
    of.push_back(one.symbol);
    all += extent;
  }
  if (of.size() == 1) return of[0];
  joins.axis = static_cast<size_t>(axis);
  uint64_t how = join_symbols(symbol_of("Concat"), static_cast<uint64_t>(axis));
  for (const auto& [symbol, extent] : joins.parts)
    how = join_symbols(how, share_symbol(extent, all));
  const uint64_t made = values_.moved(how, std::move(of));
  values_.concats.try_emplace(made, std::move(joins));
  return made;
}

}  // namespace piper
