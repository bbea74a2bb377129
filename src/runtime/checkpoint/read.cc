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

// Runs that the parts of a file may have beside two for each of its elements: padding has some.
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

// Runs of a tensor's elements that some piece has, ascending in the whole, no two with the same
// element: pieces that overlap hold the same there, which piper-checkpoint verifies.
struct SourceRun {
  int64_t whole = 0, count = 0;
  const std::byte* data = nullptr;
};

std::vector<SourceRun> source_runs(const std::vector<CheckpointReader::Piece>& pieces,
                                   int64_t size) {
  std::vector<SourceRun> runs;
  for (const CheckpointReader::Piece& piece : pieces)
    for (const ElementRun& run : runs_of(piece.held, /*packed=*/true))
      runs.push_back({run.whole, run.count, piece.data.data + run.at * size});
  std::stable_sort(runs.begin(), runs.end(),
                   [](const SourceRun& a, const SourceRun& b) { return a.whole < b.whole; });
  int64_t end = 0;
  for (SourceRun& run : runs) {
    const int64_t known = std::clamp(end - run.whole, int64_t{0}, run.count);
    run = {run.whole + known, run.count - known, run.data + known * size};
    end = std::max(end, run.whole + run.count);
  }
  std::erase_if(runs, [](const SourceRun& run) { return run.count == 0; });
  return runs;
}

// Fills the elements of a target run from runs that begin at or before it; returns the first
// element that nobody has, or the end.
int64_t fill_run(const std::vector<SourceRun>& sources, const ElementRun& target, DType from,
                 DType to, std::byte* at, int64_t& too_large) {
  const int64_t in = info(from).bytes, out = info(to).bytes;
  int64_t next = target.whole;
  const int64_t end = target.whole + target.count;
  auto source = std::upper_bound(sources.begin(), sources.end(), next,
                                 [](int64_t w, const SourceRun& run) { return w < run.whole; });
  if (source != sources.begin()) --source;
  for (; source != sources.end() && next < end && source->whole <= next; ++source) {
    const int64_t count = std::min(end, source->whole + source->count) - next;
    if (count <= 0) continue;
    too_large += convert(from, source->data + (next - source->whole) * in, to,
                         at + (target.at + next - target.whole) * out, count);
    next += count;
  }
  return next;
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(Storage& storage, const std::string& folder) {
  const std::string path = folder + "/checkpoint.json";
  auto text = storage.read(path);
  if (!text) return damaged(path, "there is no checkpoint.json: " + text.error().message);
  CheckpointReader reader;
  reader.storage_ = &storage;
  reader.folder_ = folder;
  PIPER_ASSIGN(reader.about_, parse_checkpoint(as_text(text->span()), path));
  for (const CheckpointFile& file : reader.about_.files) {
    Status added = add_file(folder + "/" + file.name, reader.types_, reader.pieces_);
    if (!added) return std::move(added).error().with_code(ExitCode::kStorage);
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
  auto bytes = storage_->read(path);
  if (!bytes) return std::move(bytes).error().with_code(ExitCode::kStorage);
  if (std::ssize(bytes->span()) != file.bytes)
    return damaged(path,
                   fmt::format("it has {} bytes, the checkpoint says {}", bytes->size, file.bytes));
  if (digest(as_text(bytes->span())) != file.digest)
    return damaged(path, "its content does not match its digest");
  return ok_status();
}

Status CheckpointReader::read(const std::string& name, const Held& held, std::byte* to) const {
  const auto found = types_.find(name);
  const auto bad = [&](std::string what) {
    return fail("'{}' of {}: {}", quote_control(name), folder_, what).with_code(ExitCode::kInput);
  };
  if (found == types_.end()) return bad("it is not there");
  const TensorType& stored = found->second;
  const DType from = stored.dtype, wanted = held.whole.dtype;
  if (stored.shape != held.whole.shape ||
      (from != wanted && (!info(from).is_float || !info(wanted).is_float)))
    return bad(fmt::format("it is {}, and {} is wanted", to_string(stored), to_string(held.whole)));
  const std::vector<SourceRun> sources = source_runs(pieces(name), info(from).bytes);
  int64_t too_large = 0;
  for (const ElementRun& target : runs_of(held, /*packed=*/false)) {
    const int64_t filled = fill_run(sources, target, from, wanted, to, too_large);
    if (filled < target.whole + target.count)
      return bad(fmt::format("no file has its element {}", filled));
  }
  if (too_large > 0)
    return bad(fmt::format("{} of its elements are too large for {}", too_large, info(wanted).name))
        .with_note("help: bf16 holds what f32 does");
  return ok_status();
}

}  // namespace piper
