// The directive `order`: items of the strategy, matched with tasks of each cell.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "match.h"
#include "order_pool.h"
#include "piper/base/parallel.h"
#include "piper/plan/windows.h"
#include "piper/planner/cost.h"
#include "piper/planner/sharding.h"

namespace piper {
namespace {

constexpr size_t kShownTasks = 24;

std::string item_text(const OrderItem& item) {
  std::string text = item.pass;
  for (size_t i = 0; i < item.tags.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "[" : ", ", item.tags[i].first, item.tags[i].second);
  return item.tags.empty() ? text : text + "]";
}

// Matches one coordinate's items with the tasks of one cell.
class CellOrder {
 public:
  // `where` is the name of its place in errors.
  CellOrder(const Dag& dag, const Strategy& strategy, int32_t cell, std::string where,
            const std::vector<TaskId>& tasks)
      : dag_(dag),
        order_(strategy.orders.front()),
        where_(std::move(where)),
        cell_(cell),
        delays_(
            std::ranges::any_of(dag.versions,
                                [&](const Version& version) {
                                  return info(dag.graph.value(version.newest).type.dtype).is_float;
                                })),
        pool_(dag, cell, tasks, strategy) {
    for (const Split& split : strategy.splits)
      if (split.of_region() && split.into == 1) uncut_.insert(split.as);
  }

  Result<ComputeOrder> run(const std::vector<OrderItem>& items) {
    items_ = items;
    std::vector<int32_t> ahead;
    for (size_t i = 0; i + 1 < items.size(); ++i)
      if (items[i].paired) PIPER_TRY(check_pair(items[i], items[i + 1]));
    for (const OrderItem& item : items) {
      PIPER_ASSIGN(const int32_t steps, steps_ahead(item));
      ahead.push_back(steps);
    }
    PIPER_TRY(take_all(items, ahead));
    if (out_.ahead.empty() || out_.ahead[0] == 0) out_.ahead.clear(), out_.body.clear();
    PIPER_TRY(check_left(items.size()));
    const std::vector<TaskId> updates = pool_.left();  // that no item names: they close the step
    out_.tasks.insert(out_.tasks.end(), updates.begin(), updates.end());
    out_.named_at.resize(out_.tasks.size(), updates.empty() ? 0 : place(order_.at));
    PIPER_TRY(check_updated());
    return std::move(out_);
  }

  // Returns the items for which the model has nothing to do on this device.
  const std::set<std::string>& absent() const { return absent_; }

  // "pp=0: F0 F1&B0 …"; a task has a prime for each step that it is ahead: "F0'".
  std::string text(const ComputeOrder& order) const {
    std::string line = where_ + ":";
    size_t shown = 0, pair = 0;
    for (int32_t n = 0; n < static_cast<int32_t>(order.tasks.size()); ++n) {
      const int32_t i = order.body.empty() ? n : order.body[static_cast<size_t>(n)];
      if (++shown > kShownTasks) return line + " …";
      while (pair < order.overlaps.size() && order.overlaps[pair].second < n) ++pair;
      const bool second = pair < order.overlaps.size() && order.overlaps[pair].second == n;
      const bool whole = std::binary_search(order.wholes.begin(), order.wholes.end(), i);
      line += (second ? "&" : " ") +
              pool_.short_name(order.tasks[static_cast<size_t>(i)], whole ? "B" : "") +
              std::string(static_cast<size_t>(order.ahead_of(i)), '\'');
      if (whole) ++n;
    }
    return line;
  }

