#include "golden.h"

#include <unistd.h>

namespace piper::golden {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText =
    "# Upper case,\n"
    "# in two lines.\n"
    "--- word\n"
    "ab\n"
    "\n"
    "c\n"
    "--- after\n"
    "AB\n"
    "\n"
    "C\n"
    "\n"
    "# The word of the case above.\n"
    "--- after\n"
    "AB\n"
    "\n"
    "C\n"
    "\n"
    "# An empty one is refused.\n"
    "--- word\n"
    "--- error\n"
    "empty\n";

Section upper(const Case& c) {
  std::string text = c.text("word");
  if (text.empty()) return {"error", "empty"};
  for (char& letter : text) letter = static_cast<char>(std::toupper(letter));
  return {"after", text};
}

class Golden : public testing::Test {
 protected:
  Golden() : root_(fs::temp_directory_path() / fmt::format("piper-golden-{}", getpid())) {
    fs::create_directories(root_ / "room");
  }
  ~Golden() override { fs::remove_all(root_); }
  std::vector<std::string> check_text(const std::string& text, bool update = false) {
    EXPECT_TRUE(write_file((root_ / "room/a.test").string(), text));
    return check_files(root_, "room/*.test", {"after", "error"}, upper, update);
  }
  std::string written() const { return *read_text_file((root_ / "room/a.test").string(), 1 << 20); }

  fs::path root_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST_F(Golden, CasesThatAgreePass) { EXPECT_EQ(check_text(kText), std::vector<std::string>{}); }

TEST_F(Golden, SectionsKeepTextAndPlace) {
  const std::vector<Case> cases = parse("f", kText);
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[0].title, "Upper case, in two lines.");
  EXPECT_EQ(cases[0].text("word"), "ab\n\nc\n");
  EXPECT_EQ(cases[0].line_of("word"), 4);
  EXPECT_EQ(cases[1].line, 12);
  EXPECT_EQ(cases[1].text("word"), "ab\n\nc\n");
  EXPECT_TRUE(cases[2].has("word"));
  EXPECT_EQ(cases[2].text("word"), "");
}

TEST_F(Golden, AnotherTextOrSectionFails) {
  EXPECT_EQ(check_text(replaced(kText, "AB\n\nC\n\n# The", "AB\n\nX\n\n# The")),
            std::vector<std::string>{"room/a.test:1: Upper case, in two lines.\n"
                                     "--- expected: after\nAB\n\nX\n--- actual: after\nAB\n\nC\n"});
  EXPECT_EQ(check_text(replaced(kText, "--- error\nempty", "--- after\nempty")),
            std::vector<std::string>{"room/a.test:18: An empty one is refused.\n"
                                     "--- expected: after\nempty\n--- actual: error\nempty\n"});
}

TEST_F(Golden, AMissingExpectationOrFileFails) {
  EXPECT_EQ(
      check_text("# Nothing expected.\n--- word\na\n"),
      std::vector<std::string>{"room/a.test:1: Nothing expected.\n"
                               "the last section, and no other, must be one of: after, error"});
  EXPECT_EQ(check_text(""), std::vector<std::string>{"room/a.test: no cases"});
  EXPECT_EQ(check_files(root_, "other/*.test", {"after"}, upper, false),
            std::vector<std::string>{"no file matches 'other/*.test'"});
}

TEST_F(Golden, UpdateWritesWhatCameOut) {
  std::string stale = replaced(kText, "--- error\nempty\n", "");
  stale = replaced(stale, "AB\n\nC\n\n# The", "old\n\n# The");
  EXPECT_EQ(check_text(stale, true), std::vector<std::string>{});
  EXPECT_EQ(written(), kText);
  EXPECT_EQ(check_text(written(), false), std::vector<std::string>{});
}

}  // namespace
}  // namespace piper::golden
