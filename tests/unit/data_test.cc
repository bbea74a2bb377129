#include <sys/resource.h>

#include "unit/data_files.h"

namespace piper::data_test {
namespace {

// ---- Safetensors --------------------------------------------------------------------------------

TEST_F(DataTest, SafetensorsRoundTrip) {
  const std::vector<NamedTensor> written = {tensor<float>("b", DType::kF32, {2, 2}, {1, 2, 3, 4}),
                                            tensor<int64_t>("a \"quoted\"", DType::kI64, {}, {-7}),
                                            tensor<uint8_t>("empty", DType::kBool, {0, 3}, {}),
                                            tensor<uint16_t>("h", DType::kBF16, {1}, {0x3f80})};
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  ASSERT_TRUE(write_safetensors(path("t.safetensors"), written, metadata));
  const auto loaded = read_safetensors(path("t.safetensors"));
  ASSERT_TRUE(loaded) << message(loaded);
  ASSERT_EQ(loaded->size(), 4u);
  for (const NamedTensor& each : written) {
    const auto found = std::find_if(loaded->begin(), loaded->end(),
                                    [&](const auto& t) { return t.name == each.name; });
    ASSERT_NE(found, loaded->end()) << each.name;
    EXPECT_EQ(found->type, each.type);
    EXPECT_EQ(as_text(found->data.span()), as_text(each.data.span()));
  }
  const std::string once = read("t.safetensors");
  ASSERT_TRUE(write_safetensors(path("t.safetensors"), written, metadata));
  EXPECT_EQ(read("t.safetensors"), once);
}

TEST_F(DataTest, SafetensorsInPartsAreTheSameBytes) {
  const std::vector<NamedTensor> tensors = {
      tensor<float>("a", DType::kF32, {3}, {1, 2, 3}),
      {"b", {DType::kI64, {2}}, Bytes::deferred(16, [] { return Bytes::zeros(16); })},
      tensor<float>("c", DType::kF32, {0}, {})};
  ASSERT_TRUE(write_safetensors(path("whole"), tensors));
  const auto digest_of_file = write_safetensors_part(path("parts"), tensors);
  ASSERT_TRUE(digest_of_file);
  EXPECT_EQ(read("parts"), read("whole"));
  EXPECT_EQ(*digest_of_file, digest(read("parts")));
  const auto again = write_safetensors_part(path("parts"), tensors);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ExitCode::kStorage);
}

// A job that ends has no memory for a second copy of its parameters.
TEST_F(DataTest, SafetensorsAreWrittenWithoutACopy) {
  const auto peak_bytes = [] {
    struct rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} << 10;
  };
  constexpr int64_t kBytes = int64_t{16} << 20, kTensors = 16;
  const Bytes data = Bytes::zeros(kBytes);
  std::vector<NamedTensor> tensors;
  for (int64_t t = 0; t < kTensors; ++t)
    tensors.push_back({fmt::format("t{}", t), {DType::kBool, {kBytes}}, data});
  const int64_t before = peak_bytes();
  ASSERT_TRUE(write_safetensors(path("large.safetensors"), tensors));
  EXPECT_LT(peak_bytes() - before, kBytes * kTensors / 4);
  const auto read = read_safetensors(path("large.safetensors"));
  ASSERT_TRUE(read) << message(read);
  EXPECT_EQ(std::ssize(*read), kTensors);
}

TEST_F(DataTest, SafetensorsTruncations) {
  ASSERT_TRUE(write_safetensors(
      path("t.safetensors"),
      std::vector{tensor<float>("x", DType::kF32, {64}, std::vector<float>(64))}));
  const std::string bytes = read("t.safetensors");
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(
        read_safetensors(write("cut.safetensors", std::string_view(bytes).substr(0, size))))
        << size;
}

