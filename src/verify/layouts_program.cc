// Rule layout: programs, op by op. What plans write as one op is followed as the ops that it stands
// for.
#include <charconv>
#include <map>
#include <numeric>

#include "layouts_ops.h"
#include "values.h"

namespace piper {
namespace {

class Walk {
 public:
  Walk(const Program& program, std::span<const Lies> args, int64_t ranks)
      : program_(program), ops_(ranks), bases_(program.bases()), parts_(program.values.size()) {
    for (size_t a = 0; a < args.size(); ++a)
      held_.push_back(program.arg_read[a] ? args[a] : Lies{});
    held_.resize(program.values.size());
    first_.resize(program.values.size());
    for (const ProgramView& view : program.views)
      first_[at(view.value)] = view.offset / info(type(view.value).dtype).bytes;
    for (const auto& [value, bytes] : program.literals) held_[at(value)] = {Lies::kWhole};
  }

  LiesAfter run() {
    for (size_t o = 0; o < program_.ops.size() && wrong_.empty(); ++o) step(program_.ops[o], o);
    held_.resize(static_cast<size_t>(program_.num_args));
    return {std::move(held_), std::move(wrong_)};
  }

 private:
  using Made = std::vector<Lies>;
  static size_t at(int32_t value) { return static_cast<size_t>(value); }
  const TensorType& type(int32_t value) const { return program_.values[at(value)]; }

  void step(const ProgramOp& op, size_t index) {
    shown_.clear();
    where_ = fmt::format("op {}, {}", index, op.op);
    for (const int32_t input : op.inputs) {
      shown_.push_back(operand(input));
      if (input >= 0 && shown_.back().lies.kind == Lies::kUnknown && is_known(input))
        return refuse("which reads blocks in part");
    }
    Made made = results(op);
    for (size_t i = 0; i < made.size() && i < op.outputs.size(); ++i)
      if (made[i].index == 0 && op.outputs[i] >= 0 && !info(type(op.outputs[i]).dtype).is_float)
        made[i].index = -static_cast<int32_t>(index * 4 + i + 1);  // new integers
    for (size_t i = 0; i < op.outputs.size() && wrong_.empty(); ++i)
      if (op.outputs[i] >= 0) store(op.outputs[i], i < made.size() ? made[i] : Lies{});
  }
  void refuse(std::string_view reason) {
    if (wrong_.empty())
      wrong_ = fmt::format("{}, of {}: {}", where_, print_operands(shown_), reason);
  }

