// The differences as text, for a terminal or a log, and as Markdown for a comment.
#include <algorithm>

#include "match.h"

namespace piper {
namespace {

constexpr size_t kMostRows = 36, kMostAlike = 12;  // of a section, in text
constexpr size_t kMostMarkdown = 60 * 1000 - 200;  // bytes
constexpr size_t kNamesWidth = 40;
constexpr size_t kColumn = 60;  // that others of a section are aligned with, at most

struct Paint {
  bool on;
  std::string operator()(const char* code, const std::string& text) const {
    return on ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  }
};
constexpr const char *kBold = "1", *kRed = "31", *kGreen = "32";

// Returns how many columns a terminal shows: bytes that continue a character of UTF-8 take none.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}
std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, width_of(text)), ' ');
}

std::string where_text(const Change& change) {
  return change.where.empty() ? "" : list_text(change.where, kNamesWidth);
}
std::string growth_of(const Change& change) {
  const auto *before = std::get_if<double>(&change.before),
             *after = std::get_if<double>(&change.after);
  const bool says = before && after && change.unit != DiffUnit::kCount;
  return says ? growth_text(*before, *after, change.unit) : "";
}

// Returns the rows for which there is room: some of each kind, so that many devices hide no other
// figure.
std::vector<const Change*> rows_of(const DiffSection& section) {
  std::vector<const Change*> rows;
  std::map<std::string_view, size_t> alike;
  for (const Change& change : section.changes)
    if (rows.size() < kMostRows && ++alike[change.is_run ? "" : change.what] <= kMostAlike)
      rows.push_back(&change);
  return rows;
}

void print_row(const Change& change, const std::string& head, size_t what, const Paint& paint,
               std::string& text) {
  const std::string before = value_text(change.before, change.unit),
                    after = value_text(change.after, change.unit), growth = growth_of(change);
  if (change.is_run)
    text += fmt::format("{}{}\n{}\n{}\n", head, change.what, paint(kRed, "    - " + before),
                        paint(kGreen, "    + " + after));
  else
    text += fmt::format("{}{}{} → {}{}\n", head, padded(quote_control(change.what), what), before,
                        after, growth.empty() ? "" : "  " + growth);
}

void print_section(const DiffSection& section, const Paint& paint, std::string& text) {
  text += fmt::format("\n{}  {}\n", paint(kBold, section.name), section.summary);
  const std::vector<const Change*> rows = rows_of(section);
  size_t where = 0, what = 0;
  for (const Change* row : rows) {
    where = std::max(where, width_of(where_text(*row)));
    if (!row->is_run) what = std::max(what, width_of(row->what));
  }
  const size_t gap = where > 0 ? 2 : 0;
  where = std::min(where, kColumn) + gap;
  what = std::min(what, kColumn) + 2;
  for (const Change* row : rows)
    print_row(*row, "  " + padded(where_text(*row), where), what, paint, text);
  if (section.changes.size() > rows.size())
    text += fmt::format("  … {} more, which --json has\n", section.changes.size() - rows.size());
}

// ---- Markdown ----
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : quote_control(text)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (std::string_view("|`*_[]\\#@~$").find(c) != std::string_view::npos)
      out += fmt::format("\\{}", c);
    else
      out += c;
  }
  return out;
}

std::string row_of(const Change& change) {
  return fmt::format("| {} | {} | {} | {} | {} |\n", escaped(where_text(change)),
                     escaped(change.what), escaped(value_text(change.before, change.unit)),
                     escaped(value_text(change.after, change.unit)), growth_of(change));
}
std::string run_of(const Change& change) {
  return fmt::format("@@ {} {} @@\n- {}\n+ {}\n", where_text(change), change.what,
                     value_text(change.before, change.unit), value_text(change.after, change.unit));
}

// Returns a section's rows until `room` bytes are full.
std::string markdown_section(const DiffSection& section, size_t room) {
  std::string text = fmt::format("<details><summary><b>{}</b> – {}</summary>\n\n", section.name,
                                 escaped(section.summary));
  std::string table, runs;
  size_t left_out = 0;
  for (const Change& change : section.changes) {
    const std::string line = change.is_run ? run_of(change) : row_of(change);
    if (text.size() + table.size() + runs.size() + line.size() + 300 > room)
      ++left_out;
    else
      (change.is_run ? runs : table) += line;
  }
  if (!runs.empty()) text += "```diff\n" + runs + "```\n\n";
  if (!table.empty())
    text += "| where | what | before | after | |\n|---|---|---|---|---|\n" + table;
  if (left_out > 0) text += fmt::format("\n… {} more\n", left_out);
  return text + "\n</details>\n\n";
}

}  // namespace

std::string headline(const Diff& diff) {
  const std::string names =
      fmt::format("{} → {}", quote_control(diff.before), quote_control(diff.after));
  if (diff.same())
    return fmt::format("{}: no difference in {}", names,
                       diff.only.empty() ? "what runs" : join(diff.only, ", "));
  std::string text;
  for (const DiffSection& section : diff.sections) {
    text += (text.empty() ? "" : ", ") + section.name;
    if (!section.measure) continue;
    const auto& [before, after, unit] = *section.measure;
    const std::string growth = is_slight(before, after) ? "" : growth_text(before, after, unit);
    if (!growth.empty()) text += " " + growth;
  }
  return fmt::format("{}: {}{}", names, text,
                     diff.sections.size() == 1 ? verb_of(diff.sections[0].name) : " differ");
}

std::string print_diff(const Diff& diff, bool colour) {
  const Paint paint{colour};
  std::string text = paint(kBold, headline(diff)) + "\n";
  for (const std::string& failed : diff.failed) text += paint(kRed, "fails: " + failed) + "\n";
  for (const std::string& note : diff.notes) text += "note: " + quote_control(note) + "\n";
  for (const DiffSection& section : diff.sections) print_section(section, paint, text);
  return text;
}

std::string print_diff_markdown(const Diff& diff) {
  std::string text = fmt::format("**{}**\n\n", escaped(headline(diff)));
  for (const std::string& failed : diff.failed) text += "**fails:** " + escaped(failed) + "\n\n";
  size_t left_out = 0;
  for (const std::string& note : diff.notes) {
    const std::string line = "*" + escaped(note) + "*\n\n";
    if (text.size() + line.size() > kMostMarkdown / 2)
      ++left_out;
    else
      text += line;
  }
  if (left_out > 0) text += fmt::format("… {} more notes\n\n", left_out);
  left_out = 0;
  for (const DiffSection& section : diff.sections) {
    const std::string part =
        markdown_section(section, (kMostMarkdown - std::min(kMostMarkdown, text.size())));
    if (text.size() + part.size() > kMostMarkdown)
      ++left_out;
    else
      text += part;
  }
  if (left_out > 0) text += fmt::format("… {} more sections\n", left_out);
  return text;
}

}  // namespace piper
