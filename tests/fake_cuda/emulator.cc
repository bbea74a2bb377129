// Runs grids: what stands behind the words of emulator.h.
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <random>

#include "fibers.h"
#include "fragments.h"
#include "grid.h"
#include "shell.h"

namespace piper::emulator {
namespace {

constexpr int32_t kLanes = 32;
constexpr size_t kAlign = 256;

// A thread of the block that runs.
struct Thread {
  enum State : uint8_t {
    kUnstarted,
    kReady,
    kAtBarrier,
    kAtWarpBarrier,
    kAtExchange,
    kAtProduct,
    kEnded
  };
  State state = kUnstarted;
  int line = 0;  // where it waits
  size_t fiber = 0;
  uint32_t exchanges = 0;
  Fragments fragments;
};
struct Warp {
  uint64_t values[2][kLanes];  // of this exchange, and of the next one, which lanes may be at
  uint16_t step = 0;
};
// An array of a block in shared memory.
struct Array {
  const void* key = nullptr;
  std::vector<char> memory;
  char* data = nullptr;
  uint32_t block = 0;  // the epoch of the block that it is cleared for
};

std::string_view name_of(Thread::State state) {
  switch (state) {
    case Thread::kAtBarrier:
      return "is at the barrier of line";
    case Thread::kAtWarpBarrier:
      return "is at the barrier of its warp in line";
    case Thread::kAtExchange:
      return "is at the shuffle of line";
    case Thread::kAtProduct:
      return "is at the product of line";
    default:
      return "has ended";
  }
}

// Where the loader has put the library.
void find_image(const void* inside, Image& image) {
  image.begin = reinterpret_cast<uintptr_t>(inside);
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* with) {
        Image& image = *static_cast<Image*>(with);
        uintptr_t begin = UINTPTR_MAX, end = 0;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          begin = std::min<uintptr_t>(begin, library->dlpi_addr + part.p_vaddr);
          end = std::max<uintptr_t>(end, library->dlpi_addr + part.p_vaddr + part.p_memsz);
        }
        if (image.begin < begin || image.begin >= end) return 0;
        image.base = library->dlpi_addr;
        image.begin = begin;
        image.end = end;
        return 1;
      },
      &image);
}

class Running {
 public:
  Running(const Grid& grid, void (*kernel)(char* const*), Link& link, WatchedMemory& memory,
          const Order& order, const Image& image)
      : grid_(grid),
        kernel_(kernel),
        link_(link),
        memory_(memory),
        order_(order),
        image_(image),
        random_(order.seed),
        fibers_([this](size_t fiber) { run_thread(fiber); }) {}
  ~Running() {
    for (const auto& array : arrays_) memory_.forget(array->data);
  }

  // What went wrong; empty: nothing.
  std::string run();

  // What the texts call, in the fiber of a thread.
  void wait(Thread::State state, int line);
  const uint64_t* exchange(int line, unsigned mask, uint64_t value);
  void multiply(int line, const Fragments& fragments);
  void* shared(const void* key, const char* name, size_t bytes, size_t element);
  void* dynamic_shared(const char* name, size_t element);
  void access(const void* address, size_t bytes, Access access, const void* from);
  void broken(const char* what, unsigned line);

 private:
  void run_block(int64_t block);
  void run_thread(size_t fiber);
  void resume(int32_t thread);
  bool run_ready();
  bool release_warps();
  bool release_block();
  bool release_warp(int32_t first, int32_t last);
  void check_warp(unsigned mask, const char* what, int line);
  void multiply_warp(int32_t first);
  void disagree(int32_t a, int32_t b);
  void arrange(std::vector<int32_t>& numbers);
  Toucher toucher() const;
  Array& array(const void* key, const char* name, size_t bytes, size_t element);
  [[noreturn]] void end_here(const void* from);

  const Grid& grid_;
  void (*kernel_)(char* const*);
  Link& link_;
  WatchedMemory& memory_;
  const Order order_;
  const Image& image_;
  std::mt19937_64 random_;
  Fibers fibers_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<size_t> idle_;  // fibers
  size_t fibers_used_ = 0;
  std::vector<int32_t> sequence_;
  std::vector<std::unique_ptr<Array>> arrays_;
  int64_t block_ = 0;
  int32_t thread_ = 0;
  uint32_t first_of_launch_ = 0, first_of_block_ = 0;
  std::string error_;
};