 private:
  static const int64_t* step_of(const OrderItem& item) {
    const auto step = std::find_if(item.tags.begin(), item.tags.end(),
                                   [](const auto& tag) { return tag.first == "step"; });
    return step == item.tags.end() ? nullptr : &step->second;
  }
  // F[step=1] is a forward of the next step.
  static Result<int32_t> steps_ahead(const OrderItem& item) {
    const int64_t* step = step_of(item);
    if (step == nullptr || *step == 0) return 0;
    if (*step < 0 || *step > kMostStepsAhead)
      return fail(item.at, "order: step is 0, this one, 1, the next, up to {}, not {}",
                  kMostStepsAhead, *step);
    if (item.pass == "U") return fail(item.at, "order: 'U' closes its own step, and no other");
    return static_cast<int32_t>(*step);
  }
  // A task of a later step comes after the updates before it of all states that it reads. Of a
  // state that has older versions it reads the oldest, which so many updates do not reach.
  Status check_updated() const {
    if (out_.ahead.empty()) return ok_status();
    std::map<ItemId, const Task*> writers, updates;  // by what others read; by state
    for (const Task& task : dag_.tasks) {
      if (task.cell != cell_ || is_ordered(task.pass)) continue;
      const bool updates_states = task.pass == TaskPass::kU && task.micro < 0;
      for (ItemId item : task.writes) {
        writers.emplace(item, &task);
        if (!updates_states && task.kind != InstructionKind::kAllGather) continue;
        if (!dag_.items[item.index()].alias.valid()) continue;
        while (dag_.items[item.index()].alias.valid()) item = dag_.items[item.index()].alias;
        if (dag_.graph.value(dag_.items[item.index()].value).kind == ValueKind::kState)
          updates[item] = &task;
      }
    }
    std::map<ValueId, ValueId> newer;  // by version of a state
    for (const Version& version : dag_.versions) newer[version.previous] = version.newest;
    std::set<std::vector<int32_t>> updated;  // regions
    for (const int32_t t : out_.body) {
      const TaskId id = out_.tasks[static_cast<size_t>(t)];
      const Task& task = dag_.tasks[id.index()];
      const int32_t steps = out_.ahead_of(t);
      if (steps == 0) {
        if (task.pass == TaskPass::kU && task.region.valid())
          updated.insert(dag_.chunks[task.region.index()].tags);
        continue;
      }
      std::vector<ItemId> open(task.reads.begin(), task.reads.end());
      for (size_t i = 0; i < open.size(); ++i) {
        int32_t older = 0;
        ValueId newest = dag_.items[open[i].index()].value;
        for (auto of = newer.find(newest); of != newer.end(); of = newer.find(newest))
          newest = of->second, ++older;
        if (older > 0 && older < steps) return too_few_versions(t, newest, older + 1);
        const auto update = updates.find(open[i]);
        if (update == updates.end()) {
          const auto made = writers.find(open[i]);
          if (made != writers.end())
            open.insert(open.end(), made->second->reads.begin(), made->second->reads.end());
          continue;
        }
        const ChunkId region = update->second->region;
        if (steps > 1 || !region.valid() || !updated.contains(dag_.chunks[region.index()].tags))
          return not_updated(t, open[i], region);
      }
    }
    return ok_status();
  }
  const SourceSpan& place_of_task(int32_t t) const {
    return out_.places[static_cast<size_t>(out_.named_at[static_cast<size_t>(t)])];
  }
  Error too_few_versions(int32_t t, ValueId newest, int32_t versions) const {
    const std::string label =
        print_label(dag_, dag_.tasks[out_.tasks[static_cast<size_t>(t)].index()]);
    const Value& value = dag_.graph.value(newest);
    const int32_t steps = out_.ahead_of(t);
    if (!info(value.type.dtype).is_float)
      return fail(place_of_task(t), "not supported: '{}' of {} draws random numbers", label,
                  later_step(steps))
          .with_note("what draws random numbers is one step ahead at most");
    return fail(place_of_task(t),
                "order: on {} '{}' of {} reads '{}', which has {} versions: it is {} ahead at most",
                where_, label, later_step(steps), value.name, versions, versions - 1)
        .with_note(fmt::format("help: {} versions of it (weight_versions)", steps + 1));
  }
  // Adds how the program can update the chunk's parameters before.
  Error with_update_help(Error error, const Chunk& of) const {
    std::string tags;
    for (size_t tag = 0; tag < of.tags.size(); ++tag)
      if (of.tags[tag] != kNoTag)
        tags +=
            fmt::format("{}{}={}", tags.empty() ? "" : ", ", dag_.region_tags[tag], of.tags[tag]);
    return std::move(error).with_note(
        fmt::format("help: 'U[{}]' before it, or two versions of it (weight_versions)", tags));
  }

