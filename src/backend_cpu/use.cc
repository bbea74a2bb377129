#include "kernel.h"

namespace piper::cpu {

Status Use::operands(size_t required, size_t most, size_t num_outputs) const {
  PIPER_WANT(inputs.size() >= required && inputs.size() <= most, "has {} inputs, not {}",
             inputs.size(),
             required == most ? fmt::format("{}", most) : fmt::format("{} to {}", required, most));
  for (size_t i = 0; i < required; ++i) PIPER_WANT(present[i], "input {} is absent", i);
  PIPER_WANT(outputs.size() == num_outputs, "has {} outputs, not {}", outputs.size(), num_outputs);
  PIPER_WANT(outputs.empty() || wanted[0], "output 0 is absent");
  return ok_status();
}

Status Use::same_types() const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    PIPER_WANT(!present[i] || inputs[i].dtype == type(), "input {} is {}, input 0 {}", i,
               info(inputs[i].dtype).name, info(type()).name);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    PIPER_WANT(!wanted[i] || outputs[i].dtype == type(), "output {} is {}, input 0 {}", i,
               info(outputs[i].dtype).name, info(type()).name);
  }
  return ok_status();
}

Result<int64_t> Use::integer(std::string_view name) const {
  PIPER_WANT(attrs.find(name) != nullptr, "has no attribute '{}'", name);
  return integer_or(name, 0);
}

Result<int64_t> Use::integer_or(std::string_view name, int64_t otherwise) const {
  const AttrValue* value = attrs.find(name);
  if (!value) return otherwise;
  const auto* number = std::get_if<int64_t>(value);
  PIPER_WANT(number, "attribute '{}' is not an integer", name);
  return *number;
}

Result<double> Use::real_or(std::string_view name, double otherwise) const {
  const AttrValue* value = attrs.find(name);
  if (!value) return otherwise;
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  const auto* number = std::get_if<double>(value);
  PIPER_WANT(number, "attribute '{}' is not a number", name);
  return *number;
}

Result<std::string> Use::text_or(std::string_view name, std::string otherwise) const {
  const AttrValue* value = attrs.find(name);
  if (!value) return otherwise;
  const auto* text = std::get_if<std::string>(value);
  PIPER_WANT(text, "attribute '{}' is not a text", name);
  return *text;
}

Result<std::vector<int64_t>> Use::integers(std::string_view name) const {
  const AttrValue* value = attrs.find(name);
  if (!value) return std::vector<int64_t>{};
  const auto* list = std::get_if<std::vector<int64_t>>(value);
  PIPER_WANT(list, "attribute '{}' is not a list of integers", name);
  return *list;
}

Result<int64_t> Use::axis(std::string_view name, size_t rank) const {
  PIPER_ASSIGN(const int64_t given, integer(name));
  const auto n = static_cast<int64_t>(rank);
  PIPER_WANT(given >= -n && given < n, "{}={} lies outside a shape of {} dims", name, given, n);
  return given < 0 ? given + n : given;
}

int64_t extent(const Shape& shape, size_t from, size_t to) {
  int64_t product = 1;
  for (size_t d = from; d < to; ++d) product *= shape[d];
  return product;
}

}  // namespace piper::cpu
