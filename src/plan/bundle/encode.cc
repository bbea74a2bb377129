// From structures to bytes, by their lists of fields: each becomes the field of that place in its
// message of formats/plan.proto. There are no maps in a plan: equal plans have equal bytes.
#include <google/protobuf/arena.h>
#include <google/protobuf/message.h>

#include "fields.h"
#include "files.h"
#include "plan.pb.h"

namespace piper {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class Writer {
 public:
  explicit Writer(Message* to) : to_(*to), reflection_(*to->GetReflection()) {}

  template <class X>
  void message(const X& from) {
    static_assert(lists_all_members<X>(), "a member is missing in the list of fields");
    int place = 0;
    each_field(Of<X>(), [&](const char*, auto member, const auto&...) {
      field_ = to_.GetDescriptor()->field(place++);
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        put(from.*member);
      else
        blocks(from, member);
    });
  }

 private:
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void put(T value) {
    if constexpr (std::is_same_v<T, bool>)
      reflection_.SetBool(&to_, field_, value);
    else if constexpr (sizeof(T) == sizeof(int64_t))
      reflection_.SetInt64(&to_, field_, value);
    else
      reflection_.SetInt32(&to_, field_, static_cast<int32_t>(value));
  }
  void put(double value) { reflection_.SetDouble(&to_, field_, value); }
  void put(const std::string& value) { reflection_.SetString(&to_, field_, value); }
  template <Listed X>
  void put(const X& value) {
    Writer(reflection_.MutableMessage(&to_, field_)).message(value);
  }
  template <class T>
  void put(const std::vector<T>& values) {
    for (const auto& value : values) add(value);
  }
  void add(bool value) { reflection_.AddBool(&to_, field_, value); }
  void add(int32_t value) { reflection_.AddInt32(&to_, field_, value); }
  void add(int64_t value) { reflection_.AddInt64(&to_, field_, value); }
  void add(const std::string& value) { reflection_.AddString(&to_, field_, value); }
  template <Listed X>
  void add(const X& value) {
    Writer(reflection_.AddMessage(&to_, field_)).message(value);
  }
  void put(const Attrs& attrs) {
    for (const auto& [name, value] : attrs.items()) {
      auto& to = static_cast<proto::Attr&>(*reflection_.AddMessage(&to_, field_));
      to.set_name(name);
      if (const auto* integer = std::get_if<int64_t>(&value))
        to.set_integer(*integer);
      else if (const auto* real = std::get_if<double>(&value))
        to.set_real(*real);
      else if (const auto* text = std::get_if<std::string>(&value))
        to.set_text(*text);
      else
        for (const int64_t one : std::get<std::vector<int64_t>>(value))
          to.mutable_integers()->add_values(one);
      if (const auto* list = std::get_if<std::vector<int64_t>>(&value); list && list->empty())
        to.mutable_integers();
    }
  }
  template <class X>
  void blocks(const X& from, BlocksOf<X> members) {
    static const X normal{};
    bool differs = false;
    members.each_member(
        [&](const char*, auto member) { differs |= from.*member != normal.*member; });
    if (!differs) return;
    Writer inner(reflection_.MutableMessage(&to_, field_));
    int place = 0;
    members.each_member([&](const char*, auto member) {
      inner.field_ = inner.to_.GetDescriptor()->field(place++);
      inner.put(from.*member);
    });
  }

  Message& to_;
  const google::protobuf::Reflection& reflection_;
  const FieldDescriptor* field_ = nullptr;
};

template <class Proto, class X>
std::string encode(const X& from) {
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<Proto>(&arena);
  Writer(message).message(from);
  return message->SerializeAsString();
}

void append_fixed(std::string& bytes, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
}

}  // namespace

std::string encode_role(const RoleProgram& role) { return encode<proto::RoleProgram>(role); }

std::string role_digest(const RoleProgram& role) { return digest(encode_role(role)); }

std::string program_digest(const Program& program) {
  Program unlabelled = program;
  unlabelled.label.clear();
  return digest(encode<proto::Program>(unlabelled));
}

std::string encode_header(const RankHeader& header) { return encode<proto::RankHeader>(header); }

std::string wrap(std::string_view magic, std::string_view payload) {
  std::string bytes(magic);
  append_fixed(bytes, kPlanFormatVersion, 4);
  append_fixed(bytes, payload.size(), 8);
  bytes += digest(payload);
  bytes += payload;
  return bytes;
}

}  // namespace piper
