// where-conditions against chunks.
#pragma once

#include "piper/directives.h"

namespace piper {

// A microbatch as conditions see it: a tag of this name.
struct MicroTag {
  std::string_view name;
  int32_t number = 0;
};
// Variables with what the conditions bind, if the chunk meets all of them for this microbatch.
Result<std::optional<Variables>> match_chunk(const Dag& dag, const Chunk& chunk, const Where& where,
                                             const Variables& variables, const MicroTag& micro);
// Variables with what the conditions bind, if the node's tags meet all of them. Requires conditions
// on tags alone.
Result<std::optional<Variables>> match_node(const Graph& graph, const Node& node,
                                            const Where& where, const Variables& variables);
// "matches nothing", with the tags and passes there are.
Error no_match(const Dag& dag, const Where& where, const SourceSpan& at,
               std::string_view directive);

}  // namespace piper
