// From structures to bytes, by their lists of fields: the wire format of protobuf, as
// formats/plan.proto says. There are no maps in a plan: equal plans have equal bytes.
#include <bit>

#include "fields.h"
#include "files.h"
#include "wire.h"

namespace piper {
namespace {

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

void append_fixed(std::string& bytes, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
}

class Writer {
 public:
  template <class X>
  void message(const X& from) {
    static_assert(lists_all_members<X>(), "a member is missing in the list of fields");
    int number = 0;
    each_field(Of<X>(), [&](const char*, auto member, const auto&... how) {
      ++number;
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        field(number, from.*member, is_zigzag(how...));
      else
        blocks(number, from, member);
    });
  }
  std::string bytes;

 private:
  static constexpr bool is_zigzag() { return false; }
  static constexpr bool is_zigzag(const How& how) { return how.or_less; }

  void varint(uint64_t value) { append_varint(bytes, value); }
  void tag(int number, Wire wire) { varint(static_cast<uint64_t>(number) << 3 | wire); }
  void integer(int64_t value, bool zigzag) { varint(zigzag ? to_zigzag(value) : value); }
  // What is written moves to make place for its length, which is known only then.
  template <class Write>
  void sized(int number, Write write) {
    tag(number, kBytes);
    const size_t begin = bytes.size();
    write();
    std::string length;
    append_varint(length, bytes.size() - begin);
    bytes.insert(begin, length);
  }

  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void field(int number, T value, bool zigzag) {
    if (value == T{}) return;
    tag(number, kVarint);
    integer(static_cast<int64_t>(value), zigzag);
  }
  void field(int number, double value, bool) {
    if (std::bit_cast<uint64_t>(value) != 0) real(number, value);
  }
  void real(int number, double value) {
    tag(number, kFixed64);
    append_fixed(bytes, std::bit_cast<uint64_t>(value), 8);
  }
  void text(int number, std::string_view value) {
    tag(number, kBytes);
    varint(value.size());
    bytes += value;
  }
  void field(int number, const std::string& value, bool) {
    if (!value.empty()) text(number, value);
  }
  template <Message X>
  void field(int number, const X& value, bool) {
    sized(number, [&] { message(value); });
  }
  template <class T>
  void field(int number, const std::vector<T>& values, bool zigzag) {
    if constexpr (std::is_integral_v<T>) {
      if (values.empty()) return;
      sized(number, [&] {
        for (const T value : values) integer(value, zigzag);
      });
    } else if constexpr (std::is_same_v<T, std::string>) {
      for (const std::string& value : values) text(number, value);
    } else {
      for (const T& value : values) field(number, value, zigzag);
    }
  }
  void field(int number, const Attrs& attrs, bool) {
    for (const auto& [name, value] : attrs.items()) sized(number, [&] { attr(name, value); });
  }
  // One of several has the number of its type, and is written even where it is 0.
  void attr(const std::string& name, const AttrValue& value) {
    field(1, name, false);
    if (const auto* integer_value = std::get_if<int64_t>(&value)) {
      tag(2, kVarint);
      integer(*integer_value, true);
    } else if (const auto* real_value = std::get_if<double>(&value)) {
      real(3, *real_value);
    } else if (const auto* words = std::get_if<std::string>(&value)) {
      text(4, *words);
    } else {
      sized(5, [&] { field(1, std::get<std::vector<int64_t>>(value), true); });
    }
  }
  template <class X>
  void blocks(int number, const X& from, BlocksOf<X> members) {
    static const X normal{};
    const int32_t dim = from.*members.dim;
    const int64_t outer = from.*members.outer;
    if (dim == normal.*members.dim && outer == normal.*members.outer) return;
    sized(number, [&] {
      field(1, dim, false);
      field(2, outer, false);
    });
  }
};

template <class X>
std::string encode(const X& from) {
  Writer writer;
  writer.message(from);
  return std::move(writer.bytes);
}

}  // namespace

std::string encode_role(const RoleProgram& role) { return encode(role); }

std::string role_digest(const RoleProgram& role) { return digest(encode_role(role)); }

std::string program_digest(const Program& program) {
  Program unlabelled = program;
  unlabelled.label.clear();
  return digest(encode(unlabelled));
}

std::string encode_header(const RankHeader& header) { return encode(header); }

std::string wrap(std::string_view magic, std::string_view payload) {
  std::string bytes(magic);
  append_fixed(bytes, kPlanFormatVersion, 4);
  append_fixed(bytes, payload.size(), 8);
  bytes += digest(payload);
  bytes += payload;
  return bytes;
}

}  // namespace piper
