// Reads and writes safetensors files.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "piper/base/data.h"
#include "piper/base/digester.h"
#include "piper/base/folders.h"
#include "piper/base/known_tensors.h"
#include "written.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

// Describes an element type of a file: a type of plans, an integer type that plans do not have, or
// any other, of which only the name is known.
struct Element {
  std::string name;
  int bytes = 0;  // 0: it is none that is read
  std::optional<DType> dtype;
};

Element element_of(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (const DTypeInfo& row = info(static_cast<DType>(i)); name == row.safetensors)
      return {name, row.bytes, row.dtype};
  constexpr std::pair<std::string_view, int> kIntegers[] = {
      {"U8", 1}, {"I8", 1}, {"U16", 2}, {"I16", 2}, {"U32", 4}};
  for (const auto& [integer, bytes] : kIntegers)
    if (name == integer) return {name, bytes, std::nullopt};
  return {name, 0, std::nullopt};
}

// Returns elements × size of one, or nothing when a dim is negative or the product overflows.
std::optional<uint64_t> checked_bytes(int element, const Shape& shape) {
  uint64_t bytes = static_cast<uint64_t>(element);
  for (int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
  }
  return bytes;
}

Error wrong_element(const SourceSpan& at, const std::string& name, std::string_view found) {
  return fail(at, "tensor '{}' has the element type '{}', which is not supported",
              quote_control(name), quote_control(found))
      .with_note(
          "expected F64, F32, F16, BF16, I64, I32 or BOOL; data files may also have U8, I8, "
          "U16, I16 and U32")
      .with_note("help: convert the tensor before it is saved, as by tensor.to(torch.float32)");
}

bool is_size(const Json& json) {
  return json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX};
}

struct Entry {
  NamedTensor tensor;
  Element element;
  uint64_t begin = 0, end = 0;
};

Result<Entry> parse_entry(const SourceSpan& at, const std::string& name, const Json& json) {
  const std::string shown = quote_control(name);
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json["dtype"].is_string() || !json["shape"].is_array() ||
      !json["data_offsets"].is_array())
    return fail(at, "tensor '{}' needs dtype, shape and data_offsets", shown);
  Entry entry;
  entry.tensor.name = name;
  entry.element = element_of(json["dtype"].get<std::string>());
  const std::optional<DType> dtype = entry.element.dtype;
  if (dtype) entry.tensor.type.dtype = *dtype;
  for (const Json& dim : json["shape"]) {
    if (!is_size(dim)) return fail(at, "tensor '{}' has a dim that is no size", shown);
    entry.tensor.type.shape.push_back(dim.get<int64_t>());
  }
  if (entry.tensor.type.shape.size() > 16)
    return fail(at, "tensor '{}' has {} dims; at most 16 are supported", shown,
                entry.tensor.type.shape.size());
  const Json& offsets = json["data_offsets"];
  if (offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1]))
    return fail(at, "tensor '{}' needs two data_offsets", shown);
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  const auto bytes = checked_bytes(entry.element.bytes, entry.tensor.type.shape);
  if (entry.end < entry.begin ||
      (entry.element.bytes > 0 && (!bytes || *bytes != entry.end - entry.begin)))
    return fail(at, "tensor '{}' is {}{} but its data_offsets are [{}, {})", shown,
                dtype ? info(*dtype).name : quote_control(entry.element.name),
                to_string(entry.tensor.type.shape), entry.begin, entry.end);
  return entry;
}

// No header is nested deeper. What is would be copied level by level, and overflow the stack.
constexpr int kMaxDepth = 8;

Result<std::vector<Entry>> parse_header(const SourceSpan& at, std::string_view text) {
  std::set<std::string> names;
  std::string twice;
  const auto check_name = [&](int depth, Json::parse_event_t event, const Json& key) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(key.get<std::string>()).second)
      twice = key.get<std::string>();
    return depth <= kMaxDepth;
  };
  const Json header = Json::parse(text.begin(), text.end(), check_name, false);
  if (header.is_discarded() || !header.is_object())
    return fail(at, "the header is not a JSON object")
        .with_note(
            "help: a safetensors file is written by safetensors.torch.save_file; files of "
            "torch.save or numpy.save are not");
  if (!twice.empty()) return fail(at, "two tensors are named '{}'", quote_control(twice));
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    PIPER_ASSIGN(Entry entry, parse_entry(at, name, json));
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  return entries;
}

struct HeaderAndData {
  std::string_view header;
  Bytes data;
};

// Takes a file apart; both parts live as long as the data does.
Result<HeaderAndData> split_file(const SourceSpan& at, const Bytes& file) {
  uint64_t header = 0;
  if (file.size < 8)
    return fail(at,
                "{} bytes are too few for a safetensors file, which begins with 8 for the size "
                "of its header",
                file.size);
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(file.data[i]);
  if (header > kMaxHeader)
    return fail(at,
                "no safetensors file: its first 8 bytes give a header of {} bytes, above the limit "
                "of {}",
                header, kMaxHeader)
        .with_note(
            "help: a safetensors file is written by safetensors.torch.save_file; files of "
            "torch.save or numpy.save are not");
  if (header > file.size - 8)
    return fail(at, "the header of {} bytes does not fit in a file of {} bytes", header, file.size)
        .with_note("help: the file is cut off, or is no safetensors file: write or copy it again");
  return HeaderAndData{as_text(file.span()).substr(8, header),
                       file.window(8 + header, file.size - 8 - header)};
}

