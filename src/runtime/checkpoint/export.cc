// Parameters for other programs: safetensors files, one or the shards of a Hugging Face folder.
// Called by piper-checkpoint.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "boxes.h"
#include "files.h"
#include "piper/base/counted.h"
#include "piper/base/digester.h"
#include "piper/base/folders.h"
#include "piper/ir/optimizers.h"
#include "piper/runtime/checkpoint_tools.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
using Metadata = std::vector<std::pair<std::string, std::string>>;
constexpr int64_t kCopyBlock = int64_t{1} << 24;  // elements that are held at a time

Error input_error(std::string text) { return Error{ExitCode::kInput, {}, std::move(text), {}}; }

// Describes a tensor to write, and the name under which the reader has it.
struct Exported {
  std::string name, source;
  TensorType type;
  const CheckpointReader* from = nullptr;
};

std::vector<NamedTensor> sizes_of(std::span<const Exported> tensors) {
  std::vector<NamedTensor> sizes;
  for (const Exported& one : tensors)
    sizes.push_back(
        {one.name, one.type, Bytes{nullptr, nullptr, static_cast<size_t>(one.type.bytes())}});
  return sizes;
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Writes a file, some elements at a time, and returns its digest.
Result<std::string> stream_tensors(std::span<const Exported> tensors, const Metadata& metadata,
                                   const std::string& path) {
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "wb"));
  const auto cannot = [&] { return cannot_store("write", path, errno); };
  if (!file) return cannot();
  Digester digest;
  const auto put = [&](std::string_view bytes) {
    digest.add(bytes);
    return std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  };
  if (!put(safetensors_header(sizes_of(tensors), metadata))) return cannot();
  std::vector<std::byte> block;
  for (const Exported& one : tensors) {
    PIPER_ASSIGN(const StoredTensor tensor, one.from->find(one.source));
    const int64_t elements = num_elements(one.type.shape);
    for (int64_t first = 0; first < elements; first += kCopyBlock) {
      const Held held{one.type, {}, first, std::min(kCopyBlock, elements - first)};
      block.resize(static_cast<size_t>(held.count * info(one.type.dtype).bytes));
      PIPER_TRY(tensor.read(held, block.data()));
      if (!put(as_text(block))) return cannot();
    }
  }
  if (std::fflush(file.get()) != 0) return cannot();
  return digest.digest();
}

Status write_tensors(std::span<const Exported> tensors, const Metadata& metadata,
                     const std::string& file) {
  const std::vector<NamedTensor> sizes = sizes_of(tensors);
  return write_checked(file, sizes, [&](const std::string& path) {
    return stream_tensors(tensors, metadata, path);
  });
}

int64_t bytes_of(std::span<const Exported> tensors) {
  int64_t bytes = 0;
  for (const Exported& one : tensors) bytes += one.type.bytes();
  return bytes;
}

// ---- What is exported ---------------------------------------------------------------------------

// Holds the tensors that are the model's own, and their further names.
struct Selection {
  std::vector<Exported> tensors;
  std::vector<std::pair<std::string, std::string>> ties;  // a name that is not stored, its tensor
  int64_t parameters = 0, buffers = 0, averages = 0;      // the last are of the first
};

class Selector {
 public:
  Selector(const CheckpointReader& reader, const ExportOptions& options)
      : reader_(reader), options_(options) {}

  // Fails if an option changes nothing.
  Status check_selection() const {
    if (options_.averages && selection_.averages == 0)
      return input_error(
          fmt::format("--ema: {} holds no averages of parameters", reader_.folder()));
    if (selection_.tensors.empty())
      return input_error(
          fmt::format("{} says of no tensor that it is a parameter", reader_.folder()));
    if (!options_.strip_prefix.empty() && stripped_ == 0)
      return input_error(fmt::format("no name begins with '{}': '{}' is one",
                                     quote_control(options_.strip_prefix),
                                     quote_control(selection_.tensors[0].name)));
    return ok_status();
  }

  Result<Selection> select() {
    for (const CheckpointState& state : reader_.about().states) {
      if (state.kind == StateKind::kParameter)
        ++selection_.parameters;
      else if (state.kind == StateKind::kBuffer)
        ++selection_.buffers;
      else
        continue;
      PIPER_TRY(add(state));
    }
    PIPER_TRY(check_selection());
    return std::move(selection_);
  }

 private:
  Status add_aliases(const CheckpointState& state, const std::string& name,
                     const std::string& source, const TensorType& type) {
    for (const std::string& alias : state.aliases) {
      PIPER_ASSIGN(const std::string tied, stripped(alias));
      if (options_.huggingface)
        selection_.ties.emplace_back(tied, name);
      else
        selection_.tensors.push_back({tied, source, type, &reader_});
    }
    return ok_status();
  }

  Status add(const CheckpointState& state) {
    const auto found = reader_.types().find(state.name);
    if (found == reader_.types().end() || found->second != state.type)
      return input_error(fmt::format("{} lacks '{}': piper-checkpoint verify says what is wrong",
                                     reader_.folder(), quote_control(state.name)));
    TensorType type = state.type;
    if (options_.dtype && info(type.dtype).is_float) type.dtype = *options_.dtype;
    PIPER_ASSIGN(const std::string name, stripped(state.name));
    std::string source = state.name;
    if (const std::string average = average_of(state.name);
        options_.averages && reader_.types().contains(average)) {
      source = average;
      ++selection_.averages;
    }
    selection_.tensors.push_back({name, source, type, &reader_});
    return add_aliases(state, name, source, type);
  }