TEST_F(DataTest, SafetensorsFaults) {
  const auto one = [](const std::string& fields) { return "{\"x\":{" + fields + "}}"; };
  struct Case {
    std::string header;
    size_t data;
    const char* message;
  };
  const Case cases[] = {
      {"[]", 0, "the header is not a JSON object"},
      {"{\"x\":", 0, "the header is not a JSON object"},
      {"{\"x\":{},\"y\":{},\"x\":{}}", 0, "two tensors are named 'x'"},
      {one("\"dtype\":\"F32\",\"shape\":[2]"), 8, "tensor 'x' needs dtype, shape and data_offsets"},
      {one("\"dtype\":\"U7\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
       "tensor 'x' has the element type 'U7', which is not supported"},
      {one("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8,
       "tensor 'x' has a dim that is no size"},
      {one("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8,
       "tensor 'x' is f32[3] but its data_offsets are [0, 8)"},
      {one("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
       "tensor 'x' is f32[4294967296,4294967296] but its data_offsets are [0, 0)"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8,
       "tensor 'x' is f32[2] but its data_offsets are [8, 0)"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12,
       "tensor 'x' begins at 4 where 0 was expected (no overlap, no hole)"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 4,
       "tensor 'x' ends at 8, but only 4 bytes of data are there"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 9,
       "1 bytes follow the last tensor; the file belongs to another header"},
  };
  for (const Case& each : cases)
    EXPECT_EQ(message(read_safetensors(safetensors(each.header, each.data))),
              "made.safetensors: " + std::string(each.message));
  EXPECT_EQ(message(read_safetensors(write("huge.safetensors", std::string(8, '\xff') + "{}"))),
            "huge.safetensors: no safetensors file: its first 8 bytes give a header of "
            "18446744073709551615 bytes, above the limit of 100000000");
}

// ---- .npy ---------------------------------------------------------------------------------------

TEST_F(DataTest, Npy) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto good = read_npy(npy(
      "a.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", bytes_of(values)));
  ASSERT_TRUE(good) << message(good);
  EXPECT_EQ(to_string(good->tensor.type), "f32[2,3]");
  EXPECT_EQ(as_text(good->tensor.data.span()), bytes_of(values));
  struct Case {
    const char *dictionary, *message;
  };
  const Case cases[] = {
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }",
       "b.npy: the array is in Fortran order, and C order was expected"},
      {"{'descr': '<U4', 'fortran_order': False, 'shape': (2, 3), }",
       "b.npy: the array has the element type '<U4', which is not supported"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }",
       "b.npy: the array has the element type '>f4', which is not supported"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }",
       "b.npy: f32[2,4] of 4 bytes each does not fit the 24 bytes of data that follow the header"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }",
       "b.npy: the shape in the .npy header cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, "
       "9223372036854775807), }",
       "b.npy: f32[9223372036854775807,9223372036854775807] of 4 bytes each does not fit the 24 "
       "bytes of data that follow the header"},
      {"{'descr': '<f4'}", "b.npy: the .npy header needs descr, fortran_order and shape"}};
  for (const Case& each : cases)
    EXPECT_EQ(message(read_npy(npy("b.npy", each.dictionary, bytes_of(values)))), each.message);
  const std::string bytes = read("a.npy");
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read_npy(write("cut.npy", std::string_view(bytes).substr(0, size)))) << size;
}

// Integers of all widths reach an input with their values, of a .npy file and of batches.
TEST_F(DataTest, IntegersOfAllWidths) {
  const auto read_rows = [&](const char* descr, const std::string& bytes, DType dtype) {
    const std::string dictionary =
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (2, 2), }}", descr);
    const InputNeed need{"x", {dtype, {2, 2}}};
    const auto source = open({"x=" + npy("i.npy", dictionary, bytes)}, {need}, 2);
    return dtype == DType::kI64 ? batch<int64_t>(*source, 0, 0, 0, 2, 4) : [&] {
      const auto narrow = batch<int32_t>(*source, 0, 0, 0, 2, 4);
      return std::vector<int64_t>(narrow.begin(), narrow.end());
    }();
  };
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    using Values = std::vector<int64_t>;
    EXPECT_EQ(read_rows("|u1", bytes_of(std::vector<uint8_t>{0, 127, 128, 255}), dtype),
              (Values{0, 127, 128, 255}));
    EXPECT_EQ(read_rows("|i1", bytes_of(std::vector<int8_t>{0, 127, -128, -1}), dtype),
              (Values{0, 127, -128, -1}));
    EXPECT_EQ(read_rows("<u2", bytes_of(std::vector<uint16_t>{0, 255, 32768, 65535}), dtype),
              (Values{0, 255, 32768, 65535}));
    EXPECT_EQ(read_rows("<i2", bytes_of(std::vector<int16_t>{0, 255, -32768, -1}), dtype),
              (Values{0, 255, -32768, -1}));
  }
  EXPECT_EQ(read_rows("<u4", bytes_of(std::vector<uint32_t>{0, 1, 2, 4294967295}), DType::kI64),
            (std::vector<int64_t>{0, 1, 2, 4294967295}));
  const std::vector<uint8_t> bytes{3, 200, 0, 1};
  const std::string file =
      safetensors("{\"batch/0/x\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}}", 0);
  const std::string whole = read("made.safetensors") + bytes_of(bytes);
  const auto source = open({write("u8.safetensors", whole)}, {{"x", {DType::kI32, {2, 2}}}}, 2);
  EXPECT_EQ(batch<int32_t>(*source, 0, 0, 0, 2, 4), (std::vector<int32_t>{3, 200, 0, 1}));
}

