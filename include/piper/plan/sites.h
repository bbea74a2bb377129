// Names of what each site has of its own in plans with local steps, where an outer optimizer brings
// the sites together.
#pragma once

#include <cstdint>
#include <string_view>

namespace piper {

// Returns NAME of "site.K.NAME", and sets `site` to K; empty: it is another name. Without local
// steps a parameter may be called so, too.
std::string_view name_without_site(std::string_view name, int32_t* site = nullptr);

// Returns whether a state of this name counts outer updates: "outer.step", and "outer.step.1" where
// there are several.
bool counts_outer_updates(std::string_view name);

}  // namespace piper
