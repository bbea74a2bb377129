// Indices that are data, and count from the end.
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"

namespace piper::looked_up_test {
namespace {

constexpr int64_t kRows = 6;

// Rows of a weight, and of what is computed of another, at the same places.
class Looks : public ModelMaker {
 public:
  explicit Looks(const std::string& producer) : ModelMaker(3) {
    model_.set_producer_name(producer);
    input("places", {2}, onnx::TensorProto::INT64);
    scope_ = "rows";
    const std::string rows = made("Gather", {parameter({kRows, 3}, 0, 0.5f), "places"});
    scope_ = "made";
    const std::string wide = made("Tanh", {parameter({kRows, 3}, 0, 0.5f)});
    squares(made("Add", {rows, made("Mul", {rows, made("Gather", {wide, "places"})})}));
    finish_with_loss();
  }
};

// Gives any places, or, without negative ones, the same rows.
class Places : public BatchSource {
 public:
  explicit Places(bool from_front, int64_t shift = 0) : from_front_(from_front), shift_(shift) {}
  Status read(int64_t step, int, int64_t first, int64_t count, std::byte* to) const override {
    auto* out = reinterpret_cast<int64_t*>(to);
    for (int64_t i = 2 * first; i < 2 * (first + count); ++i) {
      const int64_t place = (i * i + 3 * i + step + shift_) % (2 * kRows) - kRows;
      *out++ = from_front_ && place < 0 ? place + kRows : place;
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  bool from_front_;
  int64_t shift_;
};

Result<Compiled> compile_model(const std::string& bytes, const std::string& mesh,
                               const std::string& directives) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", bytes);
  options.strategy =
      folder.write("strategy.yaml",
                   fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 4, optimizer: {{sgd: "
                               "{{lr: 0.3}}}}}}\ndirectives:\n"
                               "  - precision: {{compute: f64}}\n{}",
                               mesh, directives));
  return compile(options);
}
Result<Compiled> compile_looks(const std::string& producer, const std::string& mesh,
                               const std::string& directives) {
  return compile_model(Looks(producer).bytes(), mesh, directives);
}

Result<JobResult> train_beside(const Compiled& compiled, const Places& data, const Places& of_one) {
  JobOptions options;
  options.steps = 3;
  options.threads = 1;
  options.verify = {VerifyAgainst::kUncut, 1e-12, 1e-12};
  return run_job(compiled.set, &data, &*compiled.uncut, &of_one, options);
}

TEST(LookedUp, IndicesMayCountFromTheEnd) {
  struct Case {
    const char *mesh, *directives;
  };
  for (const auto& [mesh, directives] :
       {Case{"{}", ""}, Case{"{dp: 2}", "  - replicate: {over: dp, shard: [optimizer]}\n"},
        Case{"{tp: 3}", "  - shard: {match: \"**\", dim: 0, over: tp}\n"},
        Case{"{tp: 4}", "  - shard: {match: \"rows.*\", dim: 0, over: tp, pad: true}\n"}}) {
    SCOPED_TRACE(directives);
    const auto compiled = compile_looks("", mesh, directives);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto needs = data_needs(compiled->set);
    ASSERT_TRUE(needs);
    EXPECT_EQ((*needs)[0].low, -kRows);
    EXPECT_EQ((*needs)[0].high, kRows - 1);
    const auto job = train_beside(*compiled, Places(false), Places(true));
    EXPECT_TRUE(job) << print_error(job.error());
    EXPECT_FALSE(train_beside(*compiled, Places(false), Places(true, 1)));
  }
}

// In PyTorch those of an embedding may not.
TEST(LookedUp, TokensMayNot) {
  const auto compiled = compile_looks("pytorch", "{}", "");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto needs = data_needs(compiled->set);
  ASSERT_TRUE(needs);
  EXPECT_EQ((*needs)[0].low, 0);
}

// Three columns of places: two of a table of four rows, one of a table of nine.
constexpr int64_t kTables[] = {4, 4, 9};
class LooksIntoTables : public ModelMaker {
 public:
  LooksIntoTables() : ModelMaker(3) {
    input("places", {3}, onnx::TensorProto::INT64);
    std::string tables[2];
    for (size_t t = 0; t < 2; ++t) {
      scope_ = fmt::format("table{}", t);
      tables[t] = parameter({kTables[2 * t], 3}, 0, 0.5f);
    }
    std::string all;
    const std::string turned = made("Transpose", {"places"});
    for (int64_t column = 0; column < 3; ++column) {
      const std::string places =
          made("Reshape",
               {made("Slice", {turned, integers({column}), integers({column + 1}), integers({0})}),
                integers({-1})});
      const std::string rows = made("Gather", {tables[column / 2], places});
      all = all.empty() ? rows : made("Add", {made("Tanh", {all}), rows});
    }
    squares(all);
    finish_with_loss();
  }
};
class PlacesInTables : public BatchSource {
 public:
  Status read(int64_t step, int, int64_t first, int64_t count, std::byte* to) const override {
    auto* out = reinterpret_cast<int64_t*>(to);
    for (int64_t i = 3 * first; i < 3 * (first + count); ++i)
      *out++ = (i * i + 5 * i + step) % kTables[i % 3];
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }
};

// Each column may have the places of its own table, under each strategy.
TEST(LookedUp, ColumnsHavePlacesOfTheirTables) {
  for (const auto& [mesh, directives] :
       {std::pair("{}", ""),
        {"{dp: 2}",
         "  - replicate: {over: dp, shard: [optimizer]}\n"
         "  - split: {dim: batch, into: 2, as: mb}\n"},
        {"{tp: 3}", "  - shard: {match: \"**\", dim: 1, over: tp}\n"}}) {
    SCOPED_TRACE(directives);
    const auto compiled = compile_model(LooksIntoTables().bytes(), mesh, directives);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto needs = data_needs(compiled->set);
    ASSERT_TRUE(needs);
    EXPECT_EQ((*needs)[0].high, 3);
    EXPECT_EQ((*needs)[0].ranges, (std::vector<int64_t>{2, -4, 3, INT64_MIN, 1, -9, 8, INT64_MIN}));
    JobOptions options;
    options.steps = 3;
    options.threads = 1;
    options.verify = {VerifyAgainst::kUncut, 1e-12, 1e-12};
    const PlacesInTables data;
    const auto job = run_job(compiled->set, &data, &*compiled->uncut, &data, options);
    EXPECT_TRUE(job) << print_error(job.error());
  }
}

// Three columns with the places of one table of 30 rows, from 0, 10 and 15 on; the last and the
// first one are also those of a table of four rows.
class LooksBehindOffsets : public ModelMaker {
 public:
  LooksBehindOffsets() : ModelMaker(3) {
    input("places", {3}, onnx::TensorProto::INT64);
    const std::string joined = parameter({30, 3}, 0, 0.5f);
    scope_ = "small";
    const std::string small = parameter({4, 3}, 0, 0.5f);
    const std::string behind =
        made("Gather", {joined, made("Add", {"places", integers({0, 10, 15})})});
    const std::string twice = with("Concat", "axis", 1, {"places", "places"});
    const std::string picked = with("Gather", "axis", 1, {twice, integers({2, 3})});
    const std::string narrow = with("Cast", "to", onnx::TensorProto::INT32, {picked});
    const std::string more = made("Gather", {small, narrow});
    squares(made("Tanh", {with("Concat", "axis", 1, {behind, more})}));
    finish_with_loss();
  }

 private:
  std::string with(const std::string& op, const std::string& name, int64_t value,
                   const std::vector<std::string>& inputs) {
    onnx::NodeProto& one = node(op, inputs);
    attribute(one, name, {value}, false);
    return one.output(0);
  }
};
class PlacesBehindOffsets : public BatchSource {
 public:
  Status read(int64_t step, int, int64_t first, int64_t count, std::byte* to) const override {
    auto* out = reinterpret_cast<int64_t*>(to);
    for (int64_t i = 3 * first; i < 3 * (first + count); ++i)
      *out++ = i % 3 == 1 ? 19 - (i + step) % 2 : (i * i + 5 * i + step) % 4;
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }
};

// What models add to places, and columns that they pick and join, leave each its own bounds.
TEST(LookedUp, OffsetsAndPickedColumnsMoveBounds) {
  for (const auto& [mesh, directives] :
       {std::pair("{}", ""), {"{dp: 2}", "  - replicate: {over: dp, shard: [optimizer]}\n"}}) {
    SCOPED_TRACE(directives);
    const auto compiled = compile_model(LooksBehindOffsets().bytes(), mesh, directives);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto needs = data_needs(compiled->set);
    ASSERT_TRUE(needs);
    EXPECT_EQ((*needs)[0].ranges, (std::vector<int64_t>{1, -4, 3, INT64_MIN, 1, -40, 19, INT64_MIN,
                                                        1, -4, 3, INT64_MIN}));
    JobOptions options;
    options.steps = 3;
    options.threads = 1;
    options.verify = {VerifyAgainst::kUncut, 1e-12, 1e-12};
    const PlacesBehindOffsets data;
    const auto job = run_job(compiled->set, &data, &*compiled->uncut, &data, options);
    EXPECT_TRUE(job) << print_error(job.error());
  }
}

}  // namespace
}  // namespace piper::looked_up_test