// ---- Tokens -------------------------------------------------------------------------------------

TEST_F(DataTest, TokensFeedIdsAndTheirSuccessors) {
  std::vector<uint16_t> tokens(4 * 10 + 1);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  const std::string file = write("t.bin", bytes_of(tokens));
  const std::vector<InputNeed> needs = {labels(2, 4), ids(2, 4, DType::kI32)};
  const auto source = open({file}, needs, 2);
  EXPECT_EQ(source->steps(), 5);
  EXPECT_EQ(source->tokens_per_step(), 8);
  EXPECT_EQ(batch<int32_t>(*source, 0, 1, 0, 2, 8), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 2, 8), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch<int64_t>(*source, 4, 0, 1, 1, 4), (std::vector<int64_t>{37, 38, 39, 40}));
  EXPECT_EQ(batch<int64_t>(*source, 5, 0, 0, 1, 4), batch<int64_t>(*source, 0, 0, 0, 1, 4));
}

TEST_F(DataTest, TokenWidths) {
  const std::string text = "hello piper";
  const auto bytes = open({write("t.txt", text) + ":u8"}, {ids(2, 5)}, 2);
  EXPECT_EQ(batch<int64_t>(*bytes, 0, 0, 0, 1, 5), (std::vector<int64_t>{'h', 'e', 'l', 'l', 'o'}));
  const std::vector<uint32_t> wide = {1, 70000, 4000000000u, 3};
  const auto words = open({write("t.w", bytes_of(wide)) + ":u32"}, {ids(1, 3)}, 1);
  EXPECT_EQ(batch<int64_t>(*words, 0, 0, 0, 1, 3), (std::vector<int64_t>{1, 70000, 4000000000}));
}

TEST_F(DataTest, ShuffleIsAPermutationPerEpochAndStateless) {
  const int64_t windows = 103, length = 2;
  std::vector<uint16_t> tokens(windows * length + 1);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  const std::string file = write("t.bin", bytes_of(tokens));
  const std::vector<InputNeed> needs = {ids(1, length), labels(1, length)};
  const auto source = open({file}, needs, 1, true, 7), again = open({file}, needs, 1, true, 7),
             other = open({file}, needs, 1, true, 8);
  std::vector<int64_t> epochs[2], other_epoch;
  for (int64_t step = 0; step < 2 * windows; ++step) {
    const int64_t first = batch<int64_t>(*source, step, 0, 0, 1, 2)[0];
    EXPECT_EQ(batch<int64_t>(*source, step, 1, 0, 1, 2)[0], first + 1);
    epochs[step / windows].push_back(first / length);
  }
  for (int64_t step = 0; step < windows; ++step)
    other_epoch.push_back(batch<int64_t>(*other, step, 0, 0, 1, 2)[0] / length);
  for (const auto& epoch : epochs)
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 103u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[0], other_epoch);
  EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
  EXPECT_EQ(batch<int64_t>(*again, 150, 0, 0, 1, 2)[0] / length, epochs[1][150 - 103]);
}

