// Replaces composites of 16-bit ops by their ops, for devices without a kernel for them.
#include "piper/base/float16.h"
#include "piper/devices/program.h"

namespace piper {
namespace {

class Apart {
 public:
  explicit Apart(Program program) : program_(std::move(program)) {}

  Program run() {
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    for (ProgramOp& op : ops) {
      if (op.op == "Linear")
        take(op);
      else
        program_.ops.push_back(std::move(op));
    }
    return std::move(program_);
  }

 private:
  void take(const ProgramOp& linear) {
    const int32_t product = like(linear.outputs[0]);
    emit("MatMul", {{"trans_b", linear.attrs.integer("trans_b")}},
         {linear.inputs[0], linear.inputs[1]}, product);
    if (linear.outputs.size() == 1)
      return emit("Add", {}, {product, linear.inputs[2]}, linear.outputs[0]);
    const bool is_narrow = is_half(program_.values[at(linear.outputs[0])].dtype);
    const int32_t sum = is_narrow ? like(linear.outputs[1]) : linear.outputs[1];
    emit("Add", {}, {product, linear.inputs[2]}, sum);
    if (is_narrow) {
      const std::string name = info(program_.values[at(linear.outputs[1])].dtype).name;
      emit("Cast", {{"to", name}}, {sum}, linear.outputs[1]);
    }
    const bool tanh = linear.attrs.text("activation") == "gelu_tanh";
    emit("Gelu", {{"approximate", tanh ? "tanh" : "none"}}, {sum}, linear.outputs[0]);
  }

  static size_t at(int32_t value) { return static_cast<size_t>(value); }
  // Returns a new value, in f32 where that is of 16 bits.
  int32_t like(int32_t value) {
    TensorType type = program_.values[at(value)];
    if (is_half(type.dtype)) type.dtype = DType::kF32;
    program_.values.push_back(std::move(type));
    return static_cast<int32_t>(program_.values.size()) - 1;
  }
  void emit(const char* op, Attrs attrs, std::vector<int32_t> inputs, int32_t output) {
    program_.ops.push_back({op, std::move(attrs), std::move(inputs), {output}});
  }

  Program program_;
};

}  // namespace

Program taken_apart(Program program) { return Apart(std::move(program)).run(); }

}  // namespace piper
