// Random changes of protobuf messages that keep them messages: fields set, cleared, repeated,
// swapped, texts exchanged.
#pragma once

#include <google/protobuf/message.h>

#include <random>

namespace piper::fuzz {

void change_message(google::protobuf::Message& message, std::mt19937& random);

}  // namespace piper::fuzz
