#include "piper/base/base.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <thread>

#include "piper/base/digester.h"
#include "piper/base/folders.h"
#include "piper/base/outputs.h"
#include "piper/base/process.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

// A folder of its own for each test, gone afterwards.
class BaseFiles : public testing::Test {
 protected:
  BaseFiles() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / fmt::format("piper-{}-{}", test->name(), getpid());
    fs::create_directories(folder_);
  }
  ~BaseFiles() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string put(const std::string& name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  fs::path folder_;
};

SourceSpan span_in(std::string file, int line, int column, int length = 1) {
  return {std::move(file), line, column, length};
}

// ---- Errors -------------------------------------------------------------------------------------

using PrintError = BaseFiles;

TEST_F(PrintError, ShowsTheLineWithACaretAndNotes) {
  const std::string file = put("s.yaml", "a: 1\nmesh: {pp: 2, dq: 4}\n");
  const Error error = fail(span_in(file, 2, 15, 2), "the mesh has no axis '{}'", "dq")
                          .with_note("it has pp and dp")
                          .with_note("help: write dp");
  EXPECT_EQ(print_error(error), file +
                                    ":2:15: error: the mesh has no axis 'dq'\n"
                                    "  |\n"
                                    "2 | mesh: {pp: 2, dq: 4}\n"
                                    "  |               ^^\n"
                                    "  = note: it has pp and dp\n"
                                    "  = help: write dp\n");
}

TEST_F(PrintError, CaretLineFollowsTabsAndWideCharacters) {
  const std::string file = put("s.yaml", "\t\xC3\xA4\xC3\xB6: x\r\n");
  EXPECT_EQ(print_error(fail(span_in(file, 1, 6), "no")),
            file + ":1:6: error: no\n  |\n1 | \t\xC3\xA4\xC3\xB6: x\n  | \t    ^\n");
  EXPECT_EQ(print_error(fail(span_in(file, 1, 2, 2), "no")),
            file + ":1:2: error: no\n  |\n1 | \t\xC3\xA4\xC3\xB6: x\n  | \t^^\n");
}

TEST_F(PrintError, LocationIsAsExactAsKnown) {
  EXPECT_EQ(print_error(fail("no file")), "error: no file\n");
  EXPECT_EQ(print_error(fail(span_in("m.onnx", 0, 0), "bad")), "m.onnx: error: bad\n");
  EXPECT_EQ(print_error(fail(span_in("gone.yaml", 3, 0), "bad")), "gone.yaml:3: error: bad\n");
  EXPECT_EQ(print_error(fail(span_in("gone.yaml", 3, 4), "bad")), "gone.yaml:3:4: error: bad\n");
}

TEST_F(PrintError, PlacesOutsideTheFileShowNoExcerpt) {
  const std::string file = put("s.yaml", "ab\n");
  for (const SourceSpan& at : {span_in(file, 9, 1), span_in(file, 1, 4)})
    EXPECT_EQ(print_error(fail(at, "bad")),
              fmt::format("{}:{}:{}: error: bad\n", file, at.line, at.column));
  // One past the end of the line is a place: what is missing is missing there.
  EXPECT_EQ(print_error(fail(span_in(file, 1, 3, 9), "bad")),
            file + ":1:3: error: bad\n  |\n1 | ab\n  |   ^\n");
}

TEST_F(PrintError, ControlCharactersNeverReachTheTerminal) {
  const std::string file = put("s.yaml", "a\x1B[31m: 1\n");
  EXPECT_EQ(print_error(fail(span_in(file, 1, 7), "name '\x1B[2J'").with_note("\x07")),
            file +
                ":1:7: error: name '\\x1B[2J'\n  |\n1 | a\\x1B[31m: 1\n"
                "  = note: \\x07\n");
}

TEST_F(PrintError, FurtherLinesOfAMessageAreIndented) {
  EXPECT_EQ(print_error(fail("a\nb").with_note("c\nd")),
            "error: a\n  b\n  = note: c\n          d\n");
}

Result<int> half(int value) {
  if (value % 2 != 0) return fail("{} is odd", value);
  return value / 2;
}

Result<int> quarter(int value) {
  PIPER_ASSIGN(const int once, half(value));
  PIPER_ASSIGN(const int twice, half(once));
  return twice;
}