  Error not_updated(int32_t t, ItemId state, ChunkId region) const {
    const Task& task = dag_.tasks[out_.tasks[static_cast<size_t>(t)].index()];
    const ValueId value = dag_.items[state.index()].value;
    const auto is_it = [&](const auto& one) { return one.value == value; };
    const bool trained = std::ranges::any_of(dag_.graph.params, is_it) ||
                         std::ranges::any_of(dag_.parts, is_it) ||
                         std::ranges::count(dag_.copies, value, &Copy::copy) > 0;
    const bool is_shared = trained && !region.valid() && dag_.split_update;
    Error error = fail(
        place_of_task(t), "order: on {} '{}' of {} reads '{}' before this step's update of it{}",
        where_, print_label(dag_, task), later_step(out_.ahead_of(t)), dag_.graph.value(value).name,
        is_shared ? ", which closes the step: several devices read it" : "");
    if (!trained) return std::move(error).with_note("it has one version, which the update changes");
    if (is_shared) return std::move(error).with_note("help: two versions of it (weight_versions)");
    if (const int32_t steps = out_.ahead_of(t); steps > 1)
      return std::move(error).with_note(
          fmt::format("help: {} versions of it (weight_versions)", steps + 1));
    return with_update_help(std::move(error),
                            dag_.chunks[(region.valid() ? region : task.chunk).index()]);
  }

  // Puts the tasks of each item into the body, and notes the pairs.
  void place_items(const std::vector<OrderItem>& items,
                   const std::vector<std::pair<size_t, size_t>>& tasks) {
    int32_t first_of_pair = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto before = static_cast<int32_t>(out_.body.size());
      for (size_t t = tasks[i].first; t < tasks[i].second; ++t)
        out_.body.push_back(static_cast<int32_t>(t));
      const auto end = static_cast<int32_t>(out_.body.size());
      if (i > 0 && items[i - 1].paired && first_of_pair < before && before < end) {
        if (items[i - 1].apart) out_.apart.push_back(static_cast<int32_t>(out_.overlaps.size()));
        out_.overlaps.push_back({first_of_pair, before, end});
        out_.pair_at.push_back(place(items[i - 1].pair_at));
      }
      first_of_pair = before;
    }
  }

