#include <algorithm>
#include <limits>
#include <set>

#include "order_pool.h"

namespace piper {
namespace {

constexpr size_t kShownTasks = 24;

std::string item_text(const OrderItem& item) {
  std::string text = item.pass;
  for (size_t i = 0; i < item.tags.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "[" : ", ", item.tags[i].first, item.tags[i].second);
  return item.tags.empty() ? text : text + "]";
}

// One coordinate's items against the tasks of one cell.
class CellOrder {
 public:
  CellOrder(const Dag& dag, const Order& order, int32_t cell, int64_t coordinate,
            const std::vector<TaskId>& tasks)
      : dag_(dag),
        order_(order),
        where_(fmt::format("{}={}", order.each, coordinate)),
        pool_(dag, cell, tasks, order.micro) {}

  Result<ComputeOrder> run(const std::vector<OrderItem>& items) {
    size_t first_of_pair = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const size_t before = out_.tasks.size();
      PIPER_TRY(take(items[i], static_cast<int32_t>(i) + 1));
      const bool closes = i > 0 && items[i - 1].paired;
      if (closes && first_of_pair < before && before < out_.tasks.size())
        out_.overlaps.push_back({static_cast<int32_t>(first_of_pair), static_cast<int32_t>(before),
                                 static_cast<int32_t>(out_.tasks.size())});
      first_of_pair = before;
    }
    PIPER_TRY(check_left(items.size()));
    return std::move(out_);
  }

  // Items for which the model has nothing to do on this device.
  const std::set<std::string>& absent() const { return absent_; }

  // "pp=0: F0 F1&B0 …"
  std::string text(const ComputeOrder& order) const {
    std::string line = where_ + ":";
    size_t shown = 0, pair = 0, whole = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(order.tasks.size()); ++i) {
      if (++shown > kShownTasks) return line + " …";
      while (pair < order.overlaps.size() && order.overlaps[pair].second < i) ++pair;
      const bool second = pair < order.overlaps.size() && order.overlaps[pair].second == i;
      const bool is_whole = whole < order.wholes.size() && order.wholes[whole] == i;
      line += (second ? "&" : " ") +
              pool_.short_name(order.tasks[static_cast<size_t>(i)], is_whole ? "B" : "");
      if (is_whole) ++whole, ++i;
    }
    return line;
  }

 private:
  Status take(const OrderItem& item, int32_t number) {
    if (item.pass == "U") return update(item);
    PIPER_ASSIGN(const Taken taken, pool_.take(item, number));
    if (taken.empty()) {
      if (item.optional) return ok_status();
      // What the model has not is no mistake of the program: a sum's backward may be no op at all.
      if (item.pass != "F" && pool_.has_none(item)) {
        absent_.insert(item_text(item));
        return ok_status();
      }
      return fail(item.at, "order: on {} no task is left for '{}' (item {} of the program)", where_,
                  item_text(item), number)
          .with_code(ExitCode::kRefused)
          .with_note(pool_.why_none(item))
          .with_note("help: count the items, or write '" + item_text(item) +
                     "?' to take one only if any is left");
    }
    if (update_) {
      return fail(item.at, "order: on {} '{}' comes after 'U'", where_, item_text(item))
          .with_code(ExitCode::kRefused)
          .with_note("the update needs the gradients of all microbatches: 'U' is the last item");
    }
    if (taken.size() > 1) out_.wholes.push_back(static_cast<int32_t>(out_.tasks.size()));
    out_.tasks.insert(out_.tasks.end(), taken.begin(), taken.end());
    return ok_status();
  }
  // The update closes the step whether it is named or not.
  Status update(const OrderItem& item) {
    if (update_ && !item.optional)
      return fail(item.at, "order: on {} 'U' is named twice", where_)
          .with_code(ExitCode::kRefused)
          .with_note("a device has one update a step");
    update_ = true;
    return ok_status();
  }

