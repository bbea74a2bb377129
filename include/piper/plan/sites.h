// Names of what each site has of its own in plans with local steps, where an outer optimizer brings
// the sites together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace piper {

// The parts of a name "site.SITE.NAME". Without local steps a parameter may be called so, too.
struct SiteName {
  int32_t site = 0;
  std::string_view name;
};
// Returns the parts of such a name; nothing: it is another one.
std::optional<SiteName> site_of(std::string_view name);
std::string name_at_site(int64_t site, std::string_view name);

// Returns the name of the state that keeps what the site's parameter, "site.SITE.NAME", was when a
// delayed outer update was due.
std::string taken_of(std::string_view of_site);

// Returns whether a state of this name counts outer updates: "outer.step", and "outer.step.1" where
// there are several.
bool counts_outer_updates(std::string_view name);

}  // namespace piper
