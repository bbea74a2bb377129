// Reads tensors of a checkpoint in the layout of whoever asks. Called when ranks load their states,
// and by piper-checkpoint.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "boxes.h"
#include "piper/base/float16.h"

namespace piper {
namespace {

Error damaged(const std::string& path, std::string what) {
  return fail(SourceSpan{path}, "{}", what).with_code(ExitCode::kStorage);
}

// The most runs of a file beside two for each of its elements: padding has runs of its own.
constexpr int64_t kSpareRuns = int64_t{1} << 22;

Result<std::map<std::string, Box>> boxes_of(const std::string& path) {
  PIPER_ASSIGN(const auto metadata, read_safetensors_metadata(path));
  const auto found = metadata.find(kBoxesKey);
  if (found == metadata.end()) return std::map<std::string, Box>();
  return parse_boxes(found->second, path);
}

// Adds the tensors of one file.
Status add_file(const std::string& path, std::map<std::string, TensorType>& types,
                CheckpointReader::Pieces& pieces) {
  PIPER_ASSIGN(const std::vector<NamedTensor> tensors, read_safetensors(path));
  PIPER_ASSIGN(const auto boxes, boxes_of(path));
  int64_t runs = kSpareRuns;
  for (const NamedTensor& tensor : tensors) runs += 2 * num_elements(tensor.type.shape);
  for (const NamedTensor& tensor : tensors) {
    const int64_t elements = num_elements(tensor.type.shape);
    Held held{tensor.type, {}, 0, elements};
    std::string name = tensor.name;
    if (const auto box = boxes.find(tensor.name); box != boxes.end()) {
      held = box->second.held, name = box->second.of;
      held.whole.dtype = tensor.type.dtype;
      if (count_elements(held, runs) != elements)
        return damaged(path, fmt::format("the {} elements of '{}' are not those of {}", elements,
                                         quote_control(tensor.name), to_string(held)));
    }
    const auto [known, is_new] = types.emplace(name, held.whole);
    if (!is_new && known->second != held.whole)
      return damaged(
          path, fmt::format("'{}' is part of {} here, and of {} in another file",
                            quote_control(name), to_string(held.whole), to_string(known->second)));
    pieces[name].push_back({std::move(held), tensor.data});
  }
  return ok_status();
}

void store(DType dtype, double value, std::byte* at) {
  if (dtype == DType::kF64) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(at, &narrow, sizeof narrow);
    return;
  }
  round_to_halves(dtype, &narrow, at, 1);
}

// Copies `count` elements from one type to another, which are equal or both floats. Returns how
// many finite ones the other type cannot hold.
int64_t convert(DType from, const std::byte* source, DType to, std::byte* target, int64_t count) {
  const int64_t in = info(from).bytes, out = info(to).bytes;
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(count * in));
    return 0;
  }
  int64_t too_large = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double value = float_at(from, source + k * in);
    store(to, value, target + k * out);
    too_large += std::isfinite(value) && !std::isfinite(float_at(to, target + k * out)) ? 1 : 0;
  }
  return too_large;
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(Storage& storage, const std::string& folder) {
  const std::string path = folder + "/checkpoint.json";
  auto text = storage.read(path);
  if (!text) return damaged(path, "there is no checkpoint.json: " + text.error().message);
  CheckpointReader reader;
  reader.folder_ = folder;
  PIPER_ASSIGN(reader.about_, parse_checkpoint(as_text(text->span()), path));
  for (const CheckpointFile& file : reader.about_.files) {
    Status added = add_file(folder + "/" + file.name, reader.types_, reader.pieces_);
    if (!added) return std::move(added).error().with_code(ExitCode::kStorage);
    auto bytes = storage.read(folder + "/" + file.name);
    if (!bytes) return std::move(bytes).error().with_code(ExitCode::kStorage);
    reader.files_.push_back(*std::move(bytes));
  }
  return reader;
}

Result<CheckpointReader> CheckpointReader::open_tensors(const std::string& file) {
  CheckpointReader reader;
  reader.folder_ = file;
  PIPER_TRY(add_file(file, reader.types_, reader.pieces_));
  return reader;
}