Result<std::vector<Entry>> read_entries(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  const SourceSpan at{path};
  PIPER_ASSIGN(const HeaderAndData parts, split_file(at, file));
  const Bytes& data = parts.data;
  PIPER_ASSIGN(std::vector<Entry> entries, parse_header(at, parts.header));
  uint64_t end = 0;
  for (Entry& entry : entries) {
    if (entry.begin != end)
      return fail(at, "tensor '{}' begins at {} where {} was expected (no overlap, no hole)",
                  quote_control(entry.tensor.name), entry.begin, end);
    if (entry.end > data.size)
      return fail(at, "tensor '{}' ends at {}, but only {} bytes of data are there",
                  quote_control(entry.tensor.name), entry.end, data.size)
          .with_note("help: the file is cut off: write or copy it again");
    end = entry.end;
    entry.tensor.data = data.window(entry.begin, entry.end - entry.begin);
  }
  if (end != data.size)
    return fail(at, "{} bytes follow the last tensor; the file belongs to another header",
                data.size - end);
  return entries;
}

}  // namespace

Result<std::map<std::string, std::string>> read_safetensors_metadata(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  PIPER_ASSIGN(const HeaderAndData parts, split_file(SourceSpan{path}, file));
  const Json header = Json::parse(
      parts.header.begin(), parts.header.end(),
      [](int depth, Json::parse_event_t, const Json&) { return depth <= kMaxDepth; }, false);
  std::map<std::string, std::string> metadata;
  if (!header.is_object() || !header.contains("__metadata__")) return metadata;
  if (!header["__metadata__"].is_object())
    return fail(SourceSpan{path}, "its __metadata__ is not a JSON object");
  for (const auto& [key, value] : header["__metadata__"].items())
    if (value.is_string()) metadata[key] = value.get<std::string>();
  return metadata;
}

Result<std::vector<NamedTensor>> read_safetensors(const std::string& path) {
  PIPER_ASSIGN(KnownTensors known, read_known_safetensors(path));
  if (known.foreign.empty()) return std::move(known.tensors);
  return wrong_element(SourceSpan{path}, known.foreign[0].first, known.foreign[0].second);
}

Result<KnownTensors> read_known_safetensors(const std::string& path) {
  PIPER_ASSIGN(std::vector<Entry> entries, read_entries(path));
  KnownTensors known;
  for (Entry& entry : entries)
    if (entry.element.dtype)
      known.tensors.push_back(std::move(entry.tensor));
    else
      known.foreign.emplace_back(std::move(entry.tensor.name), std::move(entry.element.name));
  return known;
}

Result<std::vector<StoredArray>> read_safetensors_arrays(const std::string& path) {
  PIPER_ASSIGN(std::vector<Entry> entries, read_entries(path));
  std::vector<StoredArray> arrays;
  for (Entry& entry : entries) {
    const Element& element = entry.element;
    if (element.bytes == 0) return wrong_element(SourceSpan{path}, entry.tensor.name, element.name);
    if (!element.dtype) entry.tensor.type.dtype = element.bytes < 4 ? DType::kI32 : DType::kI64;
    arrays.push_back({std::move(entry.tensor), element.bytes, element.name[0] != 'U'});
  }
  return arrays;
}

Result<std::optional<IntegerList>> read_safetensors_list(const std::string& path) {
  PIPER_ASSIGN(const std::vector<Entry> entries, read_entries(path));
  for (const Entry& entry : entries)
    if (entry.element.bytes == 0)
      return wrong_element(SourceSpan{path}, entry.tensor.name, entry.element.name);
  if (entries.size() != 1) return std::optional<IntegerList>();
  const auto& [tensor, element, begin, end] = entries[0];
  const char kind = element.name[0];
  if (tensor.type.shape.size() != 1 || (kind != 'I' && kind != 'U'))
    return std::optional<IntegerList>();
  return std::optional(IntegerList{element.bytes, kind == 'I', tensor.type.shape[0], tensor.data});
}

// Returns the length and the text of the header, padded so that the data start at a cache line.
std::string safetensors_header(std::span<const NamedTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& json = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) json[key] = value;
  }
  uint64_t end = 0;
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    PIPER_CHECK(names.insert(tensor.name).second, "two tensors named {}", tensor.name);
    PIPER_CHECK(tensor.data.size == static_cast<size_t>(tensor.type.bytes()), "{}", tensor.name);
    Json entry = {{"dtype", info(tensor.type.dtype).safetensors},
                  {"shape", tensor.type.shape},
                  {"data_offsets", {end, end + tensor.data.size}}};
    // Its operator[] searches all names, which were found to differ already.
    header.get_ref<Json::object_t&>().Container::emplace_back(tensor.name, std::move(entry));
    end += tensor.data.size;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  while ((text.size() + 8) % 64 != 0) text += ' ';
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  std::vector<Bytes> parts{
      {nullptr, reinterpret_cast<const std::byte*>(header.data()), header.size()}};
  for (const NamedTensor& tensor : tensors) parts.push_back(tensor.data);
  return write_parts(path, parts);
}

Result<std::string> write_safetensors_part(const std::string& path,
                                           std::span<const NamedTensor> tensors) {
  std::FILE* file = std::fopen(path.c_str(), "wbx");
  const auto cannot = [&] { return cannot_store("write", path, errno); };
  if (!file) return cannot();
  std::setvbuf(file, nullptr, _IOFBF, size_t{1} << 16);
  Digester digest;
  const auto put = [&](std::string_view bytes) {
    digest.add(bytes);
    return std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  };
  bool good = put(safetensors_header(tensors, {}));
  for (size_t t = 0; good && t < tensors.size(); ++t) {
    const Bytes bytes = tensors[t].data.made();
    good = put(as_text(bytes.span()));
  }
  Error problem = cannot();
  if (!good) {
    std::fclose(file);
    return problem;
  }
  if (std::fclose(file) != 0) return cannot();
  return digest.digest();
}

}  // namespace piper
