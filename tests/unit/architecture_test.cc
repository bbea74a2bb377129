// The walls between wings and rooms: reads the piper_room lines of CMakeLists.txt and every
// #include of the sources, and fails on an arrow that they do not allow. src/README.md is the map.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "piper/base/base.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = PIPER_SOURCE_DIR;

std::string read(const fs::path& path) {
  Result<std::string> text = read_text_file(path.string(), 64 << 20);
  EXPECT_TRUE(text.ok()) << path;
  return text ? *std::move(text) : std::string();
}

std::vector<fs::path> files_under(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::exists(folder))
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> sources_under(const fs::path& folder) {
  std::vector<fs::path> files = files_under(folder);
  std::erase_if(files, [](const fs::path& path) {
    return path.extension() != ".cc" && path.extension() != ".h" && path.extension() != ".cu";
  });
  return files;
}

// The room's folder of a source: a room may have a folder families/, keys/ or transforms/
// (CMakeLists.txt).
fs::path room_of(const fs::path& source) {
  const fs::path folder = source.parent_path();
  const bool has_rows =
      std::set<std::string>{"families", "keys", "transforms"}.contains(folder.filename().string());
  return has_rows ? folder.parent_path() : folder;
}

std::string name_of(const fs::path& path) { return fs::relative(path, kRoot).string(); }

// ---- What CMakeLists.txt says -------------------------------------------------------------------

struct Rooms {
  std::vector<std::string> names;            // without their wings, in the order of their lines
  std::map<std::string, std::string> wings;  // by room; empty for tools
  std::map<std::string, std::vector<std::string>> uses;
  std::map<std::string, std::vector<std::string>> doors;  // further ones, without their wings

  bool has(const std::string& name) const { return uses.contains(name); }

  std::set<std::string> closure(const std::vector<std::string>& roots) const {
    std::set<std::string> reached;
    std::vector<std::string> open = roots;
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      if (!reached.insert(name).second) continue;
      if (has(name)) open.insert(open.end(), uses.at(name).begin(), uses.at(name).end());
    }
    return reached;
  }
};

// The calls of one of our CMake functions: name -> the words behind USES.
Rooms parse_calls(const std::string& cmake, const std::string& function) {
  Rooms rooms;
  const std::regex call("\\n" + function + "\\(([^)]*)\\)");
  for (auto it = std::sregex_iterator(cmake.begin(), cmake.end(), call);
       it != std::sregex_iterator(); ++it) {
    std::istringstream words((*it)[1].str());
    std::string name, word;
    words >> name;
    const size_t slash = name.find('/');
    const std::string wing = slash == name.npos ? "" : name.substr(0, slash);
    if (slash != name.npos) name = name.substr(slash + 1);
    rooms.wings[name] = wing;
    rooms.names.push_back(name);
    std::vector<std::string> other, *list = &other;
    std::vector<std::string>&uses = rooms.uses[name], &doors = rooms.doors[name];
    while (words >> word) {
      if (word == "USES" || word == "DOORS" || word == "LINKS" || word == "SOURCES" ||
          word == "APART")
        list = word == "USES" ? &uses : word == "DOORS" ? &doors : &other;
      else
        list->push_back(word);
    }
  }
  return rooms;
}

const Rooms& rooms() {
  static const Rooms all = parse_calls(read(kRoot / "CMakeLists.txt"), "piper_room");
  return all;
}
Rooms tools() { return parse_calls(read(kRoot / "CMakeLists.txt"), "piper_tool"); }

std::string path_of(const std::string& room) { return rooms().wings.at(room) + "/" + room; }
fs::path folder_of(const std::string& room) { return kRoot / "src" / path_of(room); }
// "plan/role", and what else the room shows of itself.
std::vector<std::string> doors_of(const std::string& room) {
  std::vector<std::string> doors{path_of(room)};
  for (const std::string& door : rooms().doors.at(room))
    doors.push_back(rooms().wings.at(room) + "/" + door);
  return doors;
}
std::vector<fs::path> headers_of(const std::string& room) {
  std::vector<fs::path> headers;
  for (const std::string& door : doors_of(room))
    headers.push_back(kRoot / "include/piper" / (door + ".h"));
  return headers;
}

// The wings, from the ground up. A room uses rooms of its own wing and of wings on lower levels.
const std::map<std::string, int> kLevels = {{"base", 0},    {"ir", 1},      {"plan", 2},
                                            {"devices", 3}, {"inspect", 4}, {"frontend", 4},
                                            {"runtime", 4}, {"planner", 5}};

// ---- What the sources include -------------------------------------------------------------------