  // ---- Values, and views of them ----
  LaidOut operand(int32_t value) const {
    if (value < 0) return {{}, {}, false};
    return {type(value), load(value), true};
  }
  bool is_known(int32_t value) const { return held_[at(bases_[at(value)])].kind != Lies::kUnknown; }
  LaidOut operand(const ProgramOp& op, size_t i) const {
    return operand(i < op.inputs.size() ? op.inputs[i] : -1);
  }
  Lies load(int32_t value) const {
    const int32_t base = bases_[at(value)];
    const TensorType &own = type(value), &whole = type(base);
    const Lies& lies = held_[at(base)];
    if (value == base) return lies;
    if (lies.kind == Lies::kCut && info(own.dtype).bytes != info(whole.dtype).bytes)
      return {Lies::kUnknown};
    if (own.bytes() == whole.bytes()) return reshaped(lies, whole.shape, own.shape);
    if (const auto part = part_of_one(lies, whole.shape, own.shape)) return *part;
    return run_of(lies, num_elements(whole.shape), first_[at(value)], num_elements(own.shape),
                  own.shape);
  }
  // Of a block that is one turn of its dim, all of which is here, a part is a part of the turn:
  // every rank has the same of its own.
  static std::optional<Lies> part_of_one(const Lies& lies, const Shape& from, const Shape& to) {
    if (lies.kind != Lies::kCut || lies.run != 0 || lies.outer != 1) return std::nullopt;
    for (size_t d = 0; d < from.size() && d < 32; ++d)
      if ((lies.dims >> d & 1) && from[d] != 1) return std::nullopt;
    Lies made = lies;
    made.dims = dims_of(to, 1, false) & (from.size() == to.size() ? lies.dims : ~uint32_t{0});
    for (size_t d = 0; d < to.size() && d < 32; ++d)
      if (to[d] != 1) made.dims &= ~(uint32_t{1} << d);
    return made.dims != 0 ? std::optional(renewed(made)) : std::nullopt;
  }
  void store(int32_t value, const Lies& lies) {
    const int32_t base = bases_[at(value)];
    const TensorType &own = type(value), &whole = type(base);
    Lies& held = held_[at(base)];
    if (own.bytes() == whole.bytes()) {
      held = value == base ? lies : reshaped(lies, own.shape, whole.shape);
      return;
    }
    const int64_t count = num_elements(own.shape), all = num_elements(whole.shape);
    if (lies.kind == Lies::kRows) return refuse("which makes rows by an index in part");
    held = renewed(std::move(held));
    if (held.kind != Lies::kUnset && parts_[at(base)] == 0) {  // some of what it has is replaced
      if (lies.kind == held.kind && lies.turn == held.turn && lies.mirrored == held.mirrored &&
          (lies.kind != Lies::kCut || held.outer * count == lies.outer * all))
        return;
      return refuse("which lies otherwise than what it is a part of");
    }
    join(base, renewed(lies), own.shape, count);
  }
  // Parts of a base, which must lie alike: of blocks, blocks of one size.
  void join(int32_t base, const Lies& lies, const Shape& shape, int64_t count) {
    Lies& held = held_[at(base)];
    int64_t& known = parts_[at(base)];
    const auto one = part_of_one(lies, shape, type(base).shape);
    if (one && (known == 0 || held == *one)) {
      held = *one, known += count;
      if (known == num_elements(type(base).shape)) known = 0;
      return;
    }
    if (known == 0) {
      held = lies, known = count;
    } else if (held.kind == lies.kind && held.turn == lies.turn && held.run == 0 && lies.run == 0 &&
               held.mirrored == lies.mirrored &&
               (lies.kind != Lies::kCut || held.outer * count == lies.outer * known)) {
      held.outer = lies.kind == Lies::kCut ? held.outer + lies.outer : held.outer;
      known += count;
    } else {
      return refuse("which lies otherwise than the part before it");
    }
    if (held.kind == Lies::kCut)
      held.dims = dims_of(type(base).shape, held.outer, count > lies.outer);
    if (known == num_elements(type(base).shape)) known = 0;
  }

  // ---- Ops ----
  Made make(std::string_view op, const Attrs& attrs, std::span<const LaidOut> inputs,
            std::span<const TensorType> outputs) {
    if (auto made = ops_.make(op, attrs, inputs, outputs)) return *std::move(made);
    shown_.assign(inputs.begin(), inputs.end());
    if (!where_.ends_with(op)) where_ += fmt::format(" ({})", op);
    refuse(ops_.wrong);
    return Made(outputs.size(), Lies{Lies::kUnknown});
  }
  std::vector<TensorType> made_types(const ProgramOp& op) const {
    std::vector<TensorType> types;
    for (const int32_t output : op.outputs) types.push_back(type(output));
    return types;
  }
  Made plainly(const ProgramOp& op, const Attrs& attrs, size_t inputs) {
    std::vector<LaidOut> operands;
    for (size_t i = 0; i < inputs; ++i) operands.push_back(operand(op, i));
    return make(op.op, attrs, operands, made_types(op));
  }

  Made results(const ProgramOp& op) {
    if (op.op == "Fused") return expression(op);
    if (op.op == "Pack" && shown_.size() == 1) return {shown_[0].lies};
    if (op.op == "Reshape" && shown_.size() == 1)
      return {reshaped(shown_[0].lies, shown_[0].type.shape, type(op.outputs[0]).shape)};
    if (op.op == "MatMul") return product_of(op);
    if (op.op == "SumSquares") return plainly(op, without(op.attrs, {"parts"}), op.inputs.size());
    const bool columns = op.attrs.find("columns") != nullptr;
    if (columns && op.op == "Attention") return attention(op);
    if (columns && op.op == "AttentionGrad") return attention_grad(op);
    if (const std::string then = op.attrs.text("then"); !then.empty()) {
      const size_t words = split_text(then, ' ').size();
      const size_t own = op.inputs.size() - std::min(words, op.inputs.size());
      return taken_along(plainly(op, without(op.attrs, {"then"}), own), op, then, own);
    }
    return plainly(op, op.attrs, op.inputs.size());
  }

