// Scalars by step in the files that TensorBoard reads. Private to the executor room.
#pragma once

#include <cstdio>
#include <optional>

#include "piper/base/base.h"

namespace piper {

// Appends records to one events file, each as soon as it is known. A file that cannot be written
// to costs its records, not the run.
class TensorBoardFile {
 public:
  TensorBoardFile() = default;
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;
  ~TensorBoardFile();
  // Creates the file in `folder`, in place of the one before. TensorBoard leaves out what earlier
  // files there say of steps after `first_step`. `time`, in seconds since 1970, and the run's
  // `number` make the name its own: files are read in the order of their names.
  Status open(const std::string& folder, int64_t time, int64_t number,
              std::optional<int64_t> first_step);
  Status add(int64_t step, std::span<const std::pair<std::string, double>> scalars);

 private:
  Status append(const std::string& event);
  std::string path_;
  FILE* file_ = nullptr;
};

// Returns the checksum of TFRecord files: CRC-32C (Castagnoli), rotated and offset.
uint32_t masked_crc(std::string_view bytes);

}  // namespace piper
