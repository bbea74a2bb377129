// From bytes to structures, by their lists of fields. Read is what encode.cc writes, and nothing
// else: known fields, ascending, each once; check.cc judges what they say. Nothing is allocated
// that the bytes only claim.
#include <bit>
#include <limits>

#include "bad.h"
#include "fields.h"
#include "files.h"
#include "wire.h"

namespace piper {
namespace {

constexpr size_t kEnvelope = 8 + 4 + 8 + 32;

uint64_t integer_at(std::string_view bytes, size_t at, int width) {
  uint64_t value = 0;
  for (int i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Remembers the first fault and its place; nothing is left to read behind it.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes), end_(bytes.size()) {}

  // "body[3].args, byte 812: …", or nothing.
  std::string fault() const {
    if (wrong_.empty()) return {};
    return fmt::format("{}{}byte {}: {}", place_, place_.empty() ? "" : ", ", fault_at_, wrong_);
  }

  template <class X>
  void message(X& to) {
    int number = 0;
    each_field(Of<X>(), [&](const char* name, auto member, const auto&... how) {
      ++number;
      if constexpr (std::is_member_pointer_v<decltype(member)>) {
        clear(to.*member);
        if (next_number() == number) at(name, [&] { field(name, to.*member, is_zigzag(how...)); });
      } else {
        if (next_number() == number) at(name, [&] { blocks(to, member); });
      }
    });
    if (at_ < end_) wrong(fmt::format("field {} is unknown, or out of order", next_number()));
  }

 private:
  static constexpr bool is_zigzag() { return false; }
  static constexpr bool is_zigzag(const How& how) { return how.or_less; }

  // A number that is not there is 0, whatever its default in a structure.
  template <class T>
  static void clear(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) value = T{};
  }
  void wrong(std::string text) {
    if (wrong_.empty()) wrong_ = std::move(text), fault_at_ = at_;
    at_ = end_ = bytes_.size();
  }
  // Adds where it was read to the place of a fault.
  template <class Read>
  void at(std::string name, Read read) {
    const bool was_wrong = !wrong_.empty();
    read();
    if (!was_wrong && !wrong_.empty())
      place_ = name + (place_.empty() || place_[0] == '[' ? "" : ".") + place_;
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; at_ < end_; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    wrong("a number has no end");
    return 0;
  }
  // Of the next field, which is not taken; 0: there is none.
  int next_number() {
    if (at_ == end_) return 0;
    const size_t before = at_;
    const uint64_t tag = varint();
    if (!wrong_.empty()) return 0;
    at_ = before;
    return tag >> 3 <= 1000 ? static_cast<int>(tag >> 3) : 1001;
  }
  bool take_tag(Wire wire) {
    if ((varint() & 7) == wire) return true;
    wrong("the field is written as another type");
    return false;
  }
  // The bytes that follow, by their length.
  template <class Read>
  void sized(Read read) {
    if (!take_tag(kBytes)) return;
    const uint64_t size = varint();
    if (size > end_ - at_) return wrong(fmt::format("{} bytes are missing", size - (end_ - at_)));
    const size_t end = end_;
    end_ = at_ + size;
    read();
    if (wrong_.empty()) end_ = end;
  }