std::mutex one_at_a_time;
Running* running = nullptr;
uint32_t epoch = 2;  // 1 is that of the host

void Running::arrange(std::vector<int32_t>& numbers) {
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order_.kind == Order::kBackward) std::reverse(numbers.begin(), numbers.end());
  if (order_.kind == Order::kRandom) std::shuffle(numbers.begin(), numbers.end(), random_);
}

std::string Running::run() {
  std::vector<int32_t> blocks(static_cast<size_t>(grid_.blocks));
  arrange(blocks);
  threads_.resize(static_cast<size_t>(grid_.threads));
  sequence_.resize(threads_.size());
  warps_.resize((threads_.size() + kLanes - 1) / kLanes);
  link_.block_dim = {static_cast<unsigned>(grid_.threads), 1, 1};
  link_.grid_dim = {static_cast<unsigned>(grid_.blocks), 1, 1};
  first_of_launch_ = ++epoch;
  for (const int32_t block : blocks) {
    run_block(block);
    if (!error_.empty()) break;
  }
  fibers_.abandon();
  return std::move(error_);
}

void Running::run_block(int64_t block) {
  block_ = block;
  first_of_block_ = ++epoch;
  link_.block = {static_cast<unsigned>(block), 0, 0};
  std::fill(threads_.begin(), threads_.end(), Thread{});
  for (Warp& warp : warps_) warp.step = 0;
  while (run_ready() || release_warps() || release_block()) {
    if (!error_.empty()) return;
  }
}

// Each thread that can go on, until it stops; false: none could.
bool Running::run_ready() {
  arrange(sequence_);
  bool any = false;
  for (const int32_t thread : sequence_) {
    const Thread::State state = threads_[static_cast<size_t>(thread)].state;
    if (state != Thread::kUnstarted && state != Thread::kReady) continue;
    any = true;
    resume(thread);
    if (!error_.empty()) break;
  }
  return any;
}

void Running::resume(int32_t number) {
  Thread& thread = threads_[static_cast<size_t>(number)];
  if (thread.state == Thread::kUnstarted) {
    thread.fiber = idle_.empty() ? fibers_used_++ : idle_.back();
    if (!idle_.empty()) idle_.pop_back();
  }
  thread.state = Thread::kReady;
  thread_ = number;
  link_.thread = {static_cast<unsigned>(number), 0, 0};
  fibers_.resume(thread.fiber);
  if (thread.state == Thread::kEnded) idle_.push_back(thread.fiber);
}

void Running::run_thread(size_t fiber) {
  std::tie(link_.stack, link_.stack_bytes) = fibers_.stack(fiber);
  kernel_(grid_.pointers.data());
  threads_[static_cast<size_t>(thread_)].state = Thread::kEnded;
}

void Running::wait(Thread::State state, int line) {
  const int32_t self = thread_;
  Thread& thread = threads_[static_cast<size_t>(self)];
  thread.state = state;
  thread.line = line;
  fibers_.stop();
  std::tie(link_.stack, link_.stack_bytes) = fibers_.stack(thread.fiber);
}

void Running::disagree(int32_t a, int32_t b) {
  const auto say = [&](int32_t number) {
    const Thread& thread = threads_[static_cast<size_t>(number)];
    const bool waits = thread.state != Thread::kEnded;
    return fmt::format("thread {} {}{}", number, name_of(thread.state),
                       waits ? fmt::format(" {}", thread.line) : "");
  };
  error_ = fmt::format("kernel {}, block {}: {}, and {}", grid_.kernel, block_, say(a), say(b));
}

// The lanes of a warp wait at one place, and go on; or one of them waits where others never come.
bool Running::release_warp(int32_t first, int32_t last) {
  const auto at = [&](int32_t i) -> Thread& { return threads_[static_cast<size_t>(i)]; };
  int32_t waits = -1;
  for (int32_t i = first; i < last && waits < 0; ++i)
    if (at(i).state >= Thread::kAtWarpBarrier && at(i).state <= Thread::kAtProduct) waits = i;
  if (waits < 0) return false;
  for (int32_t i = first; i < last; ++i)
    if (at(i).state != at(waits).state || at(i).line != at(waits).line) {
      disagree(waits, i);
      return true;
    }
  if (at(waits).state == Thread::kAtProduct) multiply_warp(first);
  if (at(waits).state == Thread::kAtWarpBarrier) ++warps_[static_cast<size_t>(first / kLanes)].step;
  for (int32_t i = first; i < last; ++i) at(i).state = Thread::kReady;
  return true;
}

