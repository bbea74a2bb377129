// The tasks that an order may take, by pass, stage and microbatch.
#include "order_pool.h"

#include <algorithm>
#include <set>

#include "match.h"
#include "piper/planner/sharding.h"

namespace piper {
namespace {

std::string list(const std::set<int64_t>& values) {
  if (values.size() > 8) return fmt::format("{} to {}", *values.begin(), *values.rbegin());
  std::string text;
  for (int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
  return text;
}

ptrdiff_t place_of_tag(const Dag& dag, const std::string& tag) {
  const auto at = std::find(dag.region_tags.begin(), dag.region_tags.end(), tag);
  return at == dag.region_tags.end() ? -1 : at - dag.region_tags.begin();
}
bool is_half_or_whole(TaskPass pass) { return is_backward(pass) && pass != TaskPass::kR; }

}  // namespace

std::vector<std::vector<TaskId>> ordered_tasks(const Dag& dag) {
  std::vector<std::vector<TaskId>> tasks(dag.cells.size());
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    const bool named = task.region.valid() && task.kind != InstructionKind::kAllGather;
    if (named || (task.kind == InstructionKind::kCompute && is_ordered(task.pass)))
      tasks[static_cast<size_t>(task.cell)].push_back(TaskId(t));
  }
  return tasks;
}

OrderPool::OrderPool(const Dag& dag, int32_t cell, const std::vector<TaskId>& tasks,
                     const Strategy& strategy)
    : dag_(dag), micro_tag_(strategy.micro_name()), spans_(place_of_tag(dag, kSpanOfParts)) {
  for (const Split& split : strategy.splits) {
    const ptrdiff_t tag = split.of_batch() ? -1 : place_of_tag(dag, split.as);
    if (tag >= 0 && !std::ranges::count(within_, tag)) within_.push_back(tag);
    if (tag < 0 && split.of_region()) parts_.push_back(split.as);
    if (split.of_tokens) tokens_ = tag, chunks_ = tag < 0 ? 0 : split.into;
    if (split.of_samples) shares_ = tag;
  }
  if (spans_ >= 0) within_.push_back(spans_);
  std::ranges::sort(within_);
  std::set<int32_t> taken;  // chunks of tasks
  for (TaskId id : tasks) taken.insert(dag.tasks[id.index()].chunk.value);
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    std::vector<int32_t> stage = stage_of(chunk);
    const bool known = std::find(regions_.begin(), regions_.end(), stage) != regions_.end();
    if (chunk.cell == cell && chunk.pass == TaskPass::kF && !known &&
        taken.contains(static_cast<int32_t>(c)))
      regions_.push_back(std::move(stage));
  }
  std::map<std::vector<int32_t>, int32_t> local;
  for (size_t i = 0; i < regions_.size(); ++i) local[regions_[i]] = static_cast<int32_t>(i);
  for (TaskId id : tasks) {
    const auto it = local.find(stage_of(chunk_of(dag_.tasks[id.index()])));
    entries_.push_back({id, it == local.end() ? -1 : it->second});
  }
  // What belongs to the whole step comes after what belongs to a microbatch.
  std::ranges::stable_sort(entries_, {}, [&](const Entry& each) {
    return std::pair(task(each).micro < 0, task(each).micro);
  });
  std::map<Unit, size_t> weights, repeats;
  if (tokens_ >= 0) sort_like_backwards();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const TaskPass pass = task(entries_[i]).pass;
    if (pass == TaskPass::kBW || pass == TaskPass::kR)
      (pass == TaskPass::kR ? repeats : weights)[unit_of(entries_[i])] = i;
  }
  for (Entry& entry : entries_) {
    const auto again = repeats.find(unit_of(entry));
    if (is_half_or_whole(task(entry).pass) && again != repeats.end())
      entry.again = static_cast<int32_t>(again->second);
    if (task(entry).pass != TaskPass::kBI) continue;
    const auto weight = weights.find(unit_of(entry));
    if (weight == weights.end()) continue;
    entry.partner = static_cast<int32_t>(weight->second);
    entries_[weight->second].alone = false;
  }
}

