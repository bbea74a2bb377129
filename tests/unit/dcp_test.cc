// Distributed checkpoints of PyTorch: tests/data/dcp, which PyTorch wrote with four ranks, becomes
// what --init takes; what is changed in it is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "folder.h"
#include "piper/base/data.h"
#include "piper/runtime/checkpoint_tools.h"
#include "seed.h"
#include "shell.h"

namespace piper::dcp_test {
namespace {

namespace fs = std::filesystem;
const std::string kData = PIPER_SOURCE_DIR "/tests/data/dcp";

class Dcp : public testing::Test {
 protected:
  Dcp() { fs::copy(kData + "/checkpoint", at("checkpoint")); }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string out() const { return at("out.safetensors"); }
  Result<std::string> import(const std::string& strip = "") const {
    CheckpointImport options;
    options.is_dcp = true;
    options.strip_prefix = strip;
    options.replace = true;
    return import_parameters(at("checkpoint"), options, out());
  }
  std::string read(const std::string& name) const {
    return *read_text_file(at("checkpoint/" + name), 1 << 20);
  }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(at("checkpoint/" + name), std::ios::binary) << bytes;
  }
  std::string refusal() const {
    const auto imported = import();
    EXPECT_FALSE(imported);
    return imported ? "" : folder_.print(imported.error());
  }
  // Replaces a text of the metadata by another one of the same length.
  std::string refusal_with(const std::string& old, const std::string& other) const {
    std::string bytes = *read_text_file(kData + "/checkpoint/.metadata", 1 << 20);
    const size_t found = bytes.find(old);
    EXPECT_NE(found, bytes.npos) << old;
    bytes.replace(found, old.size(), other);
    write(".metadata", bytes);
    return refusal();
  }

  const Folder folder_;
};

// Returns by name what a file holds.
std::map<std::string, NamedTensor> tensors_of(const std::string& path) {
  std::map<std::string, NamedTensor> tensors;
  const auto read = read_safetensors(path);
  EXPECT_TRUE(read) << path;
  if (!read) return tensors;
  for (const NamedTensor& tensor : *read) tensors[tensor.name] = tensor;
  return tensors;
}

// Boxes of rows and of both dims, some ranks without any, strides, scalars; f32, bf16, f16, f64.
TEST_F(Dcp, EachTensorIsWholeAgain) {
  const auto text = import();
  ASSERT_TRUE(text) << print_error(text.error());
  const auto expected = tensors_of(kData + "/whole.safetensors"), found = tensors_of(out());
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).type, tensor.type) << name;
    EXPECT_EQ(as_text(found.at(name).data.span()), as_text(tensor.data.span())) << name;
  }
  EXPECT_NE(text->find("2 are no tensors and are left out: optimizer.step, rate\n"), text->npos)
      << *text;
  EXPECT_NE(text->find("1 are of types that are not supported and are left out: model.bytes "
                       "(uint8)\n"),
            text->npos)
      << *text;
}

TEST_F(Dcp, APrefixChoosesTheModel) {
  const auto text = import("model.");
  ASSERT_TRUE(text) << print_error(text.error());
  const auto found = tensors_of(out());
  EXPECT_EQ(found.size(), 10U);
  EXPECT_TRUE(found.contains("rows.weight"));
  EXPECT_NE(text->find("1 do not begin with the prefix and are left out: optimizer.exp_avg"),
            text->npos)
      << *text;
  const auto none = import("modle.");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message,
            "no tensor's name begins with 'modle.': 'model.boxes.weight' is one");
}