  // Takes all items in the order of one step: first what runs while steps before it are under way,
  // the farthest ahead first. Pairs are given by position in `body`: theirs may be tasks of two
  // steps.
  Status take_all(const std::vector<OrderItem>& items, const std::vector<int32_t>& ahead) {
    std::vector<std::pair<size_t, size_t>> tasks(items.size());  // by item: [first, end)
    for (const int32_t steps : std::set<int32_t, std::greater<>>(ahead.begin(), ahead.end())) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (ahead[i] != steps) continue;
        PIPER_TRY(check_between_steps(items, i, steps > 0));
        OrderItem item = items[i];
        std::erase_if(item.tags, [&](const auto& tag) {
          return tag.first == "step" || (tag.second == 0 && uncut_.contains(tag.first));
        });
        tasks[i].first = out_.tasks.size();
        PIPER_TRY(take(item, static_cast<int32_t>(i) + 1));
        tasks[i].second = out_.tasks.size();
      }
      out_.ahead.resize(out_.tasks.size(), steps);
    }
    place_items(items, tasks);
    return ok_status();
  }
  Status check_between_steps(const std::vector<OrderItem>& items, size_t i, bool next) const {
    const auto here = items.begin() + static_cast<ptrdiff_t>(i);
    if (!next || std::none_of(items.begin(), here, [](const OrderItem& item) {
          return item.pass == "U" && item.tags.empty();
        }))
      return ok_status();
    return fail(items[i].at, "order: on {} '{}' comes after 'U'", where_, item_text(items[i]))
        .with_note("with the update the step is over: what comes next belongs to the next one");
  }

  Status take(const OrderItem& item, int32_t number) {
    PIPER_TRY(check_update(item));
    if (item.pass == "U" && item.tags.empty()) {  // it closes the step whether it is named or not
      if (update_ && !item.optional)
        return fail(item.at, "order: on {} 'U' is named twice", where_)
            .with_note("a device has one update a step");
      update_ = true;
      return ok_status();
    }
    PIPER_ASSIGN(const Taken taken, pool_.take(item, number));
    if (taken.empty()) {
      if (item.optional) return ok_status();
      // What the model has not is no mistake of the program: a sum's backward may be no op at all.
      if (item.pass != "F" && pool_.has_none(item)) {
        if (item.pass == "R" && nothing_runs_again()) return no_recompute(item);
        OrderItem of_all = item;
        std::erase_if(of_all.tags, [&](const auto& tag) { return tag.first == order_.micro; });
        absent_.insert(item_text(of_all));
        return ok_status();
      }
      Error error = fail(item.at, "order: on {} no task is left for '{}' (item {} of the program)",
                         where_, item_text(item), number)
                        .with_note(pool_.why_none(item));
      if (item.pass == "R") error.notes.push_back(why_again(item));
      return std::move(error).with_note("help: count the items, or write '" + item_text(item) +
                                        "?' to take one only if any is left");
    }
    if (update_) {
      return fail(item.at, "order: on {} '{}' comes after 'U'", where_, item_text(item))
          .with_note("the update needs the gradients of all microbatches: 'U' is the last item");
    }
    for (size_t t = 0; item.pass == "B" && t + 1 < taken.size(); ++t)
      if (dag_.tasks[taken[t].index()].pass == TaskPass::kBI &&
          dag_.tasks[taken[t + 1].index()].pass == TaskPass::kBW)
        out_.wholes.push_back(static_cast<int32_t>(out_.tasks.size() + t));
    out_.tasks.insert(out_.tasks.end(), taken.begin(), taken.end());
    out_.named_at.resize(out_.tasks.size(), place(item.at));
    return ok_status();
  }
  // An update is of the whole step, and what of it comes early is of this one.
  Status check_update(const OrderItem& item) const {
    if (item.pass != "S" && (item.pass != "U" || item.tags.empty())) return ok_status();
    for (const auto& [tag, value] : item.tags)
      if (tag == order_.micro && item.pass == "U")
        return fail(item.at, "order: '{}': an update is of all microbatches", item_text(item))
            .with_note("help: 'U[stage=1]' or 'U[chunk=0]' is that of a stage");
    if (!delays_) return ok_status();
    return fail(item.at, "not supported: '{}' where parameters have several versions",
                item_text(item))
        .with_note("what is of the whole step has no place between two steps that overlap");
  }
  static Status check_pair(const OrderItem& first, const OrderItem& second) {
    for (const OrderItem* item : {&first, &second})
      if (item->pass == "S" || item->pass == "U")
        return fail(first.pair_at, "order: '{}' is no half of a pair: '&' joins F, R and backwards",
                    item_text(*item));
    return ok_status();
  }
  bool nothing_runs_again() const {
    return std::none_of(dag_.chunks.begin(), dag_.chunks.end(),
                        [](const Chunk& chunk) { return chunk.pass == TaskPass::kR; });
  }
  static Error no_recompute(const OrderItem& item) {
    return fail(item.at, "order: '{}' is what runs again for a backward, and nothing does",
                item_text(item))
        .with_note("help: '- recompute: {match: \"h/{layer}/**\"}' chooses what runs again; '" +
                   item_text(item) + "?' takes nothing where there is nothing");
  }
  std::string why_again(const OrderItem& item) {
    const int32_t taker = pool_.last_taker(item);
    if (taker < 1) return "a backward comes after its R";
    const OrderItem& by = items_[static_cast<size_t>(taker) - 1];
    return fmt::format(
        "'{}' (line {}) took it: a backward runs its R itself unless the item 'R' "
        "comes before",
        item_text(by), by.at.line > 0 ? by.at.line : order_.at.line);
  }
  // Items of one place in the program share an entry. A text of -D has no lines.
  int32_t place(const SourceSpan& named) {
    const SourceSpan& at = named.line > 0 ? named : order_.at;
    const auto [known, is_new] = place_of_.try_emplace({at.line, at.column}, out_.places.size());
    if (is_new) out_.places.push_back(at);
    return static_cast<int32_t>(known->second);
  }

  Status check_left(size_t items) const {
    std::vector<TaskId> left = pool_.left();
    std::erase_if(left, [&](TaskId id) { return dag_.tasks[id.index()].pass == TaskPass::kU; });
    if (left.empty()) return ok_status();
    std::string names;
    for (size_t i = 0; i < left.size() && i < 3; ++i)
      names +=
          fmt::format("{}'{}'", i == 0 ? "" : ", ", print_label(dag_, dag_.tasks[left[i].index()]));
    Error error =
        fail(last_of(dag_.tasks[left.front().index()]),
             "order: on {} the program leaves {} of {} tasks out: {}{}", where_, left.size(),
             left.size() + out_.tasks.size(), names, left.size() > 3 ? ", …" : "");
    error.notes.push_back(fmt::format("the device has {}; the {} items of the program take {}",
                                      pool_.count_passes(false), items, pool_.count_passes(true)));
    if (const int64_t chunks = pool_.chunks_of_tokens(); chunks > 1)
      error.notes.push_back(fmt::format(
          "help: an item takes one of the {0} chunks of tokens of a microbatch, so a stage has "
          "M*{0} forwards; the programs in the library's folder 'tokens' do so",
          chunks));
    return error;
  }

  // Returns the last item of a pass, after which one is missing; else the last of all.
  const SourceSpan& last_of(const Task& task) const {
    const std::string_view pass = OrderPool::name_of_item(task);
    const auto of_pass = [&](const OrderItem& item) {
      return pass.starts_with('B') ? item.pass.starts_with('B') : item.pass == pass;
    };
    const auto last = std::find_if(items_.rbegin(), items_.rend(), of_pass);
    if (last != items_.rend()) return last->at;
    return items_.empty() ? order_.at : items_.back().at;
  }

  const Dag& dag_;
  const Order& order_;
  const std::string where_;
  const int32_t cell_;
  const bool delays_;
  OrderPool pool_;
  std::span<const OrderItem> items_;
  std::map<std::pair<int, int>, size_t> place_of_;  // by line and column
  ComputeOrder out_;
  std::set<std::string> absent_;
  std::set<std::string> uncut_;  // parts of regions that have one: no tag of tasks
  bool update_ = false;
};