// A job that stopped after three batches of 4 goes on in batches of 3 with the sample that comes
// next, over the end of an epoch.
TEST_F(DataTest, AJobGoesOnWithTheNextSampleInBatchesOfAnotherSize) {
  std::vector<uint8_t> tokens(2 * 7 + 1);
  std::iota(tokens.begin(), tokens.end(), uint8_t{0});
  const std::string file = write("t.bin", bytes_of(tokens)) + ":u8";
  const auto ones = open({file}, {ids(1, 2)}, 1, true, 5);
  std::vector<int64_t> order;
  for (int64_t step = 0; step < 40; ++step)
    order.push_back(batch<int64_t>(*ones, step, 0, 0, 1, 2)[0] / 2);
  const auto expect = [&](const BatchSource& source, int64_t step, size_t sample, int64_t size) {
    const auto read = batch<int64_t>(source, step, 0, 0, size, static_cast<size_t>(2 * size));
    for (size_t i = 0; i < static_cast<size_t>(size); ++i)
      EXPECT_EQ(read[2 * i] / 2, order[sample + i]) << step << " " << i;
  };
  const auto fours = open({file}, {ids(4, 2)}, 4, true, 5);
  for (int64_t step = 0; step < 5; ++step) expect(*fours, step, static_cast<size_t>(4 * step), 4);
  EXPECT_EQ(fours->steps(), 1);  // the second batch ends in the second epoch
  EXPECT_EQ(fours->consumed(3), (std::vector<std::pair<std::string, int64_t>>{{file, 12}}));

  DataOptions options{{file}, 5, true, 3, fours->consumed(3)[0].second};
  const std::vector<InputNeed> three = {ids(3, 2)};
  const auto threes = open_data(options, three, 3);
  ASSERT_TRUE(threes) << message(threes);
  for (int64_t step = 3; step < 9; ++step)
    expect(**threes, step, static_cast<size_t>(12 + 3 * (step - 3)), 3);
  EXPECT_EQ((*threes)->consumed(3)[0].second, 12);
  EXPECT_EQ((*threes)->consumed(8)[0].second, 27);
  EXPECT_EQ((*threes)->steps(), 3);  // a step of this job that had repeated nothing has passed
  options.first_step = 1, options.first_sample = 0;
  EXPECT_EQ((*open_data(options, three, 3))->steps(), 3);
  options.first_sample = -1;
  EXPECT_EQ(message(open_data(options, three, 3)), "data cannot begin with step 1 at sample -1");
}

