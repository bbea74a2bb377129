#include "targets.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "piper/base/base.h"

namespace piper::fuzz {

namespace fs = std::filesystem;

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"onnx", run_onnx, change_onnx},
      {"strategy", run_strategy, change_bytes},
      {"order", run_order, change_bytes},
      {"plan", run_plan, change_plan},
      {"plan_text", run_plan_text, change_bytes},
      {"plan_set", run_plan_set, change_bytes},
      {"kernel", run_kernel, change_kernel},
      {"run", run_run, change_run},
      {"data", run_data, change_bytes},
      {"checkpoint", run_checkpoint, change_bytes},
  };
  return kTargets;
}

std::string change_bytes(std::string_view input, std::mt19937& random) {
  std::string out(input);
  for (uint32_t edits = random() % 4 + 1; edits > 0; --edits) {
    const size_t at = out.empty() ? 0 : random() % out.size();
    const size_t count = std::min<size_t>(random() % 8 + 1, out.size() - at);
    switch (random() % 5) {
      case 0:
        out.insert(at, 1, static_cast<char>(random()));
        break;
      case 1:
        out.erase(at, count);
        break;
      case 2:
        out.insert(at, out.substr(out.empty() ? 0 : random() % out.size(), 1 + random() % 40));
        break;
      case 3:
        if (count > 0) out[at] = static_cast<char>(random());
        break;
      case 4:
        if (count > 0) out[at] = "0129-+*/:[]{},.\"'\n ~&!?xe"[random() % 25];
        break;
    }
  }
  return out;
}

Folder::Folder(std::string_view name)
    : path_(
          (fs::temp_directory_path() / fmt::format("piper-fuzz-{}-{}", getpid(), name)).string()) {
  fs::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Folder::write(std::string_view file, std::string_view bytes) const {
  const std::string whole = path(file);
  fs::remove(whole);  // some file systems write out a file that is cut short and written again
  std::ofstream stream(whole, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  PIPER_CHECK(stream.good(), "cannot write {}", whole);
  return whole;
}

}  // namespace piper::fuzz
