// Symbols of the values that a program makes.
#include "values.h"

#include <algorithm>

#include "piper/ir/ops.h"
#include "whole.h"

namespace piper {
namespace {

uint64_t joined(uint64_t symbol, std::initializer_list<int64_t> numbers) {
  for (const int64_t number : numbers) symbol = join_symbols(symbol, static_cast<uint64_t>(number));
  return symbol;
}
uint64_t shape_symbol(const Shape& shape) {
  uint64_t symbol = shape.size();
  for (const int64_t extent : shape) symbol = joined(symbol, {extent});
  return symbol;
}
int64_t behind(const Shape& shape, size_t dim) {  // elements of the dims from `dim` on
  int64_t count = 1;
  for (; dim < shape.size(); ++dim) count *= shape[dim];
  return count;
}

// Holds an operand; its shape is null if it is that of the result.
struct Operand {
  uint64_t symbol = 0;
  const Shape* shape = nullptr;
  uint64_t in(const Shape& result) const {
    return !shape || *shape == result ? symbol : join_symbols(symbol, shape_symbol(*shape) + 1);
  }
};

class Run : ProgramRun {
 public:
  Run(Values& values, const Program& program, std::span<const uint64_t> args,
      std::span<const int32_t> sums)
      : ProgramRun(values, program, args, sums) {
    for (const auto& [value, bytes] : program.literals)
      held_[value] = literal_symbol(program.values[value].dtype, bytes);
  }

  std::vector<uint64_t> run() {
    for (const ProgramOp& op : program_.ops) {
      const std::vector<uint64_t> made = results(op);
      if (values_.made) values_.made->insert(made.begin(), made.end());
      for (size_t i = 0; i < op.outputs.size(); ++i)
        if (op.outputs[i] >= 0) held_[op.outputs[i]] = i < made.size() ? made[i] : 0;
    }
    return take_args();
  }

 private:
  const Shape& shape(int32_t value) const { return type(value).shape; }
  Operand operand(const ProgramOp& op, size_t i) {
    if (i >= op.inputs.size() || op.inputs[i] < 0) return {};
    return {load(op.inputs[i]), &shape(op.inputs[i])};
  }

  // ---- Pointwise ops ----
  // Plans are not trusted here: an op may have another number of operands than it needs.
  uint64_t pointwise(std::string_view word, std::span<const Operand> operands,
                     const Shape& result) {
    if (word.starts_with("Cast:") && operands.size() == 1)
      return values_.cast(operands[0].symbol, word.substr(5));
    // A plan may keep the derivative for the backward pass, in place of the operand.
    if (word.starts_with("GeluGrad") && operands.size() == 2) {
      const Operand factors[] = {{slope_symbol(word.substr(8), operands[0].in(result)), nullptr},
                                 operands[1]};
      return pointwise("Mul", factors, result);
    }
    if (const OpDef* def = find_op(word); def && def->commutes && operands.size() == 2) {
      uint64_t a = operands[0].in(result), b = operands[1].in(result);
      if (a > b) std::swap(a, b);
      return join_symbols(join_symbols(applied(word, operands, result), a), b);
    }
    uint64_t symbol = applied(word, operands, result);
    for (const Operand& one : operands) symbol = join_symbols(symbol, one.in(result));
    return symbol;
  }
  // Of an op that works element by element, on numbers and operands of one shape, the shape does
  // not matter: a flat run of them gives that run of the result.
  static uint64_t applied(std::string_view word, std::span<const Operand> operands,
                          const Shape& result) {
    const OpDef* def = find_op(word.substr(0, word.find_first_of(":{")));
    const bool is_by_element =
        def && def->pointwise && std::ranges::all_of(operands, [&](const Operand& one) {
          return !one.shape || one.shape->empty() || *one.shape == result;
        });
    return is_by_element ? symbol_of(word) : named(word, result);
  }
  static uint64_t named(std::string_view word, const Shape& result) {
    return join_symbols(symbol_of(word), shape_symbol(result));
  }

