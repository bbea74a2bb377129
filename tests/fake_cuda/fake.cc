#include "fake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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

int State::report() {
  const std::lock_guard lock(mutex);
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
  for (const auto& [handle, file] : pages) lost(fmt::format("{} bytes of pages", file.second));
  if (variable("FAKE_CUDA_COUNT", 0) != 0) fmt::print(stderr, "fake cuda: {} calls\n", calls);
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
  memory.erase(at);
  watched.forget(reinterpret_cast<void*>(at));
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
  if (!check(call, stream)) return kInvalidHandle;
  if (!current_context() || current_context() != stream->context) {
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

// The work at the head of a stream, drawn from all that need not wait.
bool State::run_one() {
  std::vector<CuStream*> able;
  for (CuStream* stream : streams) {
    if (stream->queue.empty()) continue;
    const auto& after = stream->queue.front().after;
    if (!after || after->is_done) able.push_back(stream);
  }
  if (able.empty()) return false;
  CuStream* stream = able[random() % able.size()];
  const Queued next = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (next.work && failure_.empty()) {
    if (Status ran = next.work(); !ran) {
      failure_ = ran.error().message;
      misuse("work on a stream", failure_);
    }
  }
  if (next.done) {
    static double clock = 0;
    next.done->is_done = true;
    next.done->milliseconds = clock += 0.5;
  }
  return true;
}

int State::run_until(const std::function<bool()>& is_done) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
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
void State::set_capturing(CuGraph* graph, bool capturing) {
  if (capturing)
    capturing_[graph] = std::this_thread::get_id();
  else
    capturing_.erase(graph);
}

// ---- Calls --------------------------------------------------------------------------------------

Call::Call(const char* of, bool needs_start) : name(of), state(State::get()), lock_(state.mutex) {
  static const int64_t fails = variable("FAKE_CUDA_FAIL", 0);
  if (++state.calls == fails) {
    code = kUnknown;
    state.has_failed = true;
  } else if (needs_start && !state.is_ready) {
    code = kNotInitialized;
  }
}

}  // namespace piper::fake

extern "C" void fake_cuda_seed(uint64_t seed) {
  piper::fake::State& state = piper::fake::State::get();
  const std::lock_guard lock(state.mutex);
  state.random.seed(seed);
}
extern "C" int fake_cuda_report() { return piper::fake::State::get().report(); }
