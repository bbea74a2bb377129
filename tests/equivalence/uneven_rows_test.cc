// Running sums along a dim that ranks cut unevenly: what is behind its end counts for none of them.
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"

namespace piper::uneven_rows_test {
namespace {

constexpr int64_t kWidth = 4, kClasses = 7;  // which no number of ranks divides

// The running sums of what a layer makes, each by a number that is trained.
class Sums : public ModelMaker {
 public:
  Sums(bool exclusive, bool reverse) : ModelMaker(7) {
    input("x", {kWidth});
    scope_ = "fc";
    const std::string scores =
        made("Add", {made("MatMul", {"x", parameter({kWidth, kClasses}, 0, 0.6f)}),
                     parameter({kClasses}, -2, 0.3f)});
    scope_ = "head";
    onnx::NodeProto& sums = node("CumSum", {scores, axis()});
    attribute(sums, "exclusive", {exclusive}, false);
    attribute(sums, "reverse", {reverse}, false);
    squares(made("Mul", {sums.output(0), parameter({kClasses}, 1, 0.2f)}));
    finish_with_loss();
  }

 private:
  std::string axis() {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name("axis");
    tensor.set_data_type(onnx::TensorProto::INT64);
    tensor.add_int64_data(1);
    return tensor.name();
  }
};

TEST(UnevenRows, HaveTheRunningSumsOfOneDevice) {
  for (const bool exclusive : {false, true})
    for (const bool reverse : {false, true})
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} {} {}", exclusive, reverse, ranks));
        const Folder folder;
        CompileOptions options;
        options.model = folder.write("model.onnx", Sums(exclusive, reverse).bytes());
        options.strategy = folder.write(
            "strategy.yaml",
            fmt::format("piper: 1\nmesh: {{tp: {}}}\ntrain: {{global_batch: 8, optimizer: "
                        "{{sgd: {{lr: 0.05, momentum: 0.9}}}}}}\ndirectives:\n"
                        "  - precision: {{compute: f64}}\n"
                        "  - shard: {{match: \"fc/*\", dim: -1, over: tp, pad: true}}\n",
                        ranks));
        const auto compiled = compile(options);
        ASSERT_TRUE(compiled) << print_error(compiled.error());
        const jobs::Trained got = train_on_numbers(compiled->set, "cut"),
                            want = train_on_numbers(*compiled->uncut, "uncut");
        ASSERT_EQ(want.losses.size(), 3U);
        EXPECT_LT(jobs::largest_difference(got, want), 1e-12);
        EXPECT_GT(std::abs(want.losses[2] - want.losses[0]), 1e-3);
      }
}

}  // namespace
}  // namespace piper::uneven_rows_test