  // ---- Ops that only move elements ----
  uint64_t sliced(const ProgramOp& op) {
    const Shape &from = shape(op.inputs[0]), &to = shape(op.outputs[0]);
    const std::vector<int64_t> starts = op.attrs.integers("starts"),
                               steps = op.attrs.integers("steps");
    const uint64_t symbol = load(op.inputs[0]);
    const auto otherwise = [&] {
      const uint64_t how = join_symbols(symbol_of(op.op + print_attrs(op.attrs)),
                                        join_symbols(shape_symbol(from), shape_symbol(to)));
      return values_.moved(how, {symbol});
    };
    if (starts.size() != from.size() || to.size() != from.size() || num_elements(to) == 0 ||
        num_elements(from) == 0 || (!steps.empty() && steps.size() != from.size()))
      return otherwise();
    // The slice is one flat run if dims before the last cut one keep a single element, and those
    // after it all of theirs.
    int64_t first = 0;
    size_t cuts = 0, last = 0;
    bool one_run = true;  // all dims before the last that is cut are single
    for (size_t d = 0; d < from.size(); ++d) {
      if (to[d] > 1 && !steps.empty() && steps[d] != 1) return otherwise();
      const bool back = !steps.empty() && steps[d] < 0;
      const int64_t start = starts[d] < 0 ? starts[d] + from[d] : starts[d];
      first += std::clamp<int64_t>(start, 0, from[d] - (back ? 1 : 0)) * behind(from, d + 1);
      if (to[d] == from[d]) continue;
      ++cuts, last = d;
    }
    for (size_t d = 0; d < last; ++d) one_run = one_run && to[d] == 1;
    if (cuts == 0) return symbol;
    if (one_run) return values_.run_of(symbol, first, num_elements(to));
    if (cuts > 1) return otherwise();
    const int64_t count = behind(to, last), row = behind(from, last);
    if (row == num_elements(from)) return values_.run_of(symbol, first, count);
    return values_.moved(joined(symbol_of("columns"), {first, count, row}), {symbol});
  }
  uint64_t concatenated(const ProgramOp& op) {
    int64_t axis = op.attrs.integer("axis");
    uint64_t how = symbol_of("Concat");
    std::vector<uint64_t> of;
    for (const int32_t input : op.inputs) {
      if (axis < 0) axis += static_cast<int64_t>(input < 0 ? 0 : shape(input).size());
      how = joined(how, {input < 0 ? 0 : behind(shape(input), static_cast<size_t>(axis))});
      of.push_back(load(input));
    }
    return of.size() == 1 ? of[0] : values_.moved(how, std::move(of));
  }

  std::vector<uint64_t> made_of_operands(const ProgramOp& op) {
    std::vector<Operand> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(op, i));
    const std::vector<uint64_t> made = made_of(op, op.attrs, operands);
    note_squares(op, made[0]);
    return made;
  }

  // ---- All others ----
  std::vector<uint64_t> results(const ProgramOp& op) {
    if (const auto sum = added(op)) return {*sum};
    if (renames(program_, op)) return {load(op.inputs[0])};
    if (op.op == "Slice" && op.inputs.size() == 1 && op.inputs[0] >= 0) return {sliced(op)};
    if (op.op == "Concat") return {concatenated(op)};
    if (op.op == "GlobalNorm") return {norm(op)};
    if (op.op == "MatMul") return {product(op)};
    if (op.op == "ToBlocks" && op.inputs.size() == 1 && op.inputs[0] >= 0)
      return {put_in_blocks(load(op.inputs[0]), op.attrs, shape(op.inputs[0]))};
    if (op.op == "FromBlocks" && op.inputs.size() == 1)
      return {take_from_blocks(load(op.inputs[0]), op.attrs, shape(op.outputs[0]))};
    return made_of_operands(op);
  }
  // An optimizer updates each element by itself, so shapes of shards do not matter.
  std::vector<uint64_t> updated(const std::string& word, const std::vector<Operand>& operands,
                                size_t count) {
    uint64_t symbol = symbol_of(word);
    for (const Operand& one : operands) symbol = join_symbols(symbol, one.symbol);
    return numbered(symbol, count);
  }

