// Rule layout: follows the layouts of a program's values, op by op.
#include <algorithm>

#include "layouts_ops.h"
#include "values.h"

namespace piper {
namespace {

class Walk {
 public:
  Walk(const Program& program, std::span<const Lies> args, const AxisOfLayouts& axis)
      : program_(program), axis_(axis), ops_(axis) {
    for (size_t a = 0; a < args.size(); ++a)
      held_.push_back(program.arg_read[a] ? args[a] : Lies{});
    held_.resize(program.values.size());
    counted_.resize(program.values.size());
    for (const auto& [value, bytes] : program.literals) {
      const bool zero = std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
      held_[at(value)] = {.kind = Lies::kWhole, .fixed = true, .zero = zero};
      // A zero is a term of any sum, too: Where(mask, 0, term) is one.
      if (info(type(value).dtype).is_float && zero)
        held_[at(value)].also.push_back({.kind = Lies::kTerms, .fixed = true});
    }
  }

  LiesAfter run() {
    for (size_t o = 0; o < program_.ops.size() && wrong_.empty(); ++o) step(program_.ops[o], o);
    return {std::move(held_), std::move(wrong_), std::move(counted_)};
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
    }
    Made made = results(op);
    for (size_t i = 0; i < made.size() && i < op.outputs.size(); ++i)
      if (made[i].index == 0 && op.outputs[i] >= 0 && !info(type(op.outputs[i]).dtype).is_float)
        made[i].index = -static_cast<int32_t>(index * 4 + i + 1);  // new integers
    for (size_t i = 0; i < op.outputs.size() && wrong_.empty(); ++i)
      if (op.outputs[i] >= 0) held_[at(op.outputs[i])] = i < made.size() ? made[i] : Lies{};
  }
  void refuse(std::string_view reason) {
    if (wrong_.empty())
      wrong_ = fmt::format("{}, of {}: {}", where_, print_operands(shown_), reason);
  }

  LaidOut operand(int32_t value) const {
    if (value < 0) return {{}, {}, false};
    return {type(value), held_[at(value)], true};
  }
  LaidOut operand(const ProgramOp& op, size_t i) const {
    return operand(i < op.inputs.size() ? op.inputs[i] : -1);
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
    Made made = make(op.op, attrs, operands, made_types(op));
    for (size_t i = 0; i < inputs; ++i)
      if (operands[i].present) counted_[at(op.inputs[i])] |= ops_.counted[i];
    return made;
  }

  Made results(const ProgramOp& op) {
    if (op.op == "Reshape" && shown_.size() == 1) return {in_shape(op)};
    if (op.op == "Transpose" && op.attrs.find("blocks")) return moved_blocks(op);
    if (op.op == "MatMul") return product_of(op);
    if (auto made = some_samples(op)) return {*std::move(made)};
    if (op.op == "SumSquares") return plainly(op, without(op.attrs, {"parts"}), op.inputs.size());
    return plainly(op, op.attrs, op.inputs.size());
  }

  // The shapes of a Reshape may leave open which dim is cut; then its attribute `blocks` names the
  // dim.
  Lies in_shape(const ProgramOp& op) {
    const Shape& to = type(op.outputs[0]).shape;
    const Lies from = reshaped(shown_[0].lies, shown_[0].type.shape, to);
    const std::vector<int64_t> said = op.attrs.integers("blocks");
    for (size_t i = 0; i + 1 < said.size(); i += 2) {
      if (said[i] != axis_.index) continue;
      const Lies made = cut_at(from, to, said[i + 1]);
      if (made.kind == Lies::kUnknown && from.kind != Lies::kUnknown)
        refuse(fmt::format("which has no blocks at dim {}", said[i + 1]));
      return made;
    }
    return from;
  }

  // Some of the samples that each rank has, or the parts of a split put together again. As a whole
  // it is a cut of the samples of each rank at the same places; which samples these are, and that
  // each counts once, other rules check.
  std::optional<Lies> some_samples(const ProgramOp& op) {
    if (!axis_.has_samples || (op.op != "Slice" && op.op != "Concat")) return std::nullopt;
    const Shape& to = type(op.outputs[0]).shape;
    std::optional<size_t> dim;
    for (const LaidOut& one : shown_)
      for (size_t d = 0; d < to.size(); ++d) {
        if (one.type.shape[d] == to[d]) continue;
        if (dim.value_or(d) != d) return std::nullopt;
        dim = d;
      }
    if (!dim) return std::nullopt;
    Lies made = blocks_of(to, *dim, 1);
    for (const LaidOut& one : shown_) {
      if (!one.lies.fits(blocks_of(one.type.shape, *dim, 1))) return std::nullopt;
      made.outside |= one.lies.outside, made.inside |= one.lies.inside;
    }
    // If a rank has one sample, dims of one element beside it look like samples, too.
    if (const auto plain = ops_.make(op.op, op.attrs, shown_, made_types(op)))
      made.add_reading((*plain)[0]);
    return made;
  }

  // After a dim of one element has moved, an axis that was outside may be inside, so both are
  // dropped.
  Made moved_blocks(const ProgramOp& op) {
    Made made = plainly(op, op.attrs, op.inputs.size());
    for (Lies& lies : made)
      lies = of_each(lies, [](Lies one) {
        one.outside = one.inside = 0;
        return one;
      });
    return made;
  }

  Made product_of(const ProgramOp& op) {
    Made made = plainly(op, without(op.attrs, {"accumulate"}), 2);
    if (op.attrs.integer("accumulate") == 0) return made;
    const TensorType& result = type(op.outputs[0]);
    const LaidOut sum[] = {{result, made[0]}, operand(op, 2)};
    return make("Add", {}, sum, {&result, 1});
  }

  const Program& program_;
  const AxisOfLayouts& axis_;
  OpLayouts ops_;
  std::vector<Lies> held_;         // by value
  std::vector<uint32_t> counted_;  // by value: see LiesAfter
  std::vector<LaidOut> shown_;  // operands of the current op
  std::string where_, wrong_;
};

}  // namespace

LiesAfter follow_layouts(const Program& program, std::span<const Lies> args,
                         const AxisOfLayouts& axis) {
  return Walk(program, args, axis).run();
}

}  // namespace piper
