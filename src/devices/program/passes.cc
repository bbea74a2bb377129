// Ops that go over the same rows -> passes.
//
// A tensor is seen as rows of its last dim. An op goes over rows if the loop letters of the other
// dims of its result (or, where it only sums over rows, of what it reads) come first and in one
// order in each operand that has any of them. Then a row of its results needs the same row of these
// operands, and all of the others. A result without these letters is a sum over rows.
#include <algorithm>
#include <set>

#include "piper/ir/loop_letters.h"
#include "steps.h"

namespace piper {
namespace {

constexpr size_t kMostOps = 64;  // of a pass
// Elements of a row that is gone over several times: 64 KiB in f32, which a block of threads keeps.
constexpr int64_t kMaxRow = 16384;

// Says how an op goes over rows.
struct RowForm {
  int64_t rows = 0;  // 0: it does not
  int64_t width = 0;
  bool keeps_row = false;               // goes over a row more than once
  std::vector<bool> in_rows, out_rows;  // by operand: has a row for each; results: else a sum
};

using Letters = std::vector<char>;
Letters letters_of(const std::vector<LoopRule::Dim>& dims, size_t count) {
  Letters letters;
  for (size_t d = 0; d < count; ++d) letters.insert(letters.end(), dims[d].begin(), dims[d].end());
  return letters;
}
// Returns whether the operand has a row for each; nothing where it is neither that nor without any.
std::optional<bool> has_rows(const std::vector<LoopRule::Dim>& dims, const Letters& rows) {
  const Letters all = letters_of(dims, dims.size());
  const auto is_row = [&](char letter) {
    return std::find(rows.begin(), rows.end(), letter) != rows.end();
  };
  if (std::none_of(all.begin(), all.end(), is_row)) return false;
  const bool in_front = all.size() >= rows.size() &&
                        std::equal(rows.begin(), rows.end(), all.begin()) &&
                        std::none_of(all.begin() + std::ssize(rows), all.end(), is_row);
  return in_front ? std::optional(true) : std::nullopt;
}

RowForm pointwise_form(const OpTypes& use) {
  const Shape& shape = use.outputs[0].shape;
  RowForm form;
  if (shape.size() < 2 || num_elements(shape) == 0) return form;
  form.width = shape.back();
  form.rows = num_elements(shape) / form.width;
  for (const TensorType& input : use.inputs) {
    const Shape& with = input.shape;
    const int64_t count = num_elements(with);
    const bool is_column = !with.empty() && with.back() == 1 && count == form.rows && form.rows > 1;
    const bool is_row = count == 1 || (count == form.width && with.back() == form.width);
    if (with != shape && !is_column && !is_row) return {};
    form.in_rows.push_back(with == shape || is_column);
  }
  form.out_rows.assign(use.outputs.size(), true);
  return form;
}

RowForm row_form(const OpDef& def, const OpTypes& use) {
  RowForm form;
  if (!def.loops || def.collective || def.draws >= 0 || is_product(def)) return form;
  const LoopRule rule = def.loops(use);
  const auto size = [](const Shape& shape) { return shape.size() < 2 ? 0 : num_elements(shape); };
  // What has rows is the largest operand; a result, where there are equal ones.
  const Shape* shape = &use.outputs[0].shape;
  const std::vector<LoopRule::Dim>* dims = &rule.outputs[0];
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (size(use.inputs[i].shape) > size(*shape) && !def.indices) {
      shape = &use.inputs[i].shape;
      dims = &rule.inputs[i];
    }
  if (size(*shape) == 0) return form;
  const Letters rows = letters_of(*dims, dims->size() - 1);
  for (const char letter : rows)
    if (needs_whole(rule, letter)) return form;
  const int64_t width = shape->back();
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const auto has = has_rows(rule.inputs[i], rows);
    if (!has && use.present[i]) return form;
    form.in_rows.push_back(has.value_or(false));
  }
  for (size_t o = 0; o < use.outputs.size(); ++o) {
    const auto has = has_rows(rule.outputs[o], rows);
    if (!has || (!*has && num_elements(use.outputs[o].shape) > width)) return form;
    form.out_rows.push_back(*has);
    form.keeps_row |= *has;
  }
  form.width = width;
  form.rows = num_elements(*shape) / width;
  return form;
}

class RowJoiner {
 public:
  RowJoiner(FusedProgram& program, TakesRows takes)
      : program_(program), uses_(program), groups_(program, uses_) {
    for (const ProgramOp& op : program.ops)
      forms_.push_back(!takes || takes(program, op) ? form_of(op) : RowForm{});
  }

