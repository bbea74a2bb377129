// Files of data in a folder of their own, for the tests of the room `data`.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "piper/base/data.h"
#include "piper/runtime/data.h"

namespace piper {

namespace fs = std::filesystem;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
NamedTensor tensor(std::string name, DType dtype, Shape shape, const std::vector<T>& values) {
  return {std::move(name),
          {dtype, std::move(shape)},
          Bytes::copy_of(values.data(), values.size() * sizeof(T))};
}

class DataTest : public testing::Test {
 protected:
  DataTest() : directory_(fs::temp_directory_path() / fmt::format("piper_data_{}", getpid())) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~DataTest() override { fs::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary | std::ios::trunc) << bytes;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  // A safetensors file from a header and some data.
  std::string safetensors(const std::string& header, size_t data) const {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
    return write("made.safetensors", bytes + header + std::string(data, '\0'));
  }
  std::string npy(const std::string& name, const std::string& dictionary,
                  std::string_view data) const {
    std::string header = dictionary + "\n", bytes = "\x93NUMPY\x01";
    bytes += '\0';
    bytes += static_cast<char>(header.size());
    bytes += '\0';
    return write(name, bytes + header + std::string(data));
  }
  static std::string message(const Error& error) {
    return (error.at.file.empty() ? "" : fs::path(error.at.file).filename().string() + ": ") +
           error.message;
  }
  template <class T>
  static std::string message(const Result<T>& result) {
    return result ? "accepted" : message(result.error());
  }
  std::unique_ptr<BatchSource> open(std::vector<std::string> sources,
                                    const std::vector<InputNeed>& needs, int64_t batch,
                                    bool shuffle = false, uint64_t seed = 0) const {
    auto source = open_data({std::move(sources), seed, shuffle}, needs, batch);
    EXPECT_TRUE(source) << message(source.error());
    return source ? *std::move(source) : nullptr;
  }
  template <class T>
  static std::vector<T> batch(const BatchSource& source, int64_t step, int input, int64_t first,
                              int64_t count, size_t n) {
    std::vector<T> values(n);
    const Status status =
        source.read(step, input, first, count, reinterpret_cast<std::byte*>(values.data()));
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
    return values;
  }
  fs::path directory_;
};

inline InputNeed ids(int64_t batch, int64_t length, DType dtype = DType::kI64) {
  return {"ids", {dtype, {batch, length}}};
}
inline InputNeed labels(int64_t batch, int64_t length) {
  return {"labels", {DType::kI64, {batch, length}}};
}

}  // namespace piper
