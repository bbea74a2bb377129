// Parts of a dim that mesh axes cut, too (AsyncTP), beside what else cuts it and beside
// recomputation by layer.
#include "equivalence/entries.h"
#include "piper/plan/verify.h"

namespace piper::parts_within_test {
namespace {

using namespace jobs;

Result<Compiled> compile_with(const std::string& files, const std::string& params) {
  CompileOptions options;
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.oracles = true;
  return compile_text("gpt-deep",
                      fmt::format("piper: 1\ninclude: [<schedules/1f1b>, <numerics/f64>, {}]\n"
                                  "params: {{stages: 1, microbatches: 1, {}}}\n",
                                  files, params),
                      kAdamW, options);
}

int64_t largest_arena(const Compiled& compiled) {
  int64_t largest = 0;
  for (const RoleProgram& role : compiled.set.roles)
    largest = std::max(largest, role.arena_bytes);
  return largest;
}
int64_t count_in_step(const Compiled& compiled, InstructionKind kind) {
  int64_t count = 0;
  for (const RoleProgram& role : compiled.set.roles)
    for (const Instruction& one : role.body) count += one.kind == kind && one.micro >= 0;
  return count;
}

void expect_trains_as_uncut(const Compiled& compiled) {
  const auto want = train(*compiled.uncut, "gpt-deep", 3), got = train(compiled.set, "gpt-deep", 3);
  ASSERT_TRUE(want) << print_error(want.error());
  ASSERT_TRUE(got) << print_error(got.error());
  EXPECT_LT(largest_difference(*got, *want), 1e-10);
}

// A layer is recomputed as one, whatever parts of it run one after the other.
TEST(PartsWithin, RecomputationByLayerKeepsInputsOfLayersAlone) {
  NEED_MODEL("gpt-deep");
  const auto plain = compile_with("<tensor/sequence>, <memory/recompute-by-layer>", "tp: 2"),
             parts = compile_with(
                 "<tensor/sequence>, <parts/async-tp>, <memory/recompute-by-layer>",
                 "tp: 2, parts: 2"),
             kept = compile_with("<tensor/sequence>, <parts/async-tp>", "tp: 2, parts: 2");
  ASSERT_TRUE(plain) << print_error(plain.error());
  ASSERT_TRUE(parts) << print_error(parts.error());
  ASSERT_TRUE(kept) << print_error(kept.error());
  EXPECT_LT(largest_arena(*parts), largest_arena(*plain) * 11 / 10);
  EXPECT_LT(largest_arena(*parts), largest_arena(*kept) * 8 / 10);
  expect_trains_as_uncut(*parts);
}

// Tokens that a ring cuts, too: a part has its share of each block, and sums stay scattered.
TEST(PartsWithin, OfTokensThatAnotherAxisCuts) {
  NEED_MODEL("gpt-deep");
  for (const char* order : {"zigzag", "contiguous"}) {
    const std::string params = fmt::format("tp: 2, cp: 2, order: {}", order);
    const auto plain = compile_with("<context/ring>, <tensor/sequence>", params),
               parts = compile_with("<context/ring>, <tensor/sequence>, <parts/async-tp>",
                                    params + ", parts: 2");
    ASSERT_TRUE(plain) << print_error(plain.error());
    ASSERT_TRUE(parts) << print_error(parts.error());
    EXPECT_EQ(count_in_step(*parts, InstructionKind::kAllReduce), 0) << order;
    EXPECT_EQ(count_in_step(*parts, InstructionKind::kReduceScatter),
              2 * count_in_step(*plain, InstructionKind::kReduceScatter))
        << order;
    expect_trains_as_uncut(*parts);
  }
}

}  // namespace
}  // namespace piper::parts_within_test
