// The ops that there are steps for, by name.
#include <algorithm>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

std::vector<MakerRow> make_table() {
  std::vector<MakerRow> table;
#define PIPER_FAMILY(name) \
  for (const MakerRow& row : name##_kernels()) table.push_back(row);
#include "families.inc"
#undef PIPER_FAMILY
  std::ranges::sort(table, {}, &MakerRow::op);
  return table;
}

const std::vector<MakerRow>& table() {
  static const std::vector<MakerRow> made = make_table();
  return made;
}

const MakerRow* find_row(std::string_view op) {
  const auto row = std::ranges::lower_bound(table(), op, {}, &MakerRow::op);
  return row != table().end() && row->op == op ? &*row : nullptr;
}

}  // namespace

Maker find_maker(std::string_view op) {
  const MakerRow* const row = find_row(op);
  return row ? row->make : nullptr;
}
RunMaker find_run_maker(std::string_view op) {
  const MakerRow* const row = find_row(op);
  return row ? row->make_run : nullptr;
}

}  // namespace piper::cuda_kernels

namespace piper {

std::vector<std::string> cuda_ops() {
  std::vector<std::string> names = cuda_kernels::row_ops();
  for (const cuda_kernels::MakerRow& row : cuda_kernels::table()) names.emplace_back(row.op);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace piper
