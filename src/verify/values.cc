#include "values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "piper/ops.h"

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
int64_t behind(const Shape& shape, size_t dim) {  // elements from that dim on
  int64_t count = 1;
  for (; dim < shape.size(); ++dim) count *= shape[dim];
  return count;
}

// An op and its attributes, as expressions write pointwise ones.
std::string word_of(std::string_view op, const Attrs& attrs) {
  const auto& items = attrs.items();
  if (items.size() != 1) return std::string(op) + print_attrs(attrs);
  const auto& [name, value] = items.front();
  if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("{}:{}", op, *text);
  const auto* flag = std::get_if<int64_t>(&value);
  if (!flag || *flag < 0 || *flag > 1) return std::string(op) + print_attrs(attrs);
  return *flag ? fmt::format("{}:{}", op, name) : std::string(op);
}

// An operand; the shape where it is not that of the result.
struct Operand {
  uint64_t symbol = 0;
  const Shape* shape = nullptr;
  uint64_t in(const Shape& result) const {
    return !shape || *shape == result ? symbol : join_symbols(symbol, shape_symbol(*shape) + 1);
  }
};

class Run {
 public:
  Run(Values& values, const Program& program, std::span<const uint64_t> args,
      std::span<const int32_t> sums)
      : values_(values),
        program_(program),
        sums_(sums),
        bases_(program.bases()),
        first_(program.values.size()),
        held_(args.begin(), args.end()) {
    for (const ProgramView& view : program.views)
      first_[view.value] = view.offset / info(program.values[view.value].dtype).bytes;
    held_.resize(program.values.size());
    for (const auto& [value, bytes] : program.literals) held_[value] = symbol_of(bytes);
  }

  std::vector<uint64_t> run() {
    for (const ProgramOp& op : program_.ops) {
      const std::vector<uint64_t> made = results(op);
      if (values_.made) values_.made->insert(made.begin(), made.end());
      for (size_t i = 0; i < op.outputs.size(); ++i)
        if (op.outputs[i] >= 0) held_[bases_[op.outputs[i]]] = i < made.size() ? made[i] : 0;
    }
    held_.resize(static_cast<size_t>(program_.num_args));
    return std::move(held_);
  }

 private:
  const Shape& shape(int32_t value) const { return program_.values[value].shape; }
  uint64_t load(int32_t value) {
    if (value < 0) return 0;
    const int32_t base = bases_[value];
    const TensorType &own = program_.values[value], &whole = program_.values[base];
    if (own.bytes() == whole.bytes()) return held_[base];
    const uint64_t part = values_.run_of(held_[base], first_[value], num_elements(own.shape));
    return own.dtype == whole.dtype ? part : join_symbols(part, symbol_of(info(own.dtype).name));
  }
  Operand operand(const ProgramOp& op, size_t i) {
    if (i >= op.inputs.size() || op.inputs[i] < 0) return {};
    return {load(op.inputs[i]), &shape(op.inputs[i])};
  }

