// .npy: "\x93NUMPY", version, length, then {'descr': '<f4', 'fortran_order': False, 'shape': (3,
// 4), } and the elements.
#include <charconv>

#include "piper/base/data.h"

namespace piper {
namespace {

constexpr std::pair<std::string_view, DType> kDescr[] = {
    {"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16},
    {"<i8", DType::kI64}, {"<i4", DType::kI32}, {"|b1", DType::kBool}};

// Returns the text after "'key':" in the header's dictionary, or nothing.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  const std::string quoted = fmt::format("'{}'", key);
  const size_t found = header.find(quoted);
  if (found == header.npos) return std::nullopt;
  size_t at = found + quoted.size();
  while (at < header.size() && (header[at] == ' ' || header[at] == ':')) ++at;
  return header.substr(at);
}

// "(3, 4)", "(3,)" or "()" with at most 16 sizes.
std::optional<Shape> parse_shape(std::string_view text) {
  if (text.empty() || text[0] != '(') return std::nullopt;
  const size_t close = text.find(')');
  if (close == text.npos) return std::nullopt;
  Shape shape;
  size_t at = 1;
  while (at < close) {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + close, dim);
    if (error != std::errc() || dim < 0 || shape.size() == 16) return std::nullopt;
    shape.push_back(dim);
    at = static_cast<size_t>(end - text.data());
  }
  return shape;
}

// Holds what a .npy file says before its elements.
struct Header {
  std::string_view descr;  // from its quote on, with all that follows
  Shape shape;
  Bytes data;
};

Result<Header> read_header(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  const SourceSpan at{path};
  const std::string_view text = as_text(file.span());
  if (text.size() < 10 || !text.starts_with("\x93NUMPY"))
    return fail(at, "this is not a .npy file");
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const int version = byte(6);
  if (version < 1 || version > 3) return fail(at, ".npy version {} is not supported", version);
  const size_t start = version == 1 ? 10 : 12;
  if (text.size() < start) return fail(at, "the .npy header is cut off");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= size_t{byte(10)} << 16 | size_t{byte(11)} << 24;
  if (length > text.size() - start) return fail(at, "the .npy header is cut off");
  const std::string_view header = text.substr(start, length);
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!descr || !order || !shape)
    return fail(at, "the .npy header needs descr, fortran_order and shape");
  if (!order->starts_with("False"))
    return fail(at, "the array is in Fortran order; save it with np.ascontiguousarray");
  const auto dims = parse_shape(*shape);
  if (!dims) return fail(at, "the shape in the .npy header cannot be read");
  return Header{*descr, *dims, file.window(start + length, text.size() - start - length)};
}

bool has_type(const Header& header, std::string_view name) {
  return header.descr.size() > name.size() && header.descr.substr(1, name.size()) == name;
}

std::optional<DType> dtype_of(const Header& header) {
  for (const auto& [name, dtype] : kDescr)
    if (has_type(header, name)) return dtype;
  return std::nullopt;
}

}  // namespace

Result<NamedTensor> read_npy(const std::string& path) {
  PIPER_ASSIGN(const Header header, read_header(path));
  const SourceSpan at{path};
  const auto dtype = dtype_of(header);
  if (!dtype) {
    const size_t end = std::min(header.descr.find(','), size_t{24});
    return fail(
        at,
        "the element type {} is not supported (float32, float64, float16, int64, int32, bool are)",
        quote_control(header.descr.substr(0, end)));
  }
  const TensorType type{*dtype, header.shape};
  uint64_t bytes = static_cast<uint64_t>(info(type.dtype).bytes);
  bool overflow = false;
  for (int64_t dim : type.shape)
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  if (overflow || bytes != header.data.size)
    return fail(at, "{} does not fit the {} bytes of data that follow the header", to_string(type),
                header.data.size);
  return NamedTensor{path, type, header.data};
}

Result<std::optional<IntegerList>> read_npy_list(const std::string& path) {
  PIPER_ASSIGN(const Header header, read_header(path));
  std::optional<IntegerList> list;
  for (const bool is_signed : {false, true})
    for (const int bytes : {1, 2, 4, 8}) {
      if (!is_signed && bytes == 8) continue;
      const std::string name =
          fmt::format("{}{}{}", bytes == 1 ? '|' : '<', is_signed ? 'i' : 'u', bytes);
      if (has_type(header, name)) list = {bytes, is_signed, 0, header.data};
    }
  if (!list || header.shape.size() != 1) return std::optional<IntegerList>();
  list->count = header.shape[0];
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(list->count), static_cast<uint64_t>(list->bytes),
                             &bytes) ||
      bytes != header.data.size)
    return fail(SourceSpan{path}, "{} integers of {} bytes do not fit the {} bytes of data",
                list->count, list->bytes, header.data.size);
  return list;
}

}  // namespace piper
