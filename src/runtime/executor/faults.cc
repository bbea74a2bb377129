// Injects faults where the loop over steps and the writer of checkpoints ask for them.
#include "faults.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

namespace piper {
namespace {

struct Fault {
  std::string text;  // all of it, as it was written
  std::string kind, phase;
  int64_t rank = -1, step = -1;  // -1: any
  std::unique_ptr<std::atomic<bool>> happened = std::make_unique<std::atomic<bool>>(false);

  bool is_due(std::string_view now, int64_t own_rank, int64_t own_step) const {
    return phase == now && (rank < 0 || rank == own_rank) && (step < 0 || step == own_step);
  }
};

const std::vector<std::string> kKinds = {"kill", "abort", "segv",  "exit",  "stop", "hang",
                                         "lag",  "slow",  "error", "throw", "disk", "memory",
                                         "term", "int",   "hup",   "usr1",  "nan",  "flip"};
const std::vector<std::string> kInside = {"forward", "backward", "update"};
const std::vector<std::string> kPhases = {"load",    "step",     "forward", "backward", "update",
                                          "after",   "evaluate", "copy",    "write",    "commit",
                                          "publish", "back",     "end"};

bool is_in(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Result<int64_t> parse_place(const std::string& text) {
  if (text == "*") return -1;
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 0)
    return fail("PIPER_FAULT: '{}' is neither a number nor *", text).with_code(ExitCode::kUsage);
  return value;
}

Status check_word(const std::string& word, const std::vector<std::string>& known) {
  if (is_in(known, word)) return ok_status();
  return fail("PIPER_FAULT: '{}' is none of {}{}", word, join(known, ", "),
              did_you_mean(word, known))
      .with_code(ExitCode::kUsage);
}

Result<Fault> parse_fault(const std::string& one) {
  const size_t at = one.find('@');
  const std::vector<std::string> places =
      at == one.npos ? std::vector<std::string>() : split_text(one.substr(at + 1), ':');
  if (places.size() != 3)
    return fail("PIPER_FAULT: '{}' is not KIND@RANK:STEP:PHASE, such as kill@2:5:write", one)
        .with_code(ExitCode::kUsage);
  Fault fault;
  fault.text = one, fault.kind = one.substr(0, at), fault.phase = places[2];
  PIPER_TRY(check_word(fault.kind, kKinds));
  PIPER_TRY(check_word(fault.phase, kPhases));
  if ((fault.kind == "nan" || fault.kind == "flip") && !is_in(kInside, fault.phase))
    return fail("PIPER_FAULT: {} spoils what {} have made, not '{}'", fault.kind,
                join(kInside, ", "), fault.phase)
        .with_code(ExitCode::kUsage);
  PIPER_ASSIGN(fault.rank, parse_place(places[0]));
  PIPER_ASSIGN(fault.step, parse_place(places[1]));
  return fault;
}

Result<std::vector<Fault>> parse_faults(const char* text) {
  std::vector<Fault> faults;
  if (text == nullptr || *text == '\0') return faults;
  for (const std::string& one : split_text(text, ',')) {
    PIPER_ASSIGN(Fault fault, parse_fault(one));
    faults.push_back(std::move(fault));
  }
  return faults;
}

const Result<std::vector<Fault>>& all_faults() {
  static const Result<std::vector<Fault>> faults = parse_faults(std::getenv("PIPER_FAULT"));
  return faults;
}

Status happen(const std::string& kind) {
  const auto sleep = [](int seconds) {
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
  };
  const std::pair<const char*, int> signals[] = {
      {"kill", SIGKILL}, {"abort", SIGABRT}, {"stop", SIGSTOP}, {"term", SIGTERM},
      {"int", SIGINT},   {"usr1", SIGUSR1},  {"segv", SIGSEGV}, {"hup", SIGHUP}};
  for (const auto& [name, number] : signals)
    if (kind == name) std::raise(number);  // heard before it goes on
  if (kind == "exit") _exit(1);
  if (kind == "throw") throw std::runtime_error("it throws as asked (PIPER_FAULT)");
  if (kind == "memory") throw std::bad_alloc();
  if (kind == "slow") sleep(3);
  if (kind == "lag") std::this_thread::sleep_for(std::chrono::milliseconds(40));
  while (kind == "hang") sleep(1);
  if (kind == "disk") return fail("no space is left (PIPER_FAULT)").with_code(ExitCode::kStorage);
  if (kind == "error") return fail("it fails as asked (PIPER_FAULT)").with_code(ExitCode::kPeer);
  return ok_status();
}

// Makes a floating-point number a NaN, or turns the highest bit of its fraction.
void spoil(std::string_view kind, DType dtype, std::byte* at) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto fraction = dtype == DType::kF64   ? 51
                        : dtype == DType::kF32 ? 22
                        : dtype == DType::kF16 ? 9
                                               : 6;
  if (kind == "flip") {
    at[fraction / 8] ^= std::byte{1} << (fraction % 8);
  } else if (dtype == DType::kF64) {
    std::memcpy(at, &nan, sizeof nan);
  } else if (dtype == DType::kF32) {
    const auto narrow = static_cast<float>(nan);
    std::memcpy(at, &narrow, sizeof narrow);
  } else {
    at[0] = at[1] = std::byte{0x7f};  // of both 16-bit formats
  }
}

// Returns the element whose bit is turned: the first from the middle on that is not 0, or else from
// the begin on. Of 0 the highest bit of the fraction makes a number as small as 6e-39, which is
// lost in the next sum: the gradient of an embedding has such rows, of tokens that no sample had.
int64_t flipped(const SpoiledValues& values, int64_t count) {
  const int64_t size = info(values.type.dtype).bytes;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t i = (count / 2 + k) % count;
    if (std::any_of(values.data + i * size, values.data + (i + 1) * size,
                    [](std::byte one) { return one != std::byte{0}; }))
      return i;
  }
  return count / 2;
}

}  // namespace