  Status check_left(size_t items) const {
    const std::vector<TaskId> left = pool_.left();
    if (left.empty()) return ok_status();
    std::string names;
    for (size_t i = 0; i < left.size() && i < 3; ++i)
      names += fmt::format("{}'{}'", i == 0 ? "" : ", ", dag_.tasks[left[i].index()].label);
    return fail(order_.at, "order: on {} the program leaves {} of {} tasks out: {}{}", where_,
                left.size(), left.size() + out_.tasks.size(), names, left.size() > 3 ? ", …" : "")
        .with_code(ExitCode::kRefused)
        .with_note(fmt::format("the device has {}; the {} items of the program take {}",
                               pool_.count_passes(false), items, pool_.count_passes(true)));
  }

  const Dag& dag_;
  const Order& order_;
  const std::string where_;
  OrderPool pool_;
  ComputeOrder out_;
  std::set<std::string> absent_;
  bool update_ = false;
};

Result<size_t> axis_of(const Dag& dag, const Order& order) {
  size_t axis = 0;
  std::vector<std::string> names;
  for (; axis < dag.mesh.size() && dag.mesh[axis].name != order.each; ++axis)
    names.push_back(dag.mesh[axis].name);
  if (axis == dag.mesh.size())
    return fail(order.at, "order: the mesh has no axis '{}'{}", order.each,
                did_you_mean(order.each, names));
  if (!dag.mesh[axis].placed)
    return fail(
        order.at,
        "order: no place directive uses axis '{}', so its devices have nothing to tell apart",
        order.each);
  return axis;
}

}  // namespace

Result<std::vector<int64_t>> policy_limits(const Dag& dag, const Order& order,
                                           const Variables& variables) {
  PIPER_ASSIGN(const size_t axis, axis_of(dag, order));
  std::vector<int64_t> limits(dag.cells.size(), std::numeric_limits<int64_t>::max() / 4);
  for (size_t cell = 0; cell < dag.cells.size() && order.policy->in_flight; ++cell) {
    Variables scope{
        {"r", dag.cells[cell][axis]}, {"P", dag.mesh[axis].size}, {"M", dag.microbatches}};
    scope.insert(scope.end(), variables.begin(), variables.end());
    PIPER_ASSIGN(limits[cell], order.policy->in_flight->evaluate(scope));
    if (limits[cell] < 1)
      return fail(order.policy->in_flight_at, "policy: in_flight is {} on {}={}", limits[cell],
                  order.each, dag.cells[cell][axis]);
  }
  return limits;
}

Result<std::vector<ComputeOrder>> apply_order(const Dag& dag, const std::vector<Order>& orders,
                                              const Variables& variables, Explanations& out) {
  std::vector<ComputeOrder> result;
  if (orders.empty()) return result;
  if (orders.size() > 1)
    return fail(orders[1].at, "order: the order is already given at line {}", orders[0].at.line);
  const Order& order = orders.front();
  if (order.policy) return result;
  PIPER_ASSIGN(const size_t axis, axis_of(dag, order));
  const auto tasks = ordered_tasks(dag);
  Explanation report{order.at, "order", {}};
  for (size_t cell = 0; cell < dag.cells.size(); ++cell) {
    const int64_t r = dag.cells[cell][axis];
    Variables scope{{"r", r}, {"P", dag.mesh[axis].size}, {"M", dag.microbatches}};
    scope.insert(scope.end(), variables.begin(), variables.end());
    PIPER_ASSIGN(const std::vector<OrderItem> items, expand_order(order, scope));
    CellOrder taker(dag, order, static_cast<int32_t>(cell), r, tasks[cell]);
    PIPER_ASSIGN(ComputeOrder compute, taker.run(items));
    report.lines.push_back(taker.text(compute));
    for (const std::string& item : taker.absent())
      report.lines.push_back(fmt::format("{}={} has nothing to do for '{}'", order.each, r, item));
    result.push_back(std::move(compute));
  }
  out.push_back(std::move(report));
  return result;
}

}  // namespace piper
