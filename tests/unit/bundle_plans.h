// A plan by hand.
#pragma once

#include <gtest/gtest.h>

#include "piper/plan/bundle.h"

namespace piper {

// Two stages, two replicas: everything that a plan can say is said once.
inline constexpr const char* kStage0 =
    R"(plan batch=8 arena=1280 table="2254b03b" workspace=[256,0] transport=256 scratch=4096
axis "pp" 2
axis "dp" 2
stream 0 "compute"
stream 1 "re\"duce\\\x01"
group 0 "dp" axes=[1]
communicator 0 axes=[1] streams=[1] sms=4
communicator 1 axes=[1] streams=[0]
communicator 2 from=[0,-1] to=[1,-1] streams=[1,0]
communicator 3 from=[1,-1] to=[0,-1] streams=[0,0]
input "ids" i64[8,2] high=255 ignore=-100
sum 0 "grad w" uses=2
buffer 0 "w" f32[2,2] state at=0 init="w" param="h.0.w" aliases=["tied.w","x,\"y"]
buffer 1 "ids" i64[2,2] step at=256
buffer 2 "g" f32[2,2] step at=512
buffer 3 "c" f32 constant at=768 fill=-1e-300
buffer 4 "acc" f32[2,2] step at=1024
program 0 label="F stage=0" args=3
  value 0 f32[2,2] read
  value 1 i64[2,2] read
  value 2 f32[2,2] written
  value 3 f32[2,2]
  value 4 f32 literal=0x0000803f
  value 5 f32[2]
  value 6 f32[2,2]
  op Mul in=[0,4] out=[3]
  op Cast in=[3] out=[6] {to="f32"}
  op ReduceMax in=[6] out=[5] {axes=[0]}
  op Gather in=[5,1,-1] out=[2] {axis=0}
  work ops=3 recomputed=1 f32=1 bf16=2
prologue
  0 copy args=[3,3]
body
  0 input label="ids mb=0" args=[1] input="ids" count=2 stride=[0,4] pass="-"
  1 compute label="F stage=0 mb=0" program=0 args=[0,1,2] pass="F" stage=0 micro=0
    contribution count=2 stride=[0,4] use=1 accumulates arg=2
    combine arg=2 from=[0,1]
    sum_read arg=2
  2 send args=[2] waits=[1] stream=1 peer=[1,-1] communicator=2
  3 recv args=[4] peer=[1,-1] communicator=3
  4 all_reduce label="reduce" stream=1 args=[2,4] waits=[1,3] group=0 fast communicator=0
epilogue
  0 rotate args=[2,4] group=0 communicator=1 turn=1
report "loss" buffer=3
)";

// States that are blocks, and flat runs of blocks; collectives of blocks, and of the greatest.
inline constexpr const char* kBlocks =
    R"(plan arena=3072 workspace=[0]
axis "tp" 2
axis "dp" 3
stream 0 "compute"
group 0 "tp" axes=[0]
group 1 "dp" axes=[1]
communicator 0 axes=[0] streams=[0]
communicator 1 axes=[1] streams=[0]
buffer 0 "w" f32[4,6] state init="w" param="w" whole=[4,12] cuts=[S1/3@0]
buffer 1 "m" f32[9] state at=512 part_of=1 whole=[4,12] cuts=[S1/3@0]
buffer 2 "both" f32[2,2] state at=768 whole=[4,6] cuts=[S0@0,S1@1]
buffer 3 "twice" f32[2] state at=1024 whole=[12] cuts=[S0/2@1,S0@0]
buffer 4 "x" f32[1,4] step at=1280
buffer 5 "y" f32[1,2] step at=1536
buffer 6 "z" f32[2,2] step at=1792
buffer 7 "before" f32[2,2] step at=2048
buffer 8 "first" i64[] step at=2304
buffer 9 "expert" i64[2] step at=2560
buffer 10 "firsts" i64[2] step at=2816
body
  0 own_part args=[4,5] group=0 dim=1 outer=2
  1 all_gather args=[5,4] group=0 communicator=0 dim=1
  2 all_reduce args=[5] group=0 communicator=0 max
  3 reduce_scatter args=[4,5] group=0 communicator=0
  4 all_to_all args=[4,6] group=0 communicator=0 dim=0 to_dim=1 to_outer=2
  5 rotate args=[6,7] group=1 communicator=1 turn=2
  6 position args=[8] group=1 outer=4 turn=1
  7 dispatch args=[5,6,9] group=0 communicator=0 dim=0 owned=4
  8 combine args=[6,5,9] group=0 communicator=0 dim=0 owned=4
  9 reduce_scatter args=[4,5] group=0 communicator=0 dim=1 outer=2 mirrored
  10 all_to_all args=[4,6] group=0 communicator=0 dim=0 to_dim=1 to_outer=2 to_mirrored
  11 position args=[10] group=0 outer=3 mirrored
)";

inline RoleProgram role_of(std::string_view text) {
  auto role = parse_plan(text);
  EXPECT_TRUE(role) << (role ? "" : print_error(role.error()));
  return role ? *std::move(role) : RoleProgram{};
}

}  // namespace piper
