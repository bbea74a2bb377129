#include "engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace piper::sim {
namespace {

bool is_message(InstructionKind kind) {
  return kind == InstructionKind::kSend || kind == InstructionKind::kRecv;
}

}  // namespace

// ---- What hosts do ------------------------------------------------------------------------------

int32_t Engine::add_stream(int64_t rank) {
  Host& host = hosts_[static_cast<size_t>(rank)];
  streams_.push_back({rank, next_line_++, host.streams++, {}, {}});
  return static_cast<int32_t>(streams_.size() - 1);
}

int32_t Engine::add_event() {
  recorded_.push_back(-1);
  return static_cast<int32_t>(recorded_.size() - 1);
}

int32_t Engine::add_communicator(const std::string& key, std::vector<int64_t> ranks) {
  const auto [place, fresh] = by_key_.try_emplace(key, static_cast<int32_t>(communicators_.size()));
  if (fresh) {
    Communicator& made = communicators_.emplace_back();
    made.queued.resize(ranks.size());
    made.ranks = std::move(ranks);
  }
  return place->second;
}

void Engine::queue(int32_t stream, Work work) {
  Stream& on = streams_[static_cast<size_t>(stream)];
  Host& host = hosts_[static_cast<size_t>(on.rank)];
  ++own_time(host.clock, host.line);
  work.host = host.clock;
  if (work.kind == Work::kMeet)
    communicators_[static_cast<size_t>(work.communicator)].queued[work.member].push_back(stream);
  on.queue.push_back(std::move(work));
}

void Engine::record(int32_t stream, int32_t event, const char* label) {
  Work work;
  work.kind = Work::kRecord;
  work.label = label;
  work.record = recorded_[static_cast<size_t>(event)] = records_++;
  queue(stream, std::move(work));
}

// Waits as a device does: for what the event records now; an event that was never recorded is
// complete.
void Engine::wait(int32_t stream, int32_t event, const char* label) {
  const int64_t record = recorded_[static_cast<size_t>(event)];
  if (record < 0) {
    const Stream& on = streams_[static_cast<size_t>(stream)];
    return fault(
        fmt::format("{}: {} waits for an event that was never recorded", where(on), label));
  }
  Work work;
  work.kind = Work::kWait;
  work.label = label;
  work.record = record;
  queue(stream, std::move(work));
}

Status Engine::finish(int64_t rank, int32_t event) {
  const int64_t record = recorded_[static_cast<size_t>(event)];
  if (record < 0)
    fault(fmt::format("the host of rank {} waits for an event that was never recorded", rank));
  while (!fault_ && !done_.contains(record))
    if (!step()) fault_ = deadlock();
  if (fault_) return *fault_;
  Host& host = hosts_[static_cast<size_t>(rank)];
  join(host.clock, done_.at(record));
  return ok_status();
}

Status Engine::drain() {
  while (!fault_ && step()) {
  }
  const bool is_left = std::any_of(streams_.begin(), streams_.end(),
                                   [](const Stream& one) { return !one.queue.empty(); });
  if (!fault_ && is_left) fault_ = deadlock();
  if (fault_) return *fault_;
  return ok_status();
}

void Engine::host_uses(int64_t rank, const Range& range, const char* label) {
  Host& host = hosts_[static_cast<size_t>(rank)];
  const Use by{host.line, ++own_time(host.clock, host.line), label};
  if (const auto other = shadow_.use(range, by, host.clock))
    fault(fmt::format("race: {} and {} without an order between them", name(by), name(*other)));
}

// ---- What devices do ----------------------------------------------------------------------------

bool Engine::stands_first(const Communicator& communicator, size_t member) const {
  const std::deque<int32_t>& queued = communicator.queued[member];
  if (queued.empty()) return false;
  const Work& head = streams_[static_cast<size_t>(queued.front())].queue.front();
  return head.kind == Work::kMeet &&
         &communicators_[static_cast<size_t>(head.communicator)] == &communicator;
}

bool Engine::is_ready(int32_t stream) const {
  const Stream& on = streams_[static_cast<size_t>(stream)];
  if (on.queue.empty()) return false;
  const Work& head = on.queue.front();
  if (head.kind == Work::kWait) return done_.contains(head.record);
  if (head.kind != Work::kMeet) return true;
  const Communicator& met = communicators_[static_cast<size_t>(head.communicator)];
  if (head.member != 0 || met.queued[0].front() != stream) return false;  // the first one speaks
  for (size_t m = 0; m < met.ranks.size(); ++m)
    if (!stands_first(met, m)) return false;
  return true;
}

