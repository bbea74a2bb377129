// Adds changes to sections of a diff, and prints values, growth and units.
#include <algorithm>

#include "match.h"

namespace piper {
void add_change(SectionChanges& section, Change change) {
  if (!change.where.empty()) {
    const auto [known, is_new] = section.by_value.try_emplace(
        {change.what, change.before, change.after}, section.changes.size());
    if (!is_new) {
      section.changes[known->second].where.push_back(std::move(change.where.front()));
      return;
    }
  }
  section.changes.push_back(std::move(change));
}

void add_number(SectionChanges& section, std::string where, std::string what, double before,
                double after, DiffUnit unit) {
  if (is_close(before, after)) return;
  Change change{{}, std::move(what), before, after, unit};
  if (!where.empty()) change.where.push_back(std::move(where));
  add_change(section, std::move(change));
}

void add_numbers(SectionChanges& section, std::string where, std::string what,
                 std::optional<double> before, std::optional<double> after, DiffUnit unit) {
  const auto value = [](std::optional<double> number) {
    return number ? DiffValue(*number) : DiffValue();
  };
  if (before && after)
    add_number(section, std::move(where), std::move(what), *before, *after, unit);
  else
    add_change(section, {where.empty() ? std::vector<std::string>() : std::vector{std::move(where)},
                         std::move(what), value(before), value(after), unit});
}

void add_text(SectionChanges& section, std::string where, std::string what, DiffValue before,
              DiffValue after) {
  if (before == after) return;
  Change change{{}, std::move(what), std::move(before), std::move(after)};
  if (!where.empty()) change.where.push_back(std::move(where));
  add_change(section, std::move(change));
}

std::string value_text(const DiffValue& value, DiffUnit unit) {
  if (const auto* text = std::get_if<std::string>(&value)) return quote_control(*text);
  const auto* number = std::get_if<double>(&value);
  if (!number) return "none";
  if (unit == DiffUnit::kBytes) return human_bytes(static_cast<int64_t>(*number));
  if (unit == DiffUnit::kFlops) return human_flops(*number);
  if (unit == DiffUnit::kSeconds)
    return *number >= 1 ? fmt::format("{:.4g} s", *number)
                        : fmt::format("{:.4g} ms", *number * 1e3);
  return *number == static_cast<double>(static_cast<int64_t>(*number))
             ? fmt::format("{:.0f}", *number)
             : fmt::format("{:.1f}", *number);
}

bool is_slight(double before, double after) {
  return std::abs(after - before) < 0.0005 * std::abs(before);
}

std::string growth_text(double before, double after, DiffUnit unit) {
  if (before <= 0 || is_close(before, after)) return {};
  if (after >= 100 * before) return fmt::format("{:.0f} times as much", after / before);
  if (!is_slight(before, after)) return fmt::format("{:+.1f} %", 100 * (after / before - 1));
  return (after > before ? "+" : "-") + value_text(std::abs(after - before), unit);
}

std::string verb_of(const std::string& section) {
  return section.ends_with("s") ? " differ" : " differs";
}

std::string measure_text(const char* what, const DiffSection::Measure& measure) {
  if (is_close(measure.before, measure.after))
    return fmt::format("{} stays {}", what, value_text(measure.after, measure.unit));
  const std::string growth = growth_text(measure.before, measure.after, measure.unit);
  return fmt::format("{} {} → {}{}", what, value_text(measure.before, measure.unit),
                     value_text(measure.after, measure.unit),
                     growth.empty() ? "" : " (" + growth + ")");
}

std::string list_text(const std::vector<std::string>& names, size_t width) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = quote_control(names[i]);
    if (i > 0 && text.size() + name.size() > width)
      return fmt::format("{}, … ({})", text, names.size());
    text += (i == 0 ? "" : ", ") + name;
  }
  return text;
}

}  // namespace piper
