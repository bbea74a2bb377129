// .npy: "\x93NUMPY", version, length, then {'descr': '<f4', 'fortran_order': False, 'shape': (3,
// 4), } and the elements.
#include <charconv>

#include "piper/base/data.h"

namespace piper {
namespace {

// Describes an element type of npy files.
struct NpyElement {
  std::string_view name;
  DType dtype;  // in which a plan has its values
  int bytes;
};
constexpr NpyElement kNpyElements[] = {
    {"<f4", DType::kF32, 4}, {"<f8", DType::kF64, 8}, {"<f2", DType::kF16, 2},
    {"<i8", DType::kI64, 8}, {"<i4", DType::kI32, 4}, {"<i2", DType::kI32, 2},
    {"|i1", DType::kI32, 1}, {"<u4", DType::kI64, 4}, {"<u2", DType::kI32, 2},
    {"|u1", DType::kI32, 1}, {"|b1", DType::kBool, 1}};

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
    return fail(at, "this is not a .npy file: it does not begin with \\x93NUMPY")
        .with_note("help: numpy.save(FILE, array) writes one; .npz archives are not supported");
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const int version = byte(6);
  if (version < 1 || version > 3) return fail(at, ".npy version {} is not supported", version);
  const size_t start = version == 1 ? 10 : 12;
  const auto cut_off = [&] {
    return fail(at, "the .npy header is cut off: the file ends after {} bytes", text.size())
        .with_note("help: write or copy the file again");
  };
  if (text.size() < start) return cut_off();
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= size_t{byte(10)} << 16 | size_t{byte(11)} << 24;
  if (length > text.size() - start) return cut_off();
  const std::string_view header = text.substr(start, length);
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!descr || !order || !shape)
    return fail(at, "the .npy header needs descr, fortran_order and shape");
  if (!order->starts_with("False"))
    return fail(at, "the array is in Fortran order, and C order was expected")
        .with_note("help: numpy.save(FILE, numpy.ascontiguousarray(array)) writes it in C order");
  const auto dims = parse_shape(*shape);
  if (!dims) return fail(at, "the shape in the .npy header cannot be read");
  return Header{*descr, *dims, file.window(start + length, text.size() - start - length)};
}

bool has_type(const Header& header, std::string_view name) {
  return header.descr.size() > name.size() && header.descr.substr(1, name.size()) == name;
}

const NpyElement* element_of(const Header& header) {
  for (const NpyElement& element : kNpyElements)
    if (has_type(header, element.name)) return &element;
  return nullptr;
}

}  // namespace

Result<StoredArray> read_npy(const std::string& path) {
  PIPER_ASSIGN(const Header header, read_header(path));
  const SourceSpan at{path};
  const NpyElement* element = element_of(header);
  if (!element) {
    const std::string found(header.descr.substr(0, std::min(header.descr.find(','), size_t{24})));
    return fail(at, "the array has the element type {}, which is not supported",
                quote_control(found))
        .with_note(
            "expected float32, float64, float16, bool or integers of 8 to 64 bits (uint64 "
            "excluded), little endian")
        .with_note("help: numpy.save(FILE, array.astype('float32')) writes another type");
  }
  const TensorType type{element->dtype, header.shape};
  auto bytes = static_cast<uint64_t>(element->bytes);
  bool overflow = false;
  for (int64_t dim : type.shape)
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  if (overflow || bytes != header.data.size)
    return fail(at, "{} of {} bytes each does not fit the {} bytes of data that follow the header",
                to_string(type), element->bytes, header.data.size)
        .with_note("help: the file is cut off or has something appended: write or copy it again");
  return StoredArray{{path, type, header.data}, element->bytes, element->name[1] != 'u'};
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
