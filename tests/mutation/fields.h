// Changes of any field of a plan, by the list of fields that its bytes and text are made by: a
// field that is added there is changed here.
#pragma once

#include <map>

#include "mutation/mutations.h"

namespace piper::mutation {

// Places of a field in a role: "body send peer", "op MatMul inputs", by what may be told apart.
using Fields = std::map<std::string, std::vector<size_t>>;
Fields fields_of(const RoleProgram& role);
// Changes the field at a place; says how, or nothing where there is no other value.
std::optional<std::string> change_field(RoleProgram& role, size_t place, Random& random);

}  // namespace piper::mutation
