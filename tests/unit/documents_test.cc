// What inputs take of documents, masks and the ends of epochs.
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "seed.h"
#include "unit/data_files.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(std::size_t size) {
  allocations.fetch_add(1);
  void* const block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) std::abort();
  return block;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace piper::documents_test {
namespace {

using Values = std::vector<int64_t>;

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

InputNeed named(const std::string& name, int64_t batch, int64_t length) {
  return {name, {DType::kI64, {batch, length}}};
}
InputNeed ignoring(int64_t batch, int64_t length) {
  return {"labels", {DType::kI64, {batch, length}}, 0, 0, 60000, -100};
}

class DocumentsTest : public DataTest {
 protected:
  // Tokens 1, 2, 3 … and an index of documents of these lengths.
  std::string indexed(const std::vector<int32_t>& lengths) const {
    std::string index("MMIDIDX\0\0", 9);
    index += raw<uint64_t>(1) + raw<uint8_t>(8) + raw<uint64_t>(lengths.size()) +
             raw<uint64_t>(lengths.size() + 1) + bytes_of(lengths);
    int64_t at = 0;
    for (const int32_t length : lengths) {
      index += raw(at);
      at += 2 * length;
    }
    for (size_t d = 0; d <= lengths.size(); ++d) index += raw<int64_t>(static_cast<int64_t>(d));
    std::vector<uint16_t> tokens(static_cast<size_t>(at / 2));
    std::iota(tokens.begin(), tokens.end(), uint16_t{1});
    write("t.idx", index);
    return write("t.bin", bytes_of(tokens));
  }
  std::string refused(std::vector<std::string> sources, const std::vector<InputNeed>& needs) const {
    return message(open_data({std::move(sources), 0, false}, needs, 1));
  }
};

// Documents 1 2 3 | 4 | 5 6 7 8 9 10 | | 11 12 13 in windows of 4 + 1.
TEST_F(DocumentsTest, AnIndexGivesPositionsNumbersAndIgnoredLabels) {
  const std::vector<InputNeed> needs = {named("input_ids", 3, 4), named("position_ids", 3, 4),
                                        named("segment_ids", 3, 4), ignoring(3, 4)};
  const auto source = open({indexed({3, 1, 6, 0, 3})}, needs, 3);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 3, 12),
            (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 3, 12), (Values{0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 0, 1}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 2, 0, 3, 12), (Values{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1}));
  // The tokens 3, 4 and 10 are the last of their documents.
  EXPECT_EQ(batch<int64_t>(*source, 0, 3, 0, 3, 12),
            (Values{2, 3, -100, -100, 6, 7, 8, 9, 10, -100, 12, 13}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 2, 1, 4), (Values{0, 1, 0, 1}));
}

TEST_F(DocumentsTest, ASeparatorIsTheLastTokenOfItsDocument) {
  const std::string file = write("t.txt", "ab\ncd\n\nefghi");
  const std::vector<InputNeed> needs = {named("ids", 2, 5), named("positions", 2, 5),
                                        named("document_ids", 2, 5), ignoring(2, 5)};
  for (const std::string suffix : {":u8:separator=10", ":separator=10:u8"}) {
    const auto source = open({file + suffix}, needs, 2);
    EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 2, 10),
              (Values{'a', 'b', '\n', 'c', 'd', '\n', '\n', 'e', 'f', 'g'}));
    EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 2, 10), (Values{0, 1, 2, 0, 1, 0, 0, 0, 1, 2}));
    EXPECT_EQ(batch<int64_t>(*source, 0, 2, 0, 2, 10), (Values{0, 0, 0, 1, 1, 0, 1, 2, 2, 2}));
    EXPECT_EQ(batch<int64_t>(*source, 0, 3, 0, 2, 10),
              (Values{'b', '\n', -100, 'd', '\n', -100, -100, 'f', 'g', 'h'}));
  }
}

TEST_F(DocumentsTest, WithoutDocumentsAWindowIsOne) {
  const std::string file = write("t.txt", "abcdefghi") + ":u8";
  const auto source =
      open({file}, {named("ids", 2, 4), named("position_ids", 2, 4), ignoring(2, 4)}, 2);
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 2, 8), (Values{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 2, 1, 1, 4), (Values{'f', 'g', 'h', 'i'}));
  EXPECT_EQ(
      refused({file}, {named("ids", 1, 4), named("document_ids", 1, 4)}),
      "t.txt: input 'document_ids' takes numbers of documents; nothing says where those of this "
      "file end");
}

