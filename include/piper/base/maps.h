// Readers of YAML files check the keys of maps and read counts with these.
#pragma once

#include "piper/base/yaml.h"

namespace piper::yaml {

// Checks that a node is of this kind. `what` is its name in errors, `is` that of the kind.
Status expect(const Node& node, Node::Kind kind, std::string_view what, std::string_view is);
// Checks that a node is a map of known keys, and has the needed ones. `what` is its name in errors:
// "the device 'h100'". Errors name the nearest key.
Status check_keys(const Node& map, std::string_view what, const std::vector<std::string>& known,
                  const std::vector<std::string>& needed = {});
// Reads a whole number from 1 on. `key` is its name in errors.
Result<int64_t> read_count(const Node& node, std::string_view key);

}  // namespace piper::yaml
