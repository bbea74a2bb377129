// The sections of a diff in the order of their importance, and gates on them.
#include <algorithm>

#include "match.h"

namespace piper {
namespace {

struct SectionDef {
  std::string_view name;
  void (*compare)(const SetMatch& match, SectionChanges& section);
  bool has_measure = false;
};
// The most important first: what is trained, what it costs, how it is done.
constexpr SectionDef kSections[] = {{"model", compare_model},
                                    {"target", compare_target},
                                    {"train", compare_train},
                                    {"parameters", compare_parameters},
                                    {"memory", compare_memory, true},
                                    {"flops", compare_flops, true},
                                    {"time", compare_time, true},
                                    {"placement", compare_placement},
                                    {"stages", compare_stages},
                                    {"order", compare_order},
                                    {"recompute", compare_recompute, true},
                                    {"offload", compare_offload, true},
                                    {"versions", compare_versions},
                                    {"collectives", compare_collectives, true},
                                    {"messages", compare_messages, true},
                                    {"streams", compare_streams},
                                    {"other", nullptr}};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kSections)> names;
  for (size_t s = 0; s < names.size(); ++s) names[s] = kSections[s].name;
  return names;
}();

// What no section tells must not be called the same.
void compare_rest(const SetMatch& match, Diff& diff) {
  if (!diff.same() || !match.notes.empty() || match.same_roles()) return;
  SectionChanges rest;
  rest.name = "other", rest.summary = "role programs differ";
  add_text(rest, "", "role programs", std::string("those of before"),
           std::string("others, in what no section tells: places in memory, waits, labels"));
  diff.sections.push_back(std::move(rest));
}

const SectionDef* find_section(std::string_view name) {
  for (const SectionDef& section : kSections)
    if (section.name == name) return &section;
  return nullptr;
}

Error unknown(const std::string& name) {
  const std::vector<std::string> known(kNames.begin(), kNames.end());
  return fail("there is no section '{}'{}; there are {}", quote_control(name),
              did_you_mean(name, known), join(known, ", "))
      .with_code(ExitCode::kUsage);
}

Result<DiffGate> parse_gate(const std::string& text) {
  const size_t colon = text.find(':');
  DiffGate gate{text.substr(0, colon), {}};
  const SectionDef* section = find_section(gate.section);
  if (!section) return unknown(gate.section);
  if (colon == text.npos) return gate;
  const std::string limit = text.substr(colon + 1);
  char* end = nullptr;
  const double percent = std::strtod(limit.c_str(), &end);
  if (!limit.starts_with('+') || std::string_view(end) != "%" || !(percent >= 0))
    return fail("'{}' is no limit: write {}:+5%", quote_control(text), gate.section)
        .with_code(ExitCode::kUsage);
  if (!section->has_measure)
    return fail("'{}' has no measure to grow: write only {} to fail when it differs", gate.section,
                gate.section)
        .with_code(ExitCode::kUsage);
  gate.percent = percent;
  return gate;
}

}  // namespace

const DiffSection* Diff::find(std::string_view section) const {
  for (const DiffSection& one : sections)
    if (one.name == section) return &one;
  return nullptr;
}

Diff compare(const Summary& before, const Summary& after) {
  const SetMatch match(before, after);
  Diff diff;
  diff.notes = match.notes;
  for (const SectionDef& def : kSections) {
    if (!def.compare) continue;
    SectionChanges section;
    section.name = def.name;
    def.compare(match, section);
    if (!section.known) diff.unknown.push_back(section.name);
    if (!section.changes.empty()) diff.sections.push_back(std::move(section));
  }
  compare_rest(match, diff);
  return diff;
}

std::span<const std::string_view> diff_sections() { return kNames; }

Result<std::vector<std::string>> parse_sections(std::string_view text) {
  std::vector<std::string> names = split_text(text, ',');
  for (const std::string& name : names)
    if (!find_section(name)) return unknown(name);
  return names;
}

void keep_sections(Diff& diff, const std::vector<std::string>& names) {
  diff.only = names;
  std::erase_if(diff.sections, [&](const DiffSection& section) {
    return std::find(names.begin(), names.end(), section.name) == names.end();
  });
}

Result<std::vector<DiffGate>> parse_gates(std::string_view text) {
  std::vector<DiffGate> gates;
  for (const std::string& part : split_text(text, ',')) {
    PIPER_ASSIGN(DiffGate gate, parse_gate(part));
    gates.push_back(std::move(gate));
  }
  return gates;
}

namespace {

// Returns what to say of a measure of a device or of the set that has grown too much.
std::optional<std::string> growth_of(const DiffGate& gate, const std::string& what,
                                     const DiffSection::Measure& measure) {
  if (measure.after <= measure.before * (1 + *gate.percent / 100)) return {};
  const std::string growth = growth_text(measure.before, measure.after, measure.unit);
  return fmt::format("{} grew from {} to {}{}, more than {} %", what,
                     value_text(measure.before, measure.unit),
                     value_text(measure.after, measure.unit),
                     growth.empty() ? "" : " (" + growth + ")", *gate.percent);
}

void apply_gate(const DiffGate& gate, Diff& diff) {
  const DiffSection* section = diff.find(gate.section);
  if (!section) return;
  if (!gate.percent) return diff.failed.push_back(gate.section + verb_of(gate.section));
  const size_t others = diff.failed.size();
  for (const auto& [where, measure] : section->each)
    if (auto grown = growth_of(gate, fmt::format("{} of {}", gate.section, where), measure))
      if (measure.before > 0) diff.failed.push_back(*std::move(grown));
  if (diff.failed.size() > others) return;
  const auto measure = section->measure.value_or(DiffSection::Measure());
  if (auto grown = growth_of(gate, gate.section, measure)) diff.failed.push_back(*std::move(grown));
}

}  // namespace

void apply_gates(const std::vector<DiffGate>& gates, Diff& diff) {
  for (const DiffGate& gate : gates) {
    if (std::ranges::count(diff.unknown, gate.section) > 0)
      diff.failed.push_back(fmt::format(
          "{} of one side or both is not known: --cluster or --costs predicts it", gate.section));
    apply_gate(gate, diff);
  }
}

}  // namespace piper