CheckpointReader CheckpointReader::of_memory(std::string name, Checkpoint about,
                                             std::map<std::string, TensorType> types,
                                             Pieces pieces) {
  CheckpointReader reader;
  reader.folder_ = std::move(name);
  reader.about_ = std::move(about);
  reader.types_ = std::move(types);
  reader.pieces_ = std::move(pieces);
  return reader;
}

Status CheckpointReader::verify(size_t index) const {
  const CheckpointFile& file = about_.files[index];
  const std::string path = folder_ + "/" + file.name;
  const Bytes& bytes = files_[index];
  if (std::ssize(bytes.span()) != file.bytes)
    return damaged(path,
                   fmt::format("it has {} bytes, the checkpoint says {}", bytes.size, file.bytes));
  if (digest(as_text(bytes.span())) != file.digest)
    return damaged(path, "its content does not match its digest");
  return ok_status();
}

namespace {

// Cuts from runs what earlier ones have. Pieces that overlap hold the same there, which
// piper-checkpoint verifies: the first one counts.
template <class Run>
void drop_overlaps(std::vector<Run>& runs, int64_t size) {
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.whole < b.whole; });
  int64_t end = 0;
  for (Run& run : runs) {
    const int64_t known = std::clamp(end - run.whole, int64_t{0}, run.count);
    run = {run.whole + known, run.count - known, run.data + known * size};
    end = std::max(end, run.whole + run.count);
  }
  std::erase_if(runs, [](const Run& run) { return run.count == 0; });
}

}  // namespace

Result<StoredTensor> CheckpointReader::find(const std::string& name) const {
  StoredTensor tensor;
  tensor.name_ = fmt::format("'{}' of {}", quote_control(name), folder_);
  const auto found = types_.find(name);
  if (found == types_.end())
    return fail("{}: it is not there", tensor.name_).with_code(ExitCode::kInput);
  tensor.type_ = found->second;
  const int64_t size = info(tensor.type_.dtype).bytes;
  for (const Piece& piece : pieces(name))
    for (const ElementRun& run : runs_of(piece.held, /*packed=*/true))
      tensor.runs_.push_back({run.whole, run.count, piece.data.data + run.at * size});
  drop_overlaps(tensor.runs_, size);
  return tensor;
}

// Copies elements [first, end) to `at`; returns the first one that no file has, or the end.
int64_t StoredTensor::fill(int64_t first, int64_t end, DType to, std::byte* at,
                           int64_t& too_large) const {
  const int64_t in = info(type_.dtype).bytes, out = info(to).bytes;
  int64_t next = first;
  auto source = std::upper_bound(runs_.begin(), runs_.end(), next,
                                 [](int64_t w, const Run& run) { return w < run.whole; });
  if (source != runs_.begin()) --source;
  for (; source != runs_.end() && next < end && source->whole <= next; ++source) {
    const int64_t count = std::min(end, source->whole + source->count) - next;
    if (count <= 0) continue;
    too_large += convert(type_.dtype, source->data + (next - source->whole) * in, to,
                         at + (next - first) * out, count);
    next += count;
  }
  return next;
}

Status StoredTensor::read(const Held& held, std::byte* to) const {
  const auto bad = [&](std::string what) {
    return fail("{}: {}", name_, what).with_code(ExitCode::kInput);
  };
  const DType from = type_.dtype, wanted = held.whole.dtype;
  if (type_.shape != held.whole.shape ||
      (from != wanted && (!info(from).is_float || !info(wanted).is_float)))
    return bad(fmt::format("it is {}, and {} is wanted", to_string(type_), to_string(held.whole)));
  int64_t too_large = 0, filled = 0, end = 0;
  for (int64_t at = 0; at < held.count && filled == end;) {
    const Held::Run run = held.run_at(at);
    at += run.count;
    if (run.whole < 0) continue;
    end = run.whole + run.count;
    filled = fill(run.whole, end, wanted, to + run.held * info(wanted).bytes, too_large);
  }
  if (filled < end) return bad(fmt::format("no file has its element {}", filled));
  if (too_large > 0)
    return bad(fmt::format("{} of its elements are too large for {}", too_large, info(wanted).name))
        .with_note("help: bf16 holds what f32 does");
  return ok_status();
}

Status CheckpointReader::read(const std::string& name, const Held& held, std::byte* to) const {
  PIPER_ASSIGN(const StoredTensor tensor, find(name));
  return tensor.read(held, to);
}

}  // namespace piper