  // ---- Pointwise ops ----
  // Nobody has looked whether an op has as many operands as it takes.
  uint64_t pointwise(std::string_view word, std::span<const Operand> operands,
                     const Shape& result) {
    if (word.starts_with("Cast:") && operands.size() == 1)
      return values_.cast(operands[0].symbol, word.substr(5));
    // What the gradient multiplies with may be kept instead of what it is made of.
    if (word.starts_with("GeluGrad") && operands.size() == 2) {
      const Operand factors[] = {{slope(word.substr(8), operands[0].in(result)), nullptr},
                                 operands[1]};
      return pointwise("Mul", factors, result);
    }
    if (const OpDef* def = find_op(word); def && def->commutes && operands.size() == 2) {
      uint64_t a = operands[0].in(result), b = operands[1].in(result);
      if (a > b) std::swap(a, b);
      return join_symbols(join_symbols(named(word, result), a), b);
    }
    uint64_t symbol = named(word, result);
    for (const Operand& one : operands) symbol = join_symbols(symbol, one.in(result));
    return symbol;
  }
  static uint64_t named(std::string_view word, const Shape& result) {
    return join_symbols(symbol_of(word), shape_symbol(result));
  }
  static uint64_t slope(std::string_view form, uint64_t x) {
    return join_symbols(symbol_of(form), join_symbols(symbol_of("slope"), x));
  }
  // The operands of a word, from the top of a stack, are replaced by its result.
  void apply(std::string_view word, std::vector<Operand>& stack, const Shape& result) {
    const size_t count = operands_of(word.substr(0, word.find(':')));
    if (stack.size() < count) stack.insert(stack.begin(), count - stack.size(), Operand{});
    const std::span<const Operand> top = std::span(stack).last(count);
    const uint64_t made = pointwise(word, top, result);
    if (values_.made) values_.made->insert(made);
    stack.resize(stack.size() - count);
    stack.push_back({made, nullptr});
  }
  std::vector<uint64_t> expression(const ProgramOp& op) {
    const Shape& result = shape(op.outputs[0]);
    std::vector<Operand> stack;
    std::map<std::string, Operand, std::less<>> named;
    for (const std::string& word : split_text(op.attrs.text("expr"), ' ')) {
      size_t input = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), input);
      if (error == std::errc() && end == word.data() + word.size())
        stack.push_back(operand(op, input));
      else if (word.starts_with('=') && !stack.empty())
        named[word.substr(1)] = stack.back();
      else if (word.starts_with('@'))
        stack.push_back(named[word.substr(1)]);
      else
        apply(word, stack, result);
    }
    std::vector<uint64_t> made;
    for (const Operand& one : stack) made.push_back(one.in(result));
    return made;
  }
  // 16-bit floats that are added in f32 and rounded: a sum.
  bool adds_rounded(const ProgramOp& op) const {
    const DType dtype = program_.values[op.outputs[0]].dtype;
    return info(dtype).bytes == 2 && op.inputs.size() == 2 &&
           op.attrs.text("expr") ==
               fmt::format("0 Cast:f32 1 Cast:f32 Add Cast:{}", info(dtype).name);
  }

  // Whether the op adds to an argument that is a sum over the step.
  bool adds_to_sum(const ProgramOp& op, size_t to) const {
    if (to >= op.inputs.size() || op.inputs[to] < 0) return false;
    const int32_t arg = bases_[op.outputs[0]];
    return bases_[op.inputs[to]] == arg &&
           program_.values[op.inputs[to]].bytes() == program_.values[arg].bytes() &&
           std::find(sums_.begin(), sums_.end(), arg) != sums_.end();
  }

  // ---- Ops that only move elements ----
  bool renames(const ProgramOp& op) const {
    if (op.inputs.size() != 1 || op.inputs[0] < 0) return false;
    if (op.op == "Pack") return true;
    const TensorType &from = program_.values[op.inputs[0]], &to = program_.values[op.outputs[0]];
    const OpDef* def = find_op(op.op);
    return def && def->first_byte && from.bytes() == to.bytes() &&
           def->first_byte(from, to, op.attrs) == 0;
  }
  // Columns [first, first + count) of rows of `row` elements.
  uint64_t columns_of(uint64_t symbol, int64_t elements, int64_t first, int64_t count,
                      int64_t row) {
    if (row == elements) return values_.run_of(symbol, first, count);
    return values_.moved(joined(symbol_of("columns"), {first, count, row}), {symbol});
  }
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
    // Rows behind the last dim that is cut, of which those before leave one or all.
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
    return columns_of(symbol, num_elements(from), first, behind(to, last), behind(from, last));
  }
  uint64_t concatenated(std::span<const std::pair<uint64_t, int64_t>> pieces) {
    uint64_t how = symbol_of("Concat");
    std::vector<uint64_t> of;
    for (const auto& [symbol, count] : pieces) {
      how = joined(how, {count});
      of.push_back(symbol);
    }
    return pieces.size() == 1 ? of[0] : values_.moved(how, std::move(of));
  }
  uint64_t concatenated(const ProgramOp& op) {
    int64_t axis = op.attrs.integer("axis");
    std::vector<std::pair<uint64_t, int64_t>> pieces;
    for (const int32_t input : op.inputs) {
      const auto rank = static_cast<int64_t>(input < 0 ? 0 : shape(input).size());
      if (axis < 0) axis += rank;
      pieces.emplace_back(load(input),
                          input < 0 ? 0 : behind(shape(input), static_cast<size_t>(axis)));
    }
    return concatenated(pieces);
  }

  // ---- All others ----
  std::vector<uint64_t> results(const ProgramOp& op) {
    const bool adds =
        (op.op == "Add" && op.inputs.size() == 2) || (op.op == "Fused" && adds_rounded(op));
    for (const size_t to : {0, 1})
      if (adds && op.inputs[1 - to] >= 0 && adds_to_sum(op, to) &&
          shape(op.inputs[1 - to]) == shape(op.outputs[0]))
        return {load(op.inputs[0]) + load(op.inputs[1])};
    if (op.op == "Fused") return expression(op);
    if (renames(op)) return {load(op.inputs[0])};
    if (op.op == "Slice" && op.inputs.size() == 1 && op.inputs[0] >= 0) return {sliced(op)};
    if (op.op == "Concat") return {concatenated(op)};
    if (op.op == "GlobalNorm") return {norm(op)};
    if (op.op == "Attention" || op.op == "AttentionGrad") return attention(op);
    if (op.op == "MatMul") return {product(op)};
    std::vector<Operand> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(op, i));
    if (const std::string then = op.attrs.text("then"); !then.empty()) return finished(op, then);
    const std::vector<uint64_t> made = made_of(op, op.attrs, operands);
    if (op.op == "SumSquares" && !operands.empty()) {
      values_.squared.push_back(operands[0].symbol);
      values_.squares[made[0]] = operands[0].symbol;
    }
    return made;
  }
  uint64_t norm(const ProgramOp& op) {
    values_.normed.clear();
    for (const int32_t input : op.inputs)
      if (const auto known = values_.squares.find(load(input)); known != values_.squares.end())
        values_.normed.push_back(known->second);
    return values_.norm;
  }
  std::vector<uint64_t> made_of(const ProgramOp& op, const Attrs& attrs,
                                std::vector<Operand> operands) {
    const Shape& result = shape(op.outputs[0]);
    const std::string word = word_of(op.op, attrs);
    // Each element on its own, of a parameter or of a part of it.
    if (const OpDef* def = find_op(op.op); def && def->states >= 0) {
      uint64_t symbol = symbol_of(word);
      for (const Operand& one : operands) symbol = join_symbols(symbol, one.symbol);
      return numbered(symbol, op.outputs.size());
    }
    if (op.op == "GeluAndSlope" && operands.size() == 1) {
      const std::string_view form = std::string_view(word).substr(op.op.size());
      return {pointwise(fmt::format("Gelu{}", form), operands, result),
              slope(form, operands[0].in(result))};
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
  // What is done with the result, the operands behind the op's own.
  uint64_t taken_along(uint64_t made, const ProgramOp& op, std::string_view words, size_t first) {
    for (const std::string& word : split_text(words, ' ')) {
      if (word.empty()) continue;
      const Operand both[] = {{made, nullptr}, operand(op, first)};
      if (values_.made) values_.made->insert(made);
      made = pointwise(word, both, shape(op.outputs[0]));
      ++first;
    }
    return made;
  }
  std::vector<uint64_t> finished(const ProgramOp& op, const std::string& then) {
    const size_t words = 1 + static_cast<size_t>(std::count(then.begin(), then.end(), ' '));
    const size_t own = op.inputs.size() - std::min(words, op.inputs.size());
    std::vector<Operand> operands;
    for (size_t i = 0; i < own; ++i) operands.push_back(operand(op, i));
    std::vector<uint64_t> made = made_of(op, without(op.attrs, {"then"}), std::move(operands));
    made[0] = taken_along(made[0], op, then, own);
    return made;
  }
  uint64_t product(const ProgramOp& op) {
    const Shape& result = shape(op.outputs[0]);
    const Attrs rest = without(op.attrs, {"then", "accumulate", "packed_b", "trans_a", "trans_b"});
    const Operand a = operand(op, 0);
    Operand b = operand(op, 1);
    int64_t transposed = op.attrs.integer("trans_b");
    Shape matrix;
    if (const int64_t packed = op.attrs.integer("packed_b"); packed != 0 && b.shape) {
      const int64_t rows = b.shape->empty() ? 0 : b.shape->front(),
                    columns = result.empty() ? 0 : result.back();
      matrix = packed == 2 ? Shape{columns, rows} : Shape{rows, columns};
      transposed = packed == 2 ? 1 : transposed;
      b.shape = &matrix;
    }
    uint64_t symbol = joined(named("MatMul" + print_attrs(rest), result),
                             {op.attrs.integer("trans_a"), transposed});
    for (const Operand& one : {a, b})
      symbol =
          join_symbols(symbol, join_symbols(one.symbol, one.shape ? shape_symbol(*one.shape) : 0));
    const bool adds = op.attrs.integer("accumulate") != 0 && op.inputs.size() > 2;
    if (adds && adds_to_sum(op, 2))
      symbol += load(op.inputs[2]);
    else if (adds)
      symbol = join_symbols(symbol, load(op.inputs[2]));
    return taken_along(symbol, op, op.attrs.text("then"), adds ? 3 : 2);
  }

  std::vector<uint64_t> attention(const ProgramOp& op) {
    const bool gradient = op.op == "AttentionGrad";
    std::vector<Operand> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(op, i));
    const Attrs attrs = without(op.attrs, {"columns", "kv_heads", "grad_columns"});
    const std::vector<int64_t> columns = op.attrs.integers("columns"),
                               grads = op.attrs.integers("grad_columns");
    const size_t y = gradient ? 3 : 0;
    const Shape* of_y =
        gradient ? (operands.size() > y ? operands[y].shape : nullptr) : &shape(op.outputs[0]);
    if (columns.size() != 3 || operands.size() < 3 || !of_y || of_y->size() != 4)
      return made_of(op, op.attrs, operands);
    const Shape q = *of_y, kv = {q[0], q[1], op.attrs.integer("kv_heads"), q[3]};
    const int64_t tokens = std::max<int64_t>(q[0] * q[1], 1);
    for (size_t i = 0; i < 3; ++i) {
      const Shape& own = i == 0 ? q : kv;
      const int64_t elements = operands[i].shape ? num_elements(*operands[i].shape) : 0;
      operands[i] = {
          columns_of(operands[i].symbol, elements, columns[i], own[2] * own[3], elements / tokens),
          &own};
    }
    return gradient ? gradients(op, attrs, operands, grads, q, kv)
                    : attention_of(attrs, operands, q, op.outputs.size());
  }
  // As if the operands were tensors of their own.
  static uint64_t attended(std::string_view op, const Attrs& attrs,
                           std::span<const Operand> operands, const Shape& result) {
    uint64_t symbol = named(word_of(op, attrs), result);
    for (const Operand& one : operands) symbol = join_symbols(symbol, one.in(result));
    return symbol;
  }
  std::vector<uint64_t> attention_of(const Attrs& attrs, std::span<const Operand> operands,
                                     const Shape& q, size_t outputs) {
    uint64_t symbol = attended("Attention", attrs, operands, q);
    symbol = join_symbols(symbol, shape_symbol(q));
    symbol = join_symbols(symbol, shape_symbol(Shape{q[0], q[2], q[1]}));
    return numbered(symbol, outputs);
  }
  std::vector<uint64_t> gradients(const ProgramOp& op, const Attrs& attrs,
                                  std::span<const Operand> operands,
                                  const std::vector<int64_t>& columns, const Shape& q,
                                  const Shape& kv) {
    uint64_t symbol = attended("AttentionGrad", attrs, operands, q);
    for (const Shape* made : {&q, &kv, &kv}) symbol = join_symbols(symbol, shape_symbol(*made));
    const size_t joined = columns.size() == 3 ? 1 : 3;
    for (size_t i = joined; i < op.outputs.size(); ++i)
      symbol = join_symbols(symbol, shape_symbol(shape(op.outputs[i])));
    std::vector<uint64_t> made = numbered(symbol, op.outputs.size() + 3 - joined);
    if (joined == 3) return made;
    std::array<size_t, 3> order = {0, 1, 2};
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return columns[a] < columns[b]; });
    std::vector<std::pair<uint64_t, int64_t>> pieces;
    for (const size_t i : order) {
      const Shape& own = i == 0 ? q : kv;
      pieces.emplace_back(made[i], own[2] * own[3]);
    }
    made.erase(made.begin() + 1, made.begin() + 3);
    made[0] = concatenated(pieces);
    return made;
  }

  Values& values_;
  const Program& program_;
  const std::span<const int32_t> sums_;  // arguments
  const std::vector<int32_t> bases_;
  std::vector<int64_t> first_;  // by value: its element in its base
  std::vector<uint64_t> held_;  // by base
};

}  // namespace

Attrs without(const Attrs& attrs, std::initializer_list<std::string_view> names) {
  Attrs rest;
  for (const auto& [name, value] : attrs.items())
    if (std::find(names.begin(), names.end(), name) == names.end()) rest.set(name, value);
  return rest;
}

size_t operands_of(std::string_view word) {
  const OpDef* def = find_op(word);
  return def ? def->samples.front().inputs.size() : 1;
}

std::vector<uint64_t> Values::run(const Program& program, std::span<const uint64_t> args,
                                  std::span<const int32_t> sums) {
  return Run(*this, program, args, sums).run();
}

uint64_t Values::cast_to(uint64_t symbol, uint64_t to) {
  const uint64_t made = join_symbols(symbol_of("Cast"), join_symbols(to, symbol));
  casts_.try_emplace(made, Cast{symbol, to});
  return made;
}

std::vector<uint64_t> Values::take_casts(std::span<uint64_t> symbols) const {
  constexpr size_t kMost = 8;  // so that a chain of casts costs each move behind it little
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

uint64_t Values::cast(uint64_t symbol, std::string_view to) {
  return cast_to(symbol, symbol_of(to));
}

}  // namespace piper