// Labels that no value of the input ignores stay the next tokens.
TEST_F(DocumentsTest, LabelsWithoutAValueToIgnoreStay) {
  const auto source = open({indexed({2, 3})}, {ids(1, 4), labels(1, 4)}, 1);
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 1, 4), (Values{2, 3, 4, 5}));
  EXPECT_EQ(refused({write("t.txt", "abcde") + ":u8:separator=10"}, {ids(1, 4), labels(1, 4)}),
            "t.txt: no input takes what separator 10 says: none is named position_ids, positions, "
            "document_ids or segment_ids, and labels have no value that the loss ignores");
  EXPECT_EQ(refused({path("t.txt") + ":u8:separator=10"},
                    {ids(1, 4), labels(1, 4), named("positions", 1, 4)}),
            "accepted");
}

// The mask says for each token whether it is learned: the label that it is, is ignored or not.
TEST_F(DocumentsTest, AMaskSaysWhichTokensAreLearned) {
  write("t.txt", "abcdefghi");
  write("t.mask", std::string("\1\0\0\1\1\0\1\2\1", 9));
  const std::string mix =
      write("mix.yaml", "sources: [{name: chat, files: t.txt, type: u8, mask: t.mask}]\n");
  const auto source = open({mix}, {ids(2, 4), ignoring(2, 4)}, 2);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 2, 8),
            (Values{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 2, 8),
            (Values{-100, -100, 'd', 'e', -100, 'g', 'h', 'i'}));
  EXPECT_EQ(refused({mix}, {ids(1, 4), labels(1, 4)}),
            "t.mask: a mask needs labels with a value that the loss ignores; the model has none");
  const std::string before = source->digest();
  write("t.mask", std::string("\1\0\0\1\1\0\1\1", 8));
  EXPECT_EQ(refused({mix}, {ids(1, 4), ignoring(1, 4)}),
            fmt::format("t.mask: the mask has 8 bytes for the 9 tokens of {}", path("t.txt")));
  write("t.mask", std::string(9, '\1'));
  EXPECT_NE(open({mix}, {ids(2, 4), ignoring(2, 4)}, 2)->digest(), before);
  write("mix.yaml", "sources: [{name: chat, files: t.txt, type: u8, mask: [t.mask, t.txt]}]\n");
  EXPECT_EQ(refused({mix}, {ids(1, 4), ignoring(1, 4)}),
            "mix.yaml: source 'chat' has 1 files and 2 masks");
}

TEST_F(DocumentsTest, SourcesOfAMixtureHaveDocumentsOfTheirOwn) {
  write("a.txt", "ab\ncd\nefg");
  write("b.txt", "xy|z|||xy");
  const std::string mix =
      write("mix.yaml",
            "sources:\n"
            "  - {name: a, files: a.txt, type: u8, separator: 10, weight: 1}\n"
            "  - {name: b, files: b.txt, type: u8, separator: 124, weight: 1}\n");
  const auto source = open({mix}, {ids(2, 8), ignoring(2, 8), named("positions", 2, 8)}, 2);
  EXPECT_EQ(batch<int64_t>(*source, 0, 2, 0, 2, 16),
            (Values{0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 0, 0, 0}));
}

// Documents 1 2 3 | 4 | 5 6 7 8 9 10 | 11 12 13 | 14 15 16 17 18 19 20 in sequences of 5: of 3, 6,
// 3 and 7 tokens 2, 5, 2, 5 and 1 are predicted, of one token none.
TEST_F(DocumentsTest, PackedSequencesHoldWholeDocuments) {
  InputNeed few = named("input_ids", 3, 5);
  few.low = 1, few.high = 99;
  const std::vector<InputNeed> needs = {few, named("position_ids", 3, 5),
                                        named("document_ids", 3, 5), ignoring(3, 5)};
  const auto source = open({indexed({3, 1, 6, 0, 3, 7}) + ":pack"}, needs, 3);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 3, 15),
            (Values{5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 1, 2, 11, 12, 19}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 3, 15),
            (Values{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 0, 1, 0}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 2, 0, 3, 15),
            (Values{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 3, 0, 3, 15),
            (Values{6, 7, 8, 9, 10, 15, 16, 17, 18, 19, 2, 3, 12, 13, 20}));
  EXPECT_NE(source->describe().find("3 packed sequences of 5, 0.0 % padding; 1 document of one "
                                    "token left out"),
            std::string::npos)
      << source->describe();
  EXPECT_NE(source->digest(), open({path("t.bin")}, needs, 3)->digest());
}

