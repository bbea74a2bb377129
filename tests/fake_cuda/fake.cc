#include "fake.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace piper::fake {

int64_t variable(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

CuContext*& current_context() {
  static thread_local CuContext* context = nullptr;
  return context;
}

namespace {

constexpr int kBadEnd = 86;

// Returns whether NCCL lets a call that is not captured be queued while a graph runs that contains
// calls of the same communicator.
bool mixes_graphs() { return variable("NCCL_GRAPH_MIXING_SUPPORT", 1) != 0; }

void at_exit(int status, void*) {
  if (variable("FAKE_CUDA_REPORT", 1) == 0) return;
  if (State::get().report() == 0 || status != 0) return;
  std::fflush(nullptr);
  _exit(kBadEnd);
}

}  // namespace

State::State()
    : is_checked(variable("FAKE_CUDA_CHECK", 0) != 0),
      random(static_cast<uint64_t>(variable("FAKE_CUDA_SEED", 1))) {
  on_exit(at_exit, nullptr);
}

// Never destroyed: calls may come until the very end.
State& State::get() {
  static State& state = *new State;
  return state;
}

void State::misuse(const char* call, const std::string& what) {
  ++misused_;
  fmt::print(stderr, "fake cuda: {}: {}\n", call, what);
}

int64_t State::calls_for_memory() const {
  constexpr std::string_view kNames[] = {
      "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",    "cuMemRelease",  "cuMemMap",
      "cuMemUnmap",          "cuMemAlloc_v2",    "cuMemHostAlloc", "cuMemFreeHost", "cuMemFree_v2"};
  int64_t count = 0;
  for (const std::string_view name : kNames)
    if (const auto called = calls_of.find(name); called != calls_of.end()) count += called->second;
  return count;
}

int State::report() {
  const std::lock_guard lock(mutex);
  failure_.clear();
  int64_t left = misused_;
  const auto lost = [&](const std::string& what) {
    ++left;
    fmt::print(stderr, "fake cuda: never released: {}\n", what);
  };
  for (const auto& object : objects_)
    if (object->is_alive && !dynamic_cast<CuFunction*>(object.get()) &&
        !dynamic_cast<CuResourceDesc*>(object.get()))
      lost(std::string("a ") + object->kind());
  for (const auto& [at, range] : memory)
    lost(fmt::format("{} bytes of {} memory", range.bytes, range.is_host ? "host" : "device"));
  for (const auto& [at, bytes] : addresses) lost(fmt::format("{} bytes of addresses", bytes));
  for (const auto& [handle, file] : pages) lost(fmt::format("{} bytes of pages", file.bytes));
  const char* const set = std::getenv("FAKE_CUDA_COUNT");
  const std::string_view counted = set ? set : "";
  if (counted == "1")
    fmt::print(stderr, "fake cuda: {} calls, {} of them for memory, {} windows, {} registrations\n",
               calls, calls_for_memory(), fake_cuda_calls("ncclCommWindowRegister"),
               fake_cuda_calls("ncclCommRegister"));
  else if (!counted.empty())
    fmt::print(stderr, "fake cuda: {} calls\n", fake_cuda_calls(set));
  return static_cast<int>(std::min<int64_t>(left, INT32_MAX));
}

// ---- Memory -------------------------------------------------------------------------------------

const Range* State::range_of(uintptr_t at) const {
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return nullptr;
  const auto& [begin, range] = *std::prev(next);
  return at - begin < range.bytes ? &range : nullptr;
}

void State::add_range(uintptr_t at, const Range& range, const char* name) {
  memory[at] = range;
  if (is_checked)
    watched.watch(name, reinterpret_cast<void*>(at), static_cast<int64_t>(range.bytes),
                  range.is_host);
}

void State::drop_range(uintptr_t at) {
  for (const NcclWindow* each : registered)
    if (each->is_alive && each->comm->is_alive && range_of(at) == range_of(each->at))
      misuse("memory", "it is released while a communicator has it");
  memory.erase(at);
  watched.forget(reinterpret_cast<void*>(at));
}

std::string State::reach(uintptr_t at, int device) const {
  const Range* range = range_of(at);
  if (!range || range->is_host || range->device == device) return "";
  const bool is_let =
      range->is_mapped ? range->readers.contains(device) : peers.contains({device, range->device});
  return is_let
             ? ""
             : fmt::format("device {} has no access to memory of device {}", device, range->device);
}

std::string State::touch(uintptr_t at, size_t bytes, emulator::Access access) {
  const Range* range = range_of(at);
  if (!range) return "";
  auto begin = std::prev(memory.upper_bound(at))->first;
  if (at - begin + bytes > range->bytes)
    return fmt::format("{} bytes from byte {} of {} bytes of memory", bytes, at - begin,
                       range->bytes);
  if (!is_checked || range->is_host) return "";
  return watched.touch(reinterpret_cast<void*>(at), static_cast<int64_t>(bytes), access);
}

// ---- Queues -------------------------------------------------------------------------------------

int State::queue(const char* call, CuStream* stream, Work work) {
  return begin(call, stream, [work = std::move(work)]() -> Result<std::shared_ptr<Point>> {
    PIPER_TRY(work());
    return std::shared_ptr<Point>();
  });
}

int State::begin(const char* call, CuStream* stream, Begin work) {
  if (!check(call, stream)) return kInvalidHandle;
  if (!current_context() || current_context()->root() != stream->context->root()) {
    misuse(call, "the stream's context is not current");
    return kInvalidContext;
  }
  if (stream->capture) {
    CuGraph& graph = *stream->capture;
    graph.nodes.push_back({std::move(work), stream->last});
    stream->last = {graph.nodes.size() - 1};
    return kOk;
  }
  stream->queue.push_back({std::move(work), nullptr, nullptr});
  return failure();
}

bool State::is_in_running_graph(const NcclComm* comm) const {
  return std::any_of(objects_.begin(), objects_.end(), [&](const auto& object) {
    const auto* graph = dynamic_cast<const CuGraphExec*>(object.get());
    if (!graph || !graph->is_alive) return false;
    const bool runs = graph->queued > 0 || (graph->launched && !graph->launched->is_done);
    return runs && std::any_of(graph->calls.begin(), graph->calls.end(),
                               [&](const auto& each) { return each.first == comm; });
  });
}

int State::communicate(const char* call, NcclComm* comm, CuStream* stream, Begin work) {
  const int64_t number = ++communicated_;
  if (stream->capture) {
    stream->capture->calls.emplace_back(comm, number);
  } else {
    if (!mixes_graphs() && is_in_running_graph(comm))
      misuse(call,
             "a graph with calls of the communicator still runs, and "
             "NCCL_GRAPH_MIXING_SUPPORT is 0");
    comm->expected.push_back(number);
  }
  return begin(call, stream, [=, work = std::move(work)]() -> Result<std::shared_ptr<Point>> {
    if (!comm->is_alive) return std::shared_ptr<Point>();
    if (comm->is_aborted) {
      std::erase(comm->expected, number);
      return std::shared_ptr<Point>();
    }
    if (comm->expected.empty() || comm->expected.front() != number)
      return fail("a communicator's calls begin in another order than they were made in");
    comm->expected.pop_front();
    PIPER_ASSIGN(std::shared_ptr<Point> over, work());
    comm->under_way.push_back(over);
    return over;
  });
}

void State::end(const char* call, NcclComm* comm) {
  for (const auto& object : objects_) {
    const auto* graph = dynamic_cast<const CuGraphExec*>(object.get());
    if (graph && graph->is_alive &&
        std::any_of(graph->calls.begin(), graph->calls.end(),
                    [&](const auto& each) { return each.first == comm; }))
      misuse(call, "a graph has calls of the communicator");
  }
  for (const std::shared_ptr<Point>& over : comm->under_way) over->is_done = true;
  comm->is_alive = false;
}

// ---- Graphs that run ----------------------------------------------------------------------------

void Launch::end(size_t node) {
  for (size_t n = node + 1; n < nodes->size(); ++n)
    if ((*nodes)[n].after.contains(node) && --waits[n] == 0) able.push_back(n);
  if (--left == 0) done->is_done = true;
}

void State::expect(const CuGraphExec& graph) {
  for (const auto& [comm, number] : graph.calls) comm->expected.push_back(number);
}

std::shared_ptr<Point> State::launch(const CuGraphExec& graph) {
  Launch made{graph.nodes, {}, {}, {}, graph.nodes->size(), std::make_shared<Point>()};
  for (size_t n = 0; n < graph.nodes->size(); ++n) {
    made.waits.push_back((*graph.nodes)[n].after.size());
    if (made.waits[n] == 0) made.able.push_back(n);
  }
  made.done->is_done = made.left == 0;
  launches_.push_back(made);
  return made.done;
}

// ---- What runs next -----------------------------------------------------------------------------

// Null: it is done, or nothing runs any more.
std::shared_ptr<Point> State::start(const Begin& work) {
  if (!work || !failure_.empty()) return nullptr;
  Result<std::shared_ptr<Point>> begun = work();
  if (begun) return *begun;
  fail_work(begun.error().message);
  return nullptr;
}

void State::fail_work(const std::string& what) {
  failure_ = what;
  misuse("work on a stream", what);
}

// The work at the head of a stream, or of a graph, drawn from all that need not wait.
bool State::run_one() {
  if (poll && poll(*this)) return true;
  std::erase_if(launches_, [](const Launch& each) { return each.left == 0; });
  std::vector<CuStream*> able;
  for (CuStream* stream : streams) {
    if (stream->queue.empty()) continue;
    const auto& after = stream->queue.front().after;
    if (!after || after->is_done || !failure_.empty()) able.push_back(stream);
  }
  size_t count = able.size();
  for (Launch& launch : launches_) {
    for (const auto& [node, over] : std::exchange(launch.under_way, {}))
      if (over->is_done || !failure_.empty())
        launch.end(node);
      else
        launch.under_way.emplace_back(node, over);
    count += launch.able.size();
  }
  if (count == 0) return false;
  size_t drawn = random() % count;
  if (drawn >= able.size()) {
    drawn -= able.size();
    auto launch = launches_.begin();
    for (; drawn >= launch->able.size(); ++launch) drawn -= launch->able.size();
    const size_t node = launch->able[drawn];
    launch->able.erase(launch->able.begin() + static_cast<ptrdiff_t>(drawn));
    if (const auto over = start((*launch->nodes)[node].begin))
      launch->under_way.emplace_back(node, over);
    else
      launch->end(node);
    return true;
  }
  CuStream* stream = able[drawn];
  const Queued next = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (const auto over = start(next.begin)) {
    stream->queue.push_front({nullptr, over, next.done});
  } else if (next.done) {
    next.done->is_done = true;
    next.done->milliseconds = clock += 0.5;
  }
  return true;
}

int State::run_until(const std::function<bool()>& is_done) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!is_done()) {
    if (run_one()) continue;
    // Other threads may still queue what is waited for, if ranks communicate.
    if (!communicates || std::chrono::steady_clock::now() > patience) {
      misuse("a wait", "what is waited for never comes");
      return kLaunchFailed;
    }
    mutex.unlock();
    std::this_thread::yield();
    mutex.lock();
  }
  return failure();
}