// Chunks of tokens go backwards from the last one; weight halves, what runs again and messages do
// as the backwards that they belong to, though none of them needs another.
void OrderPool::sort_like_backwards() {
  std::map<Unit, size_t> backwards;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (const TaskPass pass = task(entries_[i]).pass; pass == TaskPass::kB || pass == TaskPass::kBI)
      backwards[unit_of(entries_[i])] = i;
  std::vector<std::pair<size_t, Entry>> placed;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const TaskPass pass = task(entries_[i]).pass;
    const auto own = backwards.find(unit_of(entries_[i]));
    const bool follows =
        pass == TaskPass::kBW || pass == TaskPass::kR || name_of_item(task(entries_[i])) == "S";
    placed.emplace_back(follows && own != backwards.end() ? own->second : i, entries_[i]);
  }
  std::ranges::stable_sort(placed, {}, [](const auto& entry) { return entry.first; });
  std::ranges::transform(placed, entries_.begin(), [](const auto& entry) { return entry.second; });
}

std::vector<int32_t> OrderPool::stage_of(const Chunk& chunk) const {
  std::vector<int32_t> tags = chunk.tags;
  for (size_t w = within_.size(); w-- > 0;) tags.erase(tags.begin() + within_[w]);
  return tags;
}

OrderPool::Unit OrderPool::unit_of(const Entry& entry) const {
  std::vector<int32_t> within;
  for (const ptrdiff_t tag : within_) within.push_back(tag_of(entry, tag));
  return {entry.chunk, std::move(within), task(entry).micro};
}

int32_t OrderPool::part_of(const Task& task) const {
  for (const ptrdiff_t tag : within_)
    if (const int32_t part = chunk_of(task).tags[static_cast<size_t>(tag)];
        tag != spans_ && part != kNoTag)
      return part;
  return kNoTag;
}

// Chunks of tokens and shares of samples are no parts: each has the parts of its own.
bool OrderPool::tells_parts(ptrdiff_t tag) const {
  return tag != spans_ && tag != tokens_ && tag != shares_ && std::ranges::count(within_, tag) > 0;
}

bool OrderPool::is_in_part(const Entry& entry) const {
  return std::ranges::any_of(
      within_, [&](ptrdiff_t tag) { return tells_parts(tag) && tag_of(entry, tag) != kNoTag; });
}

// Where BI and BW are tasks, B is a BI with its BW, or the one of them that there is.
bool OrderPool::has_pass(const Entry& entry, const std::string& pass) const {
  const TaskPass is = task(entry).pass;
  if (pass == "B") return is_half_or_whole(is) && (is != TaskPass::kBW || entry.alone);
  return pass == name_of_item(task(entry));
}

bool OrderPool::is_taken(const Entry& entry, const std::string& pass) const {
  const bool other_half = pass == "B" && entry.partner >= 0 &&
                          entries_[static_cast<size_t>(entry.partner)].taken_by >= 0;
  return entry.taken_by >= 0 || other_half;
}

int64_t OrderPool::value_of(const Entry& entry, const std::string& tag) const {
  if (tag == micro_tag_) return task(entry).micro;  // -1 of an update
  if (tag == "chunk") return entry.chunk;
  const auto it = std::find(dag_.region_tags.begin(), dag_.region_tags.end(), tag);
  if (it == dag_.region_tags.end()) return kNoTag;  // parts of a split into one
  return chunk_of(task(entry)).tags[static_cast<size_t>(it - dag_.region_tags.begin())];
}

Status OrderPool::check_tag(const std::string& tag, const OrderItem& item) const {
  std::vector<std::string> names = tags_to_name(dag_);
  names.insert(names.end(), parts_.begin(), parts_.end());
  names.insert(names.end(), {micro_tag_, "chunk"});
  if (std::find(names.begin(), names.end(), tag) != names.end()) return ok_status();
  return fail(item.at, "order: tasks have no tag '{}'{}", tag, did_you_mean(tag, names))
      .with_note("the tags are " + join(names, ", "));
}

