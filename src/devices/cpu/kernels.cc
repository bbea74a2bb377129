// The table of kernels by op, with which programs are loaded.
#include <algorithm>

#include "families.h"
#include "piper/devices/cpu.h"

namespace piper::cpu {
namespace {

std::vector<KernelRow> make_table() {
  std::vector<KernelRow> table;
#define PIPER_FAMILY(name) \
  for (const KernelRow& row : name##_kernels()) table.push_back(row);
#include "families.inc"
#undef PIPER_FAMILY
  std::ranges::sort(table, {}, &KernelRow::op);
  return table;
}

const std::vector<KernelRow>& table() {
  static const std::vector<KernelRow> made = make_table();
  return made;
}

const KernelRow* find_kernel_row(std::string_view op) {
  const auto row = std::ranges::lower_bound(table(), op, {}, &KernelRow::op);
  return row != table().end() && row->op == op ? &*row : nullptr;
}

}  // namespace

bool takes_halves(std::string_view op) {
  const KernelRow* const row = find_kernel_row(op);
  return row && row->takes_halves;
}

Maker find_kernel(std::string_view op) {
  const KernelRow* const row = find_kernel_row(op);
  return row ? row->make : nullptr;
}

}  // namespace piper::cpu

namespace piper {

std::vector<std::string> cpu_ops() {
  std::vector<std::string> names;
  for (const cpu::KernelRow& row : cpu::table()) names.emplace_back(row.op);
  return names;
}

}  // namespace piper
