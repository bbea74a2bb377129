#include <algorithm>
#include <map>

#include "piper/directives.h"

namespace piper {
namespace {

char pass_letter(const std::string& pass) {
  if (pass == "BI") return 'I';
  if (pass == "BW") return 'W';
  return pass.empty() ? '?' : pass[0];
}

bool is_ordered_pass(char pass) { return pass == 'F' || pass == 'B' || pass == 'I' || pass == 'W'; }

// The compute tasks of one cell that wait for an item to take them, by microbatch, then in dataflow
// order.
struct Pool {
  std::vector<TaskId> tasks;
  std::vector<int32_t> chunk_index;  // local stage index, parallel to tasks
  std::vector<bool> taken;
};

Pool make_pool(const Dag& dag, int32_t cell) {
  Pool pool;
  std::map<std::vector<int32_t>, int32_t>
      local;  // region -> local stage index, by first forward chunk
  for (const Chunk& chunk : dag.chunks)
    if (chunk.cell == cell && chunk.pass == 'F')
      local.try_emplace(chunk.tags, static_cast<int32_t>(local.size()));
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    if (task.cell == cell && task.kind == TaskKind::kCompute && is_ordered_pass(task.pass))
      pool.tasks.push_back(TaskId(t));
  }
  std::stable_sort(pool.tasks.begin(), pool.tasks.end(), [&](TaskId a, TaskId b) {
    return dag.tasks[a.index()].micro < dag.tasks[b.index()].micro;
  });
  for (TaskId id : pool.tasks) {
    const auto it = local.find(dag.chunks[dag.tasks[id.index()].chunk.index()].tags);
    pool.chunk_index.push_back(it == local.end() ? -1 : it->second);
  }
  pool.taken.resize(pool.tasks.size());
  return pool;
}

class Matcher {
 public:
  Matcher(const Dag& dag, Pool& pool) : dag_(dag), pool_(pool) {}

  // The position of the next task that the item takes, or -1.
  Result<int64_t> next(const OrderItem& item) {
    PIPER_TRY(check_tags(item));
    const char pass = pass_letter(item.pass);
    size_t& start = first_free_[pass];
    for (size_t i = start; i < pool_.tasks.size(); ++i) {
      const bool other = dag_.tasks[pool_.tasks[i].index()].pass != pass;
      if (i == start && (pool_.taken[i] || other)) {
        ++start;
        continue;
      }
      if (pool_.taken[i] || other || !has_tags(i, item)) continue;
      return static_cast<int64_t>(i);
    }
    return int64_t{-1};
  }

 private:
  Status check_tags(const OrderItem& item) const {
    for (const auto& [tag, value] : item.tags) {
      if (tag == "mb" || tag == "chunk") continue;
      if (std::find(dag_.region_tags.begin(), dag_.region_tags.end(), tag) !=
          dag_.region_tags.end())
        continue;
      std::vector<std::string> names = dag_.region_tags;
      names.insert(names.end(), {"mb", "chunk"});
      return fail(item.at, "order: tasks have no tag '{}'{}", tag, did_you_mean(tag, names));
    }
    return ok_status();
  }
  bool has_tags(size_t i, const OrderItem& item) const {
    const Task& task = dag_.tasks[pool_.tasks[i].index()];
    for (const auto& [tag, value] : item.tags) {
      int64_t have = 0;
      if (tag == "mb")
        have = task.micro;
      else if (tag == "chunk")
        have = pool_.chunk_index[i];
      else {
        const auto it = std::find(dag_.region_tags.begin(), dag_.region_tags.end(), tag);
        have = dag_.chunks[task.chunk.index()]
                   .tags[static_cast<size_t>(it - dag_.region_tags.begin())];
      }
      if (have != value) return false;
    }
    return true;
  }

  const Dag& dag_;
  Pool& pool_;
  std::map<char, size_t> first_free_;
};

std::string item_text(const OrderItem& item) {
  std::string text = item.pass;
  for (size_t i = 0; i < item.tags.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "[" : ", ", item.tags[i].first, item.tags[i].second);
  return item.tags.empty() ? text : text + "]";
}

Result<std::vector<TaskId>> order_cell(const Dag& dag, const Order& order, int32_t cell,
                                       int64_t coordinate, const Variables& variables) {
  PIPER_ASSIGN(const std::vector<OrderItem> items, expand_order(order, variables));
  Pool pool = make_pool(dag, cell);
  Matcher matcher(dag, pool);
  std::vector<TaskId> result;
  const std::string where = fmt::format("{}={}", order.each, coordinate);
  for (const OrderItem& item : items) {
    PIPER_ASSIGN(const int64_t next, matcher.next(item));
    if (next < 0) {
      if (item.optional || item.pass == "U") continue;
      return fail(item.at, "order: on {} no task is left for '{}' (item {} of the program)", where,
                  item_text(item), result.size() + 1)
          .with_code(ExitCode::kRefused)
          .with_note("help: count the items, or write '" + item_text(item) +
                     "?' to take one only if any is left");
    }
    pool.taken[static_cast<size_t>(next)] = true;
    result.push_back(pool.tasks[static_cast<size_t>(next)]);
  }
  for (size_t i = 0; i < pool.tasks.size(); ++i) {
    if (pool.taken[i]) continue;
    const auto left = std::count(pool.taken.begin(), pool.taken.end(), false);
    return fail(order.at, "order: on {} the program leaves {} of {} tasks out, first '{}'", where,
                left, pool.tasks.size(), dag.tasks[pool.tasks[i].index()].label)
        .with_code(ExitCode::kRefused);
  }
  return result;
}

}  // namespace

Result<std::vector<std::vector<TaskId>>> apply_order(const Dag& dag,
                                                     const std::vector<Order>& orders,
                                                     const Variables& variables,
                                                     Explanations& out) {
  std::vector<std::vector<TaskId>> result;
  if (orders.empty()) return result;
  if (orders.size() > 1)
    return fail(orders[1].at, "order: the order is already given at line {}", orders[0].at.line);
  const Order& order = orders.front();
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
  Explanation report{order.at, "order", {}};
  for (size_t cell = 0; cell < dag.cells.size(); ++cell) {
    const int64_t r = dag.cells[cell][axis];
    Variables scope{{"r", r}, {"P", dag.mesh[axis].size}, {"M", dag.microbatches}};
    scope.insert(scope.end(), variables.begin(), variables.end());
    PIPER_ASSIGN(auto tasks, order_cell(dag, order, static_cast<int32_t>(cell), r, scope));
    std::string line = fmt::format("{}={}:", order.each, r);
    for (size_t i = 0; i < tasks.size() && i < 24; ++i) {
      const Task& task = dag.tasks[tasks[i].index()];
      line += fmt::format(" {}{}",
                          task.pass == 'I'   ? "BI"
                          : task.pass == 'W' ? "BW"
                                             : std::string(1, task.pass),
                          task.micro);
    }
    report.lines.push_back(line + (tasks.size() > 24 ? " …" : ""));
    result.push_back(std::move(tasks));
  }
  out.push_back(std::move(report));
  return result;
}

}  // namespace piper