bool Running::release_warps() {
  bool any = false;
  for (int32_t first = 0; first < grid_.threads && error_.empty(); first += kLanes)
    any |= release_warp(first, std::min(first + kLanes, grid_.threads));
  return any;
}

bool Running::release_block() {
  int32_t waits = -1;
  for (int32_t i = 0; i < grid_.threads && waits < 0; ++i)
    if (threads_[static_cast<size_t>(i)].state == Thread::kAtBarrier) waits = i;
  if (waits < 0) return false;  // all have ended
  const int line = threads_[static_cast<size_t>(waits)].line;
  for (int32_t i = 0; i < grid_.threads; ++i) {
    const Thread& thread = threads_[static_cast<size_t>(i)];
    if (thread.state == Thread::kAtBarrier && thread.line == line) continue;
    disagree(waits, i);
    return true;
  }
  for (Thread& thread : threads_) thread.state = Thread::kReady;
  for (Warp& warp : warps_) warp.step = 0;
  ++epoch;
  return true;
}

void Running::check_warp(unsigned mask, const char* what, int line) {
  const int32_t first = thread_ / kLanes * kLanes;
  if (mask != UINT32_MAX || first + kLanes > grid_.threads)
    broken(what, static_cast<unsigned>(line));
}

void Running::multiply(int line, const Fragments& fragments) {
  check_warp(UINT32_MAX, "a product by a part of a warp", line);
  threads_[static_cast<size_t>(thread_)].fragments = fragments;
  wait(Thread::kAtProduct, line);
}

void Running::multiply_warp(int32_t first) {
  std::array<Fragments, kLanes> lanes;
  for (int32_t i = 0; i < kLanes; ++i)
    lanes[static_cast<size_t>(i)] = threads_[static_cast<size_t>(first + i)].fragments;
  if (!multiply_fragments(lanes))
    error_ = fmt::format("kernel {}, block {}, thread {}: lanes of a product have other types",
                         grid_.kernel, block_, first);
}

const uint64_t* Running::exchange(int line, unsigned mask, uint64_t value) {
  check_warp(mask, "a shuffle by a part of a warp", line);
  const auto lane = static_cast<size_t>(thread_ % kLanes);
  uint64_t* values = warps_[static_cast<size_t>(thread_ / kLanes)]
                         .values[threads_[static_cast<size_t>(thread_)].exchanges++ % 2];
  values[lane] = value;
  wait(Thread::kAtExchange, line);
  return values;
}

Array& Running::array(const void* key, const char* name, size_t bytes, size_t element) {
  for (const auto& each : arrays_)
    if (each->key == key) return *each;
  Array& made = *arrays_.emplace_back(std::make_unique<Array>());
  made.key = key;
  made.memory.resize(bytes + kAlign);
  const size_t past = reinterpret_cast<uintptr_t>(made.memory.data()) % kAlign;
  made.data = made.memory.data() + (kAlign - past);
  memory_.watch(name, made.data, static_cast<int64_t>(bytes), false, static_cast<int64_t>(element));
  return made;
}

void* Running::shared(const void* key, const char* name, size_t bytes, size_t element) {
  Array& found = array(key, name, bytes, element);
  if (found.block != first_of_block_) {
    std::fill(found.memory.begin(), found.memory.end(), '\xff');
    memory_.clear(found.data);
    found.block = first_of_block_;
  }
  return found.data;
}

void* Running::dynamic_shared(const char* name, size_t element) {
  return shared(this, name, static_cast<size_t>(grid_.shared_bytes), element);
}

Toucher Running::toucher() const {
  return {.epoch = epoch,
          .first_of_block = first_of_block_,
          .first_of_launch = first_of_launch_,
          .thread = static_cast<uint16_t>(thread_),
          .step = warps_[static_cast<size_t>(thread_ / kLanes)].step,
          .block = block_};
}

void Running::access(const void* address, size_t bytes, Access access, const void* from) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (access == Access::kRead && at >= image_.begin && at + bytes <= image_.end) return;
  error_ = memory_.touch(address, bytes, access, toucher());
  if (!error_.empty()) end_here(from);
}

