// Reads the bytes of a TensorProto, whichever of its fields holds them.
#include "proto_tensor.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace piper::onnx_import {
namespace {

constexpr int64_t kMaxTensorBytes = int64_t{1} << 40;
// Types that the installed schema (IR 8) does not know.
constexpr int64_t kCodeUint4 = 21, kCodeInt4 = 22, kCodeUint2 = 25, kCodeInt2 = 26;

Result<TensorType> tensor_type(const std::string& who, const onnx::TensorProto& tensor) {
  const std::optional<DType> dtype = dtype_of_code(tensor.data_type());
  if (!dtype)
    return fail("{} has elements of {}, which is not supported", who,
                type_name(tensor.data_type()));
  if (tensor.dims_size() > kMaxRank) {
    return fail("{} has {} dims; at most {} are supported", who, tensor.dims_size(), kMaxRank);
  }
  TensorType type{*dtype, {}};
  int64_t bytes = info(*dtype).bytes;
  for (const int64_t dim : tensor.dims()) {
    if (dim < 0) return fail("{} has a negative dim: {}", who, dim);
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxTensorBytes) {
      return fail("{} is larger than {}", who, human_bytes(kMaxTensorBytes));
    }
    type.shape.push_back(dim);
  }
  return type;
}

// Returns a field of numbers, one per element (or the bits of one, for small types), as bytes of
// the dtype.
template <class To, class Field>
Bytes pack(const Field& field) {
  std::vector<To> out(static_cast<size_t>(field.size()));
  for (int i = 0; i < field.size(); ++i)
    out[static_cast<size_t>(i)] = static_cast<To>(field.Get(i));
  return Bytes::copy_of(out.data(), out.size() * sizeof(To));
}

Bytes typed_data(const onnx::TensorProto& tensor, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return pack<float>(tensor.float_data());
    case DType::kF64:
      return pack<double>(tensor.double_data());
    case DType::kI64:
      return pack<int64_t>(tensor.int64_data());
    case DType::kI32:
      return pack<int32_t>(tensor.int32_data());
    case DType::kBF16:
    case DType::kF16:
      return pack<uint16_t>(tensor.int32_data());
    case DType::kBool:
      return pack<uint8_t>(tensor.int32_data());
  }
  return {};
}

Result<int64_t> count_in(const onnx::StringStringEntryProto& entry) {
  const std::string& text = entry.value();
  const bool is_count =
      !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == text.npos;
  if (!is_count) return fail("external data has a wrong {} '{}'", entry.key(), shown(text));
  return std::stoll(text);
}

Result<Bytes> external_bytes(const onnx::TensorProto& tensor, const TensorType& type,
                             ExternalData& files) {
  std::string location;
  int64_t offset = 0, length = -1;
  for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
    if (entry.key() == "location") {
      location = entry.value();
    } else if (entry.key() == "offset" || entry.key() == "length") {
      PIPER_ASSIGN((entry.key() == "offset" ? offset : length), count_in(entry));
    } else if (entry.key() != "checksum") {
      return fail("external data has an unknown key '{}'", shown(entry.key()));
    }
  }
  return files.read(location, offset, length, type);
}

Result<Bytes> tensor_bytes(onnx::TensorProto& tensor, const TensorType& type, ExternalData& files) {
  if (tensor.has_segment()) return fail("is stored in segments, which is not supported");
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL)
    return external_bytes(tensor, type, files);
  if (!tensor.has_raw_data()) return typed_data(tensor, type.dtype);
  const auto owner = std::make_shared<std::string>(std::move(*tensor.mutable_raw_data()));
  return Bytes{owner, reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
}

// Returns bytes of narrow integers as those of i32.
template <class From>
Bytes widened(const Bytes& data) {
  const size_t count = data.size / sizeof(From);
  std::vector<int32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, data.data + i * sizeof value, sizeof value);
    out[i] = value;
  }
  return Bytes::copy_of(out.data(), count * sizeof(int32_t));
}
// Several of them are in a byte, the first in its lowest bits; each byte is in `wide` ones.
Result<Bytes> unpacked(const Bytes& data, size_t wide, Narrow from, size_t count) {
  const size_t in_byte = 8 / static_cast<size_t>(from.bits);
  const size_t wanted = (count + in_byte - 1) / in_byte * wide;
  if (data.size != wanted) return fail("takes {} bytes, but {} are stored", wanted, data.size);
  std::vector<int32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    const auto byte = std::to_integer<int32_t>(data.data[i / in_byte * wide]);
    const int32_t values = 1 << from.bits;
    out[i] = (byte >> (i % in_byte * static_cast<size_t>(from.bits))) % values;
    if (from.is_signed && out[i] >= values / 2) out[i] -= values;
  }
  return Bytes::copy_of(out.data(), count * sizeof(int32_t));
}
// Widens bytes. `is_typed`: from the field of 32 bits that the format has for all of them.
Result<Bytes> widened(const Bytes& data, Narrow from, bool is_typed, size_t count) {
  if (from.bits < 8) return unpacked(data, is_typed ? sizeof(int32_t) : 1, from, count);
  if (is_typed || data.size > count * sizeof(int32_t)) return data;
  if (from.bits == 8) return from.is_signed ? widened<int8_t>(data) : widened<uint8_t>(data);
  return from.is_signed ? widened<int16_t>(data) : widened<uint16_t>(data);
}