Status check_even(int value) {
  PIPER_TRY(half(value));
  return ok_status();
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).error().code, ExitCode::kInput);
  EXPECT_EQ(fail("x").with_code(ExitCode::kRefused).code, ExitCode::kRefused);
}

TEST(CheckDeathTest, PrintsPlaceConditionAndText) {
  const int rank = 3;
  EXPECT_DEATH(PIPER_CHECK(rank < 2, "rank {}", rank),
               "base_test.cc:[0-9]+: internal error: rank < 2 does not hold: rank 3");
  EXPECT_DEATH(PIPER_CHECK(rank < 2), "internal error: rank < 2 does not hold\n");
}

// ---- Types --------------------------------------------------------------------------------------

TEST(Types, EveryDTypeStandsInItsRow) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(info(dtype).dtype, dtype);
    EXPECT_EQ(parse_dtype(info(dtype).name), dtype);
    EXPECT_GT(info(dtype).bytes, 0);
  }
  EXPECT_EQ(parse_dtype("F32"), std::nullopt);
  EXPECT_EQ(info(DType::kBF16).bytes, 2);
  EXPECT_FALSE(info(DType::kI64).is_float);
}

TEST(Types, SizesAndText) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({2, 3, 4}), 24);
  EXPECT_EQ(num_elements({2, 0, 4}), 0);
  const TensorType type = {DType::kF64, {8, 128}};
  EXPECT_EQ(type.bytes(), 8192);
  EXPECT_EQ(to_string(type), "f64[8,128]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Types, HugeShapesDoNotWrapAround) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(num_elements({int64_t{1} << 40, int64_t{1} << 40}), most);
  EXPECT_EQ((TensorType{DType::kF32, {most / 2}}.bytes()), most);
  EXPECT_EQ(num_elements({int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
}

// ---- Attributes ---------------------------------------------------------------------------------

TEST(Attributes, PrintSortedAndReadBack) {
  const Attrs attrs = {{"perm", std::vector<int64_t>{0, 2, 1}},
                       {"axis", int64_t{-1}},
                       {"epsilon", 1e-5},
                       {"mode", std::string("a\"b\\c\n\xFF")},
                       {"none", std::vector<int64_t>{}}};
  const std::string text = print_attrs(attrs);
  EXPECT_EQ(text,
            "{axis=-1, epsilon=1e-05, mode=\"a\\\"b\\\\c\\x0a\\xff\", none=[], perm=[0,2,1]}");
  const Result<Attrs> read = parse_attrs(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, attrs);
  EXPECT_EQ(print_attrs({}), "");
  EXPECT_EQ(*parse_attrs(""), Attrs());
}

TEST(Attributes, RealNumbersStayRealAndExact) {
  std::mt19937_64 random(7);
  std::vector<double> values = {1.0,    -0.0, 1e300,    1e16,     123456789012345678.0,
                                5e-324, 0.1,  INFINITY, -INFINITY};
  for (int i = 0; i < 1000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isnan(value)) values.push_back(value);
  }
  for (const double value : values) {
    const std::string text = print_attrs({{"x", value}});
    const Result<Attrs> read = parse_attrs(text);
    ASSERT_TRUE(read.ok()) << text;
    ASSERT_TRUE(std::holds_alternative<double>(*read->find("x"))) << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(read->real("x")), std::bit_cast<uint64_t>(value)) << text;
  }
  EXPECT_EQ(print_attrs({{"x", 1.0}}), "{x=1.0}");
  EXPECT_EQ(print_attrs({{"x", int64_t{1}}}), "{x=1}");
  EXPECT_EQ(print_attrs(*parse_attrs("{x=nan}")), "{x=nan}");
}

TEST(Attributes, SetReplacesAndAbsentGivesTheDefault) {
  Attrs attrs;
  attrs.set("b", int64_t{1});
  attrs.set("a", 2.0);
  attrs.set("b", int64_t{3});
  EXPECT_EQ(print_attrs(attrs), "{a=2.0, b=3}");
  EXPECT_EQ(attrs.integer("b"), 3);
  EXPECT_EQ(attrs.integer("c", 9), 9);
  EXPECT_EQ(attrs.real("a"), 2.0);
  EXPECT_EQ(attrs.text("c", "z"), "z");
  EXPECT_TRUE(attrs.integers("c").empty());
  EXPECT_DEATH(attrs.real("b"), "the attribute 'b' has the value 3");
}

TEST(Attributes, BrokenTextIsAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"axis=1", "attributes 'axis=1': '{' expected at character 1"},
      {"{axis}", "attributes '{axis}': '=' expected at character 6"},
      {"{=1}", "attributes '{=1}': a name expected at character 2"},
      {"{a=}", "attributes '{a=}': a value expected at character 4"},
      {"{a=1x}", "attributes '{a=1x}': a value expected at character 4"},
      {"{a=99999999999999999999}",
       "attributes '{a=99999999999999999999}': a value expected at character 4"},
      {"{a=1, a=2}", "attributes '{a=1, a=2}': a second 'a' at character 8"},
      {"{a=[1,]}", "attributes '{a=[1,]}': a value expected at character 7"},
      {"{a=[1", "attributes '{a=[1': ']' expected at character 6"},
      {"{a=\"b}", "attributes '{a=\"b}': '\"' expected at character 7"},
      {"{a=\"\\x4\"}", "attributes '{a=\"\\x4\"}': two hexadecimal digits expected at character 7"},
      {"{a=\"\\n\"}", "attributes '{a=\"\\n\"}': an unknown escape at character 6"},
      {"{a=1} ", "attributes '{a=1} ': text after the '}' at character 6"},
      {"{a=1", "attributes '{a=1': '}' expected at character 5"},
  };
  for (const auto& [text, message] : cases) {
    const Result<Attrs> read = parse_attrs(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().message, message);
  }
}

