#include "watched.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::emulator {
namespace {

constexpr uint16_t kMany = 0xffff, kAtomically = 0xfffe;  // in place of a thread

enum class Order { kBefore, kSameThread, kOtherThread, kOtherBlock };

// How what was done in `epoch` stands to what `who` does now.
Order order_of(uint32_t epoch, uint16_t thread, uint16_t step, const Toucher& who) {
  if (epoch < who.first_of_launch) return Order::kBefore;
  if (epoch < who.first_of_block) return Order::kOtherBlock;
  if (epoch < who.epoch) return Order::kBefore;
  if (thread == who.thread) return Order::kSameThread;
  const bool is_ordered = thread < kAtomically && thread / 32 == who.thread / 32 &&
                          step < who.step;  // a barrier of the warp lies between
  return is_ordered ? Order::kBefore : Order::kOtherThread;
}
bool races(Order order) { return order >= Order::kOtherThread; }

enum class Note : uint8_t { kDone, kOfNoValue, kBesideWriter, kBesideReader };

// Notes that `who` touches the byte, or says why that is wrong.
inline Note note(Cell& cell, Access access, const Toucher& who) {
  const bool is_atomic = access == Access::kAtomic;
  if (cell.written == 0 && access != Access::kWrite) return Note::kOfNoValue;
  if (races(order_of(cell.written, cell.writer, cell.write_step, who)) &&
      !(is_atomic && cell.writer == kAtomically))
    return Note::kBesideWriter;
  const Order read = order_of(cell.read, cell.reader, cell.read_step, who);
  if (access == Access::kRead) {
    cell.reader = read == Order::kOtherThread ? kMany : who.thread;
    cell.read = who.epoch;
    cell.read_step = who.step;
    return Note::kDone;
  }
  if (cell.read > 0 && races(read)) return Note::kBesideReader;
  cell.written = who.epoch;
  cell.writer = is_atomic ? kAtomically : who.thread;
  cell.write_step = who.step;
  return Note::kDone;
}

}  // namespace

void WatchedMemory::watch(std::string name, const void* address, int64_t bytes, bool has_values,
                          int64_t element) {
  Region region{std::move(name), reinterpret_cast<uintptr_t>(address), element, {}};
  region.cells.resize(static_cast<size_t>(bytes), Cell{.written = has_values ? 1u : 0u});
  const uintptr_t begin = region.begin;
  regions_[begin] = std::move(region);
  recent_ = {};
}

void WatchedMemory::forget(const void* address) {
  regions_.erase(reinterpret_cast<uintptr_t>(address));
  recent_ = {};
}

void WatchedMemory::clear(const void* address) {
  Region& region = regions_.at(reinterpret_cast<uintptr_t>(address));
  region.cells.assign(region.cells.size(), Cell{});
}

WatchedMemory::Region* WatchedMemory::find(uintptr_t at) {
  Region*& last = recent_[0];
  for (Region*& each : recent_)
    if (each && each->holds(at)) {
      std::swap(last, each);
      return last;
    }
  auto next = regions_.upper_bound(at);
  if (next == regions_.begin()) return nullptr;
  Region& region = std::prev(next)->second;
  if (!region.holds(at)) return nullptr;
  std::rotate(recent_.begin(), recent_.end() - 1, recent_.end());
  return last = &region;
}

std::string WatchedMemory::place(const Region& region, size_t byte) const {
  if (region.element == 1) return fmt::format("{}[byte {}]", region.name, byte);
  return fmt::format("{}[{}]", region.name, byte / static_cast<size_t>(region.element));
}

std::string WatchedMemory::race(const Region& region, size_t byte, uint32_t epoch, uint16_t other,
                                const Toucher& who) const {
  if (epoch < who.first_of_block)
    return fmt::format("race on {} of another block and thread {}", place(region, byte),
                       who.thread);
  const std::string name = other == kMany         ? "several others"
                           : other == kAtomically ? "an atomic"
                                                  : fmt::format("{}", other);
  return fmt::format("race on {} of threads {} and {}", place(region, byte), name, who.thread);
}

std::string WatchedMemory::outside(uintptr_t at, size_t bytes) {
  auto next = regions_.upper_bound(at);
  if (next == regions_.begin()) return fmt::format("{} bytes of no memory", bytes);
  const Region& before = std::prev(next)->second;
  return fmt::format(
      "{} bytes of no memory: the nearest is {}, {} bytes of which end {} bytes before", bytes,
      before.name, before.cells.size(), at - before.begin - before.cells.size());
}

std::string WatchedMemory::wrong(const Region& region, size_t byte, Access access,
                                 const Toucher& who) const {
  Cell cell = region.cells[byte];
  switch (note(cell, access, who)) {
    case Note::kDone:
      return "";
    case Note::kOfNoValue:
      return fmt::format("reads {}, which nobody wrote", place(region, byte));
    case Note::kBesideWriter:
      return race(region, byte, cell.written, cell.writer, who);
    case Note::kBesideReader:
      return race(region, byte, cell.read, cell.reader, who);
  }
  return "";
}

std::string WatchedMemory::touch(const void* address, size_t bytes, Access access,
                                 const Toucher& who) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  Region* region = find(at);
  const char* verb = access == Access::kRead ? "reads" : "writes";
  if (!region) return fmt::format("{} {}", verb, outside(at, bytes));
  const size_t first = at - region->begin;
  if (first + bytes > region->cells.size())
    return fmt::format("{} {} bytes at {}, which has {}", verb, bytes, place(*region, first),
                       region->cells.size());
  for (size_t byte = first; byte < first + bytes; ++byte)
    if (note(region->cells[byte], access, who) != Note::kDone)
      return wrong(*region, byte, access, who);
  return "";
}

std::string WatchedMemory::touch(const void* address, int64_t bytes, Access access) {
  if (bytes == 0) return "";
  return touch(address, static_cast<size_t>(bytes), access,
               {.epoch = 1, .first_of_block = 1, .first_of_launch = UINT32_MAX});
}

int64_t WatchedMemory::first_unwritten(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = regions_.upper_bound(at);
  PIPER_CHECK(next != regions_.begin());
  const Region& region = std::prev(next)->second;
  for (size_t byte = at - region.begin; byte < region.cells.size(); ++byte)
    if (region.cells[byte].written == 0) return static_cast<int64_t>(byte - (at - region.begin));
  return -1;
}

}  // namespace piper::emulator