void Running::broken(const char* what, unsigned line) {
  error_ = fmt::format("{} in line {}", what, line);
  end_here(nullptr);
}

// The fiber stays where it is for ever: nothing on its stack may own memory.
void Running::end_here(const void* from) {
  error_ = fmt::format("kernel {}, block {}, thread {}: {}{}", grid_.kernel, block_, thread_,
                       error_, from ? image_.line_of(from) : "");
  fibers_.stop();
  std::abort();
}

void call_barrier(int line) { running->wait(Thread::kAtBarrier, line); }
void call_warp_barrier(int line, unsigned) { running->wait(Thread::kAtWarpBarrier, line); }
const uint64_t* call_exchange(int line, unsigned mask, uint64_t value) {
  return running->exchange(line, mask, value);
}
void call_multiply(int line, bool is_bf16, const uint32_t* a, const uint32_t* b, float* d) {
  running->multiply(line, {is_bf16, a, b, d});
}
void* call_shared(const void* key, const char* name, size_t bytes, size_t element) {
  return running->shared(key, name, bytes, element);
}
void* call_dynamic_shared(const char* name, size_t element) {
  return running->dynamic_shared(name, element);
}
void call_access(const void* address, size_t bytes, Access access, const void* from) {
  running->access(address, bytes, access, from);
}
void call_broken(const char* what, unsigned line) { running->broken(what, line); }

}  // namespace

std::string Image::line_of(const void* at) const {
  const auto [code, text] = run_shell(
      fmt::format("addr2line -e {} {:#x}", path, reinterpret_cast<uintptr_t>(at) - base - 1));
  const size_t colon = text.rfind(':');
  const int line =
      code == 0 && colon != std::string::npos ? std::atoi(text.c_str() + colon + 1) : 0;
  return line > 0 ? fmt::format(" (line {} of {})", line, path.substr(0, path.rfind('.')) + ".cc")
                  : "";
}

Result<std::unique_ptr<Module>> Module::open(const std::string& path) {
  std::unique_ptr<Module> module(new Module);
  module->library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module->library_) return fail("a library of kernels cannot be loaded: {}", dlerror());
  module->link_ = static_cast<Link*>(module->symbol("emulator_link"));
  if (!module->link_) return fail("{} is no library of kernels", path);
  *module->link_ = {.barrier = call_barrier,
                    .warp_barrier = call_warp_barrier,
                    .exchange = call_exchange,
                    .multiply = call_multiply,
                    .shared = call_shared,
                    .dynamic_shared = call_dynamic_shared,
                    .access = call_access,
                    .broken = call_broken};
  module->image_.path = path;
  find_image(module->link_, module->image_);
  return module;
}

Module::~Module() {
  if (library_) dlclose(library_);
}

void* Module::symbol(const std::string& name) const { return dlsym(library_, name.c_str()); }

int Module::pointers_of(const std::string& kernel) const {
  const auto* pointers = static_cast<const int*>(symbol(kernel + "_pointers"));
  return pointers ? *pointers : -1;
}

Status Module::run(const Grid& grid, WatchedMemory& memory, const Order& order) {
  void* kernel = symbol(grid.kernel);
  if (!kernel) return fail("there is no kernel {}", quote_control(grid.kernel));
  const int pointers = pointers_of(grid.kernel);
  const int threads = *static_cast<const int*>(symbol(grid.kernel + "_threads"));
  if (grid.pointers.size() != static_cast<size_t>(pointers))
    return fail("kernel {} is given {} pointers and takes {}", grid.kernel, grid.pointers.size(),
                pointers);
  if (grid.threads < 1 || grid.threads > threads || threads > 1024)
    return fail("kernel {} is launched with {} threads, and is for {}", grid.kernel, grid.threads,
                threads);
  if (grid.blocks < 1 || grid.blocks > INT32_MAX)
    return fail("kernel {} is launched with {} blocks", grid.kernel, grid.blocks);
  const std::lock_guard lock(one_at_a_time);
  Running now(grid, reinterpret_cast<void (*)(char* const*)>(kernel), *link_, memory, order,
              image_);
  running = &now;
  std::string wrong = now.run();
  running = nullptr;
  if (!wrong.empty()) return fail("{}", wrong);
  return ok_status();
}

}  // namespace piper::emulator