TEST_F(DataTest, AJobGoesOnInAFileOfBatchesWithAWholeOne) {
  const std::string file = path("b.safetensors");
  ASSERT_TRUE(
      write_safetensors(file, std::vector{tensor<int64_t>("batch/0/x", DType::kI64, {2}, {0, 1}),
                                          tensor<int64_t>("batch/1/x", DType::kI64, {2}, {2, 3}),
                                          tensor<int64_t>("batch/2/x", DType::kI64, {2}, {4, 5})}));
  const std::vector<InputNeed> needs = {{"x", {DType::kI64, {2}}}};
  const auto source = open_data({{file}, 0, false, 7, 2}, needs, 2);
  ASSERT_TRUE(source) << message(source);
  EXPECT_EQ(batch<int64_t>(**source, 7, 0, 0, 2, 2), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(batch<int64_t>(**source, 9, 0, 1, 1, 1), (std::vector<int64_t>{1}));
  EXPECT_EQ((*source)->steps(), 9);
  EXPECT_EQ(message(open_data({{file}, 0, false, 7, 3}, needs, 2)),
            "b.safetensors: the file holds whole batches of 2 samples; the job cannot go on within "
            "one, at sample 3");
}

TEST_F(DataTest, TokenErrors) {
  std::vector<uint16_t> tokens = {1, 2, 3, 4, 256, 6, 7, 8, 9};
  const std::string file = write("t.bin", bytes_of(tokens));
  InputNeed need = ids(2, 4);
  need.low = 0, need.high = 255;
  const auto source = open({file}, {need}, 2);
  std::vector<int64_t> values(8);
  EXPECT_EQ(message(source->read(0, 0, 0, 2, reinterpret_cast<std::byte*>(values.data()))),
            "t.bin: token 256 at position 4 of the file (input 'ids', step 1, sample 1) is outside "
            "[0, 255]");
  EXPECT_EQ(
      source->read(0, 0, 0, 2, reinterpret_cast<std::byte*>(values.data())).error().notes.at(0),
      fmt::format("help: 2 bytes are read as a token; {}:u8 reads each byte", file));
  EXPECT_EQ(message(source->read(3, 0, 0, 1, reinterpret_cast<std::byte*>(values.data()))),
            "accepted");
  const auto open_message = [&](std::vector<std::string> sources, std::vector<InputNeed> needs,
                                int64_t size) {
    return message(open_data({std::move(sources), 0, false}, needs, size));
  };
  EXPECT_EQ(open_message({file}, {ids(3, 4)}, 3),
            "t.bin: 9 tokens make 2 windows of 4 + 1; a batch needs 3");
  EXPECT_EQ(open_message({write("odd.bin", "abc")}, {ids(1, 4)}, 1),
            "odd.bin: 3 bytes are no whole number of 2-byte tokens");
  EXPECT_EQ(open_message({write("none.bin", "")}, {ids(1, 4)}, 1).substr(0, 8), "none.bin");
  EXPECT_EQ(open_message({file}, {ids(2, 4), {"other", {DType::kI64, {2, 4}}}}, 2),
            "t.bin: of 'ids' and 'other', exactly one name must contain \"label\" or \"target\": "
            "that input takes the next tokens");
  EXPECT_EQ(
      open_message({file}, {ids(2, 4), labels(2, 3)}, 2),
      "t.bin: inputs 'ids' and 'labels' have the lengths 4 and 3; one token file cannot feed both");
  EXPECT_EQ(open_message({file}, {{"x", {DType::kF32, {2, 4}}}}, 2),
            fmt::format("no integer input [batch, length] is left for the tokens of {}", file));
  EXPECT_EQ(
      open_message({write("text.txt", "text")}, {ids(2, 4)}, 2),
      fmt::format("data source '{}' needs a form: it has none of its own, and is no .bin file",
                  path("text.txt")));
  EXPECT_EQ(open_message({}, {ids(2, 4)}, 2), "no data source feeds input 'ids' (i64[2,4])");
  EXPECT_EQ(open_message({file}, {ids(2, 4)}, 4),
            "input 'ids' is i64[2,4]; its dim 0 should be the batch of 4");
}

// ---- Arrays -------------------------------------------------------------------------------------

TEST_F(DataTest, BatchesOfASafetensorsFile) {
  const std::string file = path("b.safetensors");
  ASSERT_TRUE(write_safetensors(
      file, std::vector{tensor<float>("batch/1/x", DType::kF32, {2, 2}, {5, 6, 7, 8}),
                        tensor<float>("batch/0/x", DType::kF32, {2, 2}, {1, 2, 3, 4}),
                        tensor<int32_t>("batch/0/y", DType::kI32, {2}, {1, -100}),
                        tensor<int32_t>("batch/1/y", DType::kI32, {2}, {0, 9}),
                        tensor<float>("init/w", DType::kF32, {1}, {0})}));
  InputNeed x{"x", {DType::kF64, {2, 2}}}, y{"y", {DType::kI64, {2}}, 0, 0, 3, -100};
  const auto source = open({file}, {x, y}, 2, true);
  EXPECT_EQ(source->steps(), 2);
  EXPECT_EQ(batch<double>(*source, 1, 0, 0, 2, 4), (std::vector<double>{5, 6, 7, 8}));
  EXPECT_EQ(batch<double>(*source, 2, 0, 1, 1, 2), (std::vector<double>{3, 4}));
  EXPECT_EQ(batch<int64_t>(*source, 0, 1, 0, 2, 2), (std::vector<int64_t>{1, -100}));
  std::vector<int64_t> values(2);
  EXPECT_EQ(
      message(source->read(1, 1, 0, 2, reinterpret_cast<std::byte*>(values.data()))),
      "b.safetensors: value 9 of input 'y' (sample 1 of batch/1/y) is outside [0, 3] or -100");
  // Columns of their own ranges: of samples along the first dim, and along the last.
  for (const auto& [dim, ranges, problem] :
       {std::tuple(0, std::vector<int64_t>{1, 0, 5, 7, 1, 0, 8, INT64_MIN}, ""),
        {0,
         {1, 0, 8, 5, 1, 0, 7, INT64_MIN},
         "value 8 of input 'z' (sample 1 of batch/0/z) is "
         "outside [0, 7]"},
        {0,
         {1, 0, 5, 6, 1, 0, -1, INT64_MIN},
         "value 7 of input 'z' (sample 1 of batch/0/z) is "
         "outside [0, 5] or 6"},
        {1, {1, 0, 6, INT64_MIN, 1, 0, 8, INT64_MIN}, ""},
        {1,
         {1, 0, 5, INT64_MIN, 1, 0, 8, INT64_MIN},
         "value 6 of input 'z' (sample 1 of "
         "batch/0/z) is outside [0, 5]"}}) {
    const std::string columns = path("c.safetensors");
    ASSERT_TRUE(write_safetensors(
        columns, std::vector{tensor<int32_t>("batch/0/z", DType::kI32, {2, 2}, {5, 6, 7, 8})}));
    const InputNeed z{"z", {DType::kI64, {2, 2}}, dim, 0, 4, INT64_MIN, ranges};
    std::vector<int64_t> read(4);
    const std::string said = message(
        open({columns}, {z}, 2, true)->read(0, 0, 0, 2, reinterpret_cast<std::byte*>(read.data())));
    EXPECT_EQ(said, *problem ? std::string("c.safetensors: ") + problem : "accepted");
  }
  const auto open_message = [&](std::vector<InputNeed> needs, int64_t size) {
    return message(open_data({{file}, 0, false}, needs, size));
  };
  x.type.shape = {4, 2};
  EXPECT_EQ(open_message({x}, 4),
            "b.safetensors: batch/0/x is f32[2,2], but input 'x' is f64[4,2]");
  x.type = {DType::kI64, {2, 2}};
  EXPECT_EQ(open_message({x}, 2),
            "b.safetensors: batch/0/x is f32, which cannot become i64 for input 'x'");
  EXPECT_EQ(open_message({{"z", {DType::kF32, {2}}}}, 2),
            "b.safetensors: the file has no tensor batch/0/z");
  ASSERT_TRUE(
      write_safetensors(file, std::vector{tensor<float>("batch/0/x", DType::kF32, {1}, {5}),
                                          tensor<float>("batch/2/x", DType::kF32, {1}, {5})}));
  EXPECT_EQ(open_message({{"x", {DType::kF32, {1}}}}, 1), "b.safetensors: batch/1/x is missing");
  ASSERT_TRUE(
      write_safetensors(file, std::vector{tensor<float>("batch/00/x", DType::kF32, {1}, {5}),
                                          tensor<float>("batch/+1/x", DType::kF32, {1}, {5})}));
  EXPECT_EQ(open_message({{"x", {DType::kF32, {1}}}}, 1),
            "b.safetensors: the file has no tensor batch/0/x")
      << "numbers have one spelling";
}

// Labels that can be ignored let all samples count: what fills up the last batch is no part of it,
// whatever part of the batch is read. Without such labels, and in training, it is no step.
TEST_F(DataTest, ALastBatchIsFilledUpWithWhatIsIgnored) {
  std::vector<int64_t> y(10);
  for (size_t i = 0; i < 10; ++i)
    y[i] = static_cast<int64_t>(i % 5) * 2 + static_cast<int64_t>(i / 5);
  const std::string rows =
      npy("rows.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (5, 2), }", bytes_of(y));
  const std::string columns = npy(
      "columns.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 5), }", bytes_of(y));
  const auto opened = [&](int64_t ignore, bool fills, int64_t size) {
    const std::vector<InputNeed> needs = {{"ids", {DType::kI64, {size, 2}}},
                                          {"y", {DType::kI32, {2, size}}, 1, 0, 9, ignore}};
    DataOptions options{{"ids=" + rows, "y=" + columns}, 0, false};
    options.fills = fills;
    auto made = open_data(options, needs, size);
    EXPECT_TRUE(made) << print_error(made.error());
    return *std::move(made);
  };
  const auto source = opened(-100, true, 3);
  ASSERT_EQ(source->steps(), 2);
  EXPECT_EQ(batch<int32_t>(*source, 0, 1, 0, 3, 6), (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(batch<int32_t>(*source, 1, 1, 0, 3, 6), (std::vector<int32_t>{6, 8, -100, 7, 9, -100}));
  EXPECT_EQ(batch<int32_t>(*source, 1, 1, 1, 2, 4), (std::vector<int32_t>{8, -100, 9, -100}));
  EXPECT_EQ(batch<int32_t>(*source, 1, 1, 2, 1, 2), (std::vector<int32_t>{-100, -100}));
  EXPECT_EQ(batch<int64_t>(*source, 1, 0, 2, 1, 2), (std::vector<int64_t>{0, 2}));  // a legal one
  const auto small = opened(-100, true, 8);
  ASSERT_EQ(small->steps(), 1);
  EXPECT_EQ(batch<int32_t>(*small, 0, 1, 4, 4, 8),
            (std::vector<int32_t>{8, -100, -100, -100, 9, -100, -100, -100}));
  EXPECT_EQ(opened(-100, false, 3)->steps(), 1);
  EXPECT_EQ(opened(INT64_MIN, true, 3)->steps(), 1);
}

TEST_F(DataTest, RowsOfNpyFilesStayTogether) {
  std::vector<float> x(20);
  std::vector<int64_t> y(10);
  for (size_t i = 0; i < 10; ++i)
    x[2 * i] = x[2 * i + 1] = static_cast<float>(y[i] = static_cast<int64_t>(i));
  const std::string xs =
      "x=" +
      npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 2), }", bytes_of(x));
  const std::string ys =
      "y=" +
      npy("y.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }", bytes_of(y));
  const std::vector<InputNeed> needs = {{"x", {DType::kF32, {3, 2}}}, {"y", {DType::kI32, {3}}}};
  const auto source = open({xs, ys}, needs, 3, true, 1);
  EXPECT_EQ(source->steps(), 3);
  std::set<int32_t> seen;
  for (int64_t step = 0; step < 3; ++step) {
    const auto left = batch<float>(*source, step, 0, 0, 3, 6);
    const auto right = batch<int32_t>(*source, step, 1, 0, 3, 3);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(left[2 * i], static_cast<float>(right[i]));
    seen.insert(right.begin(), right.end());
  }
  EXPECT_EQ(seen.size(), 9u);
  const auto open_message = [&](std::vector<std::string> sources) {
    return message(open_data({std::move(sources), 0, true}, needs, 3));
  };
  const std::string few =
      "y=" + npy("few.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (9,), }",
                 std::string_view(bytes_of(y)).substr(0, 72));
  EXPECT_EQ(open_message({xs, few}), "the sources hold 10 samples of input 'x' but 9 of 'y'");
  EXPECT_EQ(open_message({xs}), "no data source feeds input 'y' (i32[3])");
  EXPECT_EQ(open_message({xs, "why=" + path("y.npy")}), "the plan has no input 'why'; it has x, y");
  EXPECT_EQ(open_message({xs, ys, xs}), "x.npy: input 'x' already has another source");
  EXPECT_EQ(
      open_message({path("x.npy")}),
      fmt::format("data source '{0}' must say which input it feeds: NAME={0}", path("x.npy")));
}

TEST_F(DataTest, SlicesAlongAnyBatchDim) {
  ASSERT_TRUE(write_safetensors(
      path("b.safetensors"),
      std::vector{tensor<int64_t>("batch/0/x", DType::kI64, {2, 3}, {0, 1, 2, 10, 11, 12})}));
  InputNeed need{"x", {DType::kI64, {2, 3}}, 1};
  const auto source = open({path("b.safetensors")}, {need}, 3);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 1, 2, 4), (std::vector<int64_t>{1, 2, 11, 12}));
  need.batch_dim = -1;
  const auto whole = open({path("b.safetensors")}, {need}, 3);
  EXPECT_EQ(batch<int64_t>(*whole, 0, 0, 2, 1, 6), (std::vector<int64_t>{0, 1, 2, 10, 11, 12}));
}