// Lists the places that an order tells apart: the coordinates of some axes, row-major.
class OrderPlaces {
 public:
  static Status check_placed(const Dag& dag, int32_t axis, const Order& order) {
    if (!dag.mesh[static_cast<size_t>(axis)].placed)
      return fail(order.at,
                  "order: no place directive uses axis '{}', so its devices have nothing to tell "
                  "apart",
                  dag.mesh[static_cast<size_t>(axis)].name)
          .with_note(
              "help: leave 'each' out: the program is then of all devices, or of those "
              "that 'place' tells apart");
    return ok_status();
  }

  static Result<OrderPlaces> make(const Dag& dag, const Order& order) {
    OrderPlaces places(dag);
    for (const std::string& each : order.each) {
      PIPER_ASSIGN(const int32_t axis, find_axis(dag, each, order.at, "order"));
      PIPER_TRY(check_placed(dag, axis, order));
      places.axes_.push_back(static_cast<size_t>(axis));
    }
    for (size_t axis = 0; axis < dag.mesh.size() && order.each.empty(); ++axis)
      if (dag.mesh[axis].placed && !dag.mesh[axis].twins) places.axes_.push_back(axis);
    if (!order.rows.empty() && std::ssize(order.rows) != places.count())
      return fail(order.at, "order: {} rows, but {} places of stages", order.rows.size(),
                  places.count());
    return places;
  }

  int64_t count() const {
    int64_t count = 1;
    for (const size_t axis : axes_) count *= dag_->mesh[axis].size;
    return count;
  }
  int64_t number(size_t cell) const {
    int64_t number = 0;
    for (const size_t axis : axes_)
      number = number * dag_->mesh[axis].size + dag_->cells[cell][axis];
    return number;
  }
  std::string name(size_t cell) const {
    std::vector<std::string> names;
    for (const size_t axis : axes_)
      names.push_back(fmt::format("{}={}", dag_->mesh[axis].name, dag_->cells[cell][axis]));
    return names.empty() ? "all devices" : join(names, " ");
  }

 private:
  explicit OrderPlaces(const Dag& dag) : dag_(&dag) {}

  const Dag* dag_;
  std::vector<size_t> axes_;
};

// Returns what expressions of an order see on a cell.
Variables scope_of(const Dag& dag, size_t cell, const OrderPlaces& places,
                   const Variables& variables) {
  Variables scope{{"r", places.number(cell)}, {"P", places.count()}, {"M", dag.microbatches}};
  scope.insert(scope.end(), variables.begin(), variables.end());
  return scope;
}