  Made taken_along(Made made, const ProgramOp& op, std::string_view words, size_t first) {
    const TensorType& result = type(op.outputs[0]);
    for (const std::string& word : split_text(words, ' ')) {
      if (word.empty()) continue;
      const LaidOut both[] = {{result, made[0]}, operand(op, first++)};
      made[0] = make(word, {}, both, {&result, 1})[0];
    }
    return made;
  }

  Made product_of(const ProgramOp& op) {
    const TensorType& result = type(op.outputs[0]);
    Attrs attrs = without(op.attrs, {"then", "accumulate", "packed_b"});
    LaidOut both[] = {operand(op, 0), operand(op, 1)};
    if (const int64_t packed = op.attrs.integer("packed_b"); packed != 0) {
      const Shape& b = both[1].type.shape;
      const int64_t rows = b.empty() ? 0 : b[0],
                    columns = result.shape.empty() ? 0 : result.shape.back();
      both[1].type.shape = packed == 2 ? Shape{columns, rows} : Shape{rows, columns};
      if (packed == 2) attrs.set("trans_b", int64_t{1});
    }
    Made made = make(op.op, attrs, both, {&result, 1});
    const bool adds = op.attrs.integer("accumulate") != 0;
    if (adds) {
      const LaidOut sum[] = {{result, made[0]}, operand(op, 2)};
      made = make("Add", {}, sum, {&result, 1});
    }
    return taken_along(std::move(made), op, op.attrs.text("then"), adds ? 3 : 2);
  }

  // ---- Attention of columns ----
  struct Sizes {
    int64_t tokens = 0;
    TensorType q, kv;
  };
  std::optional<Sizes> sizes_of(const ProgramOp& op, const TensorType& y) {
    if (y.shape.size() != 4) return std::nullopt;
    Sizes sizes{y.shape[0] * y.shape[1], y, y};
    sizes.kv.shape[2] = op.attrs.integer("kv_heads");
    return sizes;
  }
  // Columns [first, first + own) of rows that the tensor has for all tokens.
  static LaidOut columns_of(const LaidOut& x, int64_t tokens, int64_t first,
                            const TensorType& own) {
    const int64_t all = num_elements(x.type.shape), count = num_elements(own.shape);
    const int64_t row = tokens > 0 ? all / tokens : 0, width = tokens > 0 ? count / tokens : 0;
    return {own, of_each(x.lies, [&](Lies lies) {
              if (lies.kind != Lies::kCut) return lies;
              const int64_t block = lies.outer > 0 ? all / lies.outer : 0;  // elements
              const bool rows = row > 0 && block > row && block % row == 0;
              if (!rows && (block == 0 || lies.mirrored || lies.run != 0 || row % block != 0 ||
                            first % block != 0 || width % block != 0))
                return Lies{Lies::kUnknown};
              if (!rows) lies.outer = count / block;
              lies.dims = dims_of(own.shape, lies.outer, true);
              return lies;
            })};
  }
  std::optional<std::vector<LaidOut>> taken_apart(const ProgramOp& op, const Sizes& sizes) {
    const std::vector<int64_t> columns = op.attrs.integers("columns");
    if (columns.size() != 3 || op.inputs.size() < 3) return std::nullopt;
    std::vector<LaidOut> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(op, i));
    for (size_t i = 0; i < 3; ++i) {
      const bool known = operands[i].lies.kind != Lies::kUnknown;
      operands[i] = columns_of(operands[i], sizes.tokens, columns[i], i == 0 ? sizes.q : sizes.kv);
      if (known && operands[i].lies.kind == Lies::kUnknown)
        refuse("whose columns are not whole blocks");
    }
    return operands;
  }
  Made attention(const ProgramOp& op) {
    const auto sizes = sizes_of(op, type(op.outputs[0]));
    const auto operands = sizes ? taken_apart(op, *sizes) : std::nullopt;
    if (!operands) return refuse("which is not understood"), Made{};
    return make(op.op, without(op.attrs, {"columns", "kv_heads", "grad_columns"}), *operands,
                made_types(op));
  }
  Made attention_grad(const ProgramOp& op) {
    const auto sizes = sizes_of(op, operand(op, 3).type);
    const auto operands = sizes ? taken_apart(op, *sizes) : std::nullopt;
    if (!operands) return refuse("which is not understood"), Made{};
    std::vector<TensorType> types = made_types(op);
    const bool joined = op.attrs.find("grad_columns") != nullptr;
    if (joined) {
      types.erase(types.begin());
      types.insert(types.begin(), {sizes->q, sizes->kv, sizes->kv});
    }
    Made made =
        make(op.op, without(op.attrs, {"columns", "kv_heads", "grad_columns"}), *operands, types);
    if (!joined || made.size() < 3 || !wrong_.empty()) return made;
    const Lies all = joined_columns(made, *sizes, type(op.outputs[0]).shape);
    made.erase(made.begin(), made.begin() + 3);
    made.insert(made.begin(), all);
    return made;
  }
  // Of the first three, one beside the other for each token.
  Lies joined_columns(const Made& made, const Sizes& sizes, const Shape& shape) {
    Lies all = made[0];
    const int64_t q = num_elements(sizes.q.shape), kv = num_elements(sizes.kv.shape);
    const auto is_alike = [&](const Lies& one) {
      return one.kind == all.kind && one.turn == all.turn && one.mirrored == all.mirrored;
    };
    const bool same_kind = is_alike(made[1]) && is_alike(made[2]);
    if (same_kind && all.kind != Lies::kCut) return all;
    const bool rows = all.outer <= sizes.tokens;
    const bool alike = rows && made[1].outer == all.outer && made[2].outer == all.outer &&
                       sizes.tokens % all.outer == 0 && all.outer < sizes.tokens;
    const bool one_size =
        made[1].outer * q == all.outer * kv && made[2].outer * q == all.outer * kv;
    if (!same_kind || !(alike || (one_size && !all.mirrored))) {
      refuse("whose results do not lie alike");
      return {Lies::kUnknown};
    }
    if (!alike) all.outer += made[1].outer + made[2].outer;
    all.dims = dims_of(shape, all.outer, true);
    return all;
  }