  void run() {
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      if (forms_[o].rows == 0) continue;
      const std::vector<int32_t> inputs = program_.ops[o].inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] < 0 || !forms_[o].in_rows[i]) continue;
        if (const auto& writers = uses_.writers(inputs[i]); !writers.empty())
          join(writers.back(), o);
        for (const size_t reader : uses_.readers(inputs[i])) join(reader, o);
      }
    }
    std::vector<ProgramOp> ops;
    program_.passes.clear();
    size_t passes = 0;
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      const std::vector<size_t>& members = groups_.with(o);
      if (members.back() != o) continue;
      for (const size_t member : members) {
        ops.push_back(std::move(program_.ops[member]));
        program_.passes.push_back(passes);
      }
      ++passes;
    }
    program_.ops = std::move(ops);
  }

 private:
  void join(size_t earlier, size_t o) {
    if (earlier < o)
      groups_.join(earlier, o, [&](const auto& members) { return go_together(members); });
  }

  bool is_whole(int32_t value) const {
    return program_.values[at(value)].bytes() == program_.values[at(uses_.base(value))].bytes();
  }

  RowForm form_of(const ProgramOp& op) const {
    const OpDef* def = find_op(op.op);
    if (op.outputs.empty() || (!def && op.op != kFusedOp)) return {};
    OpTypes use = use_of(program_.values, op.inputs, op.outputs, op.attrs);
    for (const auto* values : {&op.inputs, &op.outputs})
      for (const int32_t value : *values)
        if (value >= 0 && !uses_.is_settled(value)) return {};
    if (!def || def->pointwise) return pointwise_form(use);
    // What it takes along is done on its rows.
    const std::string then = op.attrs.text("then");
    const size_t along = then.empty() ? 0 : split_text(then, ' ').size();
    const size_t own = use.inputs.size() - along;
    std::vector<bool> with_rows;
    for (size_t i = own; i < use.inputs.size(); ++i)
      with_rows.push_back(use.inputs[i].shape == use.outputs[0].shape);
    use.inputs.resize(own);
    use.present.resize(own);
    RowForm form = row_form(*def, use);
    form.in_rows.insert(form.in_rows.end(), with_rows.begin(), with_rows.end());
    return form;
  }

  // Returns whether the ops may go over their rows at once: all have as many rows, of one width or
  // of single elements; none reads a sum over rows that another makes; and what one makes row by
  // row the others read row by row.
  bool go_together(const std::vector<size_t>& members) const {
    if (members.size() > kMostOps) return false;
    int64_t width = 0;
    bool keeps_row = false;
    std::set<int32_t> made;  // bases
    for (const size_t o : members) {
      const RowForm& form = forms_[o];
      if (form.rows == 0 || form.rows != forms_[members[0]].rows) return false;
      if (width > 1 && form.width > 1 && form.width != width) return false;
      width = std::max(width, form.width);
      keeps_row |= form.keeps_row;
      for (const int32_t output : program_.ops[o].outputs) made.insert(uses_.base(output));
    }
    if (keeps_row && width > kMaxRow) return false;
    for (const size_t o : members) {
      const ProgramOp& op = program_.ops[o];
      for (size_t i = 0; i < op.inputs.size(); ++i)
        if (op.inputs[i] >= 0 && made.contains(uses_.base(op.inputs[i])) &&
            !(forms_[o].in_rows[i] && is_whole(op.inputs[i]) &&
              is_made_in_rows(uses_.base(op.inputs[i]))))
          return false;
    }
    return true;
  }
  bool is_made_in_rows(int32_t base) const {
    const size_t maker = uses_.writers(base).back();
    const ProgramOp& op = program_.ops[maker];
    for (size_t k = 0; k < op.outputs.size(); ++k)
      if (uses_.base(op.outputs[k]) == base)
        return forms_[maker].out_rows[k] && is_whole(op.outputs[k]);
    return false;
  }

  FusedProgram& program_;
  const ProgramUses uses_;
  OpGroups groups_;
  std::vector<RowForm> forms_;  // by op
};

}  // namespace

FusedProgram join_rows(FusedProgram program, TakesRows takes) {
  RowJoiner(program, takes).run();
  return program;
}

std::vector<bool> FusedProgram::inside() const {
  constexpr size_t kNowhere = ~size_t{0};
  const std::vector<int32_t> base = bases();
  std::vector<size_t> made(values.size(), kNowhere);
  std::vector<bool> result(values.size());
  if (passes.empty()) return result;
  for (size_t o = 0; o < ops.size(); ++o)
    for (const int32_t output : ops[o].outputs)
      if (base[at(output)] >= num_args) {
        made[at(base[at(output)])] = pass_of(o);
        result[at(base[at(output)])] = true;
      }
  for (size_t o = 0; o < ops.size(); ++o)
    for (const int32_t input : ops[o].inputs)
      if (input >= 0 && made[at(base[at(input)])] != pass_of(o))
        result[at(base[at(input)])] = false;
  return result;
}

}  // namespace piper
