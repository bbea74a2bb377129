// Sources of kernels -> libraries of the host.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "grid.h"
#include "piper/base/digester.h"
#include "shell.h"

namespace piper::emulator {
namespace {

// No contraction, as kernels are compiled for devices.
constexpr std::string_view kFlags =
    "-std=c++17 -fPIC -w -fno-exceptions -fno-rtti -ffp-contract=off -fvisibility=hidden "
    "-DPIPER_HOST";
// Calls in front of accesses to memory, and where behaviour is undefined: emulator.h has what is
// called.
constexpr std::string_view kChecks =
    " -fsanitize=thread,alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero "
    "-fsanitize-recover=all";
// Without what C++ needs to start, which takes most of the time to link a kernel.
constexpr std::string_view kLink = "-shared -nostdlib -lm -lgcc";

Status add_header(Digester& all, const std::string& words) {
  for (const char* file : {"/emulator.h", "/emulator_link.h"}) {
    PIPER_ASSIGN(const std::string text, read_text_file(words + file, 1 << 20));
    all.add(text);
  }
  return ok_status();
}

// Moves what a command has made to its place at once: others may be making the same.
Status make(const std::string& command, const std::string& own, const std::string& made) {
  const auto [code, output] = run_shell(fmt::format("{} && mv {} {}", command, own, made));
  if (code != 0) return fail("kernels cannot be compiled for the host:\n{}", output);
  return ok_status();
}

// Returns a folder that has the header of all kernels as these flags compile it: it takes a third
// of the time of most of them.
Result<std::string> precompiled(const std::string& flags, const std::string& words,
                                const std::string& folder) {
  Digester all;
  all.add(flags);
  PIPER_TRY(add_header(all, words));
  const std::string made = folder + "/header-" + all.digest();
  const std::string header = made + "/emulator.h.gch";
  if (access(header.c_str(), R_OK) == 0) return made;
  std::filesystem::create_directories(made);
  const std::string own = fmt::format("{}/{}.{}", made, getpid(), gettid());
  PIPER_TRY(make(fmt::format("{} {} -x c++-header {}/emulator.h -o {} 2>&1", PIPER_HOST_COMPILER,
                             flags, words, own),
                 own, header));
  return made;
}

}  // namespace

Result<std::string> compile_for_host(const std::string& source, const std::string& folder,
                                     bool is_checked, bool is_optimised) {
  const std::string flags =
      fmt::format("{}{}{}", kFlags, is_optimised ? " -Og -g1" : " -O0", is_checked ? kChecks : "");
  const std::string words = std::string(PIPER_SOURCE_DIR) + "/tests/fake_cuda";
  Digester all;
  all.add(flags);
  all.add(source);
  PIPER_TRY(add_header(all, words));
  const std::string stem = folder + "/" + all.digest();
  const std::string library = stem + ".so";
  if (access(library.c_str(), R_OK) == 0) return library;
  std::filesystem::create_directories(folder);
  PIPER_TRY(write_file(stem + ".cc", source));
  PIPER_ASSIGN(const std::string header, precompiled(flags, words, folder));
  const std::string own = fmt::format("{}.{}.{}", stem, getpid(), gettid());
  PIPER_TRY(make(fmt::format("cd {0} && {1} {2} -include emulator.h -I{3} -c {4}.cc -o {5}.o 2>&1 "
                             "&& {1} {5}.o {6} -o {5}.so 2>&1 && rm {5}.o",
                             header, PIPER_HOST_COMPILER, flags, words, stem, own, kLink),
                 own + ".so", library));
  return library;
}

}  // namespace piper::emulator
