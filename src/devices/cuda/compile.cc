// Compiles the texts of kernels with NVRTC, and keeps what comes out in a folder.
#include "compile.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

#include "piper/base/parallel.h"

namespace piper::cuda {
namespace {

namespace fs = std::filesystem;

// Returns the options that the texts are written for (src/devices/cuda_kernels/device/prelude.cuh):
// no product and sum becomes one rounding.
std::vector<std::string> options_for(const std::string& architecture) {
  return {"--gpu-architecture=" + architecture, "--std=c++17", "--fmad=false"};
}

Error failed(const Nvrtc& nvrtc, const char* call, int code) {
  const char* text = nvrtc.nvrtcGetErrorString(code);
  return fail("{}: {} ({})", call, text ? text : "an unknown error", code);
}
#define PIPER_NVRTC_CALL(call, ...)                                \
  if (const int failure = nvrtc.call(__VA_ARGS__); failure != 0) { \
    return failed(nvrtc, #call, failure);                          \
  }

// Holds a program that is being compiled, and ends with its scope.
struct Unit {
  const Nvrtc& nvrtc;
  NvrtcProgram* program = nullptr;
  ~Unit() {
    if (program) nvrtc.nvrtcDestroyProgram(&program);
  }
};

Result<std::string> log_of(const Unit& unit) {
  const Nvrtc& nvrtc = unit.nvrtc;
  size_t bytes = 0;
  PIPER_NVRTC_CALL(nvrtcGetProgramLogSize, unit.program, &bytes);
  std::string log(bytes, '\0');
  PIPER_NVRTC_CALL(nvrtcGetProgramLog, unit.program, log.data());
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

// Returns "sm_90": code of the device itself; or "compute_90": PTX.
Result<std::string> architecture_for(const Opened<Nvrtc>& nvrtc, const std::string& capability) {
  const int own = std::atoi(capability.c_str());
  if (own < 10 * kLeastMajor)
    return fail(
        "kernels for sm_{}: Piper needs devices of compute capability {}.0 or later, which "
        "multiply bf16 on tensor cores",
        capability, kLeastMajor);
  PIPER_ASSIGN(const std::vector<int> known, known_architectures(nvrtc.functions));
  if (std::find(known.begin(), known.end(), own) != known.end()) return "sm_" + capability;
  int newest = 0;
  for (const int each : known)
    if (each >= 10 * kLeastMajor && each < own) newest = std::max(newest, each);
  if (newest == 0)
    return fail(
        "NVRTC {} ({}) compiles neither for sm_{} nor for an older device that Piper can use",
        nvrtc.version, nvrtc.path, capability);
  return fmt::format("compute_{}", newest);
}

Result<std::string> compile_one(const Nvrtc& nvrtc, const CompileSource& source,
                                const std::vector<std::string>& options, bool is_ptx) {
  Unit unit{nvrtc};
  PIPER_NVRTC_CALL(nvrtcCreateProgram, &unit.program, source.text.c_str(), "kernels.cu", 0, nullptr,
                   nullptr);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  if (const int code =
          nvrtc.nvrtcCompileProgram(unit.program, static_cast<int>(words.size()), words.data());
      code != 0) {
    Error error = failed(nvrtc, "nvrtcCompileProgram", code);
    if (const Result<std::string> log = log_of(unit); log && !log->empty())
      error.notes.push_back("its log:\n" + *log);
    return error;
  }
  size_t bytes = 0;
  std::string code;
  if (is_ptx) {  // a text with the zero at its end
    PIPER_NVRTC_CALL(nvrtcGetPTXSize, unit.program, &bytes);
    code.resize(bytes);
    PIPER_NVRTC_CALL(nvrtcGetPTX, unit.program, code.data());
  } else {
    PIPER_NVRTC_CALL(nvrtcGetCUBINSize, unit.program, &bytes);
    code.resize(bytes);
    PIPER_NVRTC_CALL(nvrtcGetCUBIN, unit.program, code.data());
  }
  return code;
}

// Returns a file's contents: the digest of the code, a new line, the code.
std::optional<std::string> read_kept(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string kept;
  std::string code;
  if (!std::getline(in, kept)) return std::nullopt;
  code.assign(std::istreambuf_iterator<char>(in), {});
  if (in.bad() || digest(code) != kept) return std::nullopt;
  return code;
}

// Keeps the code whole or not at all, whoever else writes it: it is written under a name of its own
// first.
bool keep(const fs::path& file, const std::string& code) {
  static std::atomic<int> so_far{0};
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  const fs::path part = file.string() + fmt::format(".{}.{}", getpid(), ++so_far);
  std::ofstream out(part, std::ios::binary);
  out << digest(code) << '\n' << code;
  out.close();
  if (out) fs::rename(part, file, ignored);
  const bool is_kept = out && !ignored;
  if (!is_kept) fs::remove(part, ignored);
  return is_kept;
}

// Says every ten seconds how many are done; may be told from several threads.
class CompileProgress {
 public:
  CompileProgress(size_t count, const std::function<void(const std::string&)>& note)
      : count_(count), note_(note) {}
  void add_one() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!note_ || done_ == count_ || Clock::now() - noted_ < std::chrono::seconds(10)) return;
    noted_ = Clock::now();
    note_(fmt::format("{} of {} programs are compiled", done_, count_));
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  size_t done_ = 0;
  const size_t count_;
  const std::function<void(const std::string&)>& note_;
  Clock::time_point noted_ = Clock::now();
};

}  // namespace

Result<std::vector<int>> known_architectures(const Nvrtc& nvrtc) {
  int count = 0;
  PIPER_NVRTC_CALL(nvrtcGetNumSupportedArchs, &count);
  std::vector<int> known(static_cast<size_t>(std::max(count, 0)));
  PIPER_NVRTC_CALL(nvrtcGetSupportedArchs, known.data());
  return known;
}

std::string cache_folder() {
  for (const auto& [variable, under] : {std::pair("XDG_CACHE_HOME", ""), {"HOME", ".cache"}}) {
    const char* value = std::getenv(variable);
    if (value && *value == '/') return (fs::path(value) / under / "piper").string();
  }
  return "";
}

Result<std::vector<std::string>> compile(const Opened<Nvrtc>& nvrtc,
                                         std::span<const CompileSource> sources,
                                         const std::string& capability, const std::string& folder,
                                         const std::function<void(const std::string&)>& note,
                                         CompileReport* report) {
  PIPER_ASSIGN(const std::string architecture, architecture_for(nvrtc, capability));
  const bool is_ptx = architecture.starts_with("compute_");
  const std::vector<std::string> options = options_for(architecture);
  // Ranks that are threads of one process load the same programs at the same time: the first one
  // compiles, on all cores, and the others find its code.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<std::string> codes(sources.size());
  std::vector<fs::path> files;
  std::map<fs::path, size_t> first_of;  // equal sources are compiled once
  std::vector<size_t> missing;
  for (size_t s = 0; s < sources.size(); ++s) {
    const std::string key =
        digest(fmt::format("{}\n{}\n{}", nvrtc.version, join(options, "\n"), sources[s].text));
    files.push_back(fs::path(folder) / (key + ".cubin"));
    if (!first_of.try_emplace(files[s], s).second) continue;
    std::optional<std::string> kept;
    if (!folder.empty()) kept = read_kept(files[s]);
    if (kept)
      codes[s] = *std::move(kept);
    else
      missing.push_back(s);
  }
  if (!missing.empty() && note)
    note(fmt::format("compiling the kernels of {} program{} for {}{}{}", missing.size(),
                     missing.size() == 1 ? "" : "s", architecture,
                     is_ptx
                         ? fmt::format(", which the driver finishes for sm_{}: NVRTC {} does not "
                                       "know that",
                                       capability, nvrtc.version)
                         : "",
                     folder.empty() ? "" : fmt::format("; they are kept in {}", folder)));
  CompileProgress progress(missing.size(), note);
  std::atomic<size_t> unwritten{0};
  std::vector<Status> done(missing.size(), ok_status());
  in_parallel(missing.size(), [&](size_t m) {
    const size_t s = missing[m];
    Result<std::string> code = compile_one(nvrtc.functions, sources[s], options, is_ptx);
    if (!code) {
      Error error = std::move(code).error();
      error.message =
          fmt::format("program '{}': {}", quote_control(sources[s].label), error.message);
      done[m] = std::move(error);
      return;
    }
    codes[s] = *std::move(code);
    if (folder.empty() || !keep(files[s], codes[s])) ++unwritten;
    progress.add_one();
  });
  for (Status& status : done) PIPER_TRY(std::move(status));
  if (report) {
    *report = {first_of.size(), first_of.size() - missing.size(), unwritten.load(), 0};
    for (const auto& [file, s] : first_of) report->bytes += std::ssize(codes[s]);
  }
  for (size_t s = 0; s < sources.size(); ++s) codes[s] = codes[first_of.at(files[s])];
  return codes;
}

}  // namespace piper::cuda
