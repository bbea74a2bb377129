// Files of tokens in their forms, many of them, and which are refused.
#include "unit/data_files.h"

namespace piper::token_files_test {
namespace {

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Tokens of `T` that count up from `first`.
template <class T>
std::vector<T> counting(int64_t first, size_t count) {
  std::vector<T> tokens(count);
  std::iota(tokens.begin(), tokens.end(), static_cast<T>(first));
  return tokens;
}

class TokenFilesTest : public DataTest {
 protected:
  // All ids of the first epoch, in the order of the files.
  std::vector<int64_t> all_ids(std::vector<std::string> sources, int64_t length) const {
    const auto source = open(std::move(sources), {ids(1, length)}, 1);
    std::vector<int64_t> all;
    for (int64_t step = 0; source && step < source->steps(); ++step)
      for (const int64_t token :
           batch<int64_t>(*source, step, 0, 0, 1, static_cast<size_t>(length)))
        all.push_back(token);
    return all;
  }
  std::string refused(std::vector<std::string> sources) const {
    const std::vector<InputNeed> needs = {ids(1, 4), labels(1, 4)};
    return message(open_data({std::move(sources), 0, false}, needs, 1));
  }
  std::string described(std::vector<std::string> sources) const {
    const auto source = open(std::move(sources), {ids(1, 4)}, 1);
    return source ? source->describe() : "";
  }
  // An index and its tokens; documents are given by their first sequences.
  std::string indexed(const std::string& name, const std::vector<uint16_t>& tokens,
                      const std::vector<int32_t>& lengths,
                      const std::vector<int64_t>& documents) const {
    std::string index("MMIDIDX\0\0", 9);
    index += raw<uint64_t>(1) + raw<uint8_t>(8) + raw<uint64_t>(lengths.size()) +
             raw<uint64_t>(documents.size()) + bytes_of(lengths);
    int64_t at = 0;
    for (const int32_t length : lengths) {
      index += raw(at);
      at += 2 * length;
    }
    write(name + ".idx", index + bytes_of(documents));
    return write(name + ".bin", bytes_of(tokens));
  }
  template <class T>
  std::string headed(const std::string& name, int32_t magic, int32_t version, int32_t count,
                     const std::vector<T>& tokens) const {
    std::vector<int32_t> header(256);
    header[0] = magic, header[1] = version, header[2] = count;
    return write(name, bytes_of(header) + bytes_of(tokens));
  }
};

// ---- Many files ---------------------------------------------------------------------------------

TEST_F(TokenFilesTest, PatternsFoldersAndListsAreReadByName) {
  fs::create_directories(path("shards"));
  write("shards/b.bin", bytes_of(counting<uint16_t>(100, 9)));
  write("shards/a.bin", bytes_of(counting<uint16_t>(0, 7)));
  write("shards/c.txt", bytes_of(counting<uint16_t>(200, 9)));
  write("shards/.hidden.bin", bytes_of(counting<uint16_t>(300, 9)));
  const std::vector<int64_t> both = {0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105, 106, 107};
  EXPECT_EQ(all_ids({path("shards/*.bin")}, 2), both);  // the 7th and the 9th token are labels only
  EXPECT_EQ(all_ids({path("shards/?.bin:u16")}, 2), both);
  EXPECT_EQ(all_ids({path("shards")}, 2), both);
  EXPECT_EQ(all_ids({path("shards/")}, 2), both);
  EXPECT_EQ(all_ids({path("shards/a.bin"), path("shards/b.bin")}, 2), both);
  EXPECT_EQ(all_ids({path("shards/b.bin"), path("shards/a.bin")}, 2).front(), 100);
  EXPECT_EQ(described({path("shards")}),
            fmt::format("{}: 2 files (raw of u16), 16 tokens, 3 windows "
                        "of 4 + 1\n",
                        path("shards")));
}

// A window that began in one file and ended in the next would hold no text that anybody wrote.
TEST_F(TokenFilesTest, NoWindowCrossesTheEndOfAFile) {
  write("1.bin", bytes_of(counting<uint16_t>(0, 8)));
  write("2.bin", bytes_of(counting<uint16_t>(50, 4)));
  write("3.bin", bytes_of(counting<uint16_t>(100, 11)));
  const std::vector<InputNeed> needs = {ids(1, 4), labels(1, 4)};
  const auto source = open({path("*.bin")}, needs, 1, true, 3);
  std::set<int64_t> begins;
  ASSERT_EQ(source->steps(), 3);
  for (int64_t step = 0; step < 3; ++step) {
    const auto left = batch<int64_t>(*source, step, 0, 0, 1, 4);
    const auto right = batch<int64_t>(*source, step, 1, 0, 1, 4);
    begins.insert(left[0]);
    for (size_t t = 0; t < 4; ++t) {
      EXPECT_EQ(left[t], left[0] + static_cast<int64_t>(t));
      EXPECT_EQ(right[t], left[t] + 1);
    }
  }
  EXPECT_EQ(begins, (std::set<int64_t>{0, 100, 104}));
  EXPECT_EQ(source->describe(),
            fmt::format("{}: 2 files (raw of u16), 19 tokens, 3 windows of 4 + 1; too short for a "
                        "window: {}\n",
                        path("*.bin"), path("2.bin")));
  EXPECT_EQ(source->consumed(2),
            (std::vector<std::pair<std::string, int64_t>>{{path("*.bin"), 2}}));
}

TEST_F(TokenFilesTest, WhatNamesNoFileIsRefusedWithNearNames) {
  fs::create_directories(path("shards"));
  write("shards/web_0.bin", bytes_of(counting<uint16_t>(0, 9)));
  write("shards/web_1.txt", "text");
  const auto refusal = [&](const std::string& text) {
    const std::vector<InputNeed> needs = {ids(1, 4)};
    return open_data({{text}, 0, false}, needs, 1).error();
  };
  Error error = refusal(path("shards/wab_*.bin:u16"));
  EXPECT_EQ(error.message, fmt::format("no file is named '{}' (did you mean 'web_0.bin'?)",
                                       path("shards/wab_*.bin")));
  EXPECT_EQ(error.notes.at(0), fmt::format("{} has web_0.bin, web_1.txt", path("shards")));
  error = refusal(path("shards/web_2.bin"));
  EXPECT_EQ(error.message, fmt::format("no file is named '{}' (did you mean 'web_0.bin'?)",
                                       path("shards/web_2.bin")));
  fs::remove(path("shards/web_0.bin"));
  error = refusal(path("shards"));
  EXPECT_EQ(error.message, fmt::format("no file is named '{}'", path("shards/*.bin")));
  EXPECT_EQ(error.notes.at(1),
            "help: of a folder, files that end in .bin, .npy or .safetensors are read");
  write("one.bin", bytes_of(counting<uint16_t>(0, 4)));
  EXPECT_EQ(refused({path("one.bin")}),
            fmt::format("one.bin: no file of source '{}' has the 4 + 1 tokens of a window",
                        path("one.bin")));
}

// ---- Forms --------------------------------------------------------------------------------------

TEST_F(TokenFilesTest, ListsInArraysAreTokens) {
  const auto list = [&](const std::string& name, const std::string& descr, std::string_view data,
                        size_t count) {
    return npy(
        name,
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", descr, count),
        data);
  };
  const std::vector<int64_t> eight = {7, 8, 9, 10, 11, 12, 13, 14};
  EXPECT_EQ(all_ids({list("a.npy", "<u2", bytes_of(counting<uint16_t>(7, 9)), 9)}, 4), eight);
  EXPECT_EQ(all_ids({list("a.npy", "<u4", bytes_of(counting<uint32_t>(7, 9)), 9)}, 4), eight);
  EXPECT_EQ(all_ids({list("a.npy", "<i8", bytes_of(counting<int64_t>(7, 9)), 9)}, 4), eight);
  EXPECT_EQ(all_ids({list("a.npy", "|u1", bytes_of(counting<uint8_t>(7, 9)), 9)}, 4), eight);
  // What the file begins with says its form; its name does not.
  EXPECT_EQ(described({list("a.bin", "<u2", bytes_of(counting<uint16_t>(7, 9)), 9)}),
            fmt::format("{}: 1 file (.npy of u16), 9 tokens, 2 windows of 4 + 1\n", path("a.bin")));
  EXPECT_EQ(refused({path("a.bin") + ":u8"}),
            "a.bin: the file has tokens of u16 (.npy), not of u8");
  EXPECT_EQ(refused({list("a.npy", "<u2", bytes_of(counting<uint16_t>(7, 9)), 10)}),
            "a.npy: 10 integers of 2 bytes do not fit the 18 bytes of data");
  EXPECT_EQ(refused({list("a.bin", "<f4", std::string(36, '\0'), 9)}),
            "a.bin: the file is no list of tokens: one array of one dim of integers");
  EXPECT_EQ(refused({list("a.npy", "<i8", bytes_of(std::vector<int64_t>{1, 2, -3, 4, 5}), 5)}),
            "accepted");
  const auto source = open({path("a.npy")}, {ids(1, 4)}, 1);
  std::vector<int64_t> values(4);
  EXPECT_EQ(message(source->read(0, 0, 0, 1, reinterpret_cast<std::byte*>(values.data()))),
            "a.npy: token -3 at position 2 of the file (input 'ids', step 1, sample 0) is outside "
            "the range of i64");
}

TEST_F(TokenFilesTest, AListInASafetensorsFileIsTokens) {
  const std::string header = R"({"tokens":{"dtype":"U16","shape":[9],"data_offsets":[0,18]}})";
  const std::string file = write(
      "t.safetensors", raw<uint64_t>(header.size()) + header + bytes_of(counting<uint16_t>(7, 9)));
  EXPECT_EQ(all_ids({file}, 4), (std::vector<int64_t>{7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(described({file}),
            fmt::format("{}: 1 file (safetensors of u16), 9 tokens, 2 windows of 4 + 1\n", file));
  ASSERT_TRUE(write_safetensors(
      file, std::vector{tensor<int64_t>("a", DType::kI64, {9}, counting<int64_t>(7, 9)),
                        tensor<int64_t>("b", DType::kI64, {1}, {0})}));
  EXPECT_EQ(refused({file}), "t.safetensors: the file has no tensor batch/0/ids or batch/0/labels");
}

TEST_F(TokenFilesTest, TokensBehindAHeader) {
  const auto tokens = counting<uint16_t>(7, 9);
  EXPECT_EQ(all_ids({headed("a.bin", 20240520, 1, 9, tokens)}, 4),
            (std::vector<int64_t>{7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(all_ids({headed("b.bin", 20240801, 7, 5, counting<uint32_t>(70000, 5))}, 4),
            (std::vector<int64_t>{70000, 70001, 70002, 70003}));
  EXPECT_EQ(
      described({path("?.bin")}),
      fmt::format("{}: 2 files (header 20240520 of u16, header 20240801 of u32), 14 tokens, 3 "
                  "windows of 4 + 1\n",
                  path("?.bin")));
  EXPECT_EQ(refused({headed("a.bin", 20240520, 2, 9, tokens)}),
            "a.bin: header 20240520 of a token file has version 2; 1 can be read");
  EXPECT_EQ(refused({headed("a.bin", 20240520, 1, 10, tokens)}),
            "a.bin: the header says 10 tokens of u16, but 18 bytes follow it");
  EXPECT_EQ(refused({headed("a.bin", 20240520, 1, -1, tokens)}),
            "a.bin: the header says -1 tokens of u16, but 18 bytes follow it");
  EXPECT_EQ(
      refused({write("a.bin", raw<int32_t>(20240520) + raw<int32_t>(1))}),
      "a.bin: the file begins with 20240520, the header of a token file, and has 8 of its 1024 "
      "bytes");
  EXPECT_EQ(refused({headed("a.bin", 20240520, 1, 9, tokens) + ":u32"}),
            "a.bin: the file has tokens of u16 (header 20240520), not of u32");
}

TEST_F(TokenFilesTest, AnIndexBesideTheTokensSaysTheirType) {
  const auto tokens = counting<uint16_t>(7, 9);
  const std::string file = indexed("a", tokens, {4, 0, 5}, {0, 1, 3});
  EXPECT_EQ(all_ids({file}, 4), (std::vector<int64_t>{7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(
      described({file}),
      fmt::format("{}: 1 file (.bin and .idx of u16), 9 tokens in 2 documents, 2 windows of 4 + "
                  "1\n",
                  file));
  EXPECT_EQ(refused({file + ":u8"}),
            "a.bin: the file has tokens of u16 (.bin and .idx), not of u8");
  EXPECT_EQ(refused({indexed("a", tokens, {4, 4}, {0, 1, 2})}),
            "a.idx: the index ends at byte 16 of a file of 18 bytes");
  EXPECT_EQ(refused({indexed("a", tokens, {-4, 13}, {0, 1, 2})}),
            "a.idx: sequence 0 of the index has -4 tokens at byte 0; byte 0 was expected");
  EXPECT_EQ(refused({indexed("a", tokens, {4, 5}, {0, 1})}),
            "a.idx: document 1 of the index begins at sequence 1 of 2");
  EXPECT_EQ(refused({indexed("a", tokens, {4, 5}, {1, 2})}),
            "a.idx: document 0 of the index begins at sequence 1 of 2");
  EXPECT_EQ(refused({indexed("a", tokens, {4, 5}, {0, 7, 2})}),
            "a.idx: document 1 of the index begins at sequence 7 of 2");
  indexed("a", tokens, {4, 5}, {0, 1, 2});
  const std::string index = read("a.idx");
  for (size_t size = 0; size < index.size(); ++size) {
    write("a.idx", std::string_view(index).substr(0, size));
    EXPECT_NE(refused({file}), "accepted") << size;
  }
  std::string changed = index;
  changed[9] = 2;
  write("a.idx", changed);
  EXPECT_EQ(refused({file}), "a.idx: version 2 of an index cannot be read; 1 can");
  changed = index;
  changed[17] = 6;
  write("a.idx", changed);
  EXPECT_EQ(refused({file}), "a.idx: the index says element type 6, which is no integer");
  changed = index;
  for (int i = 18; i < 34; ++i) changed[static_cast<size_t>(i)] = '\xff';
  write("a.idx", changed);
  EXPECT_EQ(refused({file}),
            "a.idx: an index of 18446744073709551615 sequences and 18446744073709551615 documents "
            "does not have 82 bytes");
}

TEST_F(TokenFilesTest, AnIndexIsNoFileOfTokens) {
  indexed("a", counting<uint16_t>(7, 9), {9}, {0, 1});
  EXPECT_EQ(refused({path("*") + ":u16"}),
            "a.idx: the file is an index of tokens; the tokens are in the .bin file beside it");
}

// Equal tokens under other paths are equal data; another order or another form is not.
TEST_F(TokenFilesTest, TheDigestIsOfContentsInTheirOrder) {
  fs::create_directories(path("x"));
  fs::create_directories(path("y"));
  for (const char* folder : {"x", "y"}) {
    write(fmt::format("{}/1.bin", folder), bytes_of(counting<uint16_t>(0, 9)));
    write(fmt::format("{}/2.bin", folder), bytes_of(counting<uint16_t>(9, 9)));
  }
  const auto digest = [&](std::vector<std::string> sources) {
    return open(std::move(sources), {ids(1, 4)}, 1)->digest();
  };
  const std::string one = digest({path("x")});
  EXPECT_EQ(one, digest({path("y/*.bin")}));
  EXPECT_NE(one, digest({path("x/2.bin"), path("x/1.bin")}));
  EXPECT_NE(one, digest({path("x/1.bin")}));
  EXPECT_NE(digest({path("x/1.bin:u16")}), digest({path("x/1.bin:u8")}));
}

// Each file of many is watched, and what lies beside it.
TEST_F(TokenFilesTest, AnyFileThatIsCutOrWrittenToIsNoticed) {
  write("1.bin", bytes_of(counting<uint16_t>(0, 9)));
  indexed("2", counting<uint16_t>(9, 9), {9}, {0, 1});
  const auto source = open({path("*.bin")}, {ids(1, 4)}, 1);
  EXPECT_EQ(message(source->check()), "accepted");
  const std::string index = read("2.idx");
  std::fstream(path("2.idx"), std::ios::in | std::ios::out | std::ios::binary) << 'x';
  EXPECT_NE(message(source->check()).find(path("2.idx")), std::string::npos);
  std::fstream(path("2.idx"), std::ios::in | std::ios::out | std::ios::binary) << 'M';
  EXPECT_EQ(message(source->check()), "accepted");
  fs::resize_file(path("1.bin"), 4);
  std::vector<std::byte> to(32);
  EXPECT_EQ(message(source->read(0, 0, 0, 1, to.data())),
            fmt::format("'{}' was cut or became unreadable while it was in use", path("1.bin")));
  EXPECT_EQ(message(source->read(2, 0, 0, 1, to.data())), "accepted");  // the other file is whole
}

}  // namespace
}  // namespace piper::token_files_test
