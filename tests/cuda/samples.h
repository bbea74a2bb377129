// Files of samples for jobs on devices.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <random>

namespace piper {

// 64 samples of so many numbers.
inline void write_samples(const std::string& path, int64_t width, uint32_t seed) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': (64, {}), }}", width);
  header.resize(117, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  std::mt19937 random(seed);
  for (int64_t i = 0; i < 64 * width; ++i) {
    const float x = static_cast<float>(random() % 1000) / 500 - 1;
    file.write(reinterpret_cast<const char*>(&x), sizeof x);
  }
}

}  // namespace piper
