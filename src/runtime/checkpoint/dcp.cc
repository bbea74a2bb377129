// Reads distributed checkpoints of PyTorch: `.metadata`, a pickle that says which boxes of each
// tensor lie where, and files of archives, one for each box.
#include "dcp.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "pickle.h"
#include "torch_file.h"

namespace piper {
namespace {

constexpr size_t kMaxMetadata = size_t{1} << 28;
constexpr size_t kMaxChunks = size_t{1} << 16;  // of a tensor: each two are compared
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata.";

// Describes a box of a tensor and its elements.
struct Chunk {
  Shape offsets;
  TorchTensor tensor;  // of the box's sizes
};

// Says in which file an archive is, and from which byte on.
struct Place {
  std::string file;
  int64_t at = 0, bytes = 0;
};

// Returns how many elements there are, or nothing where that is no number.
std::optional<int64_t> count(const Shape& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(elements, size, &elements)) return {};
  if (elements > (int64_t{1} << 56)) return {};
  return elements;
}

bool lies_in(const Chunk& chunk, const Shape& whole) {
  if (chunk.offsets.size() != whole.size() || chunk.tensor.sizes.size() != whole.size())
    return false;
  for (size_t d = 0; d < whole.size(); ++d)
    if (chunk.offsets[d] > whole[d] || chunk.tensor.sizes[d] > whole[d] - chunk.offsets[d])
      return false;
  return true;
}

bool overlap(const Chunk& a, const Chunk& b) {
  for (size_t d = 0; d < a.offsets.size(); ++d)
    if (a.offsets[d] + a.tensor.sizes[d] <= b.offsets[d] ||
        b.offsets[d] + b.tensor.sizes[d] <= a.offsets[d])
      return false;
  return true;
}

// Says whether two of the boxes have an element in common. Sorts them by their first dim, so that
// boxes of rows are compared with their neighbours alone.
bool any_overlap(std::vector<Chunk>& chunks) {
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.offsets < b.offsets; });
  for (size_t a = 0; a < chunks.size(); ++a)
    for (size_t b = a + 1; b < chunks.size(); ++b) {
      const bool is_behind =
          !chunks[a].offsets.empty() &&
          chunks[b].offsets[0] >= chunks[a].offsets[0] + chunks[a].tensor.sizes[0];
      if (is_behind) break;
      if (overlap(chunks[a], chunks[b])) return true;
    }
  return false;
}

