// Names of what each site has of its own in plans with local steps, where an outer optimizer brings
// the sites together.
#pragma once

#include <cstdint>
#include <string_view>

namespace piper {

// Returns NAME of "site.K.NAME", and sets `site` to K; empty: it is another name. Without local
// steps a parameter may be called so, too.
std::string_view name_without_site(std::string_view name, int32_t* site = nullptr);

}  // namespace piper
