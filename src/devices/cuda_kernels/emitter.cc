// Collects the steps of a program: kernels with their texts, products, and their operands.
#include "emitter.h"

#include <algorithm>
#include <cmath>

namespace piper::cuda_kernels {

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "double";
    case DType::kF32:
      return "float";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "int64_t";
    case DType::kI32:
      return "int32_t";
    case DType::kBool:
      return "bool";
  }
  return "";
}

std::string_view bits_name(DType dtype) {
  const int64_t bytes = info(dtype).bytes;
  return bytes == 1 ? "uint8_t" : bytes == 2 ? "uint16_t" : bytes == 4 ? "uint32_t" : "uint64_t";
}

DType compute_type(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

std::string literal(double value, DType dtype) {
  const bool is_f64 = dtype == DType::kF64;
  if (std::isnan(value)) return is_f64 ? "(0.0 * kInfinity)" : "(0.0f * kInfinity)";
  if (std::isinf(value)) return value > 0 ? "kInfinity" : "-kInfinity";
  if (dtype == DType::kI64 || dtype == DType::kI32)
    return fmt::format("{}LL", static_cast<int64_t>(value));
  if (dtype == DType::kBool) return value != 0 ? "true" : "false";
  if (is_f64) return fmt::format("{:.17e}", value);
  return fmt::format("{:.9e}f", static_cast<double>(static_cast<float>(value)));
}

void Emitter::begin(size_t op, std::vector<DeviceOperand> operands) {
  op_ = static_cast<int32_t>(op);
  operands_ = std::move(operands);
  scratch_ = 0;
}

DeviceStep& Emitter::step(DeviceStep::Kind kind, size_t index) {
  DeviceStep& made = made_.steps.emplace_back();
  made.kind = kind;
  made.index = static_cast<int32_t>(index);
  made.op = op_;
  return made;
}

void Emitter::kernel(KernelText text) {
  if (text.blocks == 0) return;
  for (std::string& family : split_text(text.family, ' ')) families_.insert(std::move(family));
  std::vector<DeviceOperand> operands = text.operands.empty() ? operands_ : text.operands;
  operands.insert(operands.end(), text.extra.begin(), text.extra.end());
  const auto pointers = static_cast<int32_t>(operands.size());
  // Equal bodies are one function; how many blocks run it is the launch's.
  const std::string head = fmt::format("({}, {}) {{\n{}\n}}\n", pointers, text.threads, text.body);
  const auto same = std::find_if(functions_.begin(), functions_.end(),
                                 [&](const auto& each) { return each.first == head; });
  int32_t function = same != functions_.end() ? same->second : -1;
  if (function < 0) {
    function = static_cast<int32_t>(functions_.size());
    functions_.emplace_back(head, function);
  }
  const DeviceKernel launch{fmt::format("k{}", function), text.blocks, text.threads,
                            text.shared_bytes, pointers};
  step(DeviceStep::kKernel, made_.kernels.size()).operands = std::move(operands);
  made_.kernels.push_back(launch);
}

void Emitter::product(const DeviceProduct& product, std::vector<DeviceOperand> operands) {
  step(DeviceStep::kProduct, made_.products.size()).operands = std::move(operands);
  made_.products.push_back(product);
}

Status Emitter::attention(const DeviceAttention& attention, std::vector<DeviceOperand> operands,
                          const DeviceOperand& workspace, const Around& around) {
  DeviceStep& made = step(DeviceStep::kAttention, made_.attentions.size());
  made.operands = std::move(operands);
  made.workspace = workspace;
  made_.attentions.push_back(attention);
  size_t end = made_.steps.size();
  const size_t at = end - 1;
  const auto count = [&](int32_t DeviceStep::*steps) {
    made_.steps[at].*steps = static_cast<int32_t>(made_.steps.size() - end);
    end = made_.steps.size();
  };
  around.before();
  count(&DeviceStep::before);
  around.after();
  count(&DeviceStep::after);
  PIPER_TRY(around.instead());
  count(&DeviceStep::instead);
  return ok_status();
}

void Emitter::copy(const DeviceOperand& from, const DeviceOperand& to, int64_t bytes) {
  if (bytes == 0 || from == to) return;
  DeviceStep& made = step(DeviceStep::kCopy, 0);
  made.operands = {from, to};
  made.bytes = bytes;
}

void Emitter::zero(const DeviceOperand& what, int64_t bytes) {
  if (bytes == 0) return;
  DeviceStep& made = step(DeviceStep::kZero, 0);
  made.operands = {what};
  made.bytes = bytes;
}

DeviceOperand Emitter::scratch(int64_t bytes) {
  constexpr int64_t kAlign = 256;
  const DeviceOperand at{DeviceOperand::kWorkspace, -1, scratch_};
  scratch_ += ceil_div(bytes, kAlign) * kAlign;
  most_scratch_ = std::max(most_scratch_, scratch_);
  return at;
}

// Most are numbers of the text: what no step reads is not kept.
void Emitter::keep_literals(const std::string& all) {
  constexpr int64_t kAlign = 256;
  std::map<int64_t, int64_t> places;  // by place among all of them
  for (DeviceStep& each : made_.steps)
    for (DeviceOperand& operand : each.operands) {
      if (operand.kind != DeviceOperand::kLiteral) continue;
      const int64_t from = operand.offset / kAlign * kAlign;
      const auto [place, is_new] = places.try_emplace(from, std::ssize(made_.literals));
      if (is_new) made_.literals += all.substr(static_cast<size_t>(from), kAlign);
      operand.offset += place->second - from;
    }
}

void Emitter::finish(DeviceProgram& program, int64_t local_bytes) {
  constexpr int64_t kAlign = 256;
  const int64_t behind = ceil_div(local_bytes, kAlign) * kAlign;
  made_.workspace_bytes = behind + most_scratch_;
  const auto settle = [&](DeviceOperand& operand) {  // scratch lies behind the locals
    if (operand.kind != DeviceOperand::kWorkspace || operand.argument != -1) return;
    operand.argument = 0;
    operand.offset += behind;
  };
  for (DeviceStep& each : made_.steps) {
    for (DeviceOperand& operand : each.operands) settle(operand);
    settle(each.workspace);
  }
  if (!functions_.empty()) {
    families_.insert("prelude");
    for (const DeviceText& text : device_texts())
      if (families_.contains(std::string(text.name))) made_.source += text.text;
    for (const auto& [head, function] : functions_)
      made_.source += fmt::format("KERNEL(k{}, {}", function, head.substr(1));
  }
  made_.fused = std::move(program.fused);
  keep_literals(program.literals);
  program = std::move(made_);
}

}  // namespace piper::cuda_kernels