TEST_F(DataTest, HalfFloatsWiden) {
  // 1, -2, the smallest subnormal, the greatest number, infinity
  const std::vector<uint16_t> half = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00},
                              brain = {0x3f80, 0xc000, 0, 0, 0x7f80};
  ASSERT_TRUE(write_safetensors(path("b.safetensors"),
                                std::vector{tensor("batch/0/h", DType::kF16, {5}, half),
                                            tensor("batch/0/b", DType::kBF16, {5}, brain)}));
  const auto source =
      open({path("b.safetensors")}, {{"h", {DType::kF32, {5}}}, {"b", {DType::kF64, {5}}}}, 5);
  EXPECT_EQ(batch<float>(*source, 0, 0, 0, 5, 5),
            (std::vector<float>{1, -2, 0x1p-24f, 65504, INFINITY}));
  EXPECT_EQ(batch<double>(*source, 0, 1, 0, 5, 5), (std::vector<double>{1, -2, 0, 0, INFINITY}));
}

// Times can be set back; what was read cannot.
TEST_F(DataTest, AFileThatIsWrittenToIsNoticedWhateverItsTimesSay) {
  const std::string file = write("t.bin", std::string(64, '\1'));
  const auto source = open({file + ":u8"}, {ids(2, 8)}, 2);
  EXPECT_EQ(message(source->check()), "accepted");
  const auto then = fs::last_write_time(file);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::rename(file, path("elsewhere"));
  EXPECT_EQ(message(source->check()), "accepted");
  fs::rename(path("elsewhere"), file);
  fs::last_write_time(file, then);
  EXPECT_EQ(message(source->check()), "accepted");
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary) << 'x';
  fs::last_write_time(file, then);
  EXPECT_EQ(message(source->check()),
            fmt::format("'{}' was written to while it was in use: what was read before and after "
                        "does not belong together",
                        file));
  fs::rename(file, path("elsewhere"));
  write("t.bin", std::string(64, '\2'));
  EXPECT_EQ(message(source->check()), "accepted");  // the job keeps the file that it has opened
}

