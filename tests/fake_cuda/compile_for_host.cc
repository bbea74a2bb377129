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
    "-DPIPER_HOST -include emulator.h";
// Calls in front of accesses to memory, and where behaviour is undefined: emulator.h has what is
// called.
constexpr std::string_view kChecks =
    " -fsanitize=thread,alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero "
    "-fsanitize-recover=all";

}  // namespace

Result<std::string> compile_for_host(const std::string& source, const std::string& folder,
                                     bool is_checked, bool is_optimised) {
  const std::string flags =
      fmt::format("{}{}{}", kFlags, is_optimised ? " -O1 -g1" : " -O0", is_checked ? kChecks : "");
  const std::string words = std::string(PIPER_SOURCE_DIR) + "/tests/fake_cuda";
  Digester all;
  all.add(flags);
  all.add(source);
  for (const char* file : {"/emulator.h", "/emulator_link.h"}) {
    PIPER_ASSIGN(const std::string text, read_text_file(words + file, 1 << 20));
    all.add(text);
  }
  const std::string stem = folder + "/" + all.digest();
  const std::string library = stem + ".so";
  if (access(library.c_str(), R_OK) == 0) return library;
  std::filesystem::create_directories(folder);
  PIPER_TRY(write_file(stem + ".cc", source));
  // Others may be making the same.
  const std::string own = fmt::format("{}.{}.{}", stem, getpid(), gettid());
  const auto [code, output] = run_shell(
      fmt::format("cd {0} && {1} {2} -I{0} -c {3}.cc -o {4}.o 2>&1 && {1} -shared {4}.o -o {4}.so "
                  "2>&1 && rm {4}.o && mv {4}.so {5}",
                  words, PIPER_HOST_COMPILER, flags, stem, own, library));
  if (code != 0) return fail("kernels cannot be compiled for the host:\n{}", output);
  return library;
}

}  // namespace piper::emulator