// Returns by cell how many tasks the forward of a stage has for a microbatch: its chunks of tokens,
// or the shares of samples that are there.
std::vector<int64_t> tasks_of_microbatch(const Dag& dag, const Strategy& strategy) {
  std::vector<int64_t> most(dag.cells.size(), 1);
  const Split* const split = strategy.chunk_split();
  const auto tag = std::ranges::find(dag.region_tags, split ? split->as : "");
  if (tag == dag.region_tags.end()) return most;
  std::map<std::pair<int32_t, std::vector<int32_t>>, std::set<int32_t>> values;  // by cell, stage
  for (const Chunk& chunk : dag.chunks) {
    if (chunk.pass != TaskPass::kF) continue;
    std::vector<int32_t> stage = chunk.tags;
    const int32_t value =
        std::exchange(stage[static_cast<size_t>(tag - dag.region_tags.begin())], kNoTag);
    values[{chunk.cell, std::move(stage)}].insert(value);
  }
  for (const auto& [of, found] : values) {
    int64_t& known = most[static_cast<size_t>(of.first)];
    known = std::max(known, std::ssize(found));
  }
  return most;
}

}  // namespace

Result<std::vector<int64_t>> policy_limits(const Dag& dag, const Strategy& strategy,
                                           const Variables& variables) {
  const Order& order = strategy.orders.front();
  const std::vector<int64_t> tasks = tasks_of_microbatch(dag, strategy);
  PIPER_ASSIGN(const OrderPlaces places, OrderPlaces::make(dag, order));
  std::vector<int64_t> limits(dag.cells.size(), std::numeric_limits<int64_t>::max() / 4);
  for (size_t cell = 0; cell < dag.cells.size() && order.policy->in_flight; ++cell) {
    PIPER_ASSIGN(limits[cell],
                 order.policy->in_flight->evaluate(scope_of(dag, cell, places, variables)));
    if (limits[cell] < 1)
      return fail(order.policy->in_flight_at,
                  "policy: in_flight is {} on {}, but must be at least 1", limits[cell],
                  places.name(cell));
    limits[cell] =
        std::min(limits[cell], std::numeric_limits<int64_t>::max() / 4 / tasks[cell]) * tasks[cell];
  }
  return limits;
}

std::vector<std::vector<TaskId>> tasks_of_parts(const Dag& dag, const Strategy& strategy) {
  std::vector<std::vector<TaskId>> tasks(dag.cells.size());
  const Result<std::vector<std::string>> placed = placed_parts(strategy),
                                         named = parts_in_orders(strategy);
  std::vector<size_t> parts;  // among the region's tags
  for (const std::string& part : placed ? *placed : std::vector<std::string>())
    if (named && !std::ranges::count(*named, part))
      parts.push_back(
          static_cast<size_t>(std::ranges::find(dag.region_tags, part) - dag.region_tags.begin()));
  if (parts.empty()) return tasks;
  const auto spans = static_cast<size_t>(std::ranges::find(dag.region_tags, kSpanOfParts) -
                                         dag.region_tags.begin());
  const auto is_part = [&](const Chunk& chunk) {
    return std::ranges::any_of(parts, [&](size_t tag) { return chunk.tags[tag] != kNoTag; });
  };
  using Stage = std::pair<TaskPass, std::vector<int32_t>>;
  const auto stage_of = [&](const Chunk& chunk) {
    Stage stage{chunk.pass, chunk.tags};
    for (const size_t tag : parts) stage.second[tag] = kNoTag;
    stage.second[spans] = kNoTag;
    return stage;
  };
  const std::vector<ChunkCost> costs = chunk_costs(dag);
  std::set<Stage> in_parts;
  std::map<std::pair<Stage, std::vector<int32_t>>, size_t> most;  // by variants, too
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    if (is_part(chunk)) {
      in_parts.insert(stage_of(chunk));
      continue;
    }
    const auto [known, is_new] = most.try_emplace({stage_of(chunk), chunk.variants}, c);
    if (costs[c].flops > costs[known->second].flops) known->second = c;
  }
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    if (task.kind != InstructionKind::kCompute || !is_ordered(task.pass)) continue;
    const Chunk& chunk = dag.chunks[task.chunk.index()];
    const Stage stage = stage_of(chunk);
    if (in_parts.contains(stage) &&
        (is_part(chunk) || most.at({stage, chunk.variants}) != task.chunk.index()))
      tasks[static_cast<size_t>(task.cell)].emplace_back(t);
  }
  return tasks;
}

