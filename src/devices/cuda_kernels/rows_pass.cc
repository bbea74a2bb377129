// A pass over rows -> the text of its kernel, and of the one that adds up what its blocks have
// summed. The ops are in the text one after the other; what they make stays with its thread, and
// is stored where somebody else reads it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "piper/base/float16.h"
#include "rows_form.h"
#include "rows_layout.h"

namespace piper::cuda_kernels {
namespace {

// ---- The text -----------------------------------------------------------------------------------

class Pass {
 public:
  Pass(const FusedProgram& program, std::vector<PassOp> ops)
      : program_(program), ops_(std::move(ops)) {}

  Status write(size_t first, Emitter& emit);

 private:
  struct Sum {
    std::string name;
    DType type = DType::kF32;  // of the sum, before it is rounded
    bool is_row = false;
    RowOperand output;
  };
  struct Known {  // a value that the threads have
    std::string name;
    DType type = DType::kF32;
    bool is_row = false;
  };

  void find_extents();
  PassShape shape_of() const;
  int64_t lanes_of(const RowOperand& operand) const;
  int64_t kept() const;
  int64_t piece_of(const RowOperand& operand) const;
  Status write_expression(const PassOp& op);
  void write_row_op(const PassOp& op);
  void write_sum_parts(Emitter& emit, const std::vector<DeviceOperand>& parts) const;

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    body_ += "    " + fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  size_t index_of(const DeviceOperand& place);
  std::string pointer(const RowOperand& operand, bool is_const);
  std::string next_name() { return fmt::format("v{}", names_++); }
  const Known& read(const RowOperand& input);
  const Known& declare(const RowOperand& output);
  std::optional<std::string> immediate(const RowOperand& input) const;
  void store(const RowOperand& output, const Known& known);
  std::pair<int32_t, int64_t> key_of(const RowOperand& operand) const;