// Copies a box to where the whole tensor has it, row by row.
void copy_box(const Chunk& chunk, const Shape& whole, size_t bytes, std::byte* to) {
  const Shape& sizes = chunk.tensor.sizes;
  const size_t dims = sizes.size();
  if (*count(sizes) == 0) return;
  Shape at(dims, 0), steps(dims, 1);
  for (size_t d = dims; d-- > 1;) steps[d - 1] = steps[d] * whole[d];
  const size_t rows = dims == 0 ? 0 : dims - 1;
  const int64_t row = dims == 0 ? 1 : sizes.back();
  const int64_t stride = dims == 0 ? 1 : chunk.tensor.strides.back();
  while (true) {
    int64_t source = 0, target = 0;
    for (size_t d = 0; d < dims; ++d) {
      source += at[d] * chunk.tensor.strides[d];
      target += (chunk.offsets[d] + at[d]) * steps[d];
    }
    const std::byte* from = chunk.tensor.elements.data + static_cast<size_t>(source) * bytes;
    std::byte* into = to + static_cast<size_t>(target) * bytes;
    if (stride == 1)
      std::memcpy(into, from, static_cast<size_t>(row) * bytes);
    else
      for (int64_t k = 0; k < row; ++k)
        std::memcpy(into + static_cast<size_t>(k) * bytes,
                    from + static_cast<size_t>(k * stride) * bytes, bytes);
    size_t d = rows;
    while (d > 0 && ++at[d - 1] == sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

// Returns a source that puts the whole tensor's bytes together each time it is read, so that only
// one tensor at a time is in memory.
Bytes whole_of(std::vector<Chunk> chunks, const TensorType& type) {
  const auto size = static_cast<size_t>(type.bytes());
  return Bytes::deferred(size, [chunks = std::move(chunks), type, size] {
    const auto bytes = std::make_shared<std::vector<std::byte>>(size);
    for (const Chunk& chunk : chunks)
      copy_box(chunk, type.shape, static_cast<size_t>(info(type.dtype).bytes), bytes->data());
    return Bytes{bytes, bytes->data(), size};
  });
}

class DcpReader {
 public:
  DcpReader(std::string folder, std::string path, const Pickle& pickle)
      : folder_(std::move(folder)), path_(std::move(path)), pickle_(pickle) {}

  Result<FoundTensors> read() {
    const uint32_t root = pickle_.root();
    const auto states = pickle_.field(root, "state_dict_metadata");
    const auto places = pickle_.field(root, "storage_data");
    if (!is_a(root, "Metadata") || !states || !pickle_.is(*states, Pickle::Kind::kDict) ||
        !places || !pickle_.is(*places, Pickle::Kind::kDict))
      return error("it is no metadata of a distributed checkpoint");
    PIPER_TRY(read_places(pickle_.at(*places).items));
    const std::vector<uint32_t>& items = pickle_.at(*states).items;
    std::map<std::string, uint32_t> by_name;
    for (size_t k = 0; k + 1 < items.size(); k += 2) {
      const auto name = pickle_.text(items[k]);
      if (!name) return error("a state has no name");
      if (!by_name.emplace(*name, items[k + 1]).second)
        return error(fmt::format("two states are named '{}'", quote_control(*name)));
    }
    for (const auto& [name, state] : by_name) PIPER_TRY(add(name, state));
    return std::move(found_);
  }

 private:
  Error error(const std::string& what) const { return fail(SourceSpan{path_}, "{}", what); }
  bool is_a(uint32_t value, std::string_view name) const {
    return pickle_.is(value, Pickle::Kind::kObject) &&
           pickle_.name_of(value) == fmt::format("{}{}", kModule, name);
  }

  // Reads where the bytes of a part of a state are.
  Result<Place> read_place(uint32_t info, const std::string& name) const {
    const auto file = pickle_.text(pickle_.field(info, "relative_path"));
    const auto at = pickle_.integer(pickle_.field(info, "offset"));
    const auto bytes = pickle_.integer(pickle_.field(info, "length"));
    if (!file || file->find('/') != file->npos || file->find('\0') != file->npos || !at ||
        *at < 0 || !bytes || *bytes < 0)
      return error(fmt::format("a part of '{}' is in no file of this folder", quote_control(name)));
    const auto changed = pickle_.field(info, "transform_descriptors");
    if (changed && !pickle_.is(*changed, Pickle::Kind::kNone))
      return error(
          fmt::format("a part of '{}' is compressed, which is not supported", quote_control(name)));
    return Place{*file, *at, *bytes};
  }
  Status read_places(const std::vector<uint32_t>& items) {
    for (size_t k = 0; k + 1 < items.size(); k += 2) {
      const auto name = pickle_.text(pickle_.field(items[k], "fqn"));
      if (!name) return error("a part of a state has no name");
      const auto offset = pickle_.sizes(pickle_.field(items[k], "offset"));
      PIPER_ASSIGN(Place place, read_place(items[k + 1], *name));
      if (offset) places_.emplace(std::pair(*name, *offset), std::move(place));
    }
    return ok_status();
  }

  Result<Bytes> window(const Place& place) {
    auto found = files_.find(place.file);
    if (found == files_.end()) {
      PIPER_ASSIGN(Bytes file, map_file(folder_ + "/" + place.file));
      found = files_.emplace(place.file, std::move(file)).first;
    }
    const size_t size = found->second.size;
    const auto at = static_cast<size_t>(place.at), bytes = static_cast<size_t>(place.bytes);
    if (at > size || bytes > size - at)
      return fail(SourceSpan{folder_ + "/" + place.file},
                  "the metadata name {} bytes from {} on, and the file has {}", bytes, at, size);
    return found->second.window(at, bytes);
  }

  Result<Chunk> read_chunk(const std::string& name, const std::string& dtype, uint32_t value) {
    const auto offsets = pickle_.sizes(pickle_.field(value, "offsets"));
    const auto sizes = pickle_.sizes(pickle_.field(value, "sizes"));
    if (!is_a(value, "ChunkStorageMetadata") || !offsets || !sizes)
      return error(fmt::format("a part of '{}' has no offsets and sizes", quote_control(name)));
    const auto place = places_.find(std::pair(name, *offsets));
    if (place == places_.end())
      return error(fmt::format("no file has the part of '{}' from {} on", quote_control(name),
                               to_string(*offsets)));
    PIPER_ASSIGN(const Bytes archive, window(place->second));
    const std::string path = folder_ + "/" + place->second.file;
    PIPER_ASSIGN(TorchTensor tensor,
                 read_torch_tensor(archive, path, static_cast<uint64_t>(place->second.at)));
    if (tensor.sizes != *sizes || tensor.dtype != dtype)
      return fail(SourceSpan{path}, "byte {}: '{}' is {}{} here, and {}{} in the metadata",
                  place->second.at, quote_control(name), tensor.dtype, to_string(tensor.sizes),
                  dtype, to_string(*sizes));
    return Chunk{*offsets, std::move(tensor)};
  }

  Status add(const std::string& name, uint32_t state) {
    if (is_a(state, "BytesStorageMetadata")) {
      found_.others.push_back(name);
      return ok_status();
    }
    const auto properties = pickle_.field(state, "properties");
    const auto sizes = pickle_.sizes(pickle_.field(state, "size"));
    const auto chunks = pickle_.field(state, "chunks");
    const auto dtype = properties ? dtype_name(*properties) : std::nullopt;
    if (!is_a(state, "TensorStorageMetadata") || !dtype || !sizes || !count(*sizes) || !chunks ||
        !pickle_.is(*chunks, Pickle::Kind::kList))
      return error(fmt::format("'{}' is described as no tensor", quote_control(name)));
    const auto ours = dtype_of_torch(*dtype);
    if (!ours) {
      found_.foreign.push_back(fmt::format("{} ({})", name, *dtype));
      return ok_status();
    }
    PIPER_ASSIGN(std::vector<Chunk> parts,
                 read_chunks(name, *dtype, *sizes, pickle_.at(*chunks).items));
    const TensorType type{*ours, *sizes};
    found_.tensors.push_back({name, type, whole_of(std::move(parts), type)});
    return ok_status();
  }

  // The state of these is a tuple that begins with the type.
  std::optional<std::string> dtype_name(uint32_t properties) const {
    if (!is_a(properties, "TensorProperties") || pickle_.at(properties).items.size() != 2)
      return {};
    const std::vector<uint32_t>& state = pickle_.at(pickle_.at(properties).items[1]).items;
    if (state.empty()) return {};
    const std::string_view name = pickle_.name_of(state[0]);
    if (!name.starts_with("torch.")) return {};
    return std::string(name.substr(6));
  }

  // Reads the boxes of a tensor. Each element is in one of them.
  Result<std::vector<Chunk>> read_chunks(const std::string& name, const std::string& dtype,
                                         const Shape& whole, const std::vector<uint32_t>& items) {
    const std::string shown = quote_control(name);
    if (items.size() > kMaxChunks)
      return error(fmt::format("'{}' has {} parts; at most {} are supported", shown, items.size(),
                               kMaxChunks));
    std::vector<Chunk> chunks;
    int64_t elements = 0;
    for (const uint32_t item : items) {
      if (const auto sizes = pickle_.sizes(pickle_.field(item, "sizes"));
          sizes && count(*sizes) == 0)
        continue;  // a rank that has nothing of it
      PIPER_ASSIGN(Chunk chunk, read_chunk(name, dtype, item));
      if (!lies_in(chunk, whole))
        return error(fmt::format("the part of '{}' from {} on, {}, does not lie in {}", shown,
                                 to_string(chunk.offsets), to_string(chunk.tensor.sizes),
                                 to_string(whole)));
      elements += *count(chunk.tensor.sizes);
      chunks.push_back(std::move(chunk));
    }
    if (any_overlap(chunks)) return error(fmt::format("parts of '{}' overlap", shown));
    if (elements != *count(whole))
      return error(fmt::format("the parts of '{}' have {} of its {} elements", shown, elements,
                               *count(whole)));
    return chunks;
  }

  const std::string folder_, path_;
  const Pickle& pickle_;
  std::map<std::pair<std::string, Shape>, Place> places_;
  std::map<std::string, Bytes> files_;
  FoundTensors found_;
};

}  // namespace

Result<FoundTensors> read_dcp(const std::string& folder) {
  const std::string path = folder + "/" + kDcpFile;
  PIPER_ASSIGN(const Bytes bytes, map_file(path));
  if (bytes.size > kMaxMetadata)
    return fail(SourceSpan{path}, "it has {}; at most {} are supported",
                human_bytes(static_cast<int64_t>(bytes.size)),
                human_bytes(static_cast<int64_t>(kMaxMetadata)));
  PIPER_ASSIGN(const Pickle pickle, read_pickle(bytes.span(), path, 0));
  return DcpReader(folder, path, pickle).read();
}

}  // namespace piper