// ---- Bytes and files ----------------------------------------------------------------------------

TEST(BytesTest, CopiesZerosAndWindows) {
  const Bytes copy = Bytes::copy_of("abcdef", 6);
  EXPECT_EQ(as_text(copy.span()), "abcdef");
  Bytes window;
  {
    const Bytes dies_first = Bytes::copy_of("abcdef", 6);
    window = dies_first.window(2, 3);
  }
  EXPECT_EQ(as_text(window.span()), "cde");
  EXPECT_EQ(copy.window(6, 0).size, 0u);
  EXPECT_DEATH(copy.window(4, 3), "4 \\+ 3 of 6 bytes");
  const Bytes zeros = Bytes::zeros(1000);
  EXPECT_EQ(as_text(zeros.span()), std::string(1000, '\0'));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(zeros.data) % 64, 0u);
  EXPECT_EQ(Bytes::zeros(0).size, 0u);
}

TEST_F(BaseFiles, WriteThenReadAndMap) {
  const std::string file = path("a.bin");
  const std::string content("a\0b\n", 4);
  ASSERT_TRUE(write_file(file, "old and longer").ok());
  ASSERT_TRUE(write_file(file, content).ok());
  EXPECT_EQ(*read_text_file(file, 4), content);
  const Result<Bytes> mapped = map_file(file);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(as_text(mapped->span()), content);
  // Whoever mapped the old file keeps it.
  ASSERT_TRUE(write_file(file, "new").ok());
  EXPECT_EQ(as_text(mapped->span()), content);
  EXPECT_EQ(map_file(put("empty", ""))->size, 0u);
}

TEST_F(BaseFiles, NothingIsLeftBesideTheTarget) {
  ASSERT_TRUE(write_file(path("a"), "x").ok());
  fs::create_directory(path("taken"));
  const Status refused = write_file(path("taken"), "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            fmt::format("cannot write '{}': Is a directory", path("taken")));
  EXPECT_EQ(refused.error().code, ExitCode::kStorage);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "taken"}));
}

TEST_F(BaseFiles, AFailedWriteKeepsTheOldFile) {
  const std::string file = put("a", "old");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, before.rlim_max};  // stands for a full disk
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status refused = write_file(file, std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, fmt::format("cannot write '{}': File too large", file));
  EXPECT_EQ(refused.error().code, ExitCode::kStorage);
  ASSERT_EQ(refused.error().notes.size(), 1u);
  EXPECT_TRUE(refused.error().notes[0].starts_with("help: 4.9 KiB are needed, "))
      << refused.error().notes[0];
  EXPECT_EQ(*read_text_file(file, 10), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_EQ(write_file(path("gone/a"), "x").error().message,
            fmt::format("cannot write '{}': No such file or directory", path("gone/a")));
}

