// Symbols of whole values, from ops on parts: how attributes and shapes of a part relate to the
// whole.
#include "whole.h"

namespace piper {
namespace {

// Returns the attributes that are the same for a part and its whole: without extents, and numbers
// that say which part it is. Dims count from the end, as rows may be in one dim or several.
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

// Returns whether the op returns its operands' numbers, so that those of rounded ones are rounded.
bool selects(std::string_view op) {
  return op == "ReduceMax" || op == "Relu" || op == "Neg" || op == "Where";
}

// Returns whether the types are equal; absent outputs, which have none, equal any.
bool are(const std::vector<TensorType>& made, const std::vector<TensorType>& outputs) {
  return std::equal(
      made.begin(), made.end(), outputs.begin(), outputs.end(),
      [](const TensorType& a, const TensorType& b) { return a == b || b == TensorType{}; });
}

// Returns which inputs tell where a part begins.
std::vector<bool> firsts_of(const OpDef& def, const OpTypes& types) {
  std::vector<bool> firsts(types.inputs.size());
  const auto add = [&](int input) {
    if (input >= 0 && static_cast<size_t>(input) < firsts.size())
      firsts[static_cast<size_t>(input)] = true;
  };
  const LoopRule rule = def.loops ? def.loops(types) : LoopRule();
  for (const auto& [letter, input] : rule.firsts) add(input);
  if (rule.turns) add(rule.turns->first);
  for (int i = def.draws + 3; def.draws >= 0 && i < std::ssize(firsts); ++i) add(i);
  return firsts;
}

// Returns the number of leading dims over which an op only iterates: these may be joined to one.
size_t row_dims(const LoopRule& rule, size_t input) {
  if (input >= rule.inputs.size()) return 0;
  const auto takes_whole = [&](const LoopRule::Dim& dim) {
    return dim.empty() ||
           std::ranges::any_of(dim, [&](char letter) { return needs_whole(rule, letter); });
  };
  const std::vector<LoopRule::Dim>& dims = rule.inputs[input];
  return static_cast<size_t>(std::find_if(dims.begin(), dims.end(), takes_whole) - dims.begin());
}

// Returns how many parts axes cut these dims into; nothing: it is not known of each axis.
std::optional<int64_t> count_parts(std::span<const CutDim> cuts, uint32_t dims) {
  int64_t ranks = 1;
  for (const CutDim& cut : cuts) {
    if ((cut.dims & dims) == 0) continue;
    if (cut.ranks <= 0 || (cut.dims & ~dims) != 0) return std::nullopt;
    ranks *= cut.ranks;
  }
  return ranks;
}

}  // namespace

Shape with_dims(const Shape& shape, size_t dims) {
  Shape made = shape;
  while (made.size() > std::max<size_t>(dims, 1)) made[1] *= made[0], made.erase(made.begin());
  return made;
}

WholeRun::WholeRun(Values& values, const Program& program, std::span<const uint64_t> args,
                   std::span<const int32_t> sums, const CutDims* cuts)
    : ProgramRun(values, program, args, sums), cuts_(cuts) {
  for (const auto& [value, bytes] : program.literals) {
    const uint64_t symbol = literal_symbol(type(value).dtype, bytes);
    held_[static_cast<size_t>(value)] = symbol;
    if (values_.made) values_.made->insert(symbol);
    if (std::all_of(bytes.begin(), bytes.end(),
                    [](auto byte) { return byte == decltype(byte)(0); }))
      values_.rows.try_emplace(symbol, Values::Row{});
  }
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
  return take_args();
}

// Records the shape of a value in the plan for one device.
void WholeRun::note(uint64_t symbol, const Shape& shape) {
  if (values_.made) values_.made->insert(symbol);
  if (!values_.shapes) return;
  std::vector<Shape>& shapes = values_.shapes->made[symbol];
  if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
}

WholeRun::Operand WholeRun::operand(const ProgramOp& op, size_t i) const {
  if (i >= op.inputs.size() || op.inputs[i] < 0) return {};
  return {held_[static_cast<size_t>(op.inputs[i])], &type(op.inputs[i]), 0, cuts_of(op.inputs[i])};
}

WholeRun::Made WholeRun::made_of_operands(const ProgramOp& op) {
  Use use{op.op, op.attrs, {}, {}};
  for (size_t i = 0; i < op.inputs.size(); ++i) use.inputs.push_back(operand(op, i));
  for (const int32_t output : op.outputs)
    use.outputs.push_back(output < 0 ? TensorType{} : type(output));
  if (op.outputs.size() == 1) use.cuts = cuts_of(op.outputs[0]);
  Made made = make(use);
  if (!made.empty()) note_squares(op, made[0]);
  return made;
}

WholeRun::Made WholeRun::results(const ProgramOp& op) {
  if (const auto sum = added(op)) return {*sum};
  if (op.op == "GlobalNorm") return {norm(op)};
  if (op.op == "RowPlaces" && op.outputs.size() == 2 && op.outputs[1] >= 0 &&
      counts_packed(cuts_of(op.outputs[1]), 0))
    return {join_symbols(symbol_of(op.op), operand(op, 0).symbol), operand(op, 0).symbol};
  if (op.op == "MatMul" && op.attrs.integer("accumulate") != 0) return product(op);
  return made_of_operands(op);
}

WholeRun::Made WholeRun::product(const ProgramOp& op) {
  const Attrs attrs = without(op.attrs, {"accumulate"});
  const Made made = make({op.op, attrs, {operand(op, 0), operand(op, 1)}, {type(op.outputs[0])}});
  const uint64_t sum = operand(op, 2).symbol;
  return {adds_to_sum(op, 2) ? made[0] + sum : join_symbols(made[0], sum)};
}

// Returns whether the op joins what two sets of turns have made of the same.
bool WholeRun::joins_turns(const Use& use) {
  if (use.op != "Add" && use.op != "AttentionMerge") return false;
  const size_t half = use.inputs.size() / 2;
  for (size_t i = 0; i < half; ++i)
    if (use.inputs[i].symbol != use.inputs[half + i].symbol) return false;
  return std::ranges::all_of(use.inputs, [](const auto& one) {
    return one.cuts && std::ranges::count(*one.cuts, CutDim::kPartial, &CutDim::ranks) > 0;
  });
}

// A result of a block that rotates through a ring remains such a block, until all are joined. Rule
// layout proves of partial results that no block counts twice.
WholeRun::Made WholeRun::make(Use use) {
  const auto is_turn = [&](const Operand& one) { return values_.of_turn(one.symbol).has_value(); };
  const bool any = std::any_of(use.inputs.begin(), use.inputs.end(), is_turn),
             all = std::all_of(use.inputs.begin(), use.inputs.end(), is_turn);
  if (!any) return make_one(use);
  for (Operand& one : use.inputs) one.symbol = values_.of_turn(one.symbol).value_or(one.symbol);
  const bool same = joins_turns(use);
  Made made;
  for (size_t i = 0; same && i < use.inputs.size() / 2; ++i) made.push_back(use.inputs[i].symbol);
  if (!same) made = make_one(use);
  for (uint64_t& symbol : made)
    if (!same || all) symbol = values_.in_turn(symbol);
  return made;
}

// Follows an op on values that do not rotate. Each 16-bit result counts as rounded once.
WholeRun::Made WholeRun::make_one(Use use) {
  for (Operand& one : use.inputs)
    if (const auto known = values_.behind.find(one.symbol); known != values_.behind.end())
      one.symbol = known->second.of, one.behind = known->second.number;
  Made made = make_exact(use);
  for (size_t o = 0; o < made.size() && o < use.outputs.size(); ++o)
    if (!selects(use.op)) made[o] = rounded(made[o], use.outputs[o].dtype);
  return made;
}

OpTypes WholeRun::types_of(const Use& use) {
  OpTypes types;
  types.attrs = use.attrs;
  for (const Operand& one : use.inputs) {
    types.inputs.push_back(one.type ? *one.type : TensorType{});
    types.present.push_back(one.type != nullptr);
  }
  return types;
}

// Positions along several axes that cut a dim are added, also to where one device begins.
WholeRun::Made WholeRun::make_counted(const OpDef& def, const Use& use, const OpTypes& types) {
  const auto is_position = [](const Operand& one) { return one.symbol == position_symbol(); };
  if (use.op == "Add" && std::any_of(use.inputs.begin(), use.inputs.end(), is_position))
    return {use.inputs[is_position(use.inputs[0]) ? 1 : 0].symbol};
  std::vector<bool> counts = types.present;
  const std::vector<bool> firsts = firsts_of(def, types);
  for (size_t i = 0; i < counts.size(); ++i)
    if (firsts[i] && is_position(use.inputs[i])) counts[i] = false;
  return named(&def, use, counts, types);
}

WholeRun::Made WholeRun::make_exact(const Use& use) {
  const OpDef* def = find_op(use.op);
  // By places only the order of rows changes, as rule layout proves.
  const auto is_places = [](const CutDim& cut) { return cut.ranks == CutDim::kPlaces; };
  if ((use.op == "Gather" || use.op == "GatherGrad") && use.inputs.size() == 2 &&
      use.inputs[1].cuts && std::ranges::any_of(*use.inputs[1].cuts, is_places))
    return {ends_in(use.inputs[0].symbol, use.inputs[0].behind)};
  OpTypes types = types_of(use);
  const auto made = def ? def->types(types) : Result<std::vector<TensorType>>(fail("unknown"));
  if (!made || !are(*made, use.outputs)) return named(nullptr, use, types.present, types);
  if (const auto same = without_padding(use)) return {*same};
  if (use.op == "Expand") return {ends_in(in_dims(use.inputs[0].symbol, use), repeated_end(use))};
  if (const auto same = moved(use)) return {ends_in(in_dims(*same, use), moved_end(use))};
  types.outputs = *made;
  if (def->apart)
    if (auto steps = apart(*def, types, use)) return *std::move(steps);
  return make_counted(*def, use, types);
}

// Returns the symbol of an op that only moves elements; nothing: it is another op.
std::optional<uint64_t> WholeRun::moved(const Use& use) {
  if (use.op == "Reshape") return in_shape(use);
  if (use.op == "Cast") return cast(use);
  if (use.op == "Slice") return sliced(use);
  if (use.op == "Pad") return padded(use);
  if (use.op == "Concat") return concatenated(use);
  if (use.op == "ToBlocks")
    return put_in_blocks(use.inputs[0].symbol, use.attrs, use.inputs[0].type->shape);
  if (use.op == "FromBlocks")
    return take_from_blocks(use.inputs[0].symbol, use.attrs, use.outputs[0].shape);
  return std::nullopt;
}

// Checks a Reshape whose `blocks` name the dims that are cut: the value on one device must have
// more elements along these dims.
uint64_t WholeRun::in_shape(const Use& use) const {
  const uint64_t symbol = use.inputs[0].symbol;
  const std::vector<int64_t> said = use.attrs.integers("blocks");
  if (said.empty() || !values_.whole_shapes) return symbol;
  const auto known = values_.whole_shapes->made.find(symbol);
  if (known == values_.whole_shapes->made.end()) return symbol;
  const Shape& own = use.outputs[0].shape;
  bool fits = true;
  for (const Shape& whole : known->second) {
    if (!may_be_part(own, whole)) continue;
    fits = true;
    for (size_t i = 1; i < said.size(); i += 2) {
      const auto dim = static_cast<size_t>(said[i]);
      fits = fits && dim < own.size() && own[dim] < whole[dim];
    }
    if (fits) return symbol;
  }
  return fits ? symbol : join_symbols(symbol, symbol_of("cut elsewhere"));
}

// Follows an op that ranks run in several steps, and one device in one.
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

WholeRun::Made WholeRun::named(const OpDef* def, const Use& use, const std::vector<bool>& counts,
                               const OpTypes& types) {
  const bool has_dims = !use.inputs.empty() && use.inputs[0].type;
  const size_t dims = has_dims ? use.inputs[0].type->shape.size() : 0;
  const std::string word = word_of(use.op, of_whole(def, use.attrs, dims));
  std::vector<Operand> inputs = use.inputs;
  if (use.op == "GeluGrad" && inputs.size() == 2) {
    inputs[0].symbol = slope_symbol(std::string_view(word).substr(8), inputs[0].symbol);
    static const Attrs none;
    return named(find_op("Mul"), {"Mul", none, inputs, use.outputs}, counts, types);
  }
  if (use.op == "GeluAndSlope" && inputs.size() == 1) {
    const std::string form = word.substr(use.op.size());
    const uint64_t gelu = join_symbols(symbol_of("Gelu" + form), join_symbols(1, inputs[0].symbol));
    return {ends_in(gelu, inputs[0].behind),
            ends_in(slope_symbol(form, inputs[0].symbol), inputs[0].behind)};
  }
  const bool commutes = def && def->commutes && inputs.size() == 2,
             swapped = commutes && inputs[0].symbol > inputs[1].symbol;
  if (swapped) std::swap(inputs[0], inputs[1]);
  uint64_t symbol = symbol_of(word);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (counts[i]) symbol = join_symbols(symbol, join_symbols(i + 1, inputs[i].symbol));
  if (use.op == "Fill") {
    const double value = use.attrs.real("value");
    values_.rows.try_emplace(symbol, Values::Row{value, value, 0});
  }
  LoopRule rule = def && def->loops ? def->loops(types) : LoopRule();
  // Where a part begins are as many numbers as it has stretches, which rule layout compares.
  const std::vector<bool> firsts = def ? firsts_of(*def, types) : std::vector<bool>(inputs.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i)
    parts.push_back(counts[i] && !firsts[i]
                        ? Part{inputs[i].type->shape, inputs[i].cuts,
                               row_dims(rule, swapped ? inputs.size() - 1 - i : i)}
                        : Part());
  if (commutes && inputs[0].symbol == inputs[1].symbol)  // in whichever order
    of_shapes(symbol, symbol, {parts[1], parts[0]});
  std::string letters;
  if (def && def->loops && values_.whole_shapes) {
    clear_repeated(rule, symbol, swapped);
    letters = letters_that_go_on(rule, use, symbol, swapped);
  }
  // Updates run on flat shards, too, as do sums and products element by element.
  const bool is_flat = def && def->pointwise && std::ranges::all_of(inputs, [](const Operand& one) {
                         return !one.type || one.type->shape.size() <= 1;
                       });
  if (!is_flat && (!def || def->states < 0)) symbol = of_shapes(symbol, symbol, parts);
  if (def && !says_whole(*def, types, symbol))
    symbol = join_symbols(symbol, symbol_of("of another whole"));
  Made made{symbol};
  if (use.outputs.size() != 1) made.clear();
  for (size_t o = 0; o < use.outputs.size() && use.outputs.size() != 1; ++o)
    made.push_back(join_symbols(symbol, o));
  return def ? with_ends(*def, rule, use, letters, std::move(made)) : made;
}

// Checks the attribute `whole` of an op on parts, the extent over all ranks: it is that on one
// device or, if that is padded, a multiple of the number of ranks. One device may compute parts,
// too, one after the other; its own attribute then says the extent. Attention says it of keys, too.
bool WholeRun::says_whole(const OpDef& def, const OpTypes& types, uint64_t symbol) const {
  const int64_t all = types.attrs.integer("whole", -1), keys = types.attrs.integer("keys", -1);
  if ((all < 0 && keys < 0) || !def.loops) return true;
  if (values_.shapes && all >= 0) values_.shapes->extents.try_emplace(symbol, all);
  if (!values_.whole_shapes) return true;
  const LoopRule rule = def.loops(types);
  const auto part = values_.whole_shapes->extents.find(symbol);
  const bool is_part = part != values_.whole_shapes->extents.end() && part->second == all;
  return (all < 0 || rule.firsts.empty() || is_part ||
          is_extent(rule, rule.firsts[0].first, all, types, symbol)) &&
         (keys < 0 || !rule.turns || is_extent(rule, rule.turns->other, keys, types, symbol));
}

// Returns whether one device has `all` iterations of the letter, as far as it is known.
bool WholeRun::is_extent(const LoopRule& rule, char of, int64_t all, const OpTypes& types,
                         uint64_t symbol) const {
  const auto known = values_.whole_shapes->operands.find(symbol);
  if (known == values_.whole_shapes->operands.end()) return true;
  const LoopRule::Dim letter{of};
  const auto fits = [&](int64_t own, int64_t whole) {
    const bool filled = all > whole && own > 0 && all % own == 0;
    return all == whole || (filled && values_.parts.contains(all / own));
  };
  std::optional<bool> says;
  const auto look = [&](const std::vector<LoopRule::Dim>& dims, const Shape& own,
                        const Shape& whole) {
    for (size_t d = 0; d < whole.size() && whole.size() == dims.size(); ++d)
      if (dims[d] == letter) says = says.value_or(false) || fits(own[d], whole[d]);
  };
  for (const std::vector<Shape>& whole : known->second)
    for (size_t i = 0; i < whole.size() && i < rule.inputs.size(); ++i)
      look(rule.inputs[i], types.inputs[i].shape, whole[i]);
  if (const auto made = values_.whole_shapes->made.find(symbol);
      made != values_.whole_shapes->made.end())
    for (const Shape& whole : made->second) look(rule.outputs[0], types.outputs[0].shape, whole);
  return says.value_or(true);
}

// Returns `symbol`, or another one if one device computes `symbol` from operands of which these
// cannot be parts: a half of [4,6] is not that of [2,12]. `key`: under which the shapes are
// recorded.
uint64_t WholeRun::of_shapes(uint64_t symbol, uint64_t key, const std::vector<Part>& own) {
  if (values_.shapes) {
    std::vector<Shape> shapes;
    for (const Part& one : own) shapes.push_back(one.shape);
    auto& known = values_.shapes->operands[key];
    if (std::find(known.begin(), known.end(), shapes) == known.end())
      known.push_back(std::move(shapes));
    return symbol;
  }
  const auto known = values_.whole_shapes->operands.find(key);
  if (known == values_.whole_shapes->operands.end()) return symbol;
  const auto fits = [&](const std::vector<Shape>& whole) {
    for (size_t i = 0; i < own.size(); ++i)
      if (!is_part_of(own[i], i < whole.size() ? whole[i] : Shape())) return false;
    return true;
  };
  if (std::any_of(known->second.begin(), known->second.end(), fits)) return symbol;
  return join_symbols(symbol, symbol_of("in other dims"));
}

// Returns whether a value may be a rank's part of a value of that shape: dims of other extents must
// be cut, broadcast, or padded.
bool WholeRun::is_part_of(const Part& own, const Shape& whole) const {
  const size_t dims = std::min(own.shape.size(), whole.size()),
               more = own.shape.size() - dims;  // leading dims that are joined to one
  // A flat run has a dim where the only element of a scalar has none.
  const bool is_element = whole.empty() && own.row_dims == more && more == 1 && own.shape[0] == 1;
  if (own.shape.size() != whole.size() && !is_element && (dims == 0 || own.row_dims <= more))
    return false;
  const Shape mine = with_dims(own.shape, dims), its = with_dims(whole, dims);
  for (size_t d = 0; d < dims; ++d) {
    if (counts_packed(own.cuts, d > 0 ? d + more : 0)) continue;
    const bool is_run = own.shape.size() == 1;
    if (!may_be_part(mine[d], its[d], is_run)) return false;
    if (!own.cuts || its[d] == 1) continue;
    const uint32_t of_all = d > 0 ? uint32_t{1} << (d + more) : (uint32_t{2} << more) - 1;
    const auto ranks = count_parts(*own.cuts, of_all);
    if (ranks && !are_parts(mine[d], *ranks, its[d], is_run)) return false;
  }
  return true;
}

// Returns whether so many equal parts, together, have an extent on one device: exactly, or padded
// as some state is. A flat run has up to one element less than others.
bool WholeRun::are_parts(int64_t own, int64_t parts, int64_t whole, bool is_run) const {
  if (own <= 0 || whole <= 0) return own == whole;
  const __int128 all = static_cast<__int128>(own) * parts;
  if (is_run && all >= whole && all - whole < parts) return true;
  return all == whole || std::ranges::any_of(values_.padded, [&](const auto& of) {
           return all * of.first == static_cast<__int128>(whole) * of.second;
         });
}

// Returns whether an extent may be a part of another, of any number of ranks.
bool WholeRun::may_be_part(int64_t own, int64_t whole, bool is_run) const {
  return own == whole || (whole > 1 && std::ranges::any_of(values_.parts, [&](int64_t parts) {
                            return are_parts(own, parts, whole, is_run);
                          }));
}

}  // namespace piper
