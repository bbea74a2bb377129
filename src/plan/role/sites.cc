// Reads names of sites. Called where checkpoints and proofs meet plans with local steps.
#include "piper/plan/sites.h"

#include <charconv>

namespace piper {

std::string_view name_without_site(std::string_view name, int32_t* site) {
  constexpr std::string_view kSite = "site.";
  if (!name.starts_with(kSite)) return {};
  name.remove_prefix(kSite.size());
  const size_t digits = name.find_first_not_of("0123456789");
  constexpr size_t kMostDigits = 7;
  if (digits == name.npos || digits == 0 || digits > kMostDigits || name[digits] != '.') return {};
  if (site != nullptr) std::from_chars(name.data(), name.data() + digits, *site);
  return name.substr(digits + 1);
}

bool counts_outer_updates(std::string_view name) {
  return name == "outer.step" || name.starts_with("outer.step.");
}

}  // namespace piper
