// Programs that are written down op by op, and run as the cuda backend has them and on the CPU.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "evaluate.h"
#include "fake_cuda/run_program.h"
#include "piper/ir/ops.h"

namespace piper::test {

inline constexpr double kExact = 0;
inline constexpr emulator::Order kOrders[] = {
    {emulator::Order::kForward}, {emulator::Order::kBackward}, {emulator::Order::kRandom, 7}};

inline TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }
inline TensorType bf16(Shape shape) { return {DType::kBF16, std::move(shape)}; }

template <class T>
Bytes bytes_of(const std::vector<T>& elements) {
  return Bytes::copy_of(elements.data(), elements.size() * sizeof(T));
}

// A program that is written down op by op: values are inputs, or made.
class Written {
 public:
  explicit Written(uint64_t seed = 1) : random_(seed) {}

  int32_t input(const TensorType& type, double low = -2, double high = 2) {
    return given(type, to_bytes(draw(type, random_, low, high, 5)));
  }
  // One that the program holds.
  int32_t literal(const TensorType& type, Bytes bytes) {
    const int32_t value = given(type, std::move(bytes));
    is_input_.back() = false;
    literals_.push_back(value);
    return value;
  }
  int32_t given(const TensorType& type, Bytes bytes) {
    types_.push_back(type);
    bytes_.push_back(std::move(bytes));
    is_input_.push_back(true);
    return static_cast<int32_t>(types_.size()) - 1;
  }
  std::vector<int32_t> ops(std::string_view name, const std::vector<int32_t>& inputs,
                           Attrs attrs = {}) {
    OpTypes use{.inputs = {}, .present = {}, .outputs = {}, .attrs = attrs};
    std::vector<Bytes> data;
    for (const int32_t input : inputs) {
      use.inputs.push_back(input < 0 ? TensorType{} : types_[at(input)]);
      use.present.push_back(input >= 0);
      data.push_back(input < 0 ? Bytes{} : bytes_[at(input)]);
    }
    use.outputs = must(find_op(name)->types(use));
    auto made = must(evaluate_op(name, attrs, use.inputs, data, use.outputs));
    std::vector<int32_t> outputs;
    for (size_t o = 0; o < made.size(); ++o) {
      outputs.push_back(given(use.outputs[o], std::move(made[o])));
      is_input_.back() = false;
    }
    ops_.push_back({std::string(name), std::move(attrs), inputs, outputs});
    return outputs;
  }
  int32_t op(std::string_view name, const std::vector<int32_t>& inputs, Attrs attrs = {}) {
    return ops(name, inputs, std::move(attrs))[0];
  }
  int32_t cast(int32_t value, DType to) { return op("Cast", {value}, {{"to", info(to).name}}); }
  const TensorType& type(int32_t value) const { return types_[at(value)]; }

  // Its passes, with these values as results: of the first op, whatever is read of it, and so on.
  size_t passes(const std::vector<int32_t>& shown) const {
    const FusedProgram joined = joined_for_cuda(program(shown));
    return joined.ops.empty() ? 0 : joined.pass_of(joined.ops.size() - 1) + 1;
  }

  std::vector<Bytes> results(const std::vector<int32_t>& shown) const {
    std::vector<Bytes> arguments;
    for (size_t v = 0; v < types_.size(); ++v)
      if (is_input_[v]) arguments.push_back(bytes_[v]);
    const auto inputs = static_cast<ptrdiff_t>(arguments.size());
    arguments.resize(arguments.size() + shown.size());
    const auto made = must(emulator::run_on_host(program(shown), arguments));
    return {made.begin() + inputs, made.end()};
  }

  // Runs it, and compares: the difference of each element is at most `bound` of the greatest, or of
  // itself where it is more than 1.
  enum Scale { kOfGreatest, kOfEach };
  void expect(const std::vector<int32_t>& shown, double bound, Scale scale = kOfGreatest) const {
    const Program made = program(shown);
    std::vector<Bytes> arguments;
    for (size_t v = 0; v < types_.size(); ++v)
      if (is_input_[v]) arguments.push_back(bytes_[v]);
    const size_t inputs = arguments.size();
    arguments.resize(inputs + shown.size());
    std::vector<Bytes> first;
    for (const emulator::Order& order : kOrders) {
      SCOPED_TRACE(fmt::format("order of threads {}", static_cast<int>(order.kind)));
      auto results = emulator::run_on_host(made, arguments, order);
      ASSERT_TRUE(results.ok()) << results.error().message;
      for (size_t s = 0; s < shown.size(); ++s) {
        const Bytes& result = (*results)[inputs + s];
        if (first.size() <= s) first.push_back(result);
        ASSERT_EQ(std::memcmp(result.data, first[s].data, result.size), 0) << "order matters";
        compare(shown[s], result, bound, scale);
      }
    }
  }

 protected:
  static size_t at(int32_t value) { return static_cast<size_t>(value); }

  // `over`: results that are written over the arguments of inputs, and not behind these.
  Program program(const std::vector<int32_t>& shown,
                  const std::map<int32_t, int32_t>& over = {}) const {
    Program program;
    std::vector<int32_t> place(types_.size(), -1);
    const auto add = [&](size_t v) {
      place[v] = static_cast<int32_t>(program.values.size());
      program.values.push_back(types_[v]);
    };
    for (size_t v = 0; v < types_.size(); ++v)
      if (is_input_[v]) add(v);
    program.arg_read.assign(program.values.size(), true);
    for (const int32_t value : shown)
      if (!over.contains(value)) add(at(value));
    program.num_args = static_cast<int32_t>(program.values.size());
    program.arg_read.resize(program.values.size(), false);
    for (const bool reads : program.arg_read) program.arg_written.push_back(!reads);
    for (const auto& [value, input] : over) {
      place[at(value)] = place[at(input)];
      program.arg_written[at(place[at(input)])] = true;
    }
    for (size_t v = 0; v < types_.size(); ++v)
      if (place[v] < 0) add(v);
    for (const int32_t value : literals_)
      program.literals.emplace_back(place[at(value)],
                                    std::string(as_text(bytes_[at(value)].span())));
    program.ops = ops_;
    for (ProgramOp& op : program.ops)
      for (auto* operands : {&op.inputs, &op.outputs})
        for (int32_t& value : *operands)
          if (value >= 0) value = place[at(value)];
    return program;
  }

  void compare(int32_t value, const Bytes& made, double bound, Scale scale) const {
    const Bytes& wanted = bytes_[at(value)];
    ASSERT_EQ(made.size, wanted.size);
    if (std::memcmp(made.data, wanted.data, made.size) == 0) return;
    const auto a = to_tensor(type(value), made), e = to_tensor(type(value), wanted);
    double greatest = 1e-30;
    for (const double x : e.values)
      if (std::isfinite(x)) greatest = std::max(greatest, std::abs(x));
    for (size_t i = 0; i < e.values.size(); ++i) {
      const double x = a.values[i], y = e.values[i];
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      const double of = scale == kOfEach ? std::max(std::abs(y), 1.0) : greatest;
      ASSERT_LE(std::abs(x - y), bound * of)
          << "value " << value << " of " << to_string(type(value)) << ", element " << i << ": " << x
          << " is not " << y;
    }
  }

  std::mt19937_64 random_;
  std::vector<TensorType> types_;
  std::vector<Bytes> bytes_;
  std::vector<bool> is_input_;
  std::vector<int32_t> literals_;
  std::vector<ProgramOp> ops_;
};

}  // namespace piper::test
