// Reads tensors from archives of torch.save: zip files whose members are stored as they are, a
// pickle that says what the tensor is, and its elements.
#include "torch_file.h"

#include <array>
#include <cstring>
#include <map>

#include "pickle.h"

namespace piper {
namespace {

// Lists the storages of PyTorch by name, with the type of their elements.
struct StorageType {
  std::string_view storage, dtype;
  int bytes;
  std::optional<DType> ours;
};
constexpr StorageType kStorages[] = {
    {"torch.FloatStorage", "float32", 4, DType::kF32},
    {"torch.DoubleStorage", "float64", 8, DType::kF64},
    {"torch.BFloat16Storage", "bfloat16", 2, DType::kBF16},
    {"torch.HalfStorage", "float16", 2, DType::kF16},
    {"torch.LongStorage", "int64", 8, DType::kI64},
    {"torch.IntStorage", "int32", 4, DType::kI32},
    {"torch.BoolStorage", "bool", 1, DType::kBool},
};

// Returns CRC-32 as zip files have it, eight bytes at a time.
uint32_t crc32(std::string_view bytes) {
  using Table = std::array<std::array<uint32_t, 256>, 8>;
  static const Table kTable = [] {
    Table table{};
    for (uint32_t k = 0; k < 256; ++k) {
      uint32_t value = k;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
      table[0][k] = value;
    }
    for (size_t row = 1; row < 8; ++row)
      for (size_t k = 0; k < 256; ++k)
        table[row][k] = table[row - 1][k] >> 8 ^ table[0][table[row - 1][k] & 0xFF];
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  size_t k = 0;
  for (; k + 8 <= bytes.size(); k += 8) {
    std::array<uint8_t, 8> part{};
    std::memcpy(part.data(), bytes.data() + k, 8);
    for (size_t b = 0; b < 4; ++b) part[b] ^= static_cast<uint8_t>(crc >> (8 * b));
    crc = 0;
    for (size_t b = 0; b < 8; ++b) crc ^= kTable[7 - b][part[b]];
  }
  for (; k < bytes.size(); ++k)
    crc = crc >> 8 ^ kTable[0][(crc ^ static_cast<uint8_t>(bytes[k])) & 0xFF];
  return ~crc;
}

// ---- The archive --------------------------------------------------------------------------------

class TorchArchive {
 public:
  TorchArchive(const Bytes& window, const std::string& path, uint64_t at)
      : window_(window), text_(as_text(window.span())), path_(path), at_(at) {}

  // Reads the list of members.
  Status open() {
    constexpr size_t kEnd = 22, kLocator = 20, kLargeEnd = 56;
    if (text_.size() < kEnd || text_.substr(text_.size() - kEnd, 4) != "PK\5\6")
      return error(0, "it is no archive of torch.save");
    const uint64_t end = text_.size() - kEnd;
    uint64_t count = number(end + 10, 2), at = number(end + 16, 4);
    if (end >= kLocator && text_.substr(end - kLocator, 4) == "PK\6\7") {
      const uint64_t large = number(end - kLocator + 8, 8);
      if (large > end || end - large < kLargeEnd || text_.substr(large, 4) != "PK\6\6")
        return error(end - kLocator, "the list of members is not where the archive says");
      count = number(large + 32, 8);
      at = number(large + 48, 8);
    }
    for (uint64_t k = 0; k < count; ++k) PIPER_TRY(add_member(at, end));
    return ok_status();
  }

  Error error(uint64_t offset, const std::string& what) const {
    return fail(SourceSpan{path_}, "byte {}: {}", at_ + offset, what);
  }
  // Returns the bytes of the member whose name ends so, and where they begin; compares their CRC.
  Result<std::pair<uint64_t, Bytes>> member(const std::string& name) const {
    const auto found = members_.find(name);
    if (found == members_.end())
      return error(0, fmt::format("the archive lacks '{}'", quote_control(name)));
    const Member& one = found->second;
    const Bytes bytes = window_.window(one.at, one.size);
    if (crc32(as_text(bytes.span())) != one.crc)
      return error(one.at, fmt::format("'{}' is damaged: its sum is another", quote_control(name)))
          .with_note(
              "help: a file written after torch.serialization.set_crc32_options(False) has no "
              "sums; write it with them");
    return std::pair(one.at, bytes);
  }
  bool has(const std::string& name) const { return members_.contains(name); }

 private:
  struct Member {
    uint64_t at = 0, size = 0;
    uint32_t crc = 0;
  };

  uint64_t number(uint64_t at, int bytes) const {
    uint64_t value = 0;
    for (int k = bytes - 1; k >= 0; --k)
      value = value << 8 | static_cast<uint8_t>(text_[at + static_cast<uint64_t>(k)]);
    return value;
  }

  // Replaces fields that hold all ones by those of 64 bits, as zip files say them.
  bool widen(std::string_view extra, uint64_t first, uint64_t& stored, uint64_t& size,
             uint64_t& at) const {
    constexpr uint64_t kWide = 0xFFFFFFFF;
    if (stored != kWide && size != kWide && at != kWide) return true;
    for (size_t k = 0; k + 4 <= extra.size();) {
      const uint64_t kind = number(first + k, 2), length = number(first + k + 2, 2);
      if (length > extra.size() - k - 4) return false;
      uint64_t next = first + k + 4;
      const uint64_t end = next + length;
      k += 4 + length;
      if (kind != 1) continue;
      for (uint64_t* field : {&size, &stored, &at}) {
        if (*field != kWide) continue;
        if (next + 8 > end) return false;
        *field = number(next, 8);
        next += 8;
      }
      return true;
    }
    return false;
  }

  // Reads the entry of the list that begins at `at`, and moves on to the next.
  Status add_member(uint64_t& at, uint64_t end) {
    constexpr uint64_t kEntry = 46, kLocal = 30;
    if (at > end || end - at < kEntry || text_.substr(at, 4) != "PK\1\2")
      return error(std::min<uint64_t>(at, end), "the list of members ends early");
    const uint64_t name_size = number(at + 28, 2), extra = number(at + 30, 2);
    const uint64_t all = kEntry + name_size + extra + number(at + 32, 2);
    if (all > end - at) return error(at, "the list of members ends early");
    uint64_t stored = number(at + 20, 4), size = number(at + 24, 4), local = number(at + 42, 4);
    const std::string name(text_.substr(at + kEntry, name_size));
    const uint64_t extra_at = at + kEntry + name_size;
    if (!widen(text_.substr(extra_at, extra), extra_at, stored, size, local))
      return error(at, fmt::format("the sizes of '{}' are not there", quote_control(name)));
    if (number(at + 10, 2) != 0 || stored != size)
      return error(at,
                   fmt::format("'{}' is compressed, which is not supported", quote_control(name)));
    if (local > end || end - local < kLocal || text_.substr(local, 4) != "PK\3\4")
      return error(at, fmt::format("'{}' is not where the archive says", quote_control(name)));
    const uint64_t begin = local + kLocal + number(local + 26, 2) + number(local + 28, 2);
    if (begin > end || size > end - begin)
      return error(at,
                   fmt::format("'{}' extends past the end of the archive", quote_control(name)));
    if (!members_.emplace(name, Member{begin, size, static_cast<uint32_t>(number(at + 16, 4))})
             .second)
      return error(at, fmt::format("two members are named '{}'", quote_control(name)));
    at += all;
    return ok_status();
  }

  const Bytes& window_;
  const std::string_view text_;
  const std::string& path_;
  const uint64_t at_;
  std::map<std::string, Member> members_;
};

// ---- The tensor ---------------------------------------------------------------------------------

// Holds what a pickle says of a tensor.
struct Described {
  const StorageType* type = nullptr;
  std::string key;  // of the storage
  int64_t count = 0, first = 0;
  Shape sizes, strides;
};

// Reads _rebuild_tensor_v2(('storage', type, key, place, count), first, sizes, strides, …).
std::optional<Described> describe(const Pickle& pickle) {
  const uint32_t root = pickle.root();
  if (!pickle.is(root, Pickle::Kind::kCall) ||
      pickle.name_of(root) != "torch._utils._rebuild_tensor_v2")
    return {};
  const std::vector<uint32_t>& arguments = pickle.at(pickle.at(root).items[1]).items;
  if (arguments.size() < 4 || !pickle.is(arguments[0], Pickle::Kind::kPersistent)) return {};
  const std::vector<uint32_t>& storage = pickle.at(pickle.at(arguments[0]).items[0]).items;
  if (storage.size() != 5 || pickle.text(storage[0]) != "storage") return {};
  const auto key = pickle.text(storage[2]);
  const auto count = pickle.integer(storage[4]), first = pickle.integer(arguments[1]);
  const auto sizes = pickle.sizes(arguments[2]), strides = pickle.sizes(arguments[3]);
  if (!key || !count || !first || !sizes || !strides) return {};
  Described tensor{nullptr, *key, *count, *first, *sizes, *strides};
  for (const StorageType& type : kStorages)
    if (type.storage == pickle.name_of(storage[1])) tensor.type = &type;
  if (tensor.type == nullptr) return {};
  return tensor;
}

// Returns whether all elements lie in the storage, which has as many. Strides of 0 could make a
// tensor of any size of a few bytes.
bool fits(const Described& tensor) {
  if (tensor.sizes.size() != tensor.strides.size() || tensor.first < 0 || tensor.count < 0)
    return false;
  int64_t elements = 1, last = tensor.first;
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    int64_t far = 0;
    if (__builtin_mul_overflow(elements, tensor.sizes[d], &elements)) return false;
    if (__builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &far)) return false;
    if (tensor.sizes[d] > 0 && __builtin_add_overflow(last, far, &last)) return false;
  }
  return elements == 0 || (last < tensor.count && elements <= tensor.count);
}

}  // namespace