TEST_F(DocumentsTest, PaddingOfPackedSequencesIsNotLearned) {
  const std::string file = write("t.txt", "abc|defg|hi|jkl");
  InputNeed few = named("ids", 2, 6);
  few.low = 3, few.high = 255;
  const auto source =
      open({file + ":u8:separator=124:pack"},
           {few, named("positions", 2, 6), named("segment_ids", 2, 6), ignoring(2, 6)}, 2);
  // Of 4, 5, 3 and 3 tokens 3, 4, 2 and 2 are predicted: 4 + 2 and 3 + 2.
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 2, 12),
            (Values{'d', 'e', 'f', 'g', 'h', 'i', 'a', 'b', 'c', 'j', 'k', 3}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 2, 12), (Values{0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 2, 0, 2, 12), (Values{0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 3, 0, 2, 12),
            (Values{'e', 'f', 'g', '|', 'i', '|', 'b', 'c', '|', 'k', 'l', -100}));
}

// Whatever lengths documents have, each prediction within one of them is made once an epoch, in
// packs that no order of epochs and no batch changes.
TEST_F(DocumentsTest, PackingLosesAndRepeatsNothing) {
  const uint64_t seed = given_seed().value_or(11);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> lengths;
    for (int d = 0; d < 60; ++d) lengths.push_back(static_cast<int32_t>(random() % 23));
    std::multiset<int64_t> expected;
    int64_t token = 1;
    for (const int32_t length : lengths) {
      for (int32_t k = 1; k < length; ++k) expected.insert(token + k - 1);
      token += length;
    }
    const int64_t wide = static_cast<int64_t>(random() % 12) + 3;
    const std::string file = indexed(lengths) + ":pack";
    const std::vector<InputNeed> needs = {named("ids", 1, wide), ignoring(1, wide)};
    const auto source = open({file}, needs, 1, true, round);
    const int64_t sequences = source->steps();
    std::multiset<int64_t> found;
    std::vector<Values> all;
    for (int64_t s = 0; s < sequences; ++s) {
      all.push_back(batch<int64_t>(*source, s, 0, 0, 1, wide));
      const Values labels = batch<int64_t>(*source, s, 1, 0, 1, wide);
      for (size_t t = 0; t < labels.size(); ++t) {
        if (labels[t] == -100) continue;
        EXPECT_EQ(labels[t], all.back()[t] + 1);
        found.insert(all.back()[t]);
      }
    }
    ASSERT_EQ(found, expected) << "seed " << seed << " round " << round;
    // Best fit decreasing leaves at most one sequence half empty or less.
    EXPECT_LE(sequences, 2 * static_cast<int64_t>(expected.size()) / wide + 1);
    // A job that goes on with another batch takes the same sequences.
    if (sequences < 6) continue;
    const auto later =
        open_data({{file}, static_cast<uint64_t>(round), true, 3, 2},
                  std::vector<InputNeed>{named("ids", 2, wide), ignoring(2, wide)}, 2);
    ASSERT_TRUE(later);
    Values both = all[4];
    both.insert(both.end(), all[5].begin(), all[5].end());
    EXPECT_EQ(batch<int64_t>(**later, 4, 0, 0, 2, 2 * wide), both);
  }
}

TEST_F(DocumentsTest, PackingNeedsEndsAndPadding) {
  const std::string file = write("t.txt", "ab|cd|efghij");
  EXPECT_EQ(refused({file + ":u8:pack"}, {ids(1, 4), ignoring(1, 4)}),
            "t.txt: documents are to be packed, and nothing says where they end");
  EXPECT_EQ(refused({file + ":u8:separator=124:pack"}, {ids(1, 4), labels(1, 4)}),
            "t.txt: packed sequences end with padding, which needs labels with a value that the "
            "loss ignores; the model has none");
  EXPECT_EQ(message(open_data({{file + ":u8:separator=124:pack"}, 0, false},
                              std::vector<InputNeed>{ids(9, 4), ignoring(9, 4)}, 9)),
            "t.txt: 12 tokens make 3 packed sequences of 4; a batch needs 9");
  EXPECT_EQ(refused({file + ":u8:separator=124:pack", file + ":u8:separator=124"},
                    {ids(1, 4), ignoring(1, 4)}),
            fmt::format("t.txt: source '{0}:u8:separator=124:pack {0}:u8:separator=124' packs some "
                        "of its files and not others",
                        file));
  const std::string mix = write(
      "mix.yaml", "sources: [{name: a, files: t.txt, type: u8, separator: 124, pack: maybe}]\n");
  EXPECT_NE(refused({mix}, {ids(1, 4), ignoring(1, 4)}).find("'pack' is true or false, not"),
            std::string::npos);
  write("mix.yaml", "sources: [{name: a, files: t.txt, type: u8, separator: 124, pack: true}]\n");
  EXPECT_EQ(batch<int64_t>(*open({mix}, {ids(3, 4), ignoring(3, 4)}, 3), 0, 0, 0, 1, 4),
            (Values{'e', 'f', 'g', 'h'}));
}