TEST_F(BaseFiles, WhatCannotBeWrittenIsKnownBefore) {
  const auto said = [](const Status& status) {
    EXPECT_TRUE(status || status.error().code == ExitCode::kStorage);
    return status ? "ok" : status.error().message;
  };
  fs::create_directory(path("folder"));
  fs::create_symlink(path("gone/a"), path("link"));
  fs::create_symlink(path("folder/a"), path("good"));
  for (const std::string& file : {std::string(), path("a"), path("folder/a"), path("good"),
                                  put("there", "x"), std::string("/dev/null")})
    EXPECT_EQ(said(check_output(file)), "ok") << file;
  EXPECT_EQ(said(check_output(path("folder"))), fmt::format("{} is a directory", path("folder")));
  const std::string no_folder = fmt::format("{} is not a directory one can write to", path("gone"));
  EXPECT_EQ(said(check_output(path("gone/a"))),
            fmt::format("cannot write {}: {}", path("gone/a"), no_folder));
  EXPECT_EQ(said(check_output(path("link"))),
            fmt::format("cannot write {}: {}", path("link"), no_folder));
  constexpr int64_t kMuch = int64_t{1} << 60;
  for (const std::string& file : {path("a"), path("there"), path("folder"), path("good")}) {
    EXPECT_EQ(said(check_room(file, 1, "it")), "ok");
    EXPECT_TRUE(said(check_room(file, kMuch, "it")).starts_with("it takes 1.0 EiB, and the disk"))
        << said(check_room(file, kMuch, "it"));
  }
  EXPECT_EQ(said(check_room("/dev/null", kMuch, "it")), "ok");
}

TEST_F(BaseFiles, WhatIsReadIsNotWritten) {
  const std::string read = put("read", "x"), old = put("old", "x");
  fs::create_directory(path("folder"));
  fs::create_symlink(read, path("link"));
  fs::create_hard_link(read, path("hard"));
  const std::string inputs[] = {read, "", path("gone")};
  const auto said = [&](const std::string& a, const std::string& b) {
    const OutputFile files[] = {{"--a", a}, {"--b", b}};
    const Status status = check_outputs(files, inputs);
    return status ? "ok" : print_error(status.error());
  };
  for (const auto& [a, b] : {std::pair(old, path("new")),
                             {"", ""},
                             {path("gone"), old},
                             {"/dev/null", "/dev/null"},
                             {path("folder/new"), path("new")}})
    EXPECT_EQ(said(a, b), "ok") << a << b;
  for (const std::string& same : {read, path("link"), path("hard"), path("folder/../read")}) {
    EXPECT_EQ(said("", same),
              fmt::format("error: --b {}: this file is read, and would be replaced\n"
                          "  = help: name another file\n",
                          same));
  }
  for (const auto& [a, b] : {std::pair(old, old), {path("new"), path("folder/../new")}})
    EXPECT_TRUE(said(a, b).starts_with(fmt::format("error: --b {}: --a writes this file, too", b)))
        << said(a, b);
  EXPECT_EQ(said(path("folder"), "").find("is a directory"), said(path("folder"), "").size() - 15);
  EXPECT_EQ(files_in(path("folder/..")).size(), 4U);  // and the link
  EXPECT_TRUE(files_in(path("gone")).empty());
}

// Those that killed writers of the same file left; not of others, nor of writers that live.
TEST_F(BaseFiles, WhatKilledWritersLeftIsSwept) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  put(fmt::format("a.new-{}-0", gone), "torn");
  const std::vector<std::string> stay = {
      put(fmt::format("a.new-{}-7", getpid()), "of a writer that lives"),
      put(fmt::format("b.new-{}-0", gone), "of another file"), put("a.new-2024-may", "a name")};
  ASSERT_TRUE(write_file(path("a"), "x").ok());
  EXPECT_FALSE(fs::exists(path(fmt::format("a.new-{}-0", gone))));
  for (const std::string& name : stay) EXPECT_TRUE(fs::exists(name)) << name;
}

