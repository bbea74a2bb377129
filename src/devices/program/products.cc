// Sums and products with what a matrix product or the gradient of a norm makes -> part of that op.
#include <algorithm>
#include <optional>

#include "piper/ir/ops.h"
#include "steps.h"

namespace piper {
namespace {

class Finisher {
 public:
  explicit Finisher(FusedProgram& program) : program_(program), uses_(program) {}

  int64_t run() {
    std::vector<bool> gone(program_.ops.size());
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      const std::optional<size_t> side = product_side(o);
      if (!side) continue;
      ProgramOp& op = program_.ops[o];
      const size_t m = uses_.maker(op.inputs[*side]);
      ProgramOp& product = program_.ops[m];
      const std::string then = product.attrs.text("then");
      product.attrs.set("then", then.empty() ? op.op : then + " " + op.op);
      product.inputs.push_back(op.inputs[1 - *side]);
      product.outputs = op.outputs;
      const size_t place =
          untouched(product.inputs.back(), m, o, false) && untouched(op.outputs[0], m, o, true) ? m
                                                                                                : o;
      if (place == o) std::swap(product, op);
      gone[m + o - place] = true;
      uses_.maker(program_.ops[place].outputs[0]) = place;
    }
    size_t o = 0;
    return static_cast<int64_t>(
        std::erase_if(program_.ops, [&](const ProgramOp&) { return gone[o++]; }));
  }

 private:
  const TensorType& type(int32_t value) const { return program_.values[at(value)]; }

  // Returns which operand of op `o` is a product that it may be part of; of two the later one.
  std::optional<size_t> product_side(size_t o) const {
    const ProgramOp& op = program_.ops[o];
    if ((op.op != "Add" && op.op != "Mul") || op.inputs.size() != 2) return std::nullopt;
    std::optional<size_t> side;
    for (size_t s : {0, 1})
      if (may_finish(o, s) && (!side || uses_.maker(op.inputs[s]) > uses_.maker(op.inputs[*side])))
        side = s;
    return side;
  }

  // Returns whether it is no argument, nor a view, and one op reads it or a view of it.
  bool is_read_once(int32_t value) const {
    return value >= program_.num_args && uses_.base(value) == value &&
           uses_.readers(value).size() == 1;
  }

  bool may_finish(size_t o, size_t side) const {
    const ProgramOp& op = program_.ops[o];
    const int32_t v = op.inputs[side], other = op.inputs[1 - side], out = op.outputs[0];
    if (!is_read_once(v)) return false;
    const size_t m = uses_.maker(v);
    if (m == ProgramUses::kNone) return false;
    const ProgramOp& product = program_.ops[m];
    const OpDef* taker = find_op(product.op);
    if (!taker) return false;
    const std::string then = product.attrs.text("then");
    const auto words = then.empty() ? 0 : 1 + std::count(then.begin(), then.end(), ' ');
    if (words >= taker->takes) return false;
    const Shape &shape = type(v).shape, &with = type(other).shape;
    const bool row = taker->takes_rows && !with.empty() && with.back() == shape.back() &&
                     num_elements(with) == shape.back();
    if (type(out).shape != shape || (with != shape && !row)) return false;
    if (product.op == "MatMul" && inner_extent(product) == 0) return false;
    if (!row && joins_a_group(out)) return false;
    return stays(product, other, m, o, uses_.base(out));
  }

  // Returns whether a value goes into a group of pointwise ops and nowhere else: what makes it is
  // done in the pass of that group, which stays.
  bool joins_a_group(int32_t value) const {
    if (!is_read_once(value)) return false;
    const ProgramOp& op = program_.ops[uses_.readers(value)[0]];
    return word_of(op) && op.op != "Add" && op.op != "Mul" &&
           type(op.outputs[0]).shape == type(value).shape;
  }

  int64_t inner_extent(const ProgramOp& product) const {
    const Shape& a = type(product.inputs[0]).shape;
    return a[a.size() - (product.attrs.integer("trans_a") ? 2 : 1)];
  }

  // Returns whether no op between m and o writes the value, nor, if `reads`, reads it.
  bool untouched(int32_t value, size_t m, size_t o, bool reads) const {
    const auto touches = [&](const std::vector<int32_t>& ids) {
      return std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
        return id >= 0 && uses_.base(id) == uses_.base(value);
      });
    };
    for (size_t i = m + 1; i < o; ++i)
      if (touches(program_.ops[i].outputs) || (reads && touches(program_.ops[i].inputs)))
        return false;
    return true;
  }

  // Returns whether the product may be made at `o`, from then on in place `out`: what it reads is
  // still there, and is not what it writes.
  bool stays(const ProgramOp& product, int32_t other, size_t m, size_t o, int32_t out) const {
    if (uses_.base(other) == out) return false;
    return std::none_of(product.inputs.begin(), product.inputs.end(), [&](int32_t input) {
      return uses_.base(input) == out ||
             std::ranges::any_of(uses_.writers(input), [&](size_t w) { return w > m && w < o; });
    });
  }

  FusedProgram& program_;
  ProgramUses uses_;
};

}  // namespace

void finish_products(FusedProgram& program, FuseCounts& counts) {
  counts.finished += Finisher(program).run();
}

}  // namespace piper
