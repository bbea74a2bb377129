// Matches parameters with the groups of `train.groups`.
#include "groups.h"

#include <algorithm>
#include <iterator>

namespace piper {
namespace {

Error unused(const ParamGroup& group, const std::vector<Param>& params, bool matched) {
  if (matched) {
    return fail(group.at, "earlier groups take all parameters that '{}' matches", group.match)
        .with_note("help: the first group that matches a parameter wins; put this one before");
  }
  std::vector<std::string> names;
  for (const Param& param : params) std::ranges::move(paths_of(param), std::back_inserter(names));
  return fail(group.at, "'{}' matches no parameter{}", group.match,
              did_you_mean(group.match, names))
      .with_note("help: piperc MODEL --describe lists the parameters");
}

}  // namespace

Result<std::vector<const ParamGroup*>> groups_of(const std::vector<Param>& params,
                                                 const std::vector<ParamGroup>& groups) {
  std::vector<const ParamGroup*> result(params.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<std::string>& names = groups[g].names;
    Glob glob;
    if (names.empty()) {
      PIPER_ASSIGN(glob, Glob::parse(groups[g].match, groups[g].at));
    }
    bool matched = false, won = false;
    for (size_t p = 0; p < params.size(); ++p) {
      const bool is_in = names.empty() ? has_name(params[p], glob)
                                       : std::count(names.begin(), names.end(), params[p].name) > 0;
      if (!is_in) continue;
      matched = true;
      if (result[p]) continue;
      result[p] = &groups[g];
      won = true;
    }
    const bool defaults = groups[g].match == "**" && g + 1 == groups.size();
    if (!won && !defaults) return unused(groups[g], params, matched);
  }
  for (size_t p = 0; p < params.size(); ++p) {
    if (!params[p].frozen && !result[p]) {
      return fail("no parameter group matches parameter '{}'", quote_control(params[p].name));
    }
  }
  return result;
}

}  // namespace piper
