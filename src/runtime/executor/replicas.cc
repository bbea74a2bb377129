// Checks that ranks that hold the same tensors hold the same bits.
#include "replicas.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper {
namespace {

constexpr const char* kComparison = "comparison of replicas";

// Ranks keep some of the tensors each, and many have the same names for them.
Status gather_names(Control& control, std::map<uint64_t, std::string>& names) {
  for (const int64_t child : control.children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(control, child, kComparison));
    for (std::string& name : unpack(theirs)) names.emplace(number_of(name), std::move(name));
  }
  std::vector<std::string> all;
  for (const auto& [number, name] : names) all.push_back(name);
  const auto up = control.parent();
  return up ? tell_text(control, *up, pack(all)) : ok_status();
}

}  // namespace

Result<std::unique_ptr<Replicas>> Replicas::open(Control& control, const Executor& executor) {
  auto replicas = std::make_unique<Replicas>();
  replicas->control_ = &control;
  replicas->own_ = executor.states();
  for (const ParameterView& view : replicas->own_)
    replicas->names_.emplace(number_of(view.name), view.name);
  PIPER_TRY(gather_names(control, replicas->names_));
  return replicas;
}

Status Replicas::check(int64_t step) {
  HoldersOf all;
  for (const ParameterView& view : own_) {
    const std::string_view bytes = as_text({view.data, static_cast<size_t>(view.bytes())});
    all[{number_of(view.name), number_of(to_string(view.held))}][number_of(bytes)].add(
        {1, {control_->rank()}});
  }
  PIPER_TRY(gather_holders(*control_, all, kComparison));
  for (const auto& [held, by_value] : all)
    if (control_->rank() == 0 && by_value.size() > 1) PIPER_TRY(compare(step, held, by_value));
  return ok_status();
}

// What most have is taken for right, where there is such a thing.
Status Replicas::compare(int64_t step, Held64 held,
                         const std::map<uint64_t, Holders>& by_value) const {
  const auto fewer = [](const auto& a, const auto& b) {
    return std::pair(a.second.count, b.second.ranks[0]) <
           std::pair(b.second.count, a.second.ranks[0]);
  };
  const auto most = std::max_element(by_value.begin(), by_value.end(), fewer);
  Holders others;
  for (const auto& [value, holders] : by_value)
    if (value != most->first) others.add(holders);
  Error error = fail("step {}: '{}' on {} differs from its replica on {}", step + 1,
                     names_.at(held.first), list_ranks(others), list_ranks(most->second))
                    .with_code(ExitCode::kNumeric);
  error.notes.push_back(most->second.count > others.count
                            ? "what most ranks hold is taken for right"
                            : "which of them is wrong cannot be told: no value has a majority");
  return error;
}

}  // namespace piper