  Result<std::string> stripped(const std::string& name) {
    std::string rest = name;
    if (!options_.strip_prefix.empty() && name.starts_with(options_.strip_prefix)) {
      rest = name.substr(options_.strip_prefix.size());
      ++stripped_;
    }
    if (rest.empty() || !names_.insert(rest).second)
      return input_error(fmt::format("without '{}' the name '{}' is {}",
                                     quote_control(options_.strip_prefix), quote_control(name),
                                     rest.empty() ? "empty" : "that of another tensor"));
    return rest;
  }

  const CheckpointReader& reader_;
  const ExportOptions& options_;
  Selection selection_;
  std::set<std::string> names_;
  int64_t stripped_ = 0;
};

// ---- Shards -------------------------------------------------------------------------------------

// Cuts the list where a shard would be larger than `most`; 0: nowhere.
std::vector<std::span<const Exported>> cut_shards(std::span<const Exported> tensors, int64_t most) {
  std::vector<std::span<const Exported>> shards;
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t own = tensors[t].type.bytes();
    if (most > 0 && t > first && bytes + own > most) {
      shards.push_back(tensors.subspan(first, t - first));
      first = t;
      bytes = 0;
    }
    bytes += own;
  }
  shards.push_back(tensors.subspan(first));
  return shards;
}

// Writes shards and their index as Hugging Face does: a single shard has no index.
Status write_shards(const Selection& selection, int64_t most, const std::string& folder) {
  const auto shards = cut_shards(selection.tensors, most);
  const Metadata metadata{{"format", "pt"}};
  if (shards.size() == 1) return write_tensors(shards[0], metadata, folder + "/" + kOnlyFile);
  Json index;
  index["metadata"]["total_size"] = bytes_of(selection.tensors);
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    PIPER_TRY(write_tensors(shards[s], metadata, folder + "/" + name));
    for (const Exported& one : shards[s]) index["weight_map"][one.name] = name;
  }
  return write_file(folder + "/" + kIndexFile,
                    index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// A folder is replaced as a whole: what no export wrote there would be lost.
Status check_only_ours(const std::string& folder) {
  std::vector<std::string> others;
  std::error_code problem;
  for (std::filesystem::directory_iterator it(folder, problem), end; !problem && it != end;
       it.increment(problem)) {
    const std::string name = it->path().filename().string();
    const bool is_shard = name.starts_with("model") && name.ends_with(".safetensors");
    if (!is_shard && name != kIndexFile) others.push_back("'" + quote_control(name) + "'");
  }
  if (others.empty()) return ok_status();
  std::ranges::sort(others);
  if (others.size() > 5) others.resize(5), others.push_back("…");
  return fail("'{}' has files beside an export's, which --force would remove: {}", folder,
              join(others, ", "))
      .with_code(ExitCode::kInput)
      .with_note("help: export to a new folder, and move its files there");
}

Status write_folder(const Selection& selection, int64_t most, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code problem;
  const std::string built = fs::path(folder + "/").parent_path().string() + ".partial";
  fs::remove_all(built, problem);
  fs::create_directories(built, problem);
  if (problem)
    return fail("cannot create '{}': {}", built, problem.message()).with_code(ExitCode::kStorage);
  Status written = write_shards(selection, most, built);
  if (written) written = file_storage().publish(built, fs::path(folder + "/").parent_path());
  fs::remove_all(built, problem);
  return written;
}

std::string export_text(const CheckpointReader& reader, const ExportOptions& options,
                        const Selection& selection, const std::string& to) {
  std::string text =
      fmt::format("{}: {} and {} of step {}, {}\n", to, counted(selection.parameters, "parameter"),
                  counted(selection.buffers, "buffer"), reader.about().step,
                  human_bytes(bytes_of(selection.tensors)));
  if (options.averages)
    text += fmt::format("{} of the parameters are averages\n", selection.averages);
  for (const auto& [tied, name] : selection.ties)
    text += fmt::format("'{}' is '{}' (tied) and stored once\n", quote_control(tied),
                        quote_control(name));
  return text;
}

}  // namespace

Result<std::string> export_checkpoint(const CheckpointReader& reader, const ExportOptions& options,
                                      const std::string& to) {
  PIPER_TRY(check_new(to, options.replace));
  if (options.huggingface) PIPER_TRY(check_only_ours(to));
  for (size_t k = 0; k < reader.about().files.size(); ++k)
    if (Status whole = reader.verify(k); !whole)
      return std::move(whole).error().with_code(ExitCode::kRefused);
  PIPER_ASSIGN(const Selection selection, Selector(reader, options).select());
  PIPER_TRY(options.huggingface ? write_folder(selection, options.shard_bytes, to)
                                : write_tensors(selection.tensors, {{"format", "pt"}}, to));
  return export_text(reader, options, selection, to);
}

Result<int64_t> parse_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
      {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  for (const auto& [unit, size] : kUnits)
    if (end != text.c_str() && unit == end && number * size >= 1 && number * size < 1e18)
      return static_cast<int64_t>(number * size);
  return fail("'{}' is no size such as 5GB, 500MB or 2GiB", quote_control(text))
      .with_code(ExitCode::kUsage);
}

}  // namespace piper