  template <class T>
  void integer(const char* name, T& to, bool zigzag) {
    const uint64_t bits = varint();
    const int64_t value = zigzag ? from_zigzag(bits) : static_cast<int64_t>(bits);
    int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
    if constexpr (std::is_same_v<T, DType>)
      least = 0, most = kNumDTypes - 1;
    else if constexpr (NamedEnum<T>)
      least = 0, most = std::size(names_of(T{})) - 1;
    else if constexpr (std::is_same_v<T, char>)
      least = 0, most = 126;
    else
      least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
    if (value < least || value > most) return wrong(fmt::format("there is no {} {}", name, value));
    to = static_cast<T>(value);
  }
  std::string text() {
    std::string text;
    sized([&] {
      text = bytes_.substr(at_, end_ - at_);
      at_ = end_;
    });
    return text;
  }
  double real() {
    if (!take_tag(kFixed64)) return 0;
    if (end_ - at_ < 8) return wrong("a number has no end"), 0;
    at_ += 8;
    return std::bit_cast<double>(integer_at(bytes_, at_ - 8, 8));
  }

  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void field(const char* name, T& to, bool zigzag) {
    if (take_tag(kVarint)) integer(name, to, zigzag);
  }
  void field(const char*, double& to, bool) { to = real(); }
  void field(const char*, std::string& to, bool) { to = text(); }
  template <Message X>
  void field(const char*, X& to, bool) {
    sized([&] { message(to); });
  }
  template <class T>
  void field(const char* name, std::vector<T>& to, bool zigzag) {
    if constexpr (std::is_integral_v<T>) {
      sized([&] {
        while (at_ < end_) {
          T value{};
          integer(name, value, zigzag);
          to.push_back(value);
        }
      });
    } else {
      each(to, [&](T& item) { field(name, item, zigzag); });
    }
  }
  // As many fields of this number as there are.
  template <class T, class Read>
  void each(std::vector<T>& to, Read read) {
    for (const int number = next_number(); wrong_.empty() && next_number() == number;)
      at(fmt::format("[{}]", to.size()), [&] { read(to.emplace_back()); });
  }
  void field(const char*, Attrs& to, bool) {
    for (const int number = next_number(); wrong_.empty() && next_number() == number;)
      sized([&] { attr(to); });
  }
  void attr(Attrs& to) {
    std::string name = next_number() == 1 ? text() : "";
    if (!to.items().empty() && to.items().back().first >= name)
      return wrong("attributes are out of order");
    std::vector<int64_t> list;
    int64_t number = 0;
    switch (next_number()) {
      case 2:
        field("integer", number, true);
        return to.set(std::move(name), number);
      case 3:
        return to.set(std::move(name), real());
      case 4:
        return to.set(std::move(name), text());
      case 5:
        sized([&] {
          if (next_number() == 1) field("integers", list, true);
        });
        return to.set(std::move(name), std::move(list));
      default:
        wrong("an attribute has no value");
    }
  }
  template <class X>
  void blocks(X& to, BlocksOf<X> members) {
    sized([&] {
      to.*members.dim = 0;
      to.*members.outer = 0;
      if (next_number() == 1) field("dim", to.*members.dim, false);
      if (next_number() == 2) field("outer", to.*members.outer, false);
    });
  }

  std::string_view bytes_;
  size_t at_ = 0, end_ = 0, fault_at_ = 0;
  std::string wrong_, place_;
};

template <class X>
Result<X> decode(std::string_view payload, size_t limit, const std::string& path) {
  if (payload.size() > limit) return bad_at(path, "a payload of {} bytes", payload.size());
  X to{};
  Reader reader(payload);
  reader.message(to);
  if (const std::string fault = reader.fault(); !fault.empty()) return bad_at(path, "{}", fault);
  return to;
}

}  // namespace

Result<std::string_view> unwrap(std::string_view magic, std::string_view file,
                                const std::string& path) {
  // The last character of the magic is the envelope's own version.
  const std::string_view start = file.substr(0, 7);
  if (start != magic.substr(0, start.size()))
    return bad_at(path, "this is not a plan file of this kind");
  if (file.size() < kEnvelope)
    return bad_at(path, "the file is truncated: {} bytes are left", file.size());
  const uint64_t version = integer_at(file, 8, 4), size = integer_at(file, 12, 8);
  if (file[7] != magic[7] || version != kPlanFormatVersion)
    return bad_at(path, "the plan has format version {}, this program reads version {}", version,
                  kPlanFormatVersion);
  const std::string_view payload = file.substr(kEnvelope);
  if (payload.size() < size)
    return bad_at(path, "the file is truncated: {} of {} bytes are left", payload.size(), size);
  if (payload.size() != size || digest(payload) != file.substr(20, 32))
    return bad_at(path, "the file was modified: its content does not match its digest");
  return payload;
}

Result<RoleProgram> decode_role(std::string_view payload, const std::string& path) {
  PIPER_ASSIGN(RoleProgram role, decode<RoleProgram>(payload, size_t{1} << 28, path));
  if (auto checked = check_role(role); !checked) {
    checked.error().at = SourceSpan{path};
    return std::move(checked).error();
  }
  return role;
}

Result<RankHeader> decode_header(std::string_view payload, const std::string& path) {
  return decode<RankHeader>(payload, size_t{1} << 16, path);
}

}  // namespace piper