struct Include {
  std::string target;
  bool quoted = false;
  int line = 0;
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex form("^[ \\t]*#[ \\t]*include[ \\t]*([<\"])([^>\"]+)[>\"].*$");
  std::vector<Include> includes;
  int number = 0;
  for (const std::string& line : split_text(text, '\n')) {
    ++number;
    std::smatch match;
    if (line.find("include") != std::string::npos && std::regex_match(line, match, form))
      includes.push_back({match[2], match[1] == "\"", number});
  }
  return includes;
}

// The room whose door "piper/WING/DOOR.h" is; what is no door stays as it is.
std::optional<std::string> door_named(const std::string& include) {
  static const std::map<std::string, std::string> room_of = [] {
    std::map<std::string, std::string> map;
    for (const std::string& room : rooms().names)
      for (const std::string& door : doors_of(room)) map.emplace(door, room);
    return map;
  }();
  if (!include.starts_with("piper/") || !include.ends_with(".h")) return std::nullopt;
  const std::string path = include.substr(6, include.size() - 8);
  const auto room = room_of.find(path);
  return room == room_of.end() ? path : room->second;
}

// The doors that `uses` open, and the doors that those include themselves.
std::set<std::string> open_doors(const std::vector<std::string>& uses) {
  std::set<std::string> doors;
  std::vector<std::string> todo;
  for (const std::string& room : uses) todo.push_back(room);
  while (!todo.empty()) {
    const std::string door = todo.back();
    todo.pop_back();
    if (!doors.insert(door).second) continue;
    if (!rooms().has(door)) continue;
    for (const fs::path& header : headers_of(door))
      for (const Include& include : includes_of(read(header)))
        if (const auto inner = door_named(include.target)) todo.push_back(*inner);
  }
  return doors;
}

// Headers that are heavy or foreign, and the rooms that may know them.
struct Foreign {
  const char* prefix;
  std::vector<std::string> rooms;
};
const std::vector<Foreign>& foreign_headers() {
  static const std::vector<Foreign> table = {
      {"onnx/", {"onnx", "import"}},
      {"yaml-cpp/", {"yaml"}},
      {"plan.pb.h", {"bundle"}},
      {"google/protobuf/", {"bundle", "onnx"}},
      {"dnnl", {"cpu"}},
      {"oneapi/", {"cpu"}},
      {"omp.h", {"cpu"}},
      {"hwy/", {"cpu"}},
      {"mpi.h", {"transport"}},
      {"CLI/", {"tools"}},
      {"nlohmann/",
       {"base", "bundle", "params", "simulate", "picture", "diff", "executor", "checkpoint"}},
      {"xxhash.h", {"base"}},
  };
  return table;
}

// What is wrong with the includes of one source of `room`, each with its line.
std::vector<std::string> wrong_includes(const std::string& room, const fs::path& folder,
                                        const std::set<std::string>& doors,
                                        const std::string& text) {
  std::vector<std::string> wrong;
  const auto say = [&](const Include& include, const std::string& what) {
    wrong.push_back(fmt::format("{}: {} {}", include.line, include.target, what));
  };
  for (const Include& include : includes_of(text)) {
    if (const auto door = door_named(include.target)) {
      if (!doors.contains(*door)) say(include, "is a door that the room's USES does not open");
    } else if (include.target.find("..") != std::string::npos) {
      say(include, "leaves the folder of the room");
    }
    bool foreign = false;
    for (const Foreign& row : foreign_headers()) {
      if (!include.target.starts_with(row.prefix)) continue;
      foreign = true;
      if (std::find(row.rooms.begin(), row.rooms.end(), room) == row.rooms.end())
        say(include, "belongs to " + join(row.rooms, ", "));
    }
    if (include.quoted && !foreign && !door_named(include.target) &&
        include.target != "families.inc" && !fs::exists(folder / include.target))
      say(include, "is no header of this room");
  }
  return wrong;
}

void expect_none(const fs::path& file, const std::vector<std::string>& wrong) {
  for (const std::string& what : wrong) ADD_FAILURE() << name_of(file) << ":" << what;
}

// ---- The tests ----------------------------------------------------------------------------------

TEST(Architecture, RoomsUseOnlyRoomsAboveThem) {
  const Rooms all = rooms();
  ASSERT_GT(all.names.size(), 15u) << "CMakeLists.txt could not be read as this test expects";
  std::set<std::string> above;
  for (const std::string& name : all.names) {
    for (const std::string& used : all.uses.at(name))
      EXPECT_TRUE(above.contains(used)) << name << " uses " << used << ", which is not above it";
    above.insert(name);
  }
}