  std::vector<uint64_t> made_of(const ProgramOp& op, const Attrs& attrs,
                                std::vector<Operand> operands) {
    const Shape& result = shape(op.outputs[0]);
    const std::string word = word_of(op.op, attrs);
    if (const OpDef* def = find_op(op.op); def && def->states >= 0)
      return updated(word, operands, op.outputs.size());
    if (op.op == "GeluAndSlope" && operands.size() == 1) {
      const std::string_view form = std::string_view(word).substr(op.op.size());
      return {pointwise(fmt::format("Gelu{}", form), operands, result),
              slope_symbol(form, operands[0].in(result))};
    }
    if (op.outputs.size() == 1) return {pointwise(word, operands, result)};
    uint64_t symbol = named(word, result);
    for (const Operand& one : operands) symbol = join_symbols(symbol, one.in(result));
    for (const int32_t output : op.outputs)
      symbol = join_symbols(symbol, shape_symbol(shape(output)));
    return numbered(symbol, op.outputs.size());
  }
  static std::vector<uint64_t> numbered(uint64_t symbol, size_t count) {
    std::vector<uint64_t> made;
    for (size_t i = 0; i < count; ++i) made.push_back(join_symbols(symbol, i));
    return made;
  }
  uint64_t product(const ProgramOp& op) {
    const bool adds = op.attrs.integer("accumulate") != 0 && op.inputs.size() > 2;
    uint64_t symbol =
        named("MatMul" + print_attrs(without(op.attrs, {"accumulate"})), shape(op.outputs[0]));
    for (const size_t i : {0, 1}) {
      const Operand one = operand(op, i);
      symbol =
          join_symbols(symbol, join_symbols(one.symbol, one.shape ? shape_symbol(*one.shape) : 0));
    }
    if (!adds) return symbol;
    return adds_to_sum(op, 2) ? symbol + load(op.inputs[2])
                              : join_symbols(symbol, load(op.inputs[2]));
  }
};

}  // namespace

std::string word_of(std::string_view op, const Attrs& attrs) {
  const auto& items = attrs.items();
  if (items.size() != 1) return std::string(op) + print_attrs(attrs);
  const auto& [name, value] = items.front();
  if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("{}:{}", op, *text);
  const auto* flag = std::get_if<int64_t>(&value);
  return flag && *flag == 1 ? fmt::format("{}:{}", op, name) : std::string(op) + print_attrs(attrs);
}

uint64_t slope_symbol(std::string_view form, uint64_t x) {
  return join_symbols(symbol_of(form), join_symbols(symbol_of("slope"), x));
}

uint64_t places_symbol(const InBlocks& in, const Shape& piece, int64_t run) {
  const int64_t all = num_elements(piece);
  return joined(symbol_of(kScaledNames[static_cast<size_t>(in.type)]),
                {all, in.block, run > 0 ? std::min(run, all) : all});
}
uint64_t places_symbol(const Attrs& attrs, const Shape& shape) {
  const std::vector<int64_t> piece = attrs.integers("piece");
  const InBlocks in{parse_scaled(attrs.text("to")), attrs.integer("block")};
  const int64_t run = attrs.integer("run");
  if (attrs.integer("axis") > 0)  // however many runs a rank has
    return joined(symbol_of(kScaledNames[static_cast<size_t>(in.type)]), {0, in.block, run});
  return places_symbol(in, piece.empty() ? shape : piece, run);
}

