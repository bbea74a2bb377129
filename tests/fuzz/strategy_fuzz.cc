// Strategy files and order programs.
#include "piper/planner/compile.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

// For one coordinate, for an order may make many items.
void expand(const Order& order, int64_t axis) {
  (void)passes_named(order);
  (void)expand_order(order, {{"r", axis / 2}, {"P", axis}, {"M", 8}});
}

// Small enough that the work is a matter of milliseconds.
bool is_small(const Strategy& strategy) {
  int64_t devices = 1, cuts = 1;
  for (const MeshAxis& axis : strategy.mesh) devices *= axis.size;
  for (const Split& split : strategy.splits) cuts = std::max(cuts, split.into);
  return devices <= 16 && cuts <= 64 && strategy.global_batch <= 64;
}

}  // namespace

void run_strategy(std::string_view yaml) {
  static const Folder folder("strategy");
  const std::string path = folder.write("strategy.yaml", yaml);
  const Result<Strategy> strategy = parse_strategy(path, {});
  if (!strategy) {
    PIPER_CHECK(!print_error(strategy.error()).empty());
    return;
  }
  for (const Order& order : strategy->orders)
    for (const MeshAxis& axis : strategy->mesh)
      if (order.each == Axes{axis.name}) expand(order, axis.size);
  if (!is_small(*strategy)) return;
  CompileOptions options;
  options.model = std::string(PIPER_SOURCE_DIR) + "/tests/data/mlp.onnx";
  options.strategy = path;
  options.oracles = false;
  (void)compile(options);
}

void run_order(std::string_view program) {
  Order order;
  order.each = {"pp"};
  order.program = program;
  order.lines.assign(split_text(program, '\n').size(), {"order", 1, 1, 1});
  expand(order, 4);
}

}  // namespace piper::fuzz