TEST(Architecture, WingsUseOnlyWingsBelowThem) {
  for (const std::string& name : rooms().names) {
    const std::string& wing = rooms().wings.at(name);
    ASSERT_TRUE(kLevels.contains(wing)) << name << " is in no wing";
    for (const std::string& used : rooms().uses.at(name)) {
      const std::string& other = rooms().wings.at(used);
      EXPECT_TRUE(other == wing || kLevels.at(other) < kLevels.at(wing))
          << path_of(name) << " uses " << path_of(used);
    }
  }
  std::set<std::string> wings;
  for (const auto& entry : fs::directory_iterator(kRoot / "src"))
    if (entry.is_directory()) wings.insert(entry.path().filename());
  EXPECT_EQ(wings.size(), kLevels.size());
  for (const std::string& wing : wings) EXPECT_TRUE(kLevels.contains(wing)) << wing;
}

// That the executor knows nothing of strategies is then a fact that the linker keeps, too.
TEST(Architecture, TheRuntimeUsesNeitherFrontendNorPlanner) {
  Rooms programs = tools();
  std::vector<std::string> roots = programs.uses["piper_run"];
  ASSERT_FALSE(roots.empty());
  for (const std::string& room : rooms().names)
    if (rooms().wings.at(room) == "runtime") roots.push_back(room);
  for (const std::string& room : programs.uses["piper_verify"]) roots.push_back(room);
  for (const std::string& room : rooms().closure(roots)) {
    const std::string& wing = rooms().wings.at(room);
    EXPECT_TRUE(wing != "frontend" && wing != "planner") << path_of(room);
  }
}

TEST(Architecture, EveryFolderIsARoomWithADoor) {
  std::set<fs::path> folders, doors;
  for (const std::string& name : rooms().names) {
    folders.insert(folder_of(name));
    for (const fs::path& header : headers_of(name)) {
      EXPECT_TRUE(doors.insert(header).second) << name_of(header) << " is the door of two rooms";
      EXPECT_TRUE(fs::exists(header)) << name;
    }
  }
  EXPECT_EQ(folders.size(), rooms().uses.size()) << "two rooms have one name";
  for (const fs::path& file : sources_under(kRoot / "src"))
    EXPECT_TRUE(folders.contains(room_of(file))) << name_of(file) << " is in no room";
  for (const fs::path& file : sources_under(kRoot / "include"))
    EXPECT_TRUE(doors.contains(file)) << name_of(file) << " is the door of no room";
}

// Who reads the doors reads the architecture: each must be short enough for that.
TEST(Architecture, DoorsHaveAtMost250Lines) {
  for (const fs::path& header : sources_under(kRoot / "include")) {
    const std::string text = read(header);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 250) << name_of(header);
  }
}

TEST(Architecture, EachSourceSaysWhatItIs) {
  for (const fs::path& file : sources_under(kRoot / "src"))
    EXPECT_TRUE(read(file).starts_with("// ")) << name_of(file) << " has no line that says it";
}

TEST(Architecture, EachUseIsIncluded) {
  for (const std::string& name : rooms().names) {
    std::set<std::string> included;
    std::vector<fs::path> files = sources_under(folder_of(name));
    for (const fs::path& header : headers_of(name)) files.push_back(header);
    for (const fs::path& file : files)
      for (const Include& include : includes_of(read(file)))
        if (const auto door = door_named(include.target)) included.insert(*door);
    for (const std::string& used : rooms().uses.at(name))
      EXPECT_TRUE(included.contains(used)) << path_of(name) << " includes nothing of " << used;
  }
}

TEST(Architecture, RoomsIncludeOnlyTheDoorsTheyUse) {
  const Rooms all = rooms();
  for (const std::string& name : all.names) {
    std::vector<std::string> uses = all.uses.at(name);
    uses.push_back(name);
    const std::set<std::string> doors = open_doors(uses);
    for (const fs::path& file : sources_under(folder_of(name)))
      expect_none(file, wrong_includes(name, room_of(file), doors, read(file)));
  }
}

TEST(Architecture, DoorsIncludeOnlyTheDoorsTheirRoomUses) {
  const Rooms all = rooms();
  for (const std::string& name : all.names) {
    std::set<std::string> doors{name};
    for (const std::string& used : all.uses.at(name)) doors.insert(used);
    for (const fs::path& header : headers_of(name))
      for (const Include& include : includes_of(read(header))) {
        const auto door = door_named(include.target);
        EXPECT_TRUE(!door || doors.contains(*door)) << name << " has no " << include.target;
        EXPECT_TRUE(door || !include.quoted) << name_of(header) << ": " << include.target;
        for (const Foreign& foreign : foreign_headers())
          EXPECT_FALSE(include.target.starts_with(foreign.prefix))
              << name_of(header) << " shows " << include.target << " to everyone";
      }
  }
}

