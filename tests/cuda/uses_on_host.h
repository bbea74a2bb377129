// Uses of ops side by side in one program of a device, run on the host: each gives what the CPU
// backend gives, in three orders of threads.
#pragma once

#include <fmt/format.h>

#include <cstring>

#include "evaluate.h"
#include "fake_cuda/run_program.h"
#include "piper/ir/ops.h"
#include "piper/ir/signatures.h"

namespace piper::test {

inline constexpr uint64_t kOrderSeed = 20241107;
inline constexpr emulator::Order kOrders[] = {{emulator::Order::kForward},
                                              {emulator::Order::kBackward},
                                              {emulator::Order::kRandom, kOrderSeed}};

// Uses of ops side by side in one program, and what the CPU makes of them.
class Uses {
 public:
  // `bound`: how far elements may be from the CPU's, relative to the greatest; 0: no bit differs.
  // `in_place`: the result lies over the first input.
  void add(std::string_view op, Attrs attrs, const Operands& inputs, double bound = 0,
           bool in_place = false) {
    OpTypes types{{}, {}, {}, attrs};
    std::vector<Bytes> data;
    ProgramOp use{std::string(op), std::move(attrs), {}, {}};
    for (const std::optional<Tensor>& input : inputs) {
      types.inputs.push_back(input ? input->type : TensorType{});
      types.present.push_back(input.has_value());
      data.push_back(input ? to_bytes(*input) : Bytes{});
      use.inputs.push_back(input ? argument(input->type, &data.back()) : -1);
    }
    types.outputs = must(find_op(op)->types(types));
    ASSERT_TRUE(check_use(op, types).ok()) << label(use, types);
    const std::vector<Bytes> made =
        must(evaluate_op(op, types.attrs, types.inputs, data, types.outputs));
    for (size_t o = 0; o < types.outputs.size(); ++o) {
      use.outputs.push_back(in_place ? use.inputs[0] : argument(types.outputs[o], nullptr));
      program_.arg_written[static_cast<size_t>(use.outputs.back())] = true;
      wanted_.push_back({label(use, types), use.outputs.back(), types.outputs[o], made[o], bound});
    }
    program_.ops.push_back(std::move(use));
  }

  // The same of an input that begins one element behind a multiple of 16 bytes: a slice of a longer
  // one, of which nothing is copied.
  void add_view(std::string_view op, Attrs attrs, const Tensor& input,
                const Operands& others = {}) {
    const int64_t count = num_elements(input.type.shape);
    Tensor longer{{input.type.dtype, {count + 1}}, {0.0}};
    longer.values.insert(longer.values.end(), input.values.begin(), input.values.end());
    const Bytes data = to_bytes(longer);
    const int32_t whole = argument(longer.type, &data);
    Operands inputs{input};
    inputs.insert(inputs.end(), others.begin(), others.end());
    add(op, std::move(attrs), inputs);
    views_.push_back({program_.ops.size() - 1, whole, input.type});
  }

  void expect_equal() {
    place_views();
    std::vector<Bytes> first;
    for (const emulator::Order& order : kOrders) {
      SCOPED_TRACE(
          fmt::format("order of threads {} (seed {})", static_cast<int>(order.kind), kOrderSeed));
      auto made = emulator::run_on_host(program_, arguments_, order);
      ASSERT_TRUE(made.ok()) << print_error(made.error());
      if (first.empty()) first = *made;
      for (const Wanted& wanted : wanted_) {
        const auto at = static_cast<size_t>(wanted.argument);
        ASSERT_EQ(as_text((*made)[at].span()), as_text(first[at].span())) << wanted.label;
      }
    }
    for (const Wanted& wanted : wanted_)
      compare(wanted, first[static_cast<size_t>(wanted.argument)]);
  }
  const Program& program() const { return program_; }

 private:
  struct Wanted {
    std::string label;
    int32_t argument;
    TensorType type;
    Bytes bytes;
    double bound;
  };
  struct View {
    size_t op;
    int32_t whole;
    TensorType type;
  };

  static std::string label(const ProgramOp& op, const OpTypes& types) {
    std::string text = op.op;
    for (const TensorType& type : types.inputs) text += " " + to_string(type);
    return text;
  }

  int32_t argument(const TensorType& type, const Bytes* data) {
    program_.values.push_back(type);
    arguments_.push_back(data ? *data : Bytes{});
    program_.arg_read.push_back(data != nullptr);
    program_.arg_written.push_back(data == nullptr);
    return program_.num_args++;
  }
  int32_t local(const TensorType& type) {
    program_.values.push_back(type);
    return static_cast<int32_t>(program_.values.size()) - 1;
  }

  // Behind all arguments: the values that slices and new shapes make.
  void place_views() {
    std::vector<ProgramOp> made;
    for (const View& view : views_) {
      const Shape all = program_.values[static_cast<size_t>(view.whole)].shape;
      const TensorType flat{view.type.dtype, {all[0] - 1}};
      const int32_t cut = local(flat), shaped = local(view.type);
      made.push_back(
          {"Slice",
           {{"starts", std::vector<int64_t>{1}}, {"ends", all}, {"steps", std::vector<int64_t>{1}}},
           {view.whole},
           {cut}});
      made.push_back({"Reshape", {{"shape", view.type.shape}}, {cut}, {shaped}});
      program_.ops[view.op].inputs[0] = shaped;
    }
    if (made.empty()) return;
    program_.ops.insert(program_.ops.begin(), made.begin(), made.end());
    ASSERT_EQ(joined_for_cuda(program_).ops.size(), program_.ops.size() - made.size())
        << "something is copied";
  }

  static void compare(const Wanted& wanted, const Bytes& made) {
    if (made.size == wanted.bytes.size &&
        (made.size == 0 || std::memcmp(made.data, wanted.bytes.data, made.size) == 0))
      return;
    const Tensor actual = to_tensor(wanted.type, made);
    const Tensor expected = to_tensor(wanted.type, wanted.bytes);
    double scale = 1;
    for (const double x : expected.values)
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
    for (size_t i = 0; i < expected.values.size(); ++i) {
      const double a = actual.values[i], e = expected.values[i];
      if (a == e || (std::isnan(a) && std::isnan(e))) continue;
      ASSERT_LE(std::abs(a - e), wanted.bound * scale)
          << wanted.label << ", element " << i << ": " << a << " is not " << e;
    }
  }

  Program program_;
  std::vector<Bytes> arguments_;
  std::vector<Wanted> wanted_;
  std::vector<View> views_;
};

}  // namespace piper::test
