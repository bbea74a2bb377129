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

Result<TensorType> parse_type(const SourceSpan& at, std::string_view header) {
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!descr || !order || !shape)
    return fail(at, "the .npy header needs descr, fortran_order and shape");
  if (!order->starts_with("False"))
    return fail(at, "the array is in Fortran order; save it with np.ascontiguousarray");
  TensorType type;
  bool known = false;
  for (const auto& [name, dtype] : kDescr)
    if (descr->size() > name.size() && descr->substr(1, name.size()) == name) {
      type.dtype = dtype;
      known = true;
    }
  if (!known) {
    const size_t end = std::min(descr->find(','), size_t{24});
    return fail(
        at,
        "the element type {} is not supported (float32, float64, float16, int64, int32, bool are)",
        quote_control(descr->substr(0, end)));
  }
  const auto dims = parse_shape(*shape);
  if (!dims) return fail(at, "the shape in the .npy header cannot be read");
  type.shape = *dims;
  return type;
}

}  // namespace

Result<NamedTensor> read_npy(const std::string& path) {
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
  PIPER_ASSIGN(TensorType type, parse_type(at, text.substr(start, length)));
  uint64_t bytes = static_cast<uint64_t>(info(type.dtype).bytes);
  bool overflow = false;
  for (int64_t dim : type.shape)
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  const size_t rest = text.size() - start - length;
  if (overflow || bytes != rest)
    return fail(at, "{} does not fit the {} bytes of data that follow the header", to_string(type),
                rest);
  return NamedTensor{path, std::move(type), file.window(start + length, rest)};
}

}  // namespace piper