TEST(Architecture, ToolsIncludeOnlyTheDoorsTheyUse) {
  const Rooms all = tools();
  for (const std::string& name : all.names) {
    const fs::path file = kRoot / "tools" / (name + ".cc");
    if (!fs::exists(file)) continue;
    std::vector<std::string> uses = all.uses.at(name);
    uses.push_back("base");
    expect_none(file, wrong_includes("tools", kRoot / "tools", open_doors(uses), read(file)));
  }
}

TEST(Architecture, TestsReachNoPrivateHeader) {
  for (const fs::path& file : sources_under(kRoot / "tests"))
    for (const Include& include : includes_of(read(file)))
      EXPECT_EQ(include.target.find(".."), std::string::npos)
          << name_of(file) << ": " << include.target;
}

// The types that a source defines for other files to see: "piper::cpu::Block". House style puts a
// namespace's end on a line of its own, "}  // namespace…".
std::vector<std::string> visible_types(const std::string& source) {
  static const std::regex opening("namespace ([A-Za-z_:]*) ?\\{"),
      type("(struct|class|enum class) ([A-Za-z]+) [^;]*\\{.*");
  std::vector<std::string> open, types;
  for (const std::string& line : split_text(source, '\n')) {
    std::smatch found;
    if (std::regex_match(line, found, opening)) {
      open.push_back(found[1].str());
    } else if (line.starts_with("}  // namespace") && !open.empty()) {
      open.pop_back();
    } else if (std::regex_match(line, found, type) &&
               std::find(open.begin(), open.end(), "") == open.end()) {
      types.push_back(join(open, "::") + "::" + found[2].str());
    }
  }
  return types;
}

// Two types of one name in two rooms would share their templates' code in whatever links both.
TEST(Architecture, NoTypeIsDefinedTwice) {
  std::map<std::string, fs::path> seen;
  for (const char* folder : {"include", "src"})
    for (const fs::path& file : sources_under(kRoot / folder))
      for (const std::string& type : visible_types(read(file))) {
        const auto [at, is_new] = seen.emplace(type, file);
        EXPECT_TRUE(is_new) << type << " is in " << name_of(at->second) << " and " << name_of(file);
      }
  EXPECT_GT(seen.size(), 100u);
}

// Whoever adds a backend writes its room and a line of the table.
TEST(Architecture, ABackendIsItsRoomAndALine) {
  std::set<std::string> named;
  for (const char* folder : {"src", "include", "tools"})
    for (const fs::path& file : sources_under(kRoot / folder)) {
      const std::string text = read(file);
      if (text.find("devices/null") != text.npos || text.find("null_backend") != text.npos)
        named.insert(name_of(file));
    }
  EXPECT_EQ(named,
            (std::set<std::string>{"include/piper/devices/null.h", "src/devices/backend/null.cc",
                                   "src/devices/registry/backends.cc"}));
}

// A schedule is a text in strategies/; were its name in the sources, the next one would need code.
// Only the table of other systems' words knows such names, to answer them.
TEST(Architecture, SourcesNameNoSchedule) {
  const std::regex names(
      "1f1b|gpipe|dualpipe|chimera|hanayo|pipedream|zero[-_ ]?bubble|zbv|zb[-_]?h[12]|"
      "zero[-_ ]?[123]\\b|fsdp|megatron",
      std::regex::icase);
  for (const char* folder : {"src", "include"})
    for (const fs::path& file : files_under(kRoot / folder)) {
      if (file.filename() == "foreign_words.cc") continue;
      int number = 0;
      for (const std::string& line : split_text(read(file), '\n')) {
        ++number;
        EXPECT_FALSE(std::regex_search(line, names))
            << name_of(file) << ":" << number << ": " << line;
      }
    }
}

// All that the project's own files are; not what is built, and not git's.
std::vector<fs::path> project_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    const std::string name = entry.path().filename().string();
    if (name == ".git" || name == ".cache" || name.starts_with("build") || name == "plans")
      continue;
    if (entry.is_regular_file()) files.push_back(entry.path());
    if (entry.is_directory())
      for (const fs::path& file : files_under(entry.path())) files.push_back(file);
  }
  return files;
}