Result<std::vector<ComputeOrder>> apply_order(const Dag& dag, const Strategy& strategy,
                                              const Variables& variables, Explanations& out) {
  const std::vector<Order>& orders = strategy.orders;
  std::vector<ComputeOrder> result;
  if (orders.empty()) return result;
  if (orders.size() > 1)
    return fail(orders[1].at, "order: the order is already given at {}",
                line_of(orders[0].at, orders[1].at));
  const Order& order = orders.front();
  if (order.policy) return result;
  PIPER_ASSIGN(const OrderPlaces places, OrderPlaces::make(dag, order));
  auto tasks = ordered_tasks(dag);
  const auto of_parts = tasks_of_parts(dag, strategy);
  for (size_t cell = 0; cell < tasks.size(); ++cell)
    std::erase_if(tasks[cell],
                  [&](TaskId id) { return std::ranges::binary_search(of_parts[cell], id); });
  std::vector<std::vector<std::string>> lines(dag.cells.size());
  const auto order_cell = [&](size_t cell) -> Result<ComputeOrder> {
    PIPER_ASSIGN(const std::vector<OrderItem> items,
                 expand_order(order, scope_of(dag, cell, places, variables)));
    CellOrder taker(dag, strategy, static_cast<int32_t>(cell), places.name(cell), tasks[cell]);
    PIPER_ASSIGN(ComputeOrder compute, taker.run(items));
    lines[cell].push_back(taker.text(compute));
    for (const std::string& item : taker.absent())
      lines[cell].push_back(fmt::format("{} has nothing to do for '{}'", places.name(cell), item));
    return compute;
  };
  std::vector<Result<ComputeOrder>> made(dag.cells.size(), ComputeOrder());
  in_parallel(made.size(), [&](size_t cell) { made[cell] = order_cell(cell); });
  Explanation report{order.at, "order", {}};
  for (size_t cell = 0; cell < made.size(); ++cell) {
    PIPER_ASSIGN(ComputeOrder compute, std::move(made[cell]));
    if (!of_parts[cell].empty() && (!compute.overlaps.empty() || !compute.body.empty()))
      return fail(order.at, "not supported: pairs ('&') beside parts that 'place' puts on devices");
    result.push_back(std::move(compute));
    report.lines.insert(report.lines.end(), lines[cell].begin(), lines[cell].end());
  }
  size_t count = 0;
  for (const auto& of_cell : of_parts) count += of_cell.size();
  if (count > 0)
    report.lines.push_back(fmt::format(
        "{} tasks of parts, and of what puts them together, run between these when their data are "
        "there",
        count));
  out.push_back(std::move(report));
  return result;
}

void give_streams(Dag& dag, const std::vector<ComputeOrder>& order, Explanations& out) {
  std::vector<bool> second(dag.tasks.size());  // a computation of such a half
  bool any = false;
  for (const ComputeOrder& cell : order)
    for (const int32_t at : cell.apart) {
      const Overlap& pair = cell.overlaps[static_cast<size_t>(at)];
      for (int32_t p = pair.second; p < pair.end; ++p) {
        const int32_t task = cell.body.empty() ? p : cell.body[static_cast<size_t>(p)];
        second[cell.tasks[static_cast<size_t>(task)].index()] = any = true;
      }
    }
  if (!any) return;
  std::map<int32_t, std::pair<int32_t, int64_t>> beside;  // by stream: the other, what is on it
  for (Task& task : dag.tasks) {
    if (!task.within.valid() || task.stream == 0 || !second[task.within.index()]) continue;
    const auto [known, is_new] = beside.try_emplace(task.stream);
    if (is_new) {
      const TaskStream like = dag.streams[static_cast<size_t>(task.stream)];
      known->second.first = stream_of(dag, like.name + ".second");
      TaskStream& made = dag.streams[static_cast<size_t>(known->second.first)];
      made.priority = like.priority, made.sms = like.sms;
    }
    task.stream = known->second.first;
    ++known->second.second;
  }
  std::vector<std::string>& lines = out.back().lines;
  for (const auto& [stream, other] : beside)
    lines.push_back(fmt::format("'&&': {} collectives of second halves are on '{}', not '{}'",
                                other.second, dag.streams[static_cast<size_t>(other.first)].name,
                                dag.streams[static_cast<size_t>(stream)].name));
  if (beside.empty())
    lines.push_back("note: '&&' pairs halves without collectives on a stream: '&' says the same");
}

}  // namespace piper