  const FusedProgram& program_;
  std::vector<PassOp> ops_;
  Extents extents_;
  RowLayout layout_;
  std::string body_;
  std::vector<DeviceOperand> places_;
  using Key = std::pair<std::pair<int32_t, int64_t>, std::string>;  // bytes, and how they are read
  std::map<Key, Known> known_;
  std::vector<Sum> sums_;
  int names_ = 0;
};

// Returns which bytes an operand is: its base, and from where on.
std::pair<int32_t, int64_t> Pass::key_of(const RowOperand& operand) const {
  for (const ProgramView& view : program_.views)
    if (view.value == operand.value) return {view.base, view.offset};
  return {operand.value, 0};
}

size_t Pass::index_of(const DeviceOperand& place) {
  const auto at = std::find(places_.begin(), places_.end(), place);
  if (at == places_.end()) return places_.push_back(place), places_.size() - 1;
  return static_cast<size_t>(at - places_.begin());
}

std::string Pass::pointer(const RowOperand& operand, bool is_const) {
  return fmt::format("p.at<{}{}>({}){}", is_const ? "const " : "", type_name(operand.type.dtype),
                     index_of(operand.place), operand.form.row_offset);
}

// Returns a literal of one element.
std::optional<std::string> Pass::immediate(const RowOperand& input) const {
  if (input.place.kind != DeviceOperand::kLiteral || num_elements(input.type.shape) != 1) return {};
  const auto [base, offset] = key_of(input);
  for (const auto& [value, bytes] : program_.literals) {
    if (value != base) continue;
    const char* const from = bytes.data() + offset;
    const auto as = [&](auto number) {
      std::memcpy(&number, from, sizeof number);
      return number;
    };
    switch (input.type.dtype) {
      case DType::kF64:
        return literal(as(double{}), DType::kF64);
      case DType::kF32:
        return literal(static_cast<double>(as(float{})), DType::kF32);
      case DType::kBF16:
      case DType::kF16:
        return literal(static_cast<double>(float_of_half(input.type.dtype, as(uint16_t{}))),
                       DType::kF32);
      case DType::kI64:
        if (as(int64_t{}) == std::numeric_limits<int64_t>::min()) return {};
        return fmt::format("{}LL", as(int64_t{}));
      case DType::kI32:
        return fmt::format("{}LL", as(int32_t{}));
      case DType::kBool:
        return as(uint8_t{}) != 0 ? "true" : "false";
    }
  }
  return {};
}

// What the threads have of an input, which is loaded where they do not have it yet.
const Pass::Known& Pass::read(const RowOperand& input) {
  const Key key(key_of(input), input.form.row_offset);
  const Known known{next_name(), input.type.dtype, input.form.is_row};
  const std::string_view type = type_name(known.type);
  if (const auto found = known_.find(key);
      found != known_.end() && found->second.type == known.type) {
    if (found->second.is_row == known.is_row) return found->second;
    // In rows of one element it is the row as well.
    line("{} {}{} = {}{}{};", type, known.name, known.is_row ? "[1]" : "", known.is_row ? "{" : "",
         found->second.name, known.is_row ? "}" : "[0]");
  } else if (known.is_row) {
    line("{} {}[At::kCount];", type, known.name);
    line("at.load<{}>({}, {});", piece_of(input), pointer(input, true), known.name);
  } else if (const auto number = immediate(input)) {
    line("const {} {} = {}({});", type, known.name, type, *number);
  } else {
    line("const {} {} = at.load_one({});", type, known.name, pointer(input, true));
  }
  return known_.insert_or_assign(key, known).first->second;
}

const Pass::Known& Pass::declare(const RowOperand& output) {
  const Known known{next_name(), output.type.dtype, output.form.is_row};
  line("{} {}{};", type_name(known.type), known.name, known.is_row ? "[At::kCount]" : "");
  return known_.insert_or_assign(Key(key_of(output), output.form.row_offset), known).first->second;
}

void Pass::store(const RowOperand& output, const Known& known) {
  if (output.place.kind == DeviceOperand::kAbsent) return;
  const std::string function =
      known.is_row ? fmt::format("store<{}>", piece_of(output)) : "store_one";
  line("at.{}({}, {});", function, pointer(output, false), known.name);
}

Status Pass::write_expression(const PassOp& op) {
  PIPER_ASSIGN(const Expression expression, expression_of(op.use));
  std::vector<Known> inputs, outputs;
  for (const RowOperand& input : op.inputs) inputs.push_back(read(input));
  for (const RowOperand& output : op.outputs) outputs.push_back(declare(output));
  const bool is_row = !outputs.empty() && outputs[0].is_row;
  line("{}{{", is_row ? "EACH(i, At::kCount) " : "");
  for (size_t s = 0; s < expression.steps.size(); ++s) {
    const ExpressionStep& step = expression.steps[s];
    std::string operands;
    for (const Source& source : step.operands) {
      const Known known =
          source.input >= 0 ? inputs[static_cast<size_t>(source.input)]
                            : Known{fmt::format("t{}", source.step),
                                    expression.steps[static_cast<size_t>(source.step)].type, false};
      const std::string element = known.name + (known.is_row ? "[i]" : "");
      operands += operands.empty() ? "" : ", ";
      operands += is_half(known.type) ? fmt::format("float({})", element) : element;
    }
    const std::string_view type = type_name(step.type);
    line("  const {} t{} = {}({}({}));", type, s, type, step.function, operands);
  }
  for (size_t o = 0; o < outputs.size(); ++o)
    line("  {}{} = t{};", outputs[o].name, is_row ? "[i]" : "", expression.outputs[o]);
  line("}}");
  for (size_t o = 0; o < outputs.size(); ++o) store(op.outputs[o], outputs[o]);
  return ok_status();
}

void Pass::write_row_op(const PassOp& op) {
  const RowOp& row_op = *op.row_op;
  std::string call = fmt::format("rows::{}(at", row_op.function);
  for (size_t i = 0; i < row_op.inputs.size(); ++i) {
    call += !op.use.has(i) ? std::string(", rows::Zeros()")
            : row_op.inputs[i] == 'w'
                ? fmt::format(", rows::weights<{}>({})", piece_of(op.inputs[i]),
                              pointer(op.inputs[i], true))
                : ", " + read(op.inputs[i]).name;
  }
  std::vector<Known> made;
  for (const RowOperand& output : op.outputs) {
    if (row_op.sums()) {
      sums_.push_back({fmt::format("sum{}", sums_.size()), compute_type(output.type.dtype),
                       output.form.is_row, output});
      call += ", " + sums_.back().name;
    } else {
      made.push_back(declare(output));
      call += ", " + made.back().name;
    }
  }
  for (const char number : row_op.numbers) {
    const double value =
        number == 'n' ? static_cast<double>(op.extents.width) : op.use.attrs.real("epsilon", 1e-5);
    call += ", " + literal(value, compute_type(op.use.type()));
  }
  line("{});", call);
  for (size_t o = 0; o < made.size(); ++o) store(op.outputs[o], made[o]);
}

// ---- The layout ---------------------------------------------------------------------------------

// Finds the matrix of the pass, and the forms of its operands.
void Pass::find_extents() {
  if (ops_.size() == 1 && !ops_[0].row_op) {
    fold(ops_[0]);
    extents_ = ops_[0].extents;
    return;
  }
  extents_.rows = ops_[0].extents.rows;
  for (const PassOp& op : ops_) extents_.width = std::max(extents_.width, op.extents.width);
  for (PassOp& op : ops_) {
    PIPER_CHECK(op.extents.rows == extents_.rows &&
                    (op.extents.width == extents_.width || op.extents.width == 1),
                "a pass over different rows");
    for (auto* operands : {&op.inputs, &op.outputs})
      for (RowOperand& operand : *operands)
        operand.form = form_of(operand, op.extents, extents_.width);
  }
}

// Returns how many elements side by side the operand can be moved in: a power of 2 that its rows,
// or their pitch, and its place allow.
int64_t Pass::lanes_of(const RowOperand& operand) const {
  if (!operand.form.is_row || operand.place.kind == DeviceOperand::kAbsent) return kMostLanes;
  const int64_t bytes = info(operand.type.dtype).bytes;
  const int64_t pitch = operand.place.pitch > 0 ? operand.place.pitch : extents_.width;
  int64_t lanes = kMostLanes;
  while (lanes > 1 && (pitch % lanes != 0 || operand.place.offset % (lanes * bytes) != 0))
    lanes /= 2;
  return lanes;
}

// Returns how many it is moved in, of those that a thread has side by side.
int64_t Pass::piece_of(const RowOperand& operand) const {
  return std::min(layout_.lanes, lanes_of(operand));
}

// Returns the largest number of rows that a thread has at once, of values and sums.
int64_t Pass::kept() const {
  std::map<std::pair<int32_t, int64_t>, std::pair<size_t, size_t>> lives;
  int64_t sums = 0, most = 0;
  for (size_t o = 0; o < ops_.size(); ++o)
    for (const auto* operands : {&ops_[o].inputs, &ops_[o].outputs})
      for (const RowOperand& operand : *operands) {
        if (!operand.form.is_row || operand.kind == 'w') continue;  // which is there for a moment
        if (operand.kind == 's')
          ++sums;
        else
          lives.try_emplace(key_of(operand), o, o).first->second.second = o;
      }
  for (size_t o = 0; o < ops_.size(); ++o)
    most = std::max<int64_t>(most, std::count_if(lives.begin(), lives.end(), [&](const auto& life) {
                               return life.second.first <= o && o <= life.second.second;
                             }));
  return std::max<int64_t>(most + sums, 1);
}

PassShape Pass::shape_of() const {
  PassShape shape{.rows = extents_.rows, .width = extents_.width};
  int64_t least_bytes = 8;  // of an element that is moved
  shape.lanes = 8;
  for (const PassOp& op : ops_) {
    if (op.row_op) (op.row_op->sums() ? shape.sums_rows : shape.keeps_row) = true;
    for (const auto* operands : {&op.inputs, &op.outputs})
      for (const RowOperand& operand : *operands) {
        if (operand.place.kind == DeviceOperand::kAbsent || !operand.form.is_row) continue;
        shape.lanes = std::min(shape.lanes, lanes_of(operand));
        least_bytes = std::min<int64_t>(least_bytes, info(operand.type.dtype).bytes);
      }
  }
  shape.lanes = std::min(shape.lanes, std::max<int64_t>(16 / least_bytes, 1));
  shape.kept = kept();
  return shape;
}

// ---- The steps ----------------------------------------------------------------------------------

void Pass::write_sum_parts(Emitter& emit, const std::vector<DeviceOperand>& parts) const {
  constexpr int64_t kColumns = 32;
  constexpr int32_t kThreads = 256;
  KernelText text{.family = "expression rows", .threads = kThreads, .extra = parts};
  text.blocks = 0;
  for (size_t s = 0; s < sums_.size(); ++s) {
    const Sum& sum = sums_[s];
    if (sum.output.place.kind == DeviceOperand::kAbsent) continue;
    const int64_t width = sum.is_row ? extents_.width : 1, before = text.blocks;
    text.blocks += ceil_div(width, kColumns);
    const auto to = std::find(places_.begin(), places_.end(), sum.output.place) - places_.begin();
    text.body += fmt::format(
        "  if (blockIdx.x < {}u)\n    return rows::sum_parts<{}, {}>(p.at<const {}>({}), "
        "p.at<{}>({}), blockIdx.x - {}u);\n",
        text.blocks, layout_.row_blocks, width, type_name(sum.type), places_.size() + s,
        type_name(sum.output.type.dtype), to, before);
  }
  emit.kernel(std::move(text));
}

Status Pass::write(size_t first, Emitter& emit) {
  // A thread of a block keeps what it has of a whole row, beyond its registers in memory.
  constexpr int64_t kMostKept = int64_t{1} << 20;
  find_extents();
  const PassShape shape = shape_of();
  if (shape.keeps_row && shape.width > kMostKept)
    return fail("not supported: rows of more than {} elements", kMostKept);
  layout_ = layout_of(shape);
  for (const PassOp& op : ops_) {
    if (op.row_op)
      write_row_op(op);
    else
      PIPER_TRY(write_expression(op));
  }
  for (const Sum& sum : sums_) index_of(sum.output.place);
  emit.begin(first, places_);
  std::vector<DeviceOperand> parts;
  std::string sums, stores;
  for (const Sum& sum : sums_) {
    const std::string_view type = type_name(sum.type);
    sums += fmt::format("  {} {}{};\n", type, sum.name, sum.is_row ? "[At::kCount] = {}" : " = 0");
    stores += fmt::format("  at.{}(p.at<{}>({}), {});\n", sum.is_row ? "store_sums" : "store_sum",
                          type, places_.size() + parts.size(), sum.name);
    parts.push_back(emit.scratch(layout_.row_blocks * (sum.is_row ? extents_.width : 1) *
                                 info(sum.type).bytes));
  }
  const RowLayout& l = layout_;
  const std::string head =
      fmt::format("  typedef rows::Rows<{}LL, {}LL, {}, {}, {}, {}, {}> At;\n  At at;\n",
                  extents_.rows, extents_.width, l.threads, l.at_once, l.lanes, l.chunks, l.turns);
  emit.kernel({.family = "expression rows rows_norm",
               .body = fmt::format(
                   "{}{}  for (int turn = 0; turn < {}; ++turn) {{\n    at.go(turn);\n{}  }}\n{}",
                   head, sums, l.turns, body_, stores),
               .blocks = l.blocks(),
               .threads = static_cast<int32_t>(l.threads * l.at_once),
               .extra = parts});
  if (!sums_.empty()) write_sum_parts(emit, parts);
  return ok_status();
}

PassOp pass_op(const FusedProgram& program, const ProgramOp& op, size_t& operand,
               const Emitter& emit) {
  PassOp made{kernel_use(program, op), {}, {}, {}, nullptr};
  made.row_op = find_row_op(made.use);
  made.extents = extents_of(made.use).value();
  const auto add = [&](std::vector<RowOperand>& to, int32_t value, const TensorType& type,
                       std::string_view kinds) {
    const char kind = to.size() < kinds.size() ? kinds[to.size()] : ' ';
    to.push_back({value, emit.operand(operand++), type, kind});
  };
  const RowOp none{}, &row_op = made.row_op ? *made.row_op : none;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    add(made.inputs, op.inputs[i], made.use.inputs[i], row_op.inputs);
  for (size_t o = 0; o < op.outputs.size(); ++o)
    add(made.outputs, op.outputs[o], made.use.outputs[o], row_op.outputs);
  return made;
}

}  // namespace

Status make_pass(const FusedProgram& program, size_t first, size_t last, Emitter& emit) {
  std::vector<PassOp> ops;
  size_t operand = 0;
  for (size_t o = first; o < last; ++o) {
    ops.push_back(pass_op(program, program.ops[o], operand, emit));
    const PassOp& op = ops.back();
    if (op.extents.rows * op.extents.width > 0) continue;
    if (op.row_op && op.row_op->sums())  // of nothing
      for (const RowOperand& sum : op.outputs)
        if (sum.place.kind != DeviceOperand::kAbsent) emit.zero(sum.place, sum.type.bytes());
    ops.pop_back();
  }
  return ops.empty() ? ok_status() : Pass(program, std::move(ops)).write(first, emit);
}

}  // namespace piper::cuda_kernels