namespace {

uint64_t put(uint64_t symbol, uint64_t places) {
  return join_symbols(symbol_of("ToBlocks"), join_symbols(places, symbol));
}
uint64_t take(uint64_t symbol, uint64_t places) {
  return join_symbols(symbol_of("FromBlocks"), join_symbols(places, symbol));
}

}  // namespace

uint64_t put_in_blocks(uint64_t symbol, const Attrs& attrs, const Shape& shape) {
  return put(symbol, places_symbol(attrs, shape));
}
uint64_t take_from_blocks(uint64_t symbol, const Attrs& attrs, const Shape& shape) {
  return take(symbol, places_symbol(attrs, shape));
}
uint64_t round_in_blocks(uint64_t symbol, const InBlocks& in, const Shape& shape, int64_t run) {
  const uint64_t places = places_symbol(in, shape, run);
  return take(put(symbol, places), places);
}

bool renames(const Program& program, const ProgramOp& op) {
  if (op.inputs.size() != 1 || op.outputs.size() != 1 || op.inputs[0] < 0) return false;
  const TensorType &from = program.values[op.inputs[0]], &to = program.values[op.outputs[0]];
  const OpDef* def = find_op(op.op);
  return def && def->first_byte && from.bytes() == to.bytes() &&
         def->first_byte(from, to, op.attrs) == 0;
}

Attrs without(const Attrs& attrs, std::initializer_list<std::string_view> names) {
  Attrs rest;
  for (const auto& [name, value] : attrs.items())
    if (std::find(names.begin(), names.end(), name) == names.end()) rest.set(name, value);
  return rest;
}

std::vector<uint64_t> Values::run(const Program& program, std::span<const uint64_t> args,
                                  std::span<const int32_t> sums, const CutDims* cuts) {
  return whole_ ? WholeRun(*this, program, args, sums, cuts).run()
                : Run(*this, program, args, sums).run();
}

uint64_t Values::cast_to(uint64_t symbol, uint64_t to) {
  const uint64_t made = join_symbols(symbol_of("Cast"), join_symbols(to, symbol));
  casts_.try_emplace(made, Cast{symbol, to});
  return made;
}

std::vector<uint64_t> Values::take_casts(std::span<uint64_t> symbols) const {
  constexpr size_t kMost = 8;  // bounds the time for moves after a long chain of casts
  std::vector<uint64_t> taken;
  while (!symbols.empty() && taken.size() < kMost) {
    const auto first = casts_.find(symbols[0]);
    if (first == casts_.end()) break;
    const uint64_t to = first->second.to;
    const bool all = std::all_of(symbols.begin(), symbols.end(), [&](uint64_t symbol) {
      const auto known = casts_.find(symbol);
      return known != casts_.end() && known->second.to == to;
    });
    if (!all) break;
    for (uint64_t& symbol : symbols) symbol = casts_.find(symbol)->second.of;
    taken.push_back(to);
  }
  return taken;
}

uint64_t Values::put_casts(uint64_t symbol, const std::vector<uint64_t>& casts) {
  for (auto to = casts.rbegin(); to != casts.rend(); ++to) symbol = cast_to(symbol, *to);
  return symbol;
}

uint64_t Values::moved(uint64_t how, std::vector<uint64_t> of) {
  const std::vector<uint64_t> casts = take_casts(of);
  for (const uint64_t each : of) how = join_symbols(how, each);
  return put_casts(how, casts);
}

uint64_t Values::run_of(uint64_t symbol, int64_t first, int64_t count) {
  const std::vector<uint64_t> casts = take_casts(std::span(&symbol, 1));
  if (const auto known = runs_.find(symbol); known != runs_.end()) {
    first += known->second.first;
    symbol = known->second.of;
  }
  const uint64_t made = join_symbols(joined(symbol_of("run"), {first, count}), symbol);
  runs_.try_emplace(made, Begun{symbol, first});
  return put_casts(made, casts);
}

uint64_t Values::in_turn(uint64_t symbol) {
  if (of_turn(symbol)) return symbol;
  const uint64_t made = join_symbols(symbol_of("turn"), symbol);
  turns_.try_emplace(made, symbol);
  return made;
}

