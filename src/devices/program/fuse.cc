// Runs the passes that join the ops of a program, in order.
#include "piper/devices/program.h"

#include <algorithm>
#include <numeric>

#include "steps.h"

namespace piper {

void drop_dead(FusedProgram& program) {
  std::vector<bool> needed(program.values.size());
  std::vector<bool> kept(program.ops.size());
  for (size_t o = program.ops.size(); o-- > 0;) {
    const ProgramOp& op = program.ops[o];
    kept[o] = std::any_of(op.outputs.begin(), op.outputs.end(), [&](int32_t output) {
      return output < program.num_args || needed[static_cast<size_t>(output)];
    });
    if (!kept[o]) continue;
    for (int32_t input : op.inputs)
      if (input >= 0) needed[static_cast<size_t>(input)] = true;
  }
  size_t o = 0;
  std::erase_if(program.ops, [&](const ProgramOp&) { return !kept[o++]; });
}

void drop_unused(FusedProgram& program) {
  const size_t count = program.values.size();
  std::vector<bool> used(count);
  for (int32_t a = 0; a < program.num_args; ++a) used[static_cast<size_t>(a)] = true;
  const auto mark = [&](const std::vector<int32_t>& ids) {
    for (int32_t id : ids)
      if (id >= 0) used[static_cast<size_t>(id)] = true;
  };
  for (const ProgramOp& op : program.ops) {
    mark(op.inputs);
    mark(op.outputs);
  }
  for (const ProgramView& view : program.views)
    if (used[static_cast<size_t>(view.value)]) used[static_cast<size_t>(view.base)] = true;
  std::vector<int32_t> number(count, -1);
  std::vector<TensorType> values;
  for (size_t v = 0; v < count; ++v) {
    if (!used[v]) continue;
    number[v] = static_cast<int32_t>(values.size());
    values.push_back(std::move(program.values[v]));
  }
  program.values = std::move(values);
  const auto renumber = [&](int32_t& id) {
    if (id >= 0) id = number[static_cast<size_t>(id)];
  };
  for (ProgramOp& op : program.ops) {
    for (int32_t& id : op.inputs) renumber(id);
    for (int32_t& id : op.outputs) renumber(id);
  }
  for (auto& [value, bytes] : program.literals) renumber(value);
  std::erase_if(program.literals, [](const auto& literal) { return literal.first < 0; });
  for (ProgramView& view : program.views) {
    renumber(view.value);
    renumber(view.base);
  }
  std::erase_if(program.views, [](const ProgramView& view) { return view.value < 0; });
}

FusedProgram fuse(Program from, FuseCounts& counts, const FuseOptions& options) {
  FusedProgram program{std::move(from), {}};
  drop_dead(program);
  make_views(program, counts);
  make_columns(program, counts);
  if (options.shares_passes && options.finishes_products) finish_products(program, counts);
  if (options.shares_passes) make_groups(program, counts);
  drop_unused(program);
  return program;
}

std::vector<int32_t> FusedProgram::bases() const {
  std::vector<int32_t> base(values.size());
  std::iota(base.begin(), base.end(), 0);
  for (const ProgramView& view : views) base[static_cast<size_t>(view.value)] = view.base;
  return base;
}

}  // namespace piper
