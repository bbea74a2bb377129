// Jobs of piper-run that train a small model under several strategies, in a folder of the test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "folder.h"
#include "piper/base/data.h"
#include "piper/runtime/checkpoint.h"
#include "shell.h"

namespace piper {

inline constexpr const char* kTrain =
    "train:\n"
    "  global_batch: 12\n"
    "  optimizer: {adamw: {lr: 2e-3, betas: [0.9, 0.95], weight_decay: 0.1}}\n"
    "  clip_norm: 1.0\n"
    "  ema: {decay: 0.9}\n"
    "  schedule: [{warmup: 20}]\n";

class SampleJobs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<Folder>();
    std::ofstream text(path("text.bin"), std::ios::binary);
    uint32_t state = 1;
    for (int i = 0; i < 200000; ++i) {
      state = state * 1664525 + 1013904223;
      text.put(static_cast<char>("abcdefgh"[state >> 29]));
    }
  }
  static void TearDownTestSuite() {
    offered_.clear();
    folder_.reset();
  }

  static std::string folder() { return folder_->path(); }
  // Each case runs in a process of its own, and few need all that others share: what is offered is
  // made when path() first names it.
  static void offer(const std::string& name, std::function<void()> make) {
    offered_[name] = std::move(make);
  }
  static std::string path(const std::string& name) {
    const auto offered = offered_.extract(name.substr(0, name.find('/')));
    if (!offered.empty()) offered.mapped()();
    return folder_->path() + "/" + name;
  }
  static void compile(const std::string& name, const std::string& text,
                      const std::string& train = kTrain, const std::string& flags = "") {
    std::ofstream(path(name + ".yaml")) << "piper: 1\n" << text << train;
    const auto [code, output] = run_shell(
        fmt::format("{}/bin/piperc {}/tests/data/small_gpt/model.onnx {} -o {} --force {} 2>&1",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path(name + ".yaml"), path(name), flags));
    ASSERT_EQ(code, 0) << output;
  }
  // The command that trains these plans on the text.
  static std::string command(const std::string& plans, const std::string& flags) {
    return fmt::format("{}/bin/piper-run {} --data {}:u8 --threads 1 {}", PIPER_BINARY_DIR,
                       path(plans), path("text.bin"), flags);
  }
  // `fault`: PIPER_FAULT.
  static std::pair<int, std::string> run(const std::string& plans, const std::string& flags,
                                         const std::string& fault = "") {
    return run_shell(fmt::format("PIPER_FAULT='{}' {} 2>&1", fault, command(plans, flags)));
  }
  static std::string read(const std::string& name) {
    const auto bytes = read_text_file(path(name), 1 << 28);
    EXPECT_TRUE(bytes) << name;
    return bytes ? *bytes : "";
  }
  // All tensors of the newest checkpoint, whole, as bytes by name.
  static std::map<std::string, std::string> tensors_of(const std::string& folder) {
    std::map<std::string, std::string> tensors;
    const auto steps = list_checkpoints(file_storage(), path(folder));
    EXPECT_TRUE(steps && !steps->empty()) << folder;
    if (!steps || steps->empty()) return tensors;
    const auto reader = CheckpointReader::open(
        file_storage(), path(folder) + "/" + checkpoint_name(steps->front()));
    EXPECT_TRUE(reader) << print_error(reader.error());
    if (!reader) return tensors;
    for (const auto& [name, type] : reader->types()) {
      std::string bytes(static_cast<size_t>(type.bytes()), '\0');
      const Held whole{type, {}, 0, num_elements(type.shape)};
      const Status got = reader->read(name, whole, reinterpret_cast<std::byte*>(bytes.data()));
      EXPECT_TRUE(got) << print_error(got.error());
      tensors[name] = std::move(bytes);
    }
    return tensors;
  }

 private:
  inline static std::unique_ptr<Folder> folder_;
  inline static std::map<std::string, std::function<void()>> offered_;
};

}  // namespace piper
