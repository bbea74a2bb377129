// Checkpoints as a run and piper-checkpoint read them.
#include "piper/base/data.h"
#include "piper/runtime/checkpoint.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

constexpr int64_t kElements = 6;

// A file with one tensor, of which its header says this.
std::string file_of(std::string_view boxes) {
  const std::string zeros(kElements * 4, '\0');
  const NamedTensor tensors[] = {
      {"w", {DType::kF32, {kElements}}, Bytes::copy_of(zeros.data(), zeros.size())}};
  const std::pair<std::string, std::string> metadata[] = {{"piper.boxes", std::string(boxes)}};
  return safetensors_header(tensors, metadata) + zeros;
}

// Reads whole what is small enough that this takes no time.
void read_all(const std::string& path) {
  const auto reader = CheckpointReader::open_tensors(path);
  if (!reader) return;
  constexpr int64_t kSmall = 1 << 16;
  std::vector<std::byte> to(kSmall * 8);
  for (const auto& [name, type] : reader->types()) {
    const int64_t elements = num_elements(type.shape);
    if (elements <= kSmall) (void)reader->read(name, {type, {}, 0, elements}, to.data());
  }
}

}  // namespace

void run_checkpoint(std::string_view input) {
  static const Folder folder("checkpoint");
  if (input.empty()) return;
  const std::string_view rest = input.substr(1);
  switch (input[0]) {
    case 'm':
      return (void)parse_checkpoint(rest, "checkpoint.json");
    case 'b':
      return read_all(folder.write("rank00000.safetensors", file_of(rest)));
    default:
      return read_all(folder.write("rank00000.safetensors", rest));
  }
}

}  // namespace piper::fuzz
