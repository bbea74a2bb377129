// Golden tests: input and expected text stand together in tests/golden/<room>/<what>.test.
//
//   # What the case shows. A '#' in the first column opens a case.
//   --- strategy
//   mesh: {dp: 2}
//   --- after
//   the expected text
//
// A section lasts to the next '--- NAME' or '#' line; blank lines at its end do not count. A case
// that lacks an input section has that of a case above it in the file. A test says which sections
// are expected ones and makes the actual text:
//
//   TEST(Directives, Golden) {
//     golden::run("directives/*.test", {"after", "error"}, [](const golden::Case& c) ->
//     golden::Section {
//       Result<Dag> dag = apply(parse(c.text("strategy")), c.text("before"));
//       if (!dag) return {"error", print_error(dag.error())};
//       return {"after", print_dag(*dag)};
//     });
//   }
//
// The case's expected section, its last, must have the returned name and text. c.file and c.line
// say where the case stands (c.line_of("strategy") where that section's text begins, for those who
// want locations to match the file). PIPER_UPDATE_GOLDEN=1 in the environment writes what came out
// into the file; review the difference as code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "piper/base/base.h"

namespace piper::golden {

struct Section {
  std::string name, text;
  int line = 0;  // of its first line of text, from 1
};

struct Case {
  std::string file;     // relative to tests/golden
  int line = 0;         // of its '#'
  std::string title;    // the comment, joined to one line
  std::string comment;  // its lines as they stand
  std::vector<Section> sections;
  std::vector<Section> above;  // sections of the cases above, the nearest first

  const Section* find(std::string_view name) const {
    for (const auto* list : {&sections, &above})
      for (const Section& section : *list)
        if (section.name == name) return &section;
    return nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Empty where neither the case nor one above it has the section.
  std::string text(std::string_view name) const { return has(name) ? find(name)->text : ""; }
  int line_of(std::string_view name) const { return has(name) ? find(name)->line : 0; }
};

using Produce = std::function<Section(const Case&)>;

inline std::string with_one_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? text : text + '\n';
}

inline std::vector<Case> parse(const std::string& file, const std::string& text) {
  std::vector<Case> cases;
  std::vector<std::string> lines = split_text(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const int number = static_cast<int>(i) + 1;
    if (line.starts_with('#')) {
      const bool goes_on = !cases.empty() && cases.back().sections.empty();
      if (!goes_on) cases.push_back({file, number, {}, {}, {}, {}});
      cases.back().comment += line + "\n";
      cases.back().title += (goes_on ? " " : "") + line.substr(std::min<size_t>(2, line.size()));
    } else if (cases.empty()) {
      EXPECT_EQ(line, "") << file << ":" << number << ": text before the first '#' line";
    } else if (line.starts_with("--- ")) {
      cases.back().sections.push_back({line.substr(4), {}, number + 1});
    } else if (!cases.back().sections.empty()) {
      cases.back().sections.back().text += line + "\n";
    }
  }
  for (Case& c : cases)
    for (Section& section : c.sections) section.text = with_one_newline(section.text);
  for (size_t i = 1; i < cases.size(); ++i) {
    cases[i].above = cases[i - 1].sections;
    cases[i].above.insert(cases[i].above.end(), cases[i - 1].above.begin(),
                          cases[i - 1].above.end());
  }
  return cases;
}

inline std::string print(const std::vector<Case>& cases) {
  std::string text;
  for (const Case& c : cases) {
    text += (text.empty() ? "" : "\n") + c.comment;
    for (const Section& section : c.sections) text += "--- " + section.name + "\n" + section.text;
  }
  return text;
}

// What is wrong with the case, or "". With `update` the case becomes right instead.
inline std::string check(Case& c, const std::vector<std::string>& expected, Section actual,
                         bool update) {
  const auto is_expected = [&](const Section& section) {
    return std::find(expected.begin(), expected.end(), section.name) != expected.end();
  };
  actual.text = with_one_newline(std::move(actual.text));
  if (!is_expected(actual))
    return "the test made a section '" + actual.name + "', not an expected one";
  if (update) {
    std::erase_if(c.sections, is_expected);
    c.sections.push_back(std::move(actual));
    return {};
  }
  if (std::count_if(c.sections.begin(), c.sections.end(), is_expected) != 1 ||
      !is_expected(c.sections.back()))
    return "the last section, and no other, must be one of: " + join(expected, ", ");
  const Section& wanted = c.sections.back();
  if (wanted.name == actual.name && wanted.text == actual.text) return {};
  return "--- expected: " + wanted.name + "\n" + wanted.text + "--- actual: " + actual.name + "\n" +
         actual.text;
}

// Runs the cases of all files under `root` that match; returns "file:line: title\nwhat is wrong"
// for each failing case.
inline std::vector<std::string> check_files(const std::filesystem::path& root,
                                            std::string_view pattern,
                                            const std::vector<std::string>& expected,
                                            const Produce& produce, bool update) {
  namespace fs = std::filesystem;
  const Result<Glob> glob = Glob::parse(pattern, {});
  if (!glob) return {print_error(glob.error())};
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (const std::string name = fs::relative(entry.path(), root).string(); glob->match(name))
      files.push_back(name);
  std::sort(files.begin(), files.end());
  std::vector<std::string> problems;
  if (files.empty()) problems.push_back("no file matches '" + std::string(pattern) + "'");
  for (const std::string& file : files) {
    const Result<std::string> text = read_text_file((root / file).string(), 1 << 20);
    if (!text) return {print_error(text.error())};
    std::vector<Case> cases = parse(file, *text);
    if (cases.empty()) problems.push_back(file + ": no cases");
    for (Case& c : cases)
      if (const std::string wrong = check(c, expected, produce(c), update); !wrong.empty())
        problems.push_back(fmt::format("{}:{}: {}\n{}", file, c.line, c.title, wrong));
    if (!update) continue;
    const Status written = write_file((root / file).string(), print(cases));
    if (!written) problems.push_back(print_error(written.error()));
  }
  return problems;
}

// `pattern` is a glob under tests/golden, e.g. "directives/*.test".
inline void run(std::string_view pattern, const std::vector<std::string>& expected,
                const Produce& produce) {
  const char* update = std::getenv("PIPER_UPDATE_GOLDEN");
  const std::filesystem::path root = std::filesystem::path(PIPER_SOURCE_DIR) / "tests/golden";
  for (const std::string& problem :
       check_files(root, pattern, expected, produce, update && std::string_view(update) == "1"))
    ADD_FAILURE() << "tests/golden/" << problem;
}

}  // namespace piper::golden