Result<std::optional<FaultInside>> find_fault_inside(int64_t rank, int64_t step) {
  const auto& faults = all_faults();
  if (!faults) return faults.error();
  for (const Fault& fault : *faults)
    if (is_in(kInside, fault.phase) && fault.is_due(fault.phase, rank, step))
      return std::optional(FaultInside{fault.phase, fault.kind, fault.happened.get()});
  return std::optional<FaultInside>();
}

Status do_fault_inside(const FaultInside& fault, std::span<const SpoiledValues> values) {
  fault.happened->store(true);
  if (fault.kind != "nan" && fault.kind != "flip") return happen(fault.kind);
  const bool is_none = std::none_of(values.begin(), values.end(), [](const SpoiledValues& one) {
    return info(one.type.dtype).is_float && num_elements(one.type.shape) > 0;
  });
  if (is_none)
    return fail("PIPER_FAULT: {} has no floating-point numbers to spoil", fault.phase)
        .with_code(ExitCode::kUsage);
  for (const SpoiledValues& one : values) {
    const int64_t size = info(one.type.dtype).bytes, count = num_elements(one.type.shape);
    if (!info(one.type.dtype).is_float || count == 0) continue;
    if (fault.kind == "flip")
      return spoil(fault.kind, one.type.dtype, one.data + flipped(one, count) * size), ok_status();
    for (int64_t i = 0; i < count; ++i) spoil(fault.kind, one.type.dtype, one.data + i * size);
  }
  return ok_status();
}

Status inject_fault(std::string_view phase, int64_t rank, int64_t step) {
  const auto& faults = all_faults();
  if (!faults) return faults.error();
  for (const Fault& fault : *faults)
    if (fault.is_due(phase, rank, step)) {
      fault.happened->store(true);
      PIPER_TRY(happen(fault.kind));
    }
  return ok_status();
}

std::vector<std::string> faults_left(std::optional<int64_t> rank) {
  std::vector<std::string> left;
  const auto& faults = all_faults();
  if (!faults) return left;
  for (const Fault& fault : *faults) {
    const bool is_own = !rank || fault.rank == *rank || (fault.rank < 0 && *rank == 0);
    if (is_own && !fault.happened->load()) left.push_back(fault.text);
  }
  return left;
}

}  // namespace piper