TEST_F(BaseFiles, AMappedFileThatIsWrittenToIsNoticed) {
  const std::string file = put("mapped", "0123");
  {
    const Result<Bytes> mapped = map_file(file);
    ASSERT_TRUE(mapped.ok());
    EXPECT_TRUE(check_mapped_files());
    ASSERT_TRUE(write_file(file, "another file under its name"));
    EXPECT_TRUE(check_mapped_files());
    const Result<Bytes> again = map_file(file);
    std::ofstream(file, std::ios::app) << "more";
    const Status changed = check_mapped_files();
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().message,
              fmt::format("'{}' was written to while it was in use: what was read before and after "
                          "does not belong together",
                          file));
    EXPECT_EQ(changed.error().code, ExitCode::kStorage);
  }
  EXPECT_TRUE(check_mapped_files());  // nobody uses it any more
}

TEST_F(BaseFiles, LinksAndPipesStayWhatTheyAre) {
  put("real", "old");
  fs::create_symlink("real", path("link"));
  ASSERT_TRUE(write_file(path("link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(*read_text_file(path("real"), 10), "new");
  fs::create_symlink("later", path("dangling"));  // to what is not there yet
  ASSERT_TRUE(write_file(path("dangling"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(path("dangling")));
  EXPECT_EQ(*read_text_file(path("later"), 10), "new");

  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(write_file(pipe, "text").ok());
  char got[8] = {};
  EXPECT_EQ(read(reader, got, sizeof got), 4);
  close(reader);
  EXPECT_STREQ(got, "text");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 5);
}

TEST_F(BaseFiles, WritersOfOnePathDoNotMixTheirBytes) {
  const std::string file = path("shared");
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c)
    writers.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(write_file(file, std::string(5000, c)).ok());
    });
  for (std::thread& writer : writers) writer.join();
  const Result<std::string> text = read_text_file(file, 1 << 20);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, std::string(5000, text->front()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(BaseFiles, WhatCannotBeReadIsNamed) {
  const std::string gone = path("gone"), pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string folder = folder_.string();
  const std::pair<std::string, std::string> cases[] = {
      {gone, fmt::format("cannot read '{}': No such file or directory", gone)},
      {folder, fmt::format("cannot read '{}': Is a directory", folder)},
      {pipe, fmt::format("cannot read '{}': not a regular file", pipe)},
  };
  for (const auto& [file, message] : cases) {
    EXPECT_EQ(read_text_file(file, 10).error().message, message);
    EXPECT_EQ(map_file(file).error().message, message);
    EXPECT_EQ(map_file(file).error().code, ExitCode::kInput);
  }
  const std::string large = put("large", std::string(3000, 'x'));
  EXPECT_EQ(read_text_file(large, 2048).error().message,
            fmt::format("'{}' is larger than the 2.0 KiB that are allowed for it", large));
  EXPECT_TRUE(read_text_file(large, 3000).ok());
}

TEST(Digest, OfPartsIsThatOfTheWhole) {
  const std::string text(100'000, 'x');
  Digester parts;
  EXPECT_EQ(parts.digest(), digest(""));
  for (size_t at = 0; at < text.size(); at += 777)
    parts.add(std::string_view(text).substr(at, 777));
  EXPECT_EQ(parts.digest(), digest(text));
}

TEST(BytesTest, DeferredOnesAreMadeForEachCall) {
  int made = 0;
  const Bytes bytes = Bytes::deferred(3, [&] { return ++made, Bytes::copy_of("abc", 3); });
  EXPECT_EQ(bytes.data, nullptr);
  EXPECT_EQ(bytes.size, 3u);
  EXPECT_EQ(as_text(bytes.made().span()), "abc");
  EXPECT_EQ(as_text(bytes.made().made().span()), "abc");
  EXPECT_EQ(made, 2);
  EXPECT_EQ(Bytes::deferred(0, [] { return Bytes(); }).made().size, 0u);
}

TEST(Digest, IsXxh3OfAllBytes) {
  EXPECT_EQ(digest(""), "99aa06d3014798d86001c324468d497f");  // the published value for no input
  EXPECT_NE(digest("a"), digest("b"));
  EXPECT_NE(digest(std::string_view("a\0", 2)), digest("a"));
  EXPECT_EQ(digest("a").size(), 32u);
}

}  // namespace
}  // namespace piper