// A value that no task of the cell has is a mistake, also with '?'.
Status OrderPool::check_values(const OrderItem& item) const {
  for (const auto& [tag, wanted] : item.tags) {
    std::set<int64_t> there;
    for (const Entry& entry : entries_)
      if (const int64_t value = value_of(entry, tag);
          value != kNoTag && (tag != micro_tag_ || value >= 0))
        there.insert(value);
    if (there.count(wanted) > 0) continue;
    Error error =
        fail(item.at, "order: no task of this device has {}={}", tag, wanted)
            .with_note(there.empty() ? fmt::format("none of its tasks has a {}", tag)
                                     : fmt::format("its tasks have {} {}", tag, list(there)));
    if (tag == "chunk") error = with_regions(std::move(error), dag_);
    if (tag == micro_tag_ && wanted >= dag_.microbatches)
      error.notes.push_back(fmt::format(
          "help: '- split: {{dim: batch, into: {}}}' makes that many microbatches", wanted + 1));
    return error;
  }
  return ok_status();
}

Result<OrderPool::Queue*> OrderPool::queue_of(const OrderItem& item) {
  Key key{item.pass, {}};
  std::vector<int64_t> wanted;
  for (const auto& [tag, value] : item.tags) {
    key.second.push_back(tag);
    wanted.push_back(value);
  }
  auto [queues, is_new] = queues_.try_emplace(key);
  if (is_new) {
    for (const auto& [tag, value] : item.tags) PIPER_TRY(check_tag(tag, item));
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!has_pass(entries_[i], item.pass)) continue;
      std::vector<int64_t> values;
      for (const std::string& tag : key.second) values.push_back(value_of(entries_[i], tag));
      queues->second[values].entries.push_back(static_cast<int32_t>(i));
    }
  }
  const auto queue = queues->second.find(wanted);
  if (queue != queues->second.end()) return &queue->second;
  PIPER_TRY(check_values(item));
  return &none_;
}

Result<Taken> OrderPool::take(const OrderItem& item, int32_t number) {
  PIPER_ASSIGN(Queue * queue, queue_of(item));
  while (queue->next < queue->entries.size() &&
         is_taken(entries_[static_cast<size_t>(queue->entries[queue->next])], item.pass))
    ++queue->next;
  if (queue->next == queue->entries.size()) return Taken{};
  Taken taken;
  for (const size_t entry : taken_with(static_cast<size_t>(queue->entries[queue->next]), item))
    if (entries_[entry].taken_by < 0) take_one(entries_[entry], item, number, taken);
  return taken;
}

std::vector<size_t> OrderPool::left_of(const Entry& next, const OrderItem& item,
                                       const std::vector<ptrdiff_t>& alike) const {
  const auto [first, end] = std::ranges::equal_range(
      entries_, task(next).micro, {}, [&](const Entry& each) { return task(each).micro; });
  std::vector<size_t> left;
  for (auto each = first; each != end; ++each) {
    const bool is_like = std::ranges::all_of(
        alike, [&](ptrdiff_t tag) { return tag < 0 || tag_of(*each, tag) == tag_of(next, tag); });
    if (is_like && each->chunk == next.chunk && has_pass(*each, item.pass) &&
        !is_taken(*each, item.pass))
      left.push_back(static_cast<size_t>(each - entries_.begin()));
  }
  return left;
}

std::vector<size_t> OrderPool::taken_with(size_t entry, const OrderItem& item) const {
  const Entry& next = entries_[entry];
  const auto names = [&](const auto& is) {
    return std::ranges::any_of(item.tags,
                               [&](const auto& tag) { return is(place_of_tag(dag_, tag.first)); });
  };
  const bool names_part = names([&](ptrdiff_t tag) { return tells_parts(tag); });
  const bool one_share = names_part || names([&](ptrdiff_t tag) { return tag == shares_; });
  if ((spans_ < 0 && (shares_ < 0 || one_share)) || task(next).micro < 0) return {entry};
  const std::vector<size_t> left = left_of(next, item, {tokens_, one_share ? shares_ : -1});
  if (!names_part) return left;
  const bool is_last = std::ranges::none_of(
      left, [&](size_t each) { return each != entry && is_in_part(entries_[each]); });
  std::vector<size_t> taken;
  for (const size_t each : left) {
    const bool before = tag_of(entries_[each], spans_) < tag_of(next, spans_);
    if (each == entry || (!is_in_part(entries_[each]) && (before || is_last)))
      taken.push_back(each);
  }
  return taken;
}