bool State::is_capturing() const {
  return std::any_of(capturing_.begin(), capturing_.end(),
                     [](const auto& each) { return each.second == std::this_thread::get_id(); });
}
void State::break_captures() {
  for (const auto& [graph, thread] : capturing_)
    if (thread == std::this_thread::get_id()) graph->is_broken = true;
}
void State::set_capturing(CuGraph* graph, bool capturing) {
  if (capturing)
    capturing_[graph] = std::this_thread::get_id();
  else
    capturing_.erase(graph);
}

// ---- Calls --------------------------------------------------------------------------------------

Call::Call(const char* of, bool needs_start) : name(of), state(State::get()), lock_(state.mutex) {
  static const int64_t fails = variable("FAKE_CUDA_FAIL", 0);
  static const char* const stops = std::getenv("FAKE_CUDA_STOP");
  if (stops && std::strcmp(stops, of) == 0) raise(SIGSTOP);
  static const char* fails_first = std::getenv("FAKE_CUDA_FAIL_FIRST");
  const bool is_named = fails_first && std::strcmp(fails_first, of) == 0;
  if (is_named) fails_first = nullptr;
  ++state.calls_of[name];
  const std::string_view text = name;
  const bool captures =
      state.is_capturing() || text.starts_with("cuGraph") || text == "cuStreamBeginCapture_v2";
  const bool is_drawn =
      state.fails_call_in > 0 && state.fails_call == text && --state.fails_call_in == 0;
  state.call_has_failed |= is_drawn;
  if (++state.calls == fails || is_named || is_drawn ||
      (captures && ++state.captured_calls == state.fails_captured)) {
    code = kUnknown;
    state.has_failed = true;
  } else if (needs_start && !state.is_ready) {
    code = kNotInitialized;
  }
}

}  // namespace piper::fake

