// Which ranks hold which tensors.
#include "holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace piper {
namespace {

std::string encode(const HoldersOf& all) {
  std::vector<int64_t> numbers;
  for (const auto& [held, by_value] : all)
    for (const auto& [value, holders] : by_value) {
      for (const uint64_t number : {held.first, held.second, value})
        numbers.push_back(static_cast<int64_t>(number));
      numbers.push_back(holders.count);
      numbers.push_back(std::ssize(holders.ranks));
      numbers.insert(numbers.end(), holders.ranks.begin(), holders.ranks.end());
    }
  return std::string(as_text(std::as_bytes(std::span(numbers))));
}

void add(std::string_view text, HoldersOf& all) {
  std::vector<int64_t> numbers(text.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(int64_t));
  for (auto at = numbers.begin(); at != numbers.end();) {
    const auto next = [&] { return static_cast<uint64_t>(*at++); };
    const uint64_t tensor = next(), which = next(), value = next();
    Holders holders{*at++, {}};
    const int64_t named = *at++;
    holders.ranks.assign(at, at + named);
    at += named;
    all[{tensor, which}][value].add(holders);
  }
}

}  // namespace

void Holders::add(const Holders& others) {
  count += others.count;
  ranks.insert(ranks.end(), others.ranks.begin(), others.ranks.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.resize(std::min(ranks.size(), kNamed));
}

Status gather_holders(Control& control, HoldersOf& own, const char* what) {
  for (const int64_t child : control.children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(control, child, what));
    add(theirs, own);
  }
  const auto up = control.parent();
  return up ? tell_text(control, *up, encode(own)) : ok_status();
}

uint64_t number_of(std::string_view bytes) {
  return std::strtoull(digest(bytes).substr(0, 16).c_str(), nullptr, 16);
}

std::string list_ranks(const Holders& holders) {
  std::string text =
      fmt::format("rank{} {}", holders.count == 1 ? "" : "s", fmt::join(holders.ranks, ", "));
  const int64_t more = holders.count - std::ssize(holders.ranks);
  return more == 0 ? text : fmt::format("{} and {} more", text, more);
}

}  // namespace piper
