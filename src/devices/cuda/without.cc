// Parses PIPER_CUDA_WITHOUT for the device, the libraries and piper-run --devices.
#include "without.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace piper::cuda {
namespace {

constexpr const char* kVariable = "PIPER_CUDA_WITHOUT";
struct Word {
  std::string_view name;
  bool Without::*part;
};
constexpr std::array kWords = {Word{"vmm", &Without::vmm}, Word{"cudnn", &Without::cudnn},
                               Word{"green", &Without::green}, Word{"windows", &Without::windows},
                               Word{"graphs", &Without::graphs}};

Error no_part(std::string_view name) {
  std::vector<std::string> names;
  for (const Word& each : kWords) names.emplace_back(each.name);
  return fail("{}: '{}' is no part that can be switched off{}; there are {}", kVariable,
              quote_control(name), did_you_mean(name, names), join(names, ", "))
      .with_note(fmt::format("help: {}=vmm,graphs switches two of them off", kVariable))
      .with_code(ExitCode::kUsage);
}

}  // namespace

Result<Without> switched_off() {
  const char* const value = std::getenv(kVariable);
  std::string_view rest = value ? value : "";
  Without without;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    const auto word = std::find_if(kWords.begin(), kWords.end(),
                                   [&](const Word& each) { return each.name == name; });
    if (word == kWords.end()) return no_part(name);
    without.*word->part = true;
  }
  return without;
}

std::string to_string(const Without& without) {
  std::vector<std::string> names;
  for (const Word& each : kWords)
    if (without.*each.part) names.emplace_back(each.name);
  return join(names, ",");
}

}  // namespace piper::cuda