TEST_F(DocumentsTest, WhatDoesNotFitIsRefused) {
  const std::string file = indexed({2, 3});
  EXPECT_EQ(refused({file + ":separator=2"}, {ids(1, 4), ignoring(1, 4)}),
            "t.bin: the index beside the file says where documents end, and so does separator 2");
  for (const std::string suffix :
       {":separator=", ":separator=x", ":separator=-1", ":separator=1:separator=2"})
    EXPECT_EQ(
        refused({file + suffix}, {ids(1, 4), ignoring(1, 4)}),
        fmt::format("data source '{}{}' needs one token as its separator: FILE:separator=50256",
                    file, suffix));
  InputNeed few = named("position_ids", 1, 4);
  few.low = 0, few.high = 2;
  EXPECT_EQ(refused({file}, {ids(1, 4), few}),
            "t.bin: input 'position_ids' takes positions from 0 to 3, but [0, 2] are legal");
  EXPECT_EQ(
      refused({file}, {ids(1, 4), named("positions", 1, 3)}),
      "t.bin: inputs 'ids' and 'positions' have the lengths 4 and 3; one token file cannot feed "
      "both");
  EXPECT_EQ(
      refused({file}, {ids(1, 4), labels(1, 4), named("mask", 1, 4)}),
      "t.bin: a token file feeds one or two integer inputs [batch, length]; here are 3: 'ids', "
      "'labels', 'mask'");
}

TEST_F(DocumentsTest, ReadingAllocatesNothing) {
  indexed({3, 1, 6, 0, 3});
  write("b.txt", "xy|z|||xyxyxyxyxyxyx");
  write("b.mask", std::string(20, '\1'));
  const std::string mix =
      write("mix.yaml",
            "sources:\n"
            "  - {name: a, files: t.bin, weight: 0.3}\n"
            "  - {name: b, files: b.txt, type: u8, separator: 124, mask: b.mask, weight: 0.6}\n"
            "  - {name: c, files: b.txt, type: u8, separator: 124, pack: true, weight: 0.1}\n");
  const std::vector<InputNeed> needs = {ids(2, 4), ignoring(2, 4), named("positions", 2, 4),
                                        named("document_ids", 2, 4)};
  const auto source = open({mix}, needs, 2, true, 3);
  std::vector<std::byte> to(2 * 4 * 8);
  const int64_t before = allocations.load();
  for (int64_t step = 0; step < 20; ++step)
    for (int input = 0; input < 4; ++input)
      if (!source->read(step, input, 0, 2, to.data())) std::abort();
  EXPECT_EQ(allocations.load(), before);
}

// An index that somebody changes during a run may say anything; it is read within its bounds.
TEST_F(DocumentsTest, AnIndexThatIsOverwrittenIsReadWithinItsBounds) {
  const auto source = open({indexed({3, 1, 6, 3})}, {ids(1, 4), named("position_ids", 1, 4)}, 1);
  const auto size = static_cast<std::streamsize>(fs::file_size(path("t.idx")));
  for (const char fill : {'\xff', '\x7f', '\0', '\1'}) {
    std::fstream(path("t.idx"), std::ios::in | std::ios::out | std::ios::binary)
        .write(std::string(static_cast<size_t>(size), fill).data(), size);
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<int64_t> values(4);
      (void)source->read(step, 1, 0, 1, reinterpret_cast<std::byte*>(values.data()));
      for (const int64_t value : values) EXPECT_TRUE(value >= 0 && value < 4) << value;
    }
    EXPECT_NE(message(source->check()), "accepted");
  }
}

// Seven windows in batches of four: the second batch has the three that are left, then one of the
// next epoch, which walks through all seven in another order.
TEST_F(DocumentsTest, ABatchGoesOnIntoTheNextEpoch) {
  const std::string file = write("t.txt", "a.b.c.d.e.f.g..") + ":u8";
  const auto source = open({file}, {ids(4, 2)}, 4, true, 2);
  std::string order;
  for (int64_t step = 0; step < 7; ++step)
    for (int64_t i = 0; i < 4; ++i)
      order += static_cast<char>(batch<int64_t>(*source, step, 0, i, 1, 2)[0]);
  std::set<std::string> epochs;
  for (size_t epoch = 0; epoch < 4; ++epoch) {
    std::string rows = order.substr(7 * epoch, 7);
    epochs.insert(rows);
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, "abcdefg");
  }
  EXPECT_EQ(epochs.size(), 4u);
  EXPECT_EQ(source->steps(), 1);
  const auto in_order = open({file}, {ids(4, 2)}, 4);
  EXPECT_EQ(batch<int64_t>(*in_order, 1, 0, 0, 4, 8),
            (Values{'e', '.', 'f', '.', 'g', '.', 'a', '.'}));
}

}  // namespace
}  // namespace piper::documents_test
