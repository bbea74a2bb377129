// Parameters from other programs, for piper-run --init: folders of Hugging Face and distributed
// checkpoints of PyTorch. Called by piper-checkpoint.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "boxes.h"
#include "dcp.h"
#include "files.h"
#include "piper/base/counted.h"
#include "piper/base/known_tensors.h"
#include "piper/runtime/checkpoint_tools.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kShown = 8;

// Returns by file of a Hugging Face folder the names that its index says it has.
Result<std::map<std::string, std::set<std::string>>> read_index(const std::string& folder) {
  std::map<std::string, std::set<std::string>> files;
  std::error_code ignored;
  const std::string path = folder + "/" + kIndexFile;
  if (!std::filesystem::exists(path, ignored)) {
    files[kOnlyFile];
    return files;
  }
  PIPER_ASSIGN(const Bytes text, map_file(path));
  const Json index = parse_json(as_text(text.span()));
  const bool good = index.is_object() && index.contains("weight_map") &&
                    index["weight_map"].is_object() && !index["weight_map"].empty();
  if (!good) return fail(SourceSpan{path}, "it has no weight_map");
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string in = file.is_string() ? file.get<std::string>() : "";
    if (in.empty() || in.find('/') != in.npos || in.find('\0') != in.npos)
      return fail(SourceSpan{path}, "'{}' is in no file of this folder", quote_control(name));
    files[in].insert(name);
  }
  return files;
}

Error no_weights(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/" + kDcpFile, ignored))
    return fail("'{}' is a distributed checkpoint of PyTorch", folder)
        .with_note("help: --dcp reads it");
  return fail("'{}' has neither {} nor {}", folder, kIndexFile, kOnlyFile)
      .with_note(
          "help: pytorch_model.bin is not supported; convert it first, as tools/README.md says "
          "under Checkpoints");
}

// Returns the tensors of all files of a folder of Hugging Face, and names those of other types.
Result<FoundTensors> read_huggingface(const std::string& folder) {
  PIPER_ASSIGN(const auto files, read_index(folder));
  FoundTensors all;
  std::set<std::string> names;
  for (const auto& [name, expected] : files) {
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored) && expected.empty()) return no_weights(folder);
    PIPER_ASSIGN(KnownTensors read, read_known_safetensors(path));
    std::set<std::string> own;
    for (const NamedTensor& tensor : read.tensors) own.insert(tensor.name);
    for (const auto& [foreign, type] : read.foreign) {
      own.insert(foreign);
      all.foreign.push_back(fmt::format("{} ({})", foreign, type));
    }
    for (const std::string& one : own)
      if (!names.insert(one).second)
        return fail(SourceSpan{path}, "another file has '{}', too", quote_control(one));
    std::ranges::move(read.tensors, std::back_inserter(all.tensors));
    for (const std::string& one : expected)
      if (!own.contains(one))
        return fail(SourceSpan{path}, "it lacks '{}', which the index says it has",
                    quote_control(one));
  }
  return all;
}

// Takes from the tensors those whose names begin with `strip`, gives them names without it and with
// `add` before, and names the others in `left`.
Result<std::vector<NamedTensor>> renamed(std::vector<NamedTensor> tensors, const std::string& strip,
                                         const std::string& add, std::vector<std::string>& left) {
  std::vector<NamedTensor> renamed;
  std::string example;
  for (NamedTensor& tensor : tensors) {
    if (example.empty()) example = tensor.name;
    if (!tensor.name.starts_with(strip) || tensor.name.size() == strip.size()) {
      left.push_back(tensor.name);
      continue;
    }
    tensor.name = add + tensor.name.substr(strip.size());
    renamed.push_back(std::move(tensor));
  }
  if (!renamed.empty()) return renamed;
  if (example.empty()) return fail("there is no tensor of a type that is supported");
  return fail("no tensor's name begins with '{}': '{}' is one", quote_control(strip),
              quote_control(example));
}

void list_names(std::string& text, const std::vector<std::string>& names, const char* what) {
  if (names.empty()) return;
  const size_t shown = std::min(names.size(), kShown);
  text += fmt::format("{} {}: {}", names.size(), what,
                      quote_control(join(std::span(names).first(shown), ", ")));
  text += names.size() > shown ? fmt::format(" and {} more\n", names.size() - shown) : "\n";
}

}  // namespace

Result<std::string> import_parameters(const std::string& folder, const CheckpointImport& options,
                                      const std::string& file) {
  PIPER_TRY(check_new(file, options.replace));
  PIPER_ASSIGN(FoundTensors found, options.is_dcp ? read_dcp(folder) : read_huggingface(folder));
  std::vector<std::string> left;
  PIPER_ASSIGN(const std::vector<NamedTensor> tensors,
               renamed(std::move(found.tensors), options.strip_prefix, options.add_prefix, left));
  PIPER_TRY(write_checked(file, tensors, [&](const std::string& path) {
    return write_safetensors_part(path, tensors);
  }));
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += tensor.type.bytes();
  std::string text =
      fmt::format("{}: {}, {}\n", file, counted(std::ssize(tensors), "tensor"), human_bytes(bytes));
  list_names(text, left, "do not begin with the prefix and are left out");
  list_names(text, found.others, "are no tensors and are left out");
  list_names(text, found.foreign, "are of types that are not supported and are left out");
  return text;
}

}  // namespace piper
