// Data files as a run reads them.
#include "piper/base/data.h"
#include "piper/runtime/data.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

constexpr int64_t kBatch = 2;

std::vector<InputNeed> needs() {
  return {{"ids", {DType::kI64, {kBatch, 4}}, 0, 0, 255},
          {"labels", {DType::kI32, {kBatch, 4}}, 0, 0, 255, -100},
          {"position_ids", {DType::kI64, {kBatch, 4}}}};
}

// Reads every sample of some steps, first and far ones.
void read_samples(const DataOptions& options) {
  const std::vector<InputNeed> wanted = needs();
  const auto source = open_data(options, wanted, kBatch);
  if (!source) return;
  std::vector<std::byte> to(256);
  for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{7}, (*source)->steps() - 1})
    for (int input = 0; step >= 0 && input < static_cast<int>(wanted.size()); ++input)
      (void)(*source)->read(step, input, 0, kBatch, to.data());
}

}  // namespace

void run_data(std::string_view input) {
  static const Folder folder("data");
  if (input.empty()) return;
  const std::string_view rest = input.substr(1);
  switch (input[0]) {
    case 's': {
      const std::string path = folder.write("batches.safetensors", rest);
      (void)read_safetensors(path);
      return read_samples({{path}, 1, false});
    }
    case 'n': {
      const std::string path = folder.write("rows.npy", rest);
      (void)read_npy(path);
      return read_samples({{"ids=" + path, "labels=" + path, "position_ids=" + path}, 1, true});
    }
    case 'i': {
      const std::string path = folder.write("indexed.bin", std::string(64, '\3'));
      folder.write("indexed.idx", rest);
      return read_samples({{path}, 1, true});
    }
    case 'm': {
      folder.write("a.bin", std::string(64, '\3'));
      folder.write("b.bin", std::string(96, '\4'));
      return read_samples({{folder.write("mix.yaml", rest)}, 1, true});
    }
    default: {
      const std::string path = folder.write("tokens.bin", rest);
      constexpr const char* kForms[] = {":u8", ":u16", ":u32", ""};
      return read_samples({{path + kForms[static_cast<unsigned char>(input[0]) % 4]}, 1, true});
    }
  }
}

}  // namespace piper::fuzz