// Of a large file not all is compared. What left it as it was, such as other permissions, says
// nothing of what comes later.
TEST_F(DataTest, ALargeFileWithOtherPermissionsIsStillLookedAt) {
  const std::string file = write("large.bin", std::string(1, '\1'));
  fs::resize_file(file, size_t{65} << 20);
  const auto source = open({file + ":u8"}, {ids(2, 8)}, 2);
  EXPECT_EQ(source->num_files(), 1);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(message(source->check()), "accepted");
  std::fstream between(file, std::ios::in | std::ios::out | std::ios::binary);
  between.seekp((64 << 10) + 500);  // the next block that is compared begins after it
  between << 'x' << std::flush;
  EXPECT_EQ(message(source->check(1, 1)), "accepted");  // there is no second file
  EXPECT_NE(message(source->check(0, 1)).find("was written to"), std::string::npos);
}

// Behind its new end a file that is cut within its last page reads as zeros, without a signal.
TEST_F(DataTest, AFileThatIsCutWithinAPageIsAnError) {
  const std::string file = write("t.bin", std::string(64, '\1'));
  const auto source = open({file + ":u8"}, {ids(2, 8)}, 2);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 0, 2, 16).back(), 1);
  fs::resize_file(file, 60);
  std::vector<std::byte> to(16 * 8);
  const std::string cut =
      fmt::format("'{}' was cut or became unreadable while it was in use", file);
  EXPECT_EQ(message(source->read(0, 0, 0, 2, to.data())), cut);
  EXPECT_EQ(message(source->check()), cut);
}

// The system says it by a signal, which would end the process.
TEST_F(DataTest, AFileThatIsCutIsAnError) {
  const std::string tokens = write("t.bin", std::string(1 << 16, '\1'));
  const auto source = open({tokens + ":u8"}, {ids(2, 1 << 14)}, 2);
  EXPECT_EQ(batch<int64_t>(*source, 0, 0, 1, 1, 1 << 14).front(), 1);
  fs::resize_file(tokens, 100);
  std::vector<std::byte> to(size_t{1} << 18);
  const std::string cut =
      fmt::format("'{}' was cut or became unreadable while it was in use", tokens);
  EXPECT_EQ(message(source->read(0, 0, 1, 1, to.data())), cut);
  EXPECT_EQ(message(source->read(0, 0, 0, 2, to.data())), cut);  // nothing is trained on any more
  EXPECT_EQ(message(source->check()), cut);
  EXPECT_EQ(source->read(0, 0, 0, 2, to.data()).error().code, ExitCode::kStorage);
}

}  // namespace
}  // namespace piper::data_test
