// Collects the errors of a strategy file, so that one run says all.
#include "errors.h"

#include <algorithm>
#include <tuple>

namespace piper {

Error consequence() { return {}; }

void ErrorList::add(Error error) {
  const auto same = [&](const Error& other) {
    return other.message == error.message && other.at.file == error.at.file &&
           other.at.line == error.at.line && other.at.column == error.at.column;
  };
  if (!error.message.empty() && std::none_of(errors_.begin(), errors_.end(), same))
    errors_.push_back(std::move(error));
}

Status ErrorList::status() const {
  constexpr size_t kMost = 10;
  if (errors_.empty()) return ok_status();
  std::vector<Error> sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Error& a, const Error& b) {
    return std::tie(a.at.file, a.at.line, a.at.column) <
           std::tie(b.at.file, b.at.line, b.at.column);
  });
  Error first = std::move(sorted.front());
  for (size_t i = 1; i < std::min(sorted.size(), kMost); ++i)
    first.notes.push_back("also: " + print_error(sorted[i]));
  if (sorted.size() > kMost)
    first.notes.push_back(fmt::format("also: and {} more errors\n", sorted.size() - kMost));
  return first;
}

}  // namespace piper