bool Engine::step() {
  std::vector<int32_t> ready;
  for (size_t s = 0; s < streams_.size(); ++s)
    if (is_ready(static_cast<int32_t>(s))) ready.push_back(static_cast<int32_t>(s));
  if (ready.empty()) return false;
  run(ready[random_() % ready.size()]);
  return true;
}

void Engine::run(int32_t stream) {
  Stream& on = streams_[static_cast<size_t>(stream)];
  const Work& head = on.queue.front();
  if (head.kind == Work::kMeet) return meet(communicators_[static_cast<size_t>(head.communicator)]);
  join(on.clock, head.host);
  ++own_time(on.clock, on.line);
  switch (head.kind) {
    case Work::kRun:
      use(on, head);
      head.run();
      break;
    case Work::kRecord:
      done_[head.record] = on.clock;
      break;
    case Work::kWait:
      join(on.clock, done_.at(head.record));
      break;
    case Work::kMeet:
      break;
  }
  on.queue.pop_front();
}

void Engine::meet(Communicator& communicator) {
  Clock together;
  std::vector<Stream*> on;
  std::vector<const Collective*> brought;
  for (const std::deque<int32_t>& queued : communicator.queued) {
    on.push_back(&streams_[static_cast<size_t>(queued.front())]);
    const Work& head = on.back()->queue.front();
    brought.push_back(&head.brings);
    join(on.back()->clock, head.host);
    ++own_time(on.back()->clock, on.back()->line);
    join(together, on.back()->clock);
  }
  const Work& first = on[0]->queue.front();
  for (Stream* one : on) {
    const Work& head = one->queue.front();
    one->clock = together;
    use(*one, head);
    const bool differs = is_message(first.what) ? bytes_of(head.parts) != bytes_of(first.parts)
                                                : !are_alike(head.brings, first.brings);
    if (differs)
      fault(fmt::format("{}: {} brings something else than {}: {}", where(*one), head.label,
                        where(*on[0]), first.label));
  }
  ShareScratch scratch{std::vector<std::byte*>(on.size()),
                       std::vector<const std::byte*>(on.size())};
  if (!fault_ && is_message(first.what))
    copy_parts(first.parts, on[1]->queue.front().parts,
               [](std::byte* to, const std::byte* from, int64_t size) {
                 std::memcpy(to, from, static_cast<size_t>(size));
               });
  else if (!fault_)
    for (size_t m = 0; m < on.size(); ++m) do_share(brought, m, scratch);
  for (Stream* one : on) one->queue.pop_front();
  for (std::deque<int32_t>& queued : communicator.queued) queued.pop_front();
}

// ---- What is wrong ------------------------------------------------------------------------------

void Engine::use(Stream& stream, const Work& work) {
  const Use by{stream.line, own_time(stream.clock, stream.line), work.label};
  for (const Range& range : work.ranges)
    if (const auto other = shadow_.use(range, by, stream.clock))
      fault(fmt::format("race: {} and {} without an order between them", name(by), name(*other)));
}

void Engine::fault(std::string what) {
  if (!fault_) fault_ = fail("{}", what).with_code(ExitCode::kPlan);
}

std::string Engine::where(const Stream& stream) const {
  return fmt::format("rank {}, stream {}", stream.rank, stream.number);
}

std::string Engine::name(const Use& use) const {
  for (const Stream& one : streams_)
    if (one.line == use.line) return fmt::format("{} ({})", use.label, where(one));
  for (size_t rank = 0; rank < hosts_.size(); ++rank)
    if (hosts_[rank].line == use.line)
      return fmt::format("{} (the host of rank {})", use.label, rank);
  return use.label;
}

Error Engine::deadlock() const {
  Error error = fail("deadlock: no stream can go on").with_code(ExitCode::kPlan);
  for (const Stream& one : streams_)
    if (!one.queue.empty())
      error.notes.push_back(fmt::format(
          "{} stands at {}{}", where(one), one.queue.front().label,
          one.queue.front().kind == Work::kWait ? ", which waits for another stream" : ""));
  return error;
}

}  // namespace piper::sim