std::optional<DType> dtype_of_torch(std::string_view name) {
  for (const StorageType& type : kStorages)
    if (type.dtype == name) return type.ours;
  return {};
}

Result<TorchTensor> read_torch_tensor(const Bytes& window, const std::string& path, uint64_t at) {
  const std::string folder = "archive/";  // what torch.save calls it in a stream
  TorchArchive archive(window, path, at);
  PIPER_TRY(archive.open());
  if (archive.has(folder + "byteorder")) {
    PIPER_ASSIGN(const auto order, archive.member(folder + "byteorder"));
    if (as_text(order.second.span()) != "little")
      return archive.error(order.first, "its bytes are not in little-endian order");
  }
  PIPER_ASSIGN(const auto about, archive.member(folder + "data.pkl"));
  PIPER_ASSIGN(const Pickle pickle, read_pickle(about.second.span(), path, at + about.first));
  const auto tensor = describe(pickle);
  if (!tensor || !fits(*tensor))
    return archive.error(about.first, "it describes no tensor of a type that is supported");
  PIPER_ASSIGN(const auto data, archive.member(folder + "data/" + tensor->key));
  const auto bytes = static_cast<uint64_t>(tensor->type->bytes);
  if (data.second.size / bytes < static_cast<uint64_t>(tensor->count) ||
      data.second.size % bytes != 0)
    return archive.error(data.first,
                         fmt::format("{} elements of {} are not {} bytes", tensor->count,
                                     tensor->type->dtype, data.second.size));
  const uint64_t skipped =
      std::min<uint64_t>(static_cast<uint64_t>(tensor->first) * bytes, data.second.size);
  return TorchTensor{std::string(tensor->type->dtype), tensor->sizes, tensor->strides,
                     data.second.window(skipped, data.second.size - skipped)};
}

}  // namespace piper