  // ---- Expressions ----
  static std::optional<TensorType> type_of(std::string_view op, const Attrs& attrs,
                                           std::span<const LaidOut> operands) {
    const OpDef* def = find_op(op);
    if (!def) return std::nullopt;
    OpTypes use;
    use.attrs = attrs;
    for (const LaidOut& one : operands) {
      use.inputs.push_back(one.type);
      use.present.push_back(one.present);
    }
    const auto types = def->types(use);
    return types && types->size() == 1 ? std::optional((*types)[0]) : std::nullopt;
  }
  void apply(const std::string& word, std::vector<LaidOut>& stack, const TensorType& result) {
    const std::string op = word.substr(0, word.find(':'));
    const size_t count = operands_of(op);
    if (stack.size() < count) return refuse("which takes more than it has");
    const std::span<const LaidOut> top = std::span(stack).last(count);
    Attrs attrs;
    if (op == "Cast") attrs.set("to", word.substr(std::min(word.size(), op.size() + 1)));
    const TensorType made = type_of(op, attrs, top).value_or(result);
    const Lies lies = make(op, attrs, top, {&made, 1})[0];
    stack.resize(stack.size() - count);
    stack.push_back({made, lies});
  }
  Made expression(const ProgramOp& op) {
    const TensorType& result = type(op.outputs[0]);
    std::vector<LaidOut> stack;
    std::map<std::string, LaidOut, std::less<>> named;
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
    Made made;
    for (size_t i = 0; i < stack.size() && i < op.outputs.size(); ++i)
      made.push_back(repeated(stack[i], type(op.outputs[i]).shape));
    return made;
  }
  // What is smaller than the result.
  Lies repeated(const LaidOut& one, const Shape& shape) {
    if (one.type.shape == shape) return one.lies;
    const TensorType to{one.type.dtype, shape};
    return make("Expand", {{"shape", shape}}, {&one, 1}, {&to, 1})[0];
  }

  const Program& program_;
  OpLayouts ops_;
  const std::vector<int32_t> bases_;
  std::vector<int64_t> first_;  // by value: its element in its base
  std::vector<int64_t> parts_;  // by base: elements that are made so far, of which not all are
  std::vector<Lies> held_;      // by base
  std::vector<LaidOut> shown_;  // operands of the op at hand
  std::string where_, wrong_;
};

}  // namespace

LiesAfter follow_layouts(const Program& program, std::span<const Lies> args, int64_t ranks) {
  return Walk(program, args, ranks).run();
}

}  // namespace piper
