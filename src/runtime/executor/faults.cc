// Injects faults where the loop over steps and the writer of checkpoints ask for them.
#include "faults.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <new>
#include <thread>

namespace piper {
namespace {

struct Fault {
  std::string kind, phase;
  int64_t rank = -1, step = -1;  // -1: any
};

const std::vector<std::string> kKinds = {"kill",  "abort", "exit",   "stop", "hang", "slow",
                                         "error", "disk",  "memory", "term", "int",  "usr1"};
const std::vector<std::string> kPhases = {"load",  "step",   "after",   "evaluate", "copy",
                                          "write", "commit", "publish", "end"};

Result<int64_t> parse_place(const std::string& text) {
  if (text == "*") return -1;
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 0)
    return fail("PIPER_FAULT: '{}' is neither a number nor *", text).with_code(ExitCode::kUsage);
  return value;
}

Status check_word(const std::string& word, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return ok_status();
  return fail("PIPER_FAULT: '{}' is none of {}{}", word, join(known, ", "),
              did_you_mean(word, known))
      .with_code(ExitCode::kUsage);
}

Result<std::vector<Fault>> parse_faults(const char* text) {
  std::vector<Fault> faults;
  if (text == nullptr || *text == '\0') return faults;
  for (const std::string& one : split_text(text, ',')) {
    const size_t at = one.find('@');
    const std::vector<std::string> places =
        at == one.npos ? std::vector<std::string>() : split_text(one.substr(at + 1), ':');
    if (places.size() != 3)
      return fail("PIPER_FAULT: '{}' is not KIND@RANK:STEP:PHASE, such as kill@2:5:write", one)
          .with_code(ExitCode::kUsage);
    Fault& fault = faults.emplace_back();
    fault.kind = one.substr(0, at), fault.phase = places[2];
    PIPER_TRY(check_word(fault.kind, kKinds));
    PIPER_TRY(check_word(fault.phase, kPhases));
    PIPER_ASSIGN(fault.rank, parse_place(places[0]));
    PIPER_ASSIGN(fault.step, parse_place(places[1]));
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
  const std::pair<const char*, int> signals[] = {{"kill", SIGKILL}, {"abort", SIGABRT},
                                                 {"stop", SIGSTOP}, {"term", SIGTERM},
                                                 {"int", SIGINT},   {"usr1", SIGUSR1}};
  for (const auto& [name, number] : signals)
    if (kind == name) ::kill(getpid(), number);
  if (kind == "exit") _exit(1);
  if (kind == "memory") throw std::bad_alloc();
  if (kind == "slow") sleep(3);
  while (kind == "hang") sleep(1);
  if (kind == "disk") return fail("no space is left (PIPER_FAULT)").with_code(ExitCode::kStorage);
  if (kind == "error") return fail("it fails as asked (PIPER_FAULT)").with_code(ExitCode::kPeer);
  return ok_status();
}

}  // namespace

Status inject_fault(std::string_view phase, int64_t rank, int64_t step) {
  const auto& faults = all_faults();
  if (!faults) return faults.error();
  for (const Fault& fault : *faults)
    if (fault.phase == phase && (fault.rank < 0 || fault.rank == rank) &&
        (fault.step < 0 || fault.step == step))
      PIPER_TRY(happen(fault.kind));
  return ok_status();
}

}  // namespace piper
