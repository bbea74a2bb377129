// From bytes to structures, by their lists of fields. Only what a structure cannot hold is refused
// here (enumerators, sizes of the file); check.cc judges the rest.
#include <google/protobuf/arena.h>
#include <google/protobuf/message.h>

#include "bad.h"
#include "fields.h"
#include "files.h"
#include "plan.pb.h"

namespace piper {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kEnvelope = 8 + 4 + 8 + 32;

uint64_t integer_at(std::string_view bytes, size_t at, int width) {
  uint64_t value = 0;
  for (int i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Returns whether an enumeration has a value of this number.
template <class T>
constexpr bool has_value(int32_t number) {
  if constexpr (std::is_same_v<T, DType>) return number >= 0 && number < kNumDTypes;
  if constexpr (NamedEnum<T>) return number >= 0 && number < std::ssize(names_of(T{}));
  if constexpr (LetteredEnum<T>) return is_letter_of(T{}, number);
}

// Notes the first thing that a structure cannot hold.
class Reader {
 public:
  Reader(const Message& from, std::string& wrong)
      : from_(from), reflection_(*from.GetReflection()), wrong_(wrong) {}

  template <class X>
  void message(X& to) {
    int place = 0;
    each_field(Of<X>(), [&](const char* name, auto member, const auto&...) {
      field_ = from_.GetDescriptor()->field(place++);
      name_ = name;
      if constexpr (std::is_member_pointer_v<decltype(member)>)
        get(to.*member);
      else
        blocks(to, member);
    });
  }

 private:
  // Of a number that is not there protobuf says 0, whatever its default in a structure.
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void get(T& to) {
    if constexpr (std::is_same_v<T, bool>)
      to = reflection_.GetBool(from_, field_);
    else if constexpr (std::is_same_v<T, int64_t>)
      to = reflection_.GetInt64(from_, field_);
    else if constexpr (std::is_same_v<T, int32_t>)
      to = reflection_.GetInt32(from_, field_);
    else
      enumerator(reflection_.GetInt32(from_, field_), to);
  }
  template <class T>
  void enumerator(int32_t number, T& to) {
    if (has_value<T>(number))
      to = static_cast<T>(number);
    else if (wrong_.empty())
      wrong_ = fmt::format("there is no {} {}", name_, number);
  }
  void get(double& to) { to = reflection_.GetDouble(from_, field_); }
  void get(std::string& to) { to = reflection_.GetString(from_, field_); }
  template <Listed X>
  void get(X& to) {
    Reader(reflection_.GetMessage(from_, field_), wrong_).message(to);
  }
  template <class T>
  void get(std::vector<T>& to) {
    const int size = reflection_.FieldSize(from_, field_);
    to.resize(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) to[static_cast<size_t>(i)] = at<T>(i);
  }
  template <class T>
  T at(int i) {
    if constexpr (std::is_same_v<T, bool>) {
      return reflection_.GetRepeatedBool(from_, field_, i);
    } else if constexpr (std::is_same_v<T, int32_t>) {
      return reflection_.GetRepeatedInt32(from_, field_, i);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      return reflection_.GetRepeatedInt64(from_, field_, i);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return reflection_.GetRepeatedString(from_, field_, i);
    } else {
      T value{};
      Reader(reflection_.GetRepeatedMessage(from_, field_, i), wrong_).message(value);
      return value;
    }
  }
  void get(Attrs& to) {
    for (int i = 0; i < reflection_.FieldSize(from_, field_); ++i) {
      const auto& one =
          static_cast<const proto::Attr&>(reflection_.GetRepeatedMessage(from_, field_, i));
      to.set(one.name(), value_of(one));
    }
  }
  AttrValue value_of(const proto::Attr& from) {
    switch (from.value_case()) {
      case proto::Attr::kInteger:
        return int64_t{from.integer()};
      case proto::Attr::kReal:
        return from.real();
      case proto::Attr::kText:
        return from.text();
      case proto::Attr::kIntegers:
        return std::vector<int64_t>(from.integers().values().begin(),
                                    from.integers().values().end());
      case proto::Attr::VALUE_NOT_SET:
        break;
    }
    if (wrong_.empty()) wrong_ = "an attribute has no value";
    return int64_t{0};
  }
  template <class X>
  void blocks(X& to, BlocksOf<X> members) {
    if (!reflection_.HasField(from_, field_)) return;
    Reader inner(reflection_.GetMessage(from_, field_), wrong_);
    int place = 0;
    members.each_member([&](const char* name, auto member) {
      inner.field_ = inner.from_.GetDescriptor()->field(place++);
      inner.name_ = name;
      inner.get(to.*member);
    });
  }

  const Message& from_;
  const google::protobuf::Reflection& reflection_;
  std::string& wrong_;
  const FieldDescriptor* field_ = nullptr;
  const char* name_ = "";
};

template <class Proto, class X>
Result<X> decode(std::string_view payload, size_t limit, const std::string& path) {
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<Proto>(&arena);
  if (payload.size() > limit ||
      !message->ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return bad_at(path, "the bytes cannot be decoded");
  X to{};
  std::string wrong;
  Reader(*message, wrong).message(to);
  if (!wrong.empty()) return bad_at(path, "{}", wrong);
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
  PIPER_ASSIGN(RoleProgram role,
               (decode<proto::RoleProgram, RoleProgram>(payload, size_t{1} << 28, path)));
  if (auto checked = check_role(role); !checked) {
    checked.error().at = SourceSpan{path};
    return std::move(checked).error();
  }
  return role;
}

Result<RankHeader> decode_header(std::string_view payload, const std::string& path) {
  return decode<proto::RankHeader, RankHeader>(payload, size_t{1} << 16, path);
}

}  // namespace piper