TEST_F(Dcp, NothingOfAPickleIsExecuted) {
  EXPECT_EQ(refusal_with("_get_layout", "_os_system_"),
            "checkpoint/.metadata: error: byte 245: it names 'torch.serialization._os_system_', "
            "which no checkpoint of PyTorch needs\n  = note: nothing of the file was executed\n");
  // A pickle that would run a command.
  write(".metadata", std::string("\x80\x02"
                                 "cposix\nsystem\nX\x04\0\0\0true\x85R.",
                                 28));
  EXPECT_NE(refusal().find("byte 2: it names 'posix.system'"), std::string::npos) << refusal();
  write(".metadata", std::string("\x80\x04\x82\x01.", 5));
  EXPECT_NE(refusal().find("byte 2: the opcode 0x82 is none that a checkpoint needs"),
            std::string::npos)
      << refusal();
  write(".metadata", std::string("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", 12));
  EXPECT_NE(refusal().find("byte 2: the opcode 0x8d"), std::string::npos) << refusal();
  write(".metadata", std::string("\x80\x04X\xff\xff\xff\xff.", 8));
  EXPECT_NE(refusal().find("bytes are needed"), std::string::npos) << refusal();
}

TEST_F(Dcp, MetadataAndFilesHaveToAgree) {
  EXPECT_NE(refusal_with("__2_0.distcp", "__7_0.distcp").find("__7_0.distcp"), std::string::npos);
  EXPECT_NE(refusal_with("__2_0.distcp", "../_0.distcp").find("is in no file of this folder"),
            std::string::npos);
  // f32[7,5] is called one of eight rows: the file has other elements.
  EXPECT_NE(refusal_with("K\x07K\x05\x86", "K\x08K\x05\x86")
                .find("the parts of 'model.rows.weight' have 35 of its 40 elements"),
            std::string::npos)
      << refusal();
  EXPECT_NE(refusal_with("float32", "float64").find("in the metadata"), std::string::npos);
  // The third part of rows begins a row earlier.
  EXPECT_NE(refusal_with(std::string("K\x04K\0\x86", 5), std::string("K\x03K\0\x86", 5))
                .find("rows.weight"),
            std::string::npos);
}

TEST_F(Dcp, ADamagedElementIsFound) {
  std::string bytes = read("__0_0.distcp");
  const size_t found = bytes.find("archive/data/0");
  ASSERT_NE(found, bytes.npos);
  bytes[found + 80] ^= 4;
  write("__0_0.distcp", bytes);
  EXPECT_NE(refusal().find("'archive/data/0' is damaged: its sum is another"), std::string::npos)
      << refusal();
  bytes.resize(bytes.size() - 30);
  write("__0_0.distcp", bytes);
  EXPECT_FALSE(import());
}

// Whatever a bit says, the import is refused or its tensors are of the types that are said; memory
// errors are the sanitizers'.
TEST_F(Dcp, NoBitIsBelieved) {
  const uint64_t seed = given_seed().value_or(7);
  std::mt19937_64 random(seed);
  const auto expected = tensors_of(kData + "/whole.safetensors");
  for (int k = 0; k < 400; ++k) {
    const std::string name = k % 2 == 0 ? ".metadata" : fmt::format("__{}_0.distcp", random() % 4);
    std::string bytes = *read_text_file(kData + "/checkpoint/" + name, 1 << 20);
    const std::string good = bytes;
    if (k % 10 == 9)
      bytes.resize(random() % bytes.size());
    else
      bytes[random() % bytes.size()] ^= static_cast<char>(1U << random() % 8);
    write(name, bytes);
    if (import() && name != ".metadata") {
      for (const auto& [tensor, value] : tensors_of(out()))
        EXPECT_EQ(as_text(value.data.span()), as_text(expected.at(tensor).data.span()))
            << name << " seed " << seed << " try " << k;
    }
    write(name, good);
  }
}

TEST_F(Dcp, TheProgramTakesIt) {
  const std::string program = PIPER_BINARY_DIR "/bin/piper-checkpoint import ";
  auto [code, text] = run_shell(program + "--dcp " + at("checkpoint") + " " + out() +
                                " --strip-prefix model. 2>&1");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("10 tensors"), std::string::npos) << text;
  std::tie(code, text) = run_shell(program + at("checkpoint") + " " + out() + " --force 2>&1");
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("help: --dcp reads it"), std::string::npos) << text;
}

}  // namespace
}  // namespace piper::dcp_test
