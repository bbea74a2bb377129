// The pages of the repository: they link to what is there, list all rooms, and stay short where a
// reader begins.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "shell.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = PIPER_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> pages() {
  std::vector<fs::path> found{kSource / "README.md"};
  for (const char* const folder : {"formats", "samples", "src", "strategies", "tests", "tools"})
    for (const auto& each : fs::recursive_directory_iterator(kSource / folder))
      if (each.path().extension() == ".md") found.push_back(each.path());
  return found;
}

std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

// The anchor that a heading gets: lower case, without punctuation, with dashes for blanks.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

TEST(Pages, LinkToWhatIsThere) {
  size_t links = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& link : matches(read(page), R"(\]\(([^)\s]+)\))")) {
      if (link.find("://") != std::string::npos) continue;
      ++links;
      const size_t hash = link.find('#');
      const std::string file = link.substr(0, hash);
      const fs::path target = file.empty() ? page : page.parent_path() / file;
      ASSERT_TRUE(fs::exists(target)) << page << " links to " << link << ", which is not there";
      if (hash == std::string::npos) continue;
      const std::string wanted = link.substr(hash + 1);
      std::set<std::string> anchors;
      for (const std::string& heading : matches("\n" + read(target), R"(\n#+ ([^\n]+))"))
        anchors.insert(anchor_of(heading));
      EXPECT_TRUE(anchors.contains(wanted)) << page << " links to " << link << ": no such heading";
    }
  }
  EXPECT_GT(links, 15u);
}

TEST(Pages, ReadmeIsShortAndIndexesAllPages) {
  const std::string readme = read(kSource / "README.md");
  std::istringstream words(readme);
  size_t count = 0;
  for (std::string word; words >> word;) ++count;
  EXPECT_LE(count, 1200u);
  std::set<fs::path> linked{kSource / "README.md"};
  for (const std::string& link : matches(readme, R"(\]\(([^)#\s]+))"))
    linked.insert(kSource / link);
  for (const fs::path& page : pages())
    EXPECT_TRUE(linked.contains(page)) << "README.md does not link to " << page;
}

TEST(Pages, TheMapListsEachRoomOnce) {
  const std::vector<std::string> listed =
      matches("\n" + read(kSource / "src/README.md"), R"(\n\| `([a-z0-9_]+)` \|)");
  std::multiset<std::string> rooms;
  for (const auto& wing : fs::directory_iterator(kSource / "src"))
    if (wing.is_directory())
      for (const auto& room : fs::directory_iterator(wing)) rooms.insert(room.path().filename());
  EXPECT_EQ(std::multiset<std::string>(listed.begin(), listed.end()), rooms);
}

TEST(Pages, ThePictureIsThatOfTheSampleStrategy) {
  const std::string made = ::testing::TempDir() + "schedule.svg";
  const auto [code, output] = run_shell(fmt::format(
      "cd {} && {}/bin/piperc samples/gpt/model.onnx samples/gpt/pp2-dp2.yaml --svg {} 2>&1",
      kSource.string(), PIPER_BINARY_DIR, made));
  ASSERT_EQ(code, 0) << output;
  EXPECT_EQ(read(made), read(kSource / "samples/gpt/schedule.svg"))
      << "piperc samples/gpt/model.onnx samples/gpt/pp2-dp2.yaml --svg samples/gpt/schedule.svg "
         "makes it anew";
}

// "`tokens/seq1f1b` `-D stages=2`:" and what stands in the block below it.
TEST(Pages, PicturesOfTheLibraryAreThoseOfItsFiles) {
  const fs::path page = kSource / "strategies/schedules.md";
  std::string made = read(page);
  const std::string folder = ::testing::TempDir();
  int drawn = 0;
  for (size_t at = 0; (at = made.find("` `-D ", at)) != std::string::npos; ++drawn) {
    const size_t begin = made.rfind('\n', at) + 2, end = made.find("`:\n\n```\n", at);
    ASSERT_NE(end, std::string::npos);
    const std::string name = made.substr(begin, at - begin),
                      sizes = made.substr(at + 3, end - at - 3);
    std::ofstream(folder + "picture.yaml")
        << "piper: 1\ninclude: <" << name
        << ">\ntrain: {global_batch: 4, optimizer: {adamw: {lr: 1e-3}}}\n";
    const auto [code, output] = run_shell(
        fmt::format("cd {} && {}/bin/piperc samples/gpt/model.onnx {}picture.yaml -I strategies {} "
                    "--picture --costs unit --width 200 2>/dev/null",
                    kSource.string(), PIPER_BINARY_DIR, folder, sizes));
    ASSERT_EQ(code, 0) << output;
    at = end + 8;
    made.replace(at, made.find("```", at) - at, output.substr(output.find("rank ")));
  }
  EXPECT_EQ(drawn, 3);
  if (std::getenv("PIPER_UPDATE_GOLDEN")) std::ofstream(page) << made;
  EXPECT_EQ(made, read(page)) << "PIPER_UPDATE_GOLDEN=1 writes it";
}

}  // namespace
}  // namespace piper