TEST(Architecture, FilesNameNoMachine) {
  // In pieces, so that this file passes its own test.
  const std::string slash = "/";
  const std::vector<std::string> forbidden = {slash + "work" + slash,
                                              slash + "farm" + slash,
                                              slash + "home" + slash,
                                              slash + "root" + slash,
                                              std::string("pypi.") + "org",
                                              std::string("python") + "hosted",
                                              std::string("deb.debian") + ".org",
                                              std::string("npmjs.") + "org",
                                              std::string("crates.") + "io",
                                              std::string("proxy.golang") + ".org"};
  size_t checked = 0;
  for (const fs::path& file : project_files()) {
    if (fs::file_size(file) > (4u << 20)) continue;
    const std::string text = read(file);
    if (text.find('\0') != std::string::npos) continue;
    ++checked;
    for (const std::string& word : forbidden) {
      for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const bool inside_a_path = word.front() == '/' && at > 0 && std::isalnum(text[at - 1]);
        EXPECT_TRUE(inside_a_path) << name_of(file) << " holds '" << word << "'";
      }
    }
  }
  EXPECT_GT(checked, 50u);
}

// Lines by which threads that compile at once could meet: variables that outlive a call, and what
// guards them.
std::vector<std::string> shared_state(const std::string& source) {
  static const std::regex variable(
      "(static|thread_local) (?!const )(?!constexpr )[^()]*( =|;|\\{).*|"
      "(?!using|namespace|struct|class|const|template|friend|inline "
      "const|extern|typedef|enum|union)"
      "[A-Za-z_][A-Za-z0-9_:<>,* ]* [a-z_]+( = [^(]*|\\{[^(]*)?;");
  static const std::regex indented(
      "  +(static|thread_local) (?!const )(?!constexpr )[^()]*( =|;|\\{).*");
  static const std::regex guard("std::(mutex|shared_mutex|atomic|once_flag)");
  std::vector<std::string> found;
  for (const std::string& line : split_text(source, '\n'))
    if (std::regex_match(line, variable) || std::regex_match(line, indented) ||
        std::regex_search(line, guard))
      found.push_back(line);
  return found;
}

// A search compiles in several threads. Beside what base has for it (parallel.h, memo.h) they share
// what is listed here; tests of these run under the thread sanitizer, a whole search only with
// tools/test --full.
TEST(Architecture, CompilationsShareNoState) {
  std::map<std::string, size_t> found;
  for (const char* const wing : {"ir", "plan", "inspect", "frontend", "planner"})
    for (const char* const folder : {"src", "include/piper"})
      for (const fs::path& file : sources_under(kRoot / folder / wing))
        if (const size_t lines = shared_state(read(file)).size(); lines > 0)
          found[name_of(file)] = lines;
  EXPECT_EQ(found,
            (std::map<std::string, size_t>{
                {"src/inspect/cluster/op_costs.cc", 1},   // Programs.ThreadsMayAskForCostsAtOnce
                {"src/plan/verify/model.cc", 1},          // verify_test
                {"src/planner/search/evaluate.h", 1}}));  // one warning, however many threads
}

// The checks themselves, on a source that breaks each wall once.
TEST(Architecture, BreachesAreSeen) {
  EXPECT_EQ(shared_state("static int calls = 0;\nint calls;\n  static std::string last;\n"
                         "std::vector<int> all{1};\n  std::mutex mutex_;\n")
                .size(),
            5u);
  EXPECT_EQ(
      shared_state("static const int kCalls = 0;\nint f();\n  static Result<int> make(int a);\n"
                   "constexpr int kAll[] = {1};\n  int local = 0;\n"),
      std::vector<std::string>{});
  const std::string source =
      "#include \"piper/base/base.h\"\n"
      "#include \"piper/planner/lower.h\"\n"
      "  #  include <yaml-cpp/yaml.h>\n"
      "#include \"../graph/text.h\"\n"
      "#include \"no_such.h\"\n"
      "#include <vector>\n";
  EXPECT_EQ(
      wrong_includes("graph", kRoot / "src/ir/graph", {"base", "graph"}, source),
      (std::vector<std::string>{
          "2: piper/planner/lower.h is a door that the room's USES does not open",
          "3: yaml-cpp/yaml.h belongs to yaml", "4: ../graph/text.h leaves the folder of the room",
          "5: no_such.h is no header of this room"}));
  EXPECT_EQ(visible_types("namespace a {\nnamespace {\nstruct B {\n}  // namespace\nclass C;\n"
                          "struct D : E {\n  struct F {\n}  // namespace a\n"),
            (std::vector<std::string>{"a::D"}));
  const Rooms parsed =
      parse_calls("\npiper_room(b USES a\n  c LINKS x::y)\npiper_room(c)\n", "piper_room");
  EXPECT_EQ(parsed.uses.at("b"), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(parsed.closure({"b"}), (std::set<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace piper