// Bools are read in place later: each must be 0 or 1.
Status check_bools(const Bytes& data) {
  for (const std::byte b : data.span()) {
    if (b > std::byte{1}) return fail("has a bool that is neither 0 nor 1");
  }
  return ok_status();
}

}  // namespace

std::string shown(const std::string& name) { return quote_control(name.substr(0, 80)); }

std::optional<DType> dtype_of_code(int64_t code) {
  switch (code) {
    case onnx::TensorProto::FLOAT:
      return DType::kF32;
    case onnx::TensorProto::DOUBLE:
      return DType::kF64;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::INT32:
    case onnx::TensorProto::UINT8:
    case onnx::TensorProto::INT8:
    case onnx::TensorProto::UINT16:
    case onnx::TensorProto::INT16:
    case kCodeUint4:
    case kCodeInt4:
    case kCodeUint2:
    case kCodeInt2:
      return DType::kI32;
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    default:
      return {};
  }
}

Narrow narrow_of_code(int64_t code) {
  switch (code) {
    case onnx::TensorProto::UINT8:
      return kUint8;
    case onnx::TensorProto::INT8:
      return {8, true};
    case onnx::TensorProto::UINT16:
      return {16, false};
    case onnx::TensorProto::INT16:
      return {16, true};
    case kCodeUint4:
      return {4, false};
    case kCodeInt4:
      return {4, true};
    case kCodeUint2:
      return {2, false};
    case kCodeInt2:
      return {2, true};
    default:
      return {};
  }
}

namespace {

// By number. The installed schema (IR 8) does not know those after bfloat16.
constexpr std::string_view kTypeNames[] = {
    "undefined",      "float",    "uint8",        "int8",           "uint16",
    "int16",          "int32",    "int64",        "string",         "bool",
    "float16",        "double",   "uint32",       "uint64",         "complex64",
    "complex128",     "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2",
    "float8e5m2fnuz", "uint4",    "int4",         "float4e2m1",     "float8e8m0",
    "uint2",          "int2"};

}  // namespace

std::string type_name(int64_t code) {
  if (code < 0 || code >= static_cast<int64_t>(std::size(kTypeNames)))
    return fmt::format("type {}", code);
  return std::string(kTypeNames[code]);
}

int64_t code_of_type(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto at = std::find(std::begin(kTypeNames), std::end(kTypeNames), name);
  return at == std::end(kTypeNames) ? 0 : at - std::begin(kTypeNames);
}

Result<OnnxTensor> read_tensor(const std::string& who, onnx::TensorProto& tensor,
                               ExternalData& files) {
  PIPER_ASSIGN(TensorType type, tensor_type(who, tensor));
  const bool has_raw = tensor.has_raw_data();
  Result<Bytes> data = tensor_bytes(tensor, type, files);
  if (!data) {
    Error error = std::move(data).error();
    error.message = fmt::format("{}: {}", who, error.message);
    return error;
  }
  const Narrow narrow = narrow_of_code(tensor.data_type());
  if (narrow.bits > 0) {
    const bool is_typed = !has_raw && tensor.data_location() != onnx::TensorProto::EXTERNAL;
    const auto count = static_cast<size_t>(num_elements(type.shape));
    Result<Bytes> wide = widened(*data, narrow, is_typed, count);
    if (!wide) return fail("{} is {}, which {}", who, to_string(type), wide.error().message);
    *data = *std::move(wide);
  }
  if (static_cast<int64_t>(data->size) != type.bytes()) {
    return fail("{} is {}, which takes {} bytes, but {} are stored", who, to_string(type),
                type.bytes(), data->size);
  }
  if (type.dtype == DType::kBool) {
    if (Status bools = check_bools(*data); !bools) return fail("{} {}", who, bools.error().message);
  }
  const bool mapped = files.holds(*data), absent = files.is_absent(*data);
  return OnnxTensor{tensor.name(), std::move(type), *std::move(data), mapped && !absent, {},
                    narrow,        absent};
}

}  // namespace piper::onnx_import
