// Names of the library in `include`, and the folders in which they are looked for.
#include "library_text.h"
#include "unit/strategy_texts.h"

namespace piper::library_test {
namespace {

// Two libraries beside a strategy; what is included says by its loss which file it is.
class LibraryFiles : public ::testing::Test {
 protected:
  LibraryFiles() {
    for (const char* library : {"first", "second"})
      std::filesystem::create_directories(folder_.path() + "/" + library + "/orders");
    write("first/plain", "first");
    write("second/plain", "second");
    write("second/orders/steady", "steady");
    write("second/v1.5", "dotted");
    write("beside", "beside");
    setenv("PIPER_STRATEGIES", "", 1);
  }
  ~LibraryFiles() override { unsetenv("PIPER_STRATEGIES"); }

  void write(const std::string& name, const std::string& loss) const {
    folder_.write(name + ".yaml", "piper: 1\nloss: " + loss + "\n");
  }
  std::string place(const std::string& name) const { return folder_.path() + "/" + name; }
  // The loss that comes of an include, or the error as it is printed.
  std::string included(const std::string& include, const std::vector<std::string>& library,
                       const std::string& params = "") const {
    const std::string path =
        folder_.write("strategy.yaml", "piper: 1\n" + params + "include: " + include + "\n");
    const Result<Strategy> strategy = parse_strategy(path, {}, library);
    return strategy ? strategy->loss.at(0).output : folder_.print(strategy.error());
  }

  Folder folder_;
};

TEST_F(LibraryFiles, IsLookedUpInOrder) {
  const std::string first = place("first"), second = place("second");
  EXPECT_EQ(included("<plain>", {first, second}), "first");
  EXPECT_EQ(included("<plain>", {second, first}), "second");
  EXPECT_EQ(included("<orders/steady>", {first, second + "/"}), "steady");
  setenv("PIPER_STRATEGIES", (":" + place("nowhere") + ":" + second + ":" + first).c_str(), 1);
  EXPECT_EQ(included("<plain>", {}), "second");
  EXPECT_EQ(included("<plain>", {first}), "first");
}

TEST_F(LibraryFiles, NamesAreSpelledInSeveralWays) {
  for (const char* name : {"<orders/steady>", "<orders/steady.yaml>", "\"<orders/steady>\"",
                           "<./orders//steady>", "<orders/../orders/steady>"})
    EXPECT_EQ(included(name, {place("second")}), "steady") << name;
  EXPECT_EQ(included("<v1.5>", {place("second")}), "dotted");
  EXPECT_EQ(included("<orders/$order>", {place("second")}, "params: {order: steady}\n"), "steady");
  EXPECT_EQ(included("beside.yaml", {place("second")}), "beside");
  write("<odd", "odd");
  EXPECT_EQ(included("./<odd.yaml", {}), "odd");
}

// All of strategies/ is there for whatever lies beside `share`, with names as the files have.
TEST_F(LibraryFiles, LiesBesideTheProgram) {
  int files = 0;
  const std::filesystem::path all = PIPER_SOURCE_DIR "/strategies";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(all)) {
    if (!is_strategy(entry.path())) continue;
    const std::string name = entry.path().lexically_relative(all).replace_extension().string();
    const Result<Strategy> named = parse_strategy("<" + name + ">", {});
    const Result<Strategy> by_path = parse_strategy(entry.path().string(), {});
    ASSERT_TRUE(named.ok()) << print_error(named.error());
    ASSERT_TRUE(by_path.ok()) << print_error(by_path.error());
    EXPECT_EQ(print_strategy(*named), print_strategy(*by_path)) << name;
    ++files;
  }
  EXPECT_GT(files, 40);
}

// By a name and by a path it is one file, which is read once.
TEST_F(LibraryFiles, FilesAreReadOnce) {
  EXPECT_EQ(included("[<plain>, first/plain.yaml]", {place("first")}), "first");
  folder_.write("first/again.yaml", "piper: 1\ninclude: <again>\n");
  const std::string error = included("<again>", {place("first")});
  EXPECT_NE(error.find("first/again.yaml:2:10: error: the file 'first/again.yaml' includes itself"),
            std::string::npos)
      << error;
}

TEST_F(LibraryFiles, SaysWhereItLooked) {
  setenv("PIPER_STRATEGIES", place("nowhere").c_str(), 1);
  const std::string error = included("[<orders/plain>]", {place("second")});
  EXPECT_TRUE(error.starts_with(
      "strategy.yaml:2:11: error: the library has no '<orders/plain>' (did you mean '<plain>'?)\n"
      "  |\n"
      "2 | include: [<orders/plain>]\n"
      "  |           ^^^^^^^^^^^^^^\n"
      "  = note: looked in 'second'\n"
      "  = note: looked in 'nowhere', which is no folder\n"
      "  = note: looked in '" PIPER_BINARY_DIR
      "/share/piper/strategies'\n"
      "  = help: "))
      << error;
  EXPECT_NE(included("<stedy>", {place("second")}).find("(did you mean '<orders/steady>'?)"),
            std::string::npos);
  EXPECT_NE(included("<1f1b/zbv>", {}).find("(did you mean '<schedules/zbv>' or '<zbv>'?)"),
            std::string::npos);
  EXPECT_NE(included("<no such thing>", {}).find("note: it has 1f1b, "), std::string::npos);
  const Result<Strategy> none = parse_strategy("<gpip>", {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "the library has no '<gpip>' (did you mean '<gpipe>' or '<schedules/gpipe>'?)");
  const Result<Strategy> bare = parse_strategy("gpipe", {});
  ASSERT_FALSE(bare.ok());
  EXPECT_EQ(bare.error().notes.back(),
            "help: '<gpipe>' or '<schedules/gpipe>' are names of the library");
}

TEST_F(LibraryFiles, RefusesWhatIsNoName) {
  for (const char* name : {"<plain", "<>", "<.>", "<..>", "<../first/plain>", "</etc/passwd>",
                           "<orders/>", "<orders/../../first/plain>", "<plain>.yaml"}) {
    const std::string error = included(name, {place("first")});
    EXPECT_TRUE(error.starts_with("strategy.yaml:2:10: error: '" + std::string(name) +
                                  "' is no name of the library"))
        << error;
  }
  // What has the name and cannot be read is not passed over.
  std::filesystem::create_directories(place("first/steady.yaml"));
  const std::string error = included("<steady>", {place("first"), place("second/orders")});
  EXPECT_NE(error.find("cannot include 'first/steady.yaml'"), std::string::npos) << error;
}

}  // namespace
}  // namespace piper::library_test
