// usage: fuzzer --target=NAME [libFuzzer's flags] CORPUS…
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "targets.h"

namespace {

using piper::fuzz::Target;

const Target* chosen = nullptr;

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i)
    for (const Target& target : piper::fuzz::targets())
      if ((*argv)[i] == std::string("--target=") + target.name) chosen = &target;
  if (chosen) return 0;
  std::fputs("usage: fuzzer --target=NAME [flags] CORPUS…; targets:", stderr);
  for (const Target& target : piper::fuzz::targets()) std::fprintf(stderr, " %s", target.name);
  std::fputs("\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

// What is a message stays one most of the time; the other targets are texts, which libFuzzer
// changes well by itself.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::mt19937 random(seed);
  if (chosen->change == piper::fuzz::change_bytes || random() % 8 == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  const std::string changed = chosen->change({reinterpret_cast<const char*>(data), size}, random);
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
