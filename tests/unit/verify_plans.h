// A correct plan of two stages, two replicas and two microbatches, written by hand, to be broken.
#pragma once

#include <gtest/gtest.h>

#include "communicators.h"
#include "piper/plan/verify.h"

namespace piper {

inline constexpr const char* kStage0 =
    R"(plan batch=4 arena=2048 workspace=[256,0] transport=2097152 scratch=4194304
axis "pp" 2
axis "dp" 2
stream 0 "compute"
stream 1 "reduce"
group 0 "dp" axes=[1]
input "x" f32[4,2]
sum 0 "w0.grad"
sum 1 "w1.grad"
buffer 0 "w0" f32[1,2] state at=0 init="w0" param="w0"
buffer 1 "x@0" f32[1,2] step at=256
buffer 2 "x@1" f32[1,2] step at=512
buffer 3 "a@0" f32[1,2] step at=768
buffer 4 "a@1" f32[1,2] step at=1024
buffer 5 "da@0" f32[1,2] step at=1280
buffer 6 "da@1" f32[1,2] step at=1536
buffer 7 "g" f32[1,2] step at=1792
program 0 label="F" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  op Mul in=[0,1] out=[2]
program 1 label="B first" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  op Mul in=[0,1] out=[2]
program 2 label="B" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] read written
  value 3 f32[1,2]
  op Mul in=[0,1] out=[3]
  op Add in=[2,3] out=[2]
program 3 label="U" args=2
  value 0 f32[1,2] read
  value 1 f32[1,2] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x mb=0" args=[1] input="x" count=1 stride=[0,2]
  1 compute label="F stage=0 mb=0" program=0 args=[0,1,3]
  2 send label="send a mb=0" args=[3] peer=[1,-1]
  3 input label="input x mb=1" args=[2] input="x" first=1 count=1 stride=[0,2]
  4 compute label="F stage=0 mb=1" program=0 args=[0,2,4]
  5 send label="send a mb=1" args=[4] peer=[1,-1]
  6 recv label="recv da mb=0" args=[5] peer=[1,-1] communicator=1
  7 compute label="B stage=0 mb=0" program=1 args=[1,5,7]
    contribution arg=2 count=1 stride=[0,2]
  8 recv label="recv da mb=1" args=[6] peer=[1,-1] communicator=1
  9 compute label="B stage=0 mb=1" program=2 args=[2,6,7]
    contribution arg=2 first=1 count=1 stride=[0,2] accumulates
  10 all_reduce label="all_reduce w0.grad" stream=1 args=[7] waits=[9] group=0
  11 compute label="U" program=3 args=[7,0] waits=[10]
    sum_read
)";

inline constexpr const char* kStage1 =
    R"(plan batch=4 arena=1536 workspace=[256,0] transport=2097152 scratch=4194304
axis "pp" 2
axis "dp" 2
stream 0 "compute"
stream 1 "reduce"
group 0 "dp" axes=[1]
sum 0 "w0.grad"
sum 1 "w1.grad"
buffer 0 "w1" f32[1,2] state at=0 init="w1" param="w1"
buffer 1 "a@0" f32[1,2] step at=256
buffer 2 "a@1" f32[1,2] step at=512
buffer 3 "da@0" f32[1,2] step at=768
buffer 4 "da@1" f32[1,2] step at=1024
buffer 5 "g" f32[1,2] step at=1280
program 0 label="B first" args=4
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  value 3 f32[1,2] written
  op Mul in=[0,1] out=[2]
  op Mul in=[1,1] out=[3]
program 1 label="B" args=4
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  value 3 f32[1,2] read written
  value 4 f32[1,2]
  op Mul in=[0,1] out=[2]
  op Mul in=[1,1] out=[4]
  op Add in=[3,4] out=[3]
program 2 label="U" args=2
  value 0 f32[1,2] read
  value 1 f32[1,2] read written
  op Sub in=[1,0] out=[1]
body
  0 recv label="recv a mb=0" args=[1] peer=[0,-1]
  1 compute label="B stage=1 mb=0" program=0 args=[0,1,3,5]
    contribution arg=3 target=1 count=1 stride=[0,2]
  2 send label="send da mb=0" args=[3] peer=[0,-1] communicator=1
  3 recv label="recv a mb=1" args=[2] peer=[0,-1]
  4 compute label="B stage=1 mb=1" program=1 args=[0,2,4,5]
    contribution arg=3 target=1 first=1 count=1 stride=[0,2] accumulates
  5 send label="send da mb=1" args=[4] peer=[0,-1] communicator=1
  6 all_reduce label="all_reduce w1.grad" stream=1 args=[5] waits=[4] group=0
  7 compute label="U" program=2 args=[5,0] waits=[6]
    sum_read target=1
)";

// What rule microbatch says of a gradient to which a stage's second microbatch adds something else.
inline std::string adds_otherwise(int stage) {
  const std::string rank = fmt::format("on rank {} (and 1 like it)", 2 * stage);
  return fmt::format(
      "microbatch: 'B stage={0} mb=1' {1} adds to 'w{0}.grad' something else than 'B stage={0} "
      "mb=0' {1} does",
      stage, rank);
}

inline std::string edited(std::string text,
                          const std::vector<std::pair<std::string, std::string>>& edits) {
  for (const auto& [from, to] : edits) {
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    if (at != text.npos) text.replace(at, from.size(), to);
  }
  return text;
}

inline PlanSet set_of(const std::vector<std::string>& texts, int64_t replicas) {
  PlanSet set;
  for (const std::string& text : texts) {
    auto role = parse_plan(text);
    EXPECT_TRUE(role) << (role ? "" : print_error(role.error()));
    if (!role) return set;
    role->staging_bytes = staging_of(*role);
    set.roles.push_back(*std::move(role));
  }
  for (size_t role = 0; role < texts.size(); ++role)
    for (int64_t r = 0; r < replicas; ++r) set.role_of_rank.push_back(static_cast<int32_t>(role));
  give_communicators(set);
  return set;
}

inline std::vector<std::string> findings_of(const PlanSet& set, const PlanSet* single = nullptr) {
  const auto report = verify_plan_set(set, single);
  if (!report) return {"error: " + report.error().message};
  std::vector<std::string> texts;
  for (const Finding& finding : report->findings)
    texts.push_back(finding.rule + ": " + finding.text);
  return texts;
}

struct Case {
  std::vector<std::pair<std::string, std::string>> stage0, stage1;
  std::vector<std::string> findings;
};
inline void expect(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    const PlanSet set = set_of({edited(kStage0, each.stage0), edited(kStage1, each.stage1)}, 2);
    std::string shown;
    for (const auto& [from, to] : each.stage0) shown += "\n" + from + "\n -> " + to;
    for (const auto& [from, to] : each.stage1) shown += "\n" + from + "\n -> " + to;
    EXPECT_EQ(findings_of(set), each.findings) << shown;
  }
}

}  // namespace piper