uint64_t Values::spread(const std::vector<uint64_t>& own) {
  uint64_t made = symbol_of("spread");
  for (const uint64_t symbol : own) made = join_symbols(made, symbol);
  spreads.try_emplace(made, own);
  return made;
}

uint64_t Values::taken_apart(uint64_t rows, const Shape& stack) {
  const auto known = concats.find(rows);
  const int64_t ranks = stack[0];
  std::vector<uint64_t> own;
  if (known != concats.end() && known->second.axis == 0)
    for (const auto& [symbol, extent] : known->second.parts)
      if (extent == 1) own.push_back(all_runs(symbol, ranks, num_elements(stack)));
  return std::ssize(own) == ranks ? spread(own) : join_symbols(symbol_of("no rows"), rows);
}

// Returns the symbol of all runs of a value: that of the value, unless they have further elements.
uint64_t Values::all_runs(uint64_t symbol, int64_t ranks, int64_t elements) {
  if (!whole_shapes) return symbol;
  const auto known = whole_shapes->made.find(symbol);
  if (known == whole_shapes->made.end() ||
      std::ranges::count(known->second, elements, num_elements) > 0)
    return symbol;
  const uint64_t made =
      join_symbols(join_symbols(symbol_of("runs"), symbol), static_cast<uint64_t>(ranks));
  runs_of_all.try_emplace(made, Runs{symbol, ranks});
  return made;
}

uint64_t Values::put_in_rows(uint64_t own) {
  const uint64_t made = join_symbols(symbol_of("rows"), own);
  const auto known = spreads.find(own);
  if (known == spreads.end()) return made;
  Joined& joins = concats[made];
  joins = {};
  for (const uint64_t symbol : known->second) joins.parts.emplace_back(symbol, 1);
  return made;
}

std::optional<uint64_t> Values::of_turn(uint64_t symbol) const {
  const auto known = turns_.find(symbol);
  return known == turns_.end() ? std::nullopt : std::optional(known->second);
}

uint64_t Values::rounded(uint64_t symbol, std::string_view to) {
  const auto known = casts_.find(symbol);
  const bool is_rounded = known != casts_.end() && known->second.to == symbol_of(to);
  return is_rounded ? symbol : cast(symbol, to);
}

uint64_t Values::cast(uint64_t symbol, std::string_view to) {
  return cast_to(symbol, symbol_of(to));
}

bool ProgramRun::adds_to_sum(const ProgramOp& op, size_t to) const {
  if (to >= op.inputs.size() || op.inputs[to] < 0) return false;
  const int32_t arg = op.outputs[0];
  return op.inputs[to] == arg && std::ranges::find(sums_, arg) != sums_.end();
}

std::optional<uint64_t> ProgramRun::added(const ProgramOp& op) const {
  if (op.op != "Add" || op.inputs.size() != 2) return std::nullopt;
  for (const size_t to : {0, 1})
    if (const int32_t term = op.inputs[1 - to];
        term >= 0 && adds_to_sum(op, to) && type(term).shape == type(op.outputs[0]).shape)
      return load(op.inputs[0]) + load(op.inputs[1]);
  return std::nullopt;
}

void ProgramRun::note_squares(const ProgramOp& op, uint64_t made) {
  if (op.op != "SumSquares" || op.inputs.empty()) return;
  values_.squared.push_back(load(op.inputs[0]));
  values_.squares[made] = load(op.inputs[0]);
}

uint64_t ProgramRun::norm(const ProgramOp& op) {
  std::vector<uint64_t> own;
  for (const int32_t input : op.inputs)
    if (const auto known = values_.squares.find(load(input)); known != values_.squares.end())
      own.push_back(known->second);
  if (own.size() > values_.normed.size()) values_.normed = std::move(own);
  return values_.norm;
}

}  // namespace piper
