// Sums and products with what a matrix product makes -> part of the product.
#include <algorithm>
#include <optional>

#include "steps.h"

namespace piper {
namespace {

constexpr size_t kMaxThen = 2;  // of a product
constexpr size_t kNone = ~size_t{0};

class Finisher {
 public:
  explicit Finisher(Program& program)
      : program_(program),
        base_(program.bases()),
        maker_(program.values.size(), kNone),
        reads_(program.values.size()),
        writes_(program.values.size()) {
    for (size_t o = 0; o < program.ops.size(); ++o) {
      for (int32_t input : program.ops[o].inputs)
        if (input >= 0) ++reads_[at(base_[at(input)])];
      for (int32_t output : program.ops[o].outputs) {
        maker_[at(output)] = o;
        writes_[at(base_[at(output)])].push_back(o);
      }
    }
  }

  int64_t run() {
    std::vector<bool> gone(program_.ops.size());
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      const std::optional<size_t> side = product_side(o);
      if (!side) continue;
      ProgramOp& op = program_.ops[o];
      const size_t m = maker_[at(op.inputs[*side])];
      ProgramOp product = std::move(program_.ops[m]);
      const std::string then = product.attrs.text("then");
      product.attrs.set("then", then.empty() ? op.op : then + " " + op.op);
      product.inputs.push_back(op.inputs[1 - *side]);
      product.outputs = op.outputs;
      op = std::move(product);
      gone[m] = true;
    }
    size_t o = 0;
    return static_cast<int64_t>(
        std::erase_if(program_.ops, [&](const ProgramOp&) { return gone[o++]; }));
  }

 private:
  static size_t at(int32_t value) { return static_cast<size_t>(value); }
  const TensorType& type(int32_t value) const { return program_.values[at(value)]; }

  // Which operand of op `o` is a product that it may be part of; of two the later one.
  std::optional<size_t> product_side(size_t o) const {
    const ProgramOp& op = program_.ops[o];
    if ((op.op != "Add" && op.op != "Mul") || op.inputs.size() != 2) return std::nullopt;
    std::optional<size_t> side;
    for (size_t s : {0, 1})
      if (may_finish(o, s) && (!side || maker_[at(op.inputs[s])] > maker_[at(op.inputs[*side])]))
        side = s;
    return side;
  }

  bool may_finish(size_t o, size_t side) const {
    const ProgramOp& op = program_.ops[o];
    const int32_t v = op.inputs[side], other = op.inputs[1 - side], out = op.outputs[0];
    if (v < program_.num_args || base_[at(v)] != v || reads_[at(v)] != 1) return false;
    const size_t m = maker_[at(v)];
    if (m == kNone || program_.ops[m].op != "MatMul") return false;
    const ProgramOp& product = program_.ops[m];
    const std::string then = product.attrs.text("then");
    if (then.find(' ') != then.npos) return false;
    const Shape &shape = type(v).shape, &with = type(other).shape;
    const bool row =
        !with.empty() && with.back() == shape.back() && num_elements(with) == shape.back();
    if (type(out).shape != shape || (with != shape && !row)) return false;
    return inner_extent(product) > 0 && stays(product, other, m, o, base_[at(out)]);
  }

  int64_t inner_extent(const ProgramOp& product) const {
    const Shape& a = type(product.inputs[0]).shape;
    return a[a.size() - (product.attrs.integer("trans_a") ? 2 : 1)];
  }

  // Whether the product may be made at `o`, from then on in place `out`: what it reads is still
  // there, and is not what it writes.
  bool stays(const ProgramOp& product, int32_t other, size_t m, size_t o, int32_t out) const {
    if (base_[at(other)] == out) return false;
    return std::none_of(product.inputs.begin(), product.inputs.end(), [&](int32_t input) {
      const auto& writes = writes_[at(base_[at(input)])];
      return base_[at(input)] == out ||
             std::any_of(writes.begin(), writes.end(), [&](size_t w) { return w > m && w < o; });
    });
  }

  Program& program_;
  const std::vector<int32_t> base_;
  std::vector<size_t> maker_;                // by value: the op that makes it
  std::vector<int> reads_;                   // by base
  std::vector<std::vector<size_t>> writes_;  // by base
};

}  // namespace

void finish_products(Program& program, FuseCounts& counts) {
  counts.finished += Finisher(program).run();
}

}  // namespace piper