extern "C" {
int fake_cuda_report() { return piper::fake::State::get().report(); }
int fake_cuda_is_for_rdma(uintptr_t at) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  const piper::fake::Range* range = state.range_of(at);
  if (!range) return -1;
  return range->is_for_rdma ? 1 : 0;
}
int fake_cuda_multiprocessors(const piper::cuda::CuStream* stream, int* first) {
  *first = static_cast<int>(stream->part.first);
  return static_cast<int>(stream->part.count);
}
int64_t fake_cuda_calls(const char* name) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  int64_t count = 0;
  for (auto at = state.calls_of.lower_bound(name);
       at != state.calls_of.end() && at->first.starts_with(name); ++at)
    count += at->second;
  return count;
}
int64_t fake_cuda_calls_of(const char* name) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  const auto found = state.calls_of.find(name);
  return found == state.calls_of.end() ? 0 : found->second;
}
int fake_cuda_fail_call(const char* name, int64_t number) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  state.fails_call = name;
  state.fails_call_in = number;
  return std::exchange(state.call_has_failed, false) ? 1 : 0;
}
void fake_cuda_seed(int64_t seed) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  state.random.seed(static_cast<uint64_t>(seed));
}
int64_t fake_cuda_fail_captured(int64_t number) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  state.fails_captured = number;
  return std::exchange(state.captured_calls, 0);
}
}
