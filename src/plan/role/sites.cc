// Makes and reads names of sites. Called where gradients, checkpoints and proofs meet local steps.
#include "piper/plan/sites.h"

#include <fmt/core.h>

#include <charconv>

namespace piper {

std::optional<SiteName> site_of(std::string_view name) {
  constexpr std::string_view kSite = "site.";
  if (!name.starts_with(kSite)) return {};
  name.remove_prefix(kSite.size());
  const size_t digits = name.find_first_not_of("0123456789");
  constexpr size_t kMostDigits = 7;
  if (digits == name.npos || digits == 0 || digits > kMostDigits || name[digits] != '.') return {};
  SiteName of{.name = name.substr(digits + 1)};
  std::from_chars(name.data(), name.data() + digits, of.site);
  return of;
}

std::string name_at_site(int64_t site, std::string_view name) {
  return fmt::format("site.{}.{}", site, name);
}

std::string taken_of(std::string_view of_site) { return fmt::format("{}.taken", of_site); }

bool counts_outer_updates(std::string_view name) {
  return name == "outer.step" || name.starts_with("outer.step.");
}

}  // namespace piper
