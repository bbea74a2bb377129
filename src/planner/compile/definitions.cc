// Parses the definitions -D name=value of a command line.
#include "piper/planner/compile.h"

namespace piper {

Result<std::vector<Definition>> parse_definitions(std::span<const std::string> texts) {
  std::vector<Definition> defines;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0)
      return fail("-D {}: expected name=value", quote_control(text)).with_code(ExitCode::kUsage);
    defines.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return defines;
}

}  // namespace piper
