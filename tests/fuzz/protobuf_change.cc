#include "protobuf_change.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <string>
#include <vector>

#include "targets.h"

namespace piper::fuzz {
namespace {

namespace pb = google::protobuf;
using Field = const pb::FieldDescriptor*;

// All messages inside one, itself included, and texts that may be exchanged for each other.
struct Inside {
  std::vector<pb::Message*> messages;
  std::vector<std::string> texts;
};

void gather(pb::Message& message, Inside& out) {
  out.messages.push_back(&message);
  const pb::Reflection& at = *message.GetReflection();
  std::vector<Field> fields;
  at.ListFields(message, &fields);
  for (const Field field : fields) {
    const int count = field->is_repeated() ? at.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
        gather(field->is_repeated() ? *at.MutableRepeatedMessage(&message, field, i)
                                    : *at.MutableMessage(&message, field),
               out);
      } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
        out.texts.push_back(field->is_repeated() ? at.GetRepeatedString(message, field, i)
                                                 : at.GetString(message, field));
      }
    }
  }
}

int64_t some_number(int64_t old, std::mt19937& random) {
  constexpr int64_t kEdges[] = {0,
                                1,
                                -1,
                                2,
                                3,
                                4,
                                8,
                                64,
                                127,
                                INT32_MAX,
                                INT32_MIN,
                                UINT32_MAX,
                                INT64_MAX,
                                INT64_MIN,
                                int64_t{1} << 31,
                                1 << 20,
                                1 << 24,
                                1 << 28,
                                int64_t{1} << 40};
  if (random() % 3 == 0) return static_cast<int64_t>(static_cast<uint64_t>(old) + 1 - random() % 3);
  return kEdges[random() % std::size(kEdges)];
}

std::string some_text(const std::string& old, const Inside& inside, std::mt19937& random) {
  if (random() % 2 == 0 && !inside.texts.empty())
    return inside.texts[random() % inside.texts.size()];
  return change_bytes(old, random);
}

// Sets a scalar, by index when it is repeated.
void set_scalar(pb::Message& message, Field field, int i, const Inside& inside,
                std::mt19937& random) {
  const pb::Reflection& at = *message.GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
#define PIPER_SET(KIND, Type, Value)                                                               \
  case pb::FieldDescriptor::CPPTYPE_##KIND: {                                                      \
    [[maybe_unused]] const auto old =                                                              \
        many ? at.GetRepeated##Type(message, field, i) : at.Get##Type(message, field);             \
    many ? at.SetRepeated##Type(&message, field, i, Value) : at.Set##Type(&message, field, Value); \
    return;                                                                                        \
  }
    PIPER_SET(INT32, Int32, static_cast<int32_t>(some_number(old, random)))
    PIPER_SET(INT64, Int64, some_number(old, random))
    PIPER_SET(UINT32, UInt32, static_cast<uint32_t>(some_number(old, random)))
    PIPER_SET(UINT64, UInt64, static_cast<uint64_t>(some_number(static_cast<int64_t>(old), random)))
    PIPER_SET(FLOAT, Float, static_cast<float>(some_number(0, random)) / 3)
    PIPER_SET(DOUBLE, Double, static_cast<double>(some_number(0, random)) / 3)
    PIPER_SET(BOOL, Bool, !old)
    PIPER_SET(STRING, String, some_text(old, inside, random))
#undef PIPER_SET
    case pb::FieldDescriptor::CPPTYPE_ENUM: {
      const int value = static_cast<int>(random() % 20);
      many ? at.SetRepeatedEnumValue(&message, field, i, value)
           : at.SetEnumValue(&message, field, value);
      return;
    }
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

void add_scalar(pb::Message& message, Field field) {
  const pb::Reflection& at = *message.GetReflection();
  switch (field->cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_INT32:
      return at.AddInt32(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return at.AddInt64(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_UINT32:
      return at.AddUInt32(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_UINT64:
      return at.AddUInt64(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_FLOAT:
      return at.AddFloat(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return at.AddDouble(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return at.AddBool(&message, field, false);
    case pb::FieldDescriptor::CPPTYPE_STRING:
      return at.AddString(&message, field, "");
    case pb::FieldDescriptor::CPPTYPE_ENUM:
      return at.AddEnumValue(&message, field, 0);
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
}

void add_element(pb::Message& message, Field field, std::mt19937& random) {
  const pb::Reflection& at = *message.GetReflection();
  if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) return add_scalar(message, field);
  const int size = at.FieldSize(message, field);
  pb::Message* added = at.AddMessage(&message, field);
  if (size == 0) return;
  added->CopyFrom(at.GetRepeatedMessage(message, field,
                                        static_cast<int>(random() % static_cast<uint32_t>(size))));
}

void change_repeated(pb::Message& message, Field field, const Inside& inside,
                     std::mt19937& random) {
  const pb::Reflection& at = *message.GetReflection();
  const int size = at.FieldSize(message, field);
  if (size == 0 || random() % 4 == 0) {
    if (size < 10000) add_element(message, field, random);
    if (size == 0) return;
  }
  const int i = static_cast<int>(random() % static_cast<uint32_t>(size));
  const int j = static_cast<int>(random() % static_cast<uint32_t>(size));
  switch (random() % 4) {
    case 0:
      at.SwapElements(&message, field, i, size - 1);
      return at.RemoveLast(&message, field);
    case 1:
      return at.SwapElements(&message, field, i, j);
    default:
      return set_scalar(message, field, i, inside, random);
  }
}

// The installed schema may not know all fields of the file: they are bytes to it.
void change_unknown(pb::UnknownFieldSet& fields, std::mt19937& random) {
  pb::UnknownField& field = *fields.mutable_field(
      static_cast<int>(random() % static_cast<uint32_t>(fields.field_count())));
  if (field.type() != pb::UnknownField::TYPE_LENGTH_DELIMITED) return;
  const std::string changed = change_bytes(field.length_delimited(), random);
  field.set_length_delimited(changed);
}

}  // namespace

void change_message(pb::Message& message, std::mt19937& random) {
  for (uint32_t edits = random() % 3 + 1; edits > 0; --edits) {
    Inside inside;
    gather(message, inside);
    pb::Message& one = *inside.messages[random() % inside.messages.size()];
    const pb::Reflection& at = *one.GetReflection();
    if (!at.GetUnknownFields(one).empty() && random() % 4 == 0) {
      change_unknown(*at.MutableUnknownFields(&one), random);
      continue;
    }
    std::vector<Field> fields;
    at.ListFields(one, &fields);
    const pb::Descriptor& type = *one.GetDescriptor();
    if (type.field_count() == 0) continue;
    const bool known = !fields.empty() && random() % 4 != 0;
    const Field field =
        known ? fields[random() % fields.size()]
              : type.field(static_cast<int>(random() % static_cast<uint32_t>(type.field_count())));
    if (field->is_repeated()) {
      change_repeated(one, field, inside, random);
    } else if (random() % 6 == 0) {
      at.ClearField(&one, field);
    } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
      at.MutableMessage(&one, field);
    } else {
      set_scalar(one, field, 0, inside, random);
    }
  }
}

}  // namespace piper::fuzz