void OrderPool::take_one(Entry& entry, const OrderItem& item, int32_t number, Taken& taken) {
  entry.taken_by = number;
  if (entry.again >= 0) {
    Entry& again = entries_[static_cast<size_t>(entry.again)];
    if (again.taken_by < 0) taken.push_back(again.task), again.taken_by = number;
  }
  taken.push_back(entry.task);
  if (item.pass == "B" && entry.partner >= 0) {
    Entry& weight = entries_[static_cast<size_t>(entry.partner)];
    weight.taken_by = number;
    taken.push_back(weight.task);
  }
  if (item.pass != "U" && item.pass != "S") return;
  for (Entry& other : entries_)
    if (other.taken_by < 0 && has_pass(other, item.pass) && unit_of(other) == unit_of(entry))
      other.taken_by = number, taken.push_back(other.task);
}

std::string OrderPool::short_name(TaskId id, const std::string& pass) const {
  const Task& task = dag_.tasks[id.index()];
  const Chunk& chunk = chunk_of(task);
  std::string stage, part;
  if (regions_.size() > 1) {
    const ptrdiff_t tag = place_of_tag(dag_, "stage");
    const auto local = std::find(regions_.begin(), regions_.end(), stage_of(chunk));
    stage = std::to_string(tag < 0 ? static_cast<int32_t>(local - regions_.begin())
                                   : chunk.tags[static_cast<size_t>(tag)]);
  }
  if (const int32_t number = part_of(task); number != kNoTag) part = fmt::format(".{}", number);
  return fmt::format("{}{}{}{}", stage, pass.empty() ? name_of_item(task) : pass,
                     task.micro < 0 ? "" : std::to_string(task.micro), part);
}

bool OrderPool::has_none(const OrderItem& item) {
  const auto queue = queue_of(item);
  return queue && (*queue)->entries.empty();
}

int32_t OrderPool::last_taker(const OrderItem& item) {
  int32_t last = -1;
  const auto queue = queue_of(item);
  if (!queue) return last;
  for (int32_t entry : (*queue)->entries) {
    const Entry& one = entries_[static_cast<size_t>(entry)];
    last = std::max(last, one.taken_by);
    if (one.partner >= 0)
      last = std::max(last, entries_[static_cast<size_t>(one.partner)].taken_by);
  }
  return last;
}

std::string OrderPool::why_none(const OrderItem& item) {
  const auto queue = queue_of(item);
  if (!queue || (*queue)->entries.empty()) return "the device has no such task";
  std::vector<const Entry*> all;
  for (int32_t entry : (*queue)->entries) all.push_back(&entries_[static_cast<size_t>(entry)]);
  return fmt::format("the device has {} of them, and item {} took the last", count_items(all),
                     last_taker(item));
}

std::vector<TaskId> OrderPool::left() const {
  std::vector<TaskId> left;
  for (const bool update : {false, true})
    for (const Entry& entry : entries_)
      if (entry.taken_by < 0 && (task(entry).pass == TaskPass::kU) == update)
        left.push_back(entry.task);
  return left;
}

// An item takes a whole update, or all messages of a chunk and microbatch: these count once.
size_t OrderPool::count_items(const std::vector<const Entry*>& entries) const {
  size_t count = 0;
  std::set<std::pair<std::string_view, Unit>> joined;
  for (const Entry* each : entries) {
    const std::string_view name = name_of_item(task(*each));
    if ((name != "U" && name != "S") || joined.emplace(name, unit_of(*each)).second) ++count;
  }
  return count;
}

std::string OrderPool::count_passes(bool taken) const {
  std::vector<std::string> counts;
  for (const std::string_view pass : {"F", "R", "B", "BI", "BW", "S"}) {
    std::vector<const Entry*> all, some;
    for (const Entry& each : entries_) {
      if (name_of_item(task(each)) != pass) continue;
      all.push_back(&each);
      if (each.taken_by >= 0) some.push_back(&each);
    }
    if (!all.empty()) counts.push_back(fmt::format("{} {}", count_items(taken ? some : all), pass));
  }
  return join(counts, ", ");
}

}  // namespace piper
