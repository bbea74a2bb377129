// Writes what a rank contributes to a checkpoint. Called by the rank's writer thread.
#include "boxes.h"
#include "piper/base/digester.h"

namespace piper {

std::string rank_file_name(int64_t rank) { return fmt::format("rank{:05}.safetensors", rank); }

Result<CheckpointFile> write_rank_file(Storage& storage, const std::string& folder, int64_t rank,
                                       std::span<const OwnPiece> pieces) {
  std::vector<NamedTensor> tensors;
  const std::vector<std::string> keys = keys_of(pieces);
  for (const OwnPiece& piece : pieces) {
    const DType dtype = piece.held.whole.dtype;
    const TensorType type{dtype,
                          piece.held.is_whole() ? piece.held.whole.shape : Shape{piece.elements}};
    tensors.push_back({keys[tensors.size()], type,
                       Bytes{nullptr, piece.data, static_cast<size_t>(type.bytes())}});
  }
  const std::string boxes = print_boxes(pieces);
  const std::pair<std::string, std::string> metadata[] = {{kBoxesKey, boxes}};
  const std::string header = safetensors_header(tensors, metadata);
  std::vector<std::string_view> parts{header};
  for (const NamedTensor& tensor : tensors) parts.push_back(as_text(tensor.data.span()));
  CheckpointFile file{rank_file_name(rank), {}, 0};
  Digester written;
  for (const std::string_view part : parts) {
    written.add(part);
    file.bytes += std::ssize(part);
  }
  file.digest = written.digest();
  const std::string path = folder + "/" + file.name;
  PIPER_TRY(storage.write(path, parts));
  // What a disk or a driver has changed on the way is found while the values are still at hand.
  PIPER_ASSIGN(const Bytes back, storage.read(path));
  if (std::ssize(back.span()) != file.bytes || digest(as_text(back.span())) != file.digest)
    return fail("'{}' was written, and other bytes were read back", path)
        .with_code(ExitCode::kStorage);
  return file;
}

}  // namespace piper
