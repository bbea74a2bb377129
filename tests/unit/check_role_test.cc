// What a role program must be, wherever it comes from.
#include <random>

#include "unit/bundle_plans.h"

namespace piper {
namespace {

void expect_refused(std::string text, std::string_view from, const char* to, const char* message) {
  const size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  const auto role = parse_plan(text);
  ASSERT_TRUE(role) << to << print_error(role.error());
  const Status status = check_role(*role);
  ASSERT_FALSE(status) << to;
  EXPECT_EQ(status.error().message, message);
  EXPECT_EQ(status.error().code, ExitCode::kPlan);
}

// Where no input has a dim of samples, the batch is only a number.
TEST(CheckRole, TheSamplesOfAStepAreANumber) {
  auto role = parse_plan(kStage0);
  ASSERT_TRUE(role);
  role->batch = int64_t{1} << 50;
  role->inputs[0].batch_dim = -1;
  role->inputs[0].shares = 1 << 15;
  const Status status = check_role(*role);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "a step has 32768 shares of 1125899906842624 samples");
  EXPECT_EQ(status.error().code, ExitCode::kPlan);
}

// Ranges of an input are for each element of a sample once.
TEST(CheckRole, RangesAreThoseOfASample) {
  const auto good = parse_plan(kStage0);
  ASSERT_TRUE(good);
  const DataInput& input = good->inputs[0];
  const int64_t elements =
      num_elements(input.type.shape) / input.type.shape[static_cast<size_t>(input.batch_dim)];
  const std::string problem =
      fmt::format("the ranges of data input '{}' are not those of a sample's elements", input.name);
  for (const auto& [ranges, is_good] : {std::pair(std::vector<int64_t>{elements, 0, 3, 0}, true),
                                        {{elements, 0, 3}, false},
                                        {{elements + 1, 0, 3, 0}, false},
                                        {{-1, 0, 3, 0, elements + 1, 0, 3, 0}, false},
                                        {{0, 0, 3, 0, elements, 0, 3, 0}, false},
                                        {{INT64_MAX, 0, 3, 0, elements, 0, 3, 0}, false}}) {
    RoleProgram role = *good;
    role.inputs[0].ranges = ranges;
    const Status status = check_role(role);
    ASSERT_EQ(bool(status), is_good);
    EXPECT_EQ(is_good ? problem : status.error().message, problem);
  }
}

// Every edit of a good plan by one line is refused for the reason given.
TEST(CheckRole, RefusesEachFault) {
  struct Case {
    const char *from, *to, *message;
  };
  const Case cases[] = {
      {"axis \"dp\" 2", "axis \"pp\" 2", "the mesh has two axes 'pp'"},
      {"axis \"dp\" 2", "axis \"dp\" 0", "the mesh has an axis that is no size, or too many ranks"},
      {"axis \"dp\" 2", "axis \"dp\" 9000000000000000000",
       "the mesh has an axis that is no size, or too many ranks"},
      {"plan batch=8", "plan steps_ahead=64 batch=8", "steps overlap by 64, not by 0 to 63"},
      {"pass=\"F\" stage=0 micro=0", "pass=\"F\" stage=0 micro=0 ahead=1",
       "instruction 'F stage=0 mb=0' is 1 steps ahead"},
      {"workspace=[256,0]", "workspace=[256]", "1 workspaces are stated for 2 streams"},
      {"workspace=[256,0]", "workspace=[-256,0]", "its workspace_bytes is -256"},
      {"workspace=[256,0]", "workspace=[9223372036854775807,0]", "the stated memory overflows"},
      // Nothing is allocated because a plan says so.
      {"arena=1280", "arena=4294967296",
       "an arena of 4294967296 bytes is stated, but its buffers end at 1040, and arenas at "
       "multiples of 256"},
      {"arena=1280", "arena=1280 host=4294967296",
       "an arena on the host of 4294967296 bytes is stated, but its buffers end at 0, and "
       "arenas at multiples of 256"},
      {"report \"loss\"", "buffer 5 \"idle\" f32[2,2] step at=1024\nreport \"loss\"",
       "buffer 5 'idle' is used by no instruction"},
      {"op Mul in", "op Mull in",
       "program 0 'F stage=0': op 0 Mull: there is no such op (did you mean 'Mul'?)"},
      {"op Mul in", "op Fused in", "program 0 'F stage=0': op 0 Fused: there is no such op"},
      {"op Cast in=[3] out=[6] {to=\"f32\"}", "op AllReduce in=[3] out=[6]",
       "program 0 'F stage=0': op 1 AllReduce: is not for a single device"},
      {"in=[5,1,-1]", "in=[5]",
       "program 0 'F stage=0': op 3 Gather: takes 2 to 3 inputs, but has 1"},
      {"in=[5,1,-1]", "in=[5,-1]",
       "program 0 'F stage=0': op 3 Gather: input 1 is required, but absent"},
      {"in=[5,1,-1]", "in=[5,0]",
       "program 0 'F stage=0': op 3 Gather: input 1 must hold i64 or i32 indices, but is "
       "f32[2,2]"},
      {"in=[0,4] out=[3]", "in=[0,4] out=[5]",
       "program 0 'F stage=0': op 0 Mul: makes f32[2,2], not f32[2]"},
      {"{axis=0}", "{axis=1}",
       "program 0 'F stage=0': op 3 Gather: axis 1 is outside of the 1 dims"},
      {"{axis=0}", "{axis=0, then=\"Add\"}",
       "program 0 'F stage=0': op 3 Gather: has no attribute 'then'"},
      {"ops=3", "ops=-3", "program 0 'F stage=0': its ops is -3"},
      {"recomputed=1", "recomputed=4",
       "program 0 'F stage=0': it states 3 ops, 4 of them recomputed"},
      {" f32=1 ", " f32=-1 ", "program 0 'F stage=0': products[0]: its count is -1"},
      {"bf16=2", "bf16=3",
       "program 0 'F stage=0': it states 3 products in bf16 among 3 ops, or types out of order"},
      {"axes=[1]", "axes=[2]", "groups[0]: there is no axis 2"},
      {"axes=[1]", "axes=[1,0]",
       "instruction 4 'reduce' (all_reduce): its group does not name ascending mesh axes"},
      {"uses=2", "uses=0", "sum 'grad w' has 0 uses"},
      {"i64[8,2]", "i64[7,2]", "data input 'ids' is i64[7,2], not a batch of 8"},
      {"f32[2,2] step at=1024", "f32[2,-2] step at=1024", "tensor 4 'acc': its shape is -2"},
      {"f32[2,2] step at=1024", "f32[4294967296,4294967296] step at=1024",
       "buffer 4 'acc' has no possible type"},
      {"step at=1024", "step at=250",
       "buffer 4 'acc' has the offset 250, which is no multiple of 256"},
      {"step at=1024", "step at=-64", "buffers[4]: its offset is -64"},
      {"step at=1024", "step at=1280",
       "buffer 4 'acc' at 1280 with 16 bytes ends after the arena of 1280"},
      {"step at=1024", "step at=9223372036854775552",
       "buffer 4 'acc' at 9223372036854775552 with 16 bytes ends after the arena of 1280"},
      {"step at=1024", "constant at=1024 param=\"p\"",
       "buffer 4 'acc' is a parameter but constant"},
      {"step at=1024", "step at=1024 part_of=0 whole=[8]",
       "buffer 4 'acc' is a part of nothing possible"},
      {"step at=1024", "state at=1024 part_of=9 whole=[8]", "tensor 4 'acc': there is no group 9"},
      {"step at=1024", "state at=1024 part_of=0 whole=[9]",
       "buffer 4 'acc' is f32[2,2], no part of f32[9] over 2 ranks"},
      {"step at=1024", "state at=1024 part_of=0 whole=[4]",
       "buffer 4 'acc' is f32[2,2], no part of f32[4] over 2 ranks"},
      {"axis=0", "axis=\"0\"", "program 0 'F stage=0': op 3 Gather: attribute 'axis' is a text"},
      {"args=3\n", "args=9\n", "program 0 'F stage=0': 9 of its 7 values are args"},
      {"value 0 f32[2,2] read", "value 0 f32[2,2]",
       "program 0 'F stage=0': op 0 Mul reads arg 0, which the program says it does not"},
      {"value 2 f32[2,2] written", "value 2 f32[2,2]",
       "program 0 'F stage=0': the args that it writes are not those it says"},
      {"value 1 i64[2,2] read", "value 1 i64[2,2] read written",
       "program 0 'F stage=0': the args that it writes are not those it says"},
      {"in=[0,4] out=[3]", "in=[3,4] out=[3]",
       "program 0 'F stage=0': op 0 Mul reads value 3 before it is made"},
      {"in=[0,4] out=[3]", "in=[0,7] out=[3]", "program 0 'F stage=0': op 0 Mul reads no value 7"},
      {"in=[0,4] out=[3]", "in=[0,4] out=[3,3]",
       "program 0 'F stage=0': op 0 Mul writes value 3, which is already made"},
      {"out=[2] {axis=0}\n", "out=[2] {axis=0}\n  op MatMul in=[2,2] out=[2]\n",
       "program 0 'F stage=0': op 4 MatMul writes arg 2 while it reads it"},
      {"in=[0,4] out=[3]", "in=[0,4] out=[4]",
       "program 0 'F stage=0': op 0 Mul writes value 4, which is already made"},
      {"in=[0,4] out=[3]", "in=[0,5] out=[3]",
       "program 0 'F stage=0': op 0 Mul reads value 5 before it is made"},
      {"literal=0x0000803f", "literal=0x0000",
       "program 0 'F stage=0': literal 4 has 2 bytes, its type is f32[]"},
      {"args=[0,1,2]", "args=[0,1]",
       "instruction 1 'F stage=0 mb=0' (compute): contributions[0]: there is no arg 2"},
      {"args=[0,1,2]", "args=[0,1,2,2]",
       "instruction 1 'F stage=0 mb=0' (compute): it has 4 args instead of 3"},
      {"args=[0,1,2]", "args=[0,1,7]",
       "instruction 1 'F stage=0 mb=0' (compute): there is no buffer 7"},
      {"args=[0,1,2]", "args=[0,2,2]",
       "instruction 1 'F stage=0 mb=0' (compute): arg 1 is f32[2,2] 'g', but the program takes "
       "i64[2,2]"},
      {"mb=0\" program=0", "mb=0\" program=1",
       "instruction 1 'F stage=0 mb=0' (compute): there is no program 1"},
      {"waits=[1,3]", "waits=[1,4]",
       "instruction 4 'reduce' (all_reduce): it does not wait for earlier instructions, in "
       "ascending order"},
      {"peer=[1,-1] communicator=2", "peer=[-1,-1] communicator=2",
       "instruction 2 '' (send): communicator 2 is of other ranks"},
      {"peer=[1,-1] communicator=2", "peer=[1,-1] communicator=3",
       "instruction 2 '' (send): communicator 3 is of other ranks"},
      {"peer=[1,-1] communicator=2", "peer=[1,-1] communicator=0",
       "instruction 2 '' (send): communicator 0 is of other ranks"},
      {"peer=[1,-1] communicator=2", "peer=[1,-1] communicator=4",
       "instruction 2 '' (send): there is no communicator 4"},
      {"peer=[1,-1] communicator=2", "peer=[1,-1]",
       "instruction 2 '' (send): a message or collective, and nothing else, has a communicator"},
      {"pass=\"-\"\n", "pass=\"-\" communicator=0\n",
       "instruction 0 'ids mb=0' (input): a message or collective, and nothing else, has a "
       "communicator"},
      {"group=0 fast communicator=0", "group=0 fast communicator=1",
       "instruction 4 'reduce' (all_reduce): communicator 1 is of stream 0"},
      {"group=0 fast communicator=0", "group=0 fast communicator=2",
       "instruction 4 'reduce' (all_reduce): communicator 2 is of other ranks"},
      {"streams=[1,0]", "streams=[0,1]", "instruction 2 '' (send): communicator 2 is of stream 0"},
      {"streams=[1,0]", "streams=[1]", "communicator 2 is of no group, and of no two ranks"},
      {"streams=[1,0]", "streams=[1,2]", "communicators[2]: there is no stream 2"},
      {"from=[0,-1]", "from=[1,-1]", "communicator 2 is of no group, and of no two ranks"},
      {"from=[0,-1]", "from=[0,0]", "communicator 2 is of no group, and of no two ranks"},
      {"from=[0,-1]", "from=[2,-1]", "communicator 2 is of no group, and of no two ranks"},
      {"from=[0,-1]", "from=[0]", "communicator 2 is of no group, and of no two ranks"},
      {"axes=[1] streams=[1] sms=4", "axes=[1] from=[0,-1] to=[1,-1] streams=[1,0]",
       "communicator 0 is of no group, and of no two ranks"},
      {"sms=4", "sms=-4", "communicators[0]: its sms is -4"},
      {"peer=[1,-1] communicator=2", "peer=[1] communicator=2",
       "instruction 2 '' (send): a send or receive, and nothing else, has a peer coordinate per "
       "axis"},
      {"waits=[1,3] group=0", "waits=[1,3] group=1",
       "instruction 4 'reduce' (all_reduce): there is no group 1"},
      {"rotate args=[2,4] group=0", "rotate args=[2,4] group=0 fast",
       "instruction 0 '' (rotate): it adds nothing up that could be fast"},
      {"rotate args=[2,4] group=0", "rotate args=[2,2] group=0",
       "instruction 0 '' (rotate): it takes 'g' twice"},
      {"count=2 stride=[0,4] pass", "count=2 stride=[0,7] pass",
       "instruction 0 'ids mb=0' (input): its samples reach outside the batch of 8"},
      {"count=2 stride=[0,4] pass", "count=3 stride=[0,4] pass",
       "instruction 0 'ids mb=0' (input): it loads i64[3,2] into a buffer of i64[2,2]"},
      {"use=1 accumulates", "use=2 accumulates",
       "instruction 1 'F stage=0 mb=0' (compute): it contributes to a use 2 that is not there"},
      {"use=1 accumulates", "use=1 target=1 accumulates",
       "instruction 1 'F stage=0 mb=0' (compute): contributions[0]: there is no sum 1"},
      {"stage=0 micro=0", "stage=-2 micro=0",
       "instruction 1 'F stage=0 mb=0' (compute): its stage is -2"},
      {"from=[0,1]", "from=[0,3]",
       "instruction 1 'F stage=0 mb=0' (compute): combines[0]: there is no arg 3"},
      {"report \"loss\" buffer=3", "report \"loss\" buffer=2",
       "report 'loss' is f32[2,2], not one float or bool"},
      {"report \"loss\" buffer=3", "report \"loss\" buffer=-1", "reports[0]: its buffer is -1"},
      {"input=\"ids\"", "input=\"labels\"",
       "instruction 0 'ids mb=0' (input): there is no data input 'labels'"},
      {"copy args=[3,3]", "copy args=[3,2]",
       "instruction 0 '' (copy): it copies f32[] to f32[2,2]"},
  };
  for (const Case& each : cases) expect_refused(kStage0, each.from, each.to, each.message);
}

// Copies of a parameter that lives in parts: whole, a part, gathered, and one of two versions.
TEST(CheckRole, RefusesCopiesOfNoParameter) {
  const std::string plan = R"(plan batch=2 arena=1280 workspace=[0]
axis "dp" 2
stream 0 "compute"
group 0 "dp" axes=[0]
buffer 0 "w" f32[3] state param="w" part_of=0 whole=[6]
buffer 1 "whole" bf16[6] state at=256 copy_of=0
buffer 2 "part" bf16[3] state at=512 part_of=0 whole=[6] copy_of=0
buffer 3 "made" bf16[6] step at=768 param="w" copy_of=0
buffer 4 "before" bf16[6] state at=1024 previous_of=1
body
  0 copy args=[1,3]
)";
  const auto role = parse_plan(plan);
  ASSERT_TRUE(role) << print_error(role.error());
  const Status status = check_role(*role);
  ASSERT_TRUE(status) << print_error(status.error());
  const char* none = "buffer 1 'whole' is a copy of no parameter";
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"w\" f32[3]", "w\" f64[3]", none},
      {"state param=\"w\"", "state", none},
      {"whole\" bf16[6]", "whole\" f32[6]", none},
      {"whole\" bf16[6]", "whole\" bf16[5]", none},
      {"at=256 copy_of=0", "at=256 copy_of=1", none},
      {"at=256 copy_of=0", "at=256 param=\"w\" copy_of=0", none},
      {"at=256 copy_of=0", "at=256 copy_of=5", "tensor 1 'whole': there is no buffer 5"},
      {"whole=[6] copy_of=0", "whole=[5] copy_of=0", "buffer 2 'part' is a copy of no parameter"},
      {"step at=768 param=\"w\"", "step at=768 param=\"v\"",
       "buffer 3 'made' is a copy of no parameter"},
      {"previous_of=1", "previous_of=3",
       "buffer 4 'before' is the previous version of no parameter or step"},
  };
  for (const auto& [from, to, message] : cases) expect_refused(plan, from, to, message);
}

// The same of blocks.
TEST(CheckRole, RefusesImpossibleBlocks) {
  struct Case {
    const char *from, *to, *message;
  };
  const Case cases[] = {
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1/3@2]",
       "tensor 0 'w': cuts[0]: there is no axis 2"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1/3@-1]",
       "buffer 0 'w' is no part 3 of 0 elements of dim 1 of [4,12]"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1:4#1]",
       "buffer 0 'w' is no part 1 of 4 elements of dim 1 of [4,12]"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1/3:2@0]",
       "buffer 0 'w': dim 1 of [4,12] has no 3 x 2 blocks of 2 for axis 'tp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,9] cuts=[S1/3:-2@0]",
       "tensor 0 'w': cuts[0]: its block is -2"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,9] cuts=[S1/3@0]",
       "buffer 0 'w': dim 1 of [4,9] has no 3 x 2 equal blocks for axis 'tp'"},
      {"cuts=[S0@0,S1@1]", "cuts=[S0@0,S1@0]", "buffer 2 'both' is cut twice over axis 'tp'"},
      {"part_of=1 whole=[4,12] cuts=[S1/3@0]", "part_of=1 whole=[4,12] cuts=[S1/3@1]",
       "buffer 1 'm' is cut twice over axis 'dp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S2@0]",
       "buffer 0 'w': dim 2 of [4,12] has no 1 x 2 equal blocks for axis 'tp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S-1@0]",
       "tensor 0 'w': cuts[0]: its dim is -1"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1/0@0]",
       "buffer 0 'w': dim 1 of [4,12] has no 0 x 2 equal blocks for axis 'tp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S1/9223372036854775807@0]",
       "buffer 0 'w': dim 1 of [4,12] has no 9223372036854775807 x 2 equal blocks for axis 'tp'"},
      {"whole=[12] cuts=[S0/2@1,S0@0]", "whole=[12] cuts=[S0/2@1,S0/4@0]",
       "buffer 3 'twice': dim 0 of [4] has no 4 x 2 equal blocks for axis 'tp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[6,12] cuts=[S1/3@0]",
       "buffer 0 'w' is f32[4,6], not the f32[6,6] that its cuts leave"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12] cuts=[S0@0]",
       "buffer 0 'w' is f32[4,6], not the f32[2,12] that its cuts leave"},
      {"part_of=1 whole=[4,12]", "part_of=1 whole=[8,12]",
       "buffer 1 'm' is f32[9], no part of f32[8,6] over 3 ranks"},
      {"whole=[4,12] cuts=[S1/3@0]", "cuts=[S1/3@0]",
       "buffer 0 'w': dim 1 of [] has no 3 x 2 equal blocks for axis 'tp'"},
      {"whole=[4,12] cuts=[S1/3@0]", "whole=[4,12]", "buffer 0 'w' is a part of nothing possible"},
      {"whole=[4,12] cuts=[S1/3@0]", "part_of=-2 whole=[4,12] cuts=[S1/3@0]",
       "tensor 0 'w': its part_of is -2"},
      {"x\" f32[1,4] step", "x\" f32[1,4] step whole=[1,8] cuts=[S1@0]",
       "buffer 4 'x' is a part of nothing possible"},
      {"twice\" f32[2] state at=1024", "twice\" f32[2] state at=1024 previous_of=2",
       "buffer 3 'twice' is the previous version of no parameter or step"},
      {"dim=1 outer=2", "dim=2 outer=2",
       "instruction 0 '' (own_part): f32[1,4] and f32[1,2] do not fit a group of 2 along dim 2"},
      {"dim=1 outer=2", "dim=0",
       "instruction 0 '' (own_part): f32[1,4] and f32[1,2] do not fit a group of 2 along dim 0"},
      {"dim=1 outer=2", "dim=1 outer=4",
       "instruction 0 '' (own_part): f32[1,4] and f32[1,2] do not fit a group of 2 along dim 1"},
      {"dim=1 outer=2", "dim=1 outer=0",
       "instruction 0 '' (own_part): f32[1,4] and f32[1,2] do not fit a group of 2 along dim 1"},
      {"group=0 dim=1 outer=2", "group=1 dim=1 outer=2",
       "instruction 0 '' (own_part): f32[1,4] and f32[1,2] do not fit a group of 3 along dim 1"},
      {"dim=0 to_dim=1 to_outer=2", "dim=0 to_dim=0 to_outer=2",
       "instruction 4 '' (all_to_all): it cannot have blocks of dim 0 in 2 stretches"},
      {"dim=0 to_dim=1 to_outer=2", "to_dim=1 to_outer=2",
       "instruction 4 '' (all_to_all): it cannot have blocks of dim 1 in 2 stretches"},
      {"dim=0 to_dim=1 to_outer=2", "to_dim=1",
       "instruction 4 '' (all_to_all): it cannot have blocks of dim 1 in 1 stretches"},
      {"dim=0 to_dim=1 to_outer=2", "to_dim=0",
       "instruction 4 '' (all_to_all): f32[1,4] and f32[2,2] do not fit a group of 2"},
      {"dim=0 to_dim=1 to_outer=2", "dim=0 to_dim=2",
       "instruction 4 '' (all_to_all): f32[1,4] and f32[2,2] do not fit a group of 2 along dim 0"},
      {"dim=0 to_dim=1 to_outer=2", "dim=0 to_dim=1 to_outer=3",
       "instruction 4 '' (all_to_all): f32[1,4] and f32[2,2] do not fit a group of 2 along dim 0"},
      {"[5,6,9] group=0 communicator=0 dim=0 owned=4", "[5,6,9] group=0 communicator=0 dim=0",
       "instruction 7 '' (dispatch): a member cannot own 0 numbers of an index"},
      {"[5,6,9] group=0 communicator=0 dim=0 owned=4", "[5,6,9] group=0 communicator=0 owned=4",
       "instruction 7 '' (dispatch): a member cannot own 4 numbers of an index"},
      {"[5,4] group=0 communicator=0 dim=1", "[5,4] group=0 communicator=0 dim=1 owned=4",
       "instruction 1 '' (all_gather): a member cannot own 4 numbers of an index"},
      {"[5,4] group=0 communicator=0 dim=1", "[5,4] group=0 communicator=0 dim=1 int8 block=64",
       "instruction 1 '' (all_gather): it moves no flat runs that could travel in blocks"},
      {"[5,4] group=0 communicator=0 dim=1", "[5,4] group=0 communicator=0 dim=1 block=64",
       "instruction 1 '' (all_gather): it has blocks of 64 without a type"},
      {"[5,6,9] group=0 communicator=0", "[5,6] group=0 communicator=0",
       "instruction 7 '' (dispatch): it has 2 args instead of a pair and an index"},
      {"[6,5,9] group=0 communicator=0 dim=0", "[6,5,4] group=0 communicator=0 dim=0",
       "instruction 8 '' (combine): f32[1,4] is no index of the rows of f32[2,2] along dim 0"},
      {"[6,5,9] group=0 communicator=0 dim=0", "[6,5,9] group=0 communicator=0 dim=1",
       "instruction 8 '' (combine): i64[2] is no index of the rows of f32[2,2] along dim 1"},
      {"[6,5,9] group=0 communicator=0 dim=0", "[5,6,9] group=0 communicator=0 dim=0",
       "instruction 8 '' (combine): f32[1,2] and f32[2,2] do not fit a group of 2 along dim 0"},
      {"[5,4] group=0 communicator=0 dim=1", "[5,4] group=0 communicator=0 dim=1 to_dim=0",
       "instruction 1 '' (all_gather): it cannot have blocks of dim 0 in 1 stretches"},
      {"dim=1 outer=2", "outer=2",
       "instruction 0 '' (own_part): it cannot have blocks of dim -1 in 2 stretches"},
      {"dim=1 outer=2", "dim=-2", "instruction 0 '' (own_part): its dim is -2"},
      {"group=0 communicator=0 max", "group=0 communicator=0 dim=1",
       "instruction 2 '' (all_reduce): it cannot have blocks of dim 1 in 1 stretches"},
      {"group=0 communicator=0 max", "group=0 communicator=0 outer=2",
       "instruction 2 '' (all_reduce): it cannot have blocks of dim -1 in 2 stretches"},
      {"group=1 communicator=1 turn=2", "group=1 communicator=1 turn=3",
       "instruction 5 '' (rotate): there are 3 members, none is 3 before"},
      {"group=1 communicator=1 turn=2", "group=1 communicator=1",
       "instruction 5 '' (rotate): it cannot be of the member 0 before"},
      {"group=1 communicator=1 turn=2", "group=1 communicator=1 turn=-1",
       "instruction 5 '' (rotate): its turn is -1"},
      {"[6,7] group=1 communicator=1 turn=2", "[6,5] group=1 communicator=1 turn=2",
       "instruction 5 '' (rotate): f32[2,2] and f32[1,2] do not fit a group of 3"},
      {"[6,7] group=1 communicator=1 turn=2", "[6,7,6,7] group=1 communicator=1 turn=2",
       "instruction 5 '' (rotate): it has 4 args instead of 2"},
      {"outer=4 turn=1", "outer=4 turn=3",
       "instruction 6 '' (position): there are 3 members, none is 3 before"},
      {"outer=4 turn=1", "outer=4 turn=-1", "instruction 6 '' (position): its turn is -1"},
      {"outer=2 mirrored", "mirrored",
       "instruction 9 '' (reduce_scatter): it cannot have every second stretch from its end"},
      {"group=0 communicator=0 max", "group=0 communicator=0 mirrored",
       "instruction 2 '' (all_reduce): it cannot have every second stretch from its end"},
      {"to_dim=1 to_outer=2 to_mirrored", "to_dim=1 to_mirrored",
       "instruction 10 '' (all_to_all): it cannot have every second stretch from its end"},
      {"outer=4 turn=1", "outer=4 mirrored turn=1",
       "instruction 6 '' (position): it writes numbers into i64[]"},
      {"\"firsts\" i64[2]", "\"firsts\" i64[1,2]",
       "instruction 11 '' (position): it writes numbers into i64[1,2]"},
      {"group=0 communicator=0 max", "group=0 communicator=0 max turn=1",
       "instruction 2 '' (all_reduce): it cannot be of the member 1 before"},
      {"group=0 communicator=0 max", "group=0 communicator=0 max fast",
       "instruction 2 '' (all_reduce): it adds nothing up that could be fast"},
      {"dim=1 outer=2", "dim=1 outer=2 max", "instruction 0 '' (own_part): it has a reduction"},
      {"group=0 communicator=0 max", "group=0 communicator=0 max slice_first=2 slice_count=1",
       "instruction 2 '' (all_reduce): 1 elements from 2 on are no slice of 2"},
      {"group=0 communicator=0 max", "group=0 communicator=0 max slice_count=2",
       "instruction 2 '' (all_reduce): 2 elements from 0 on are no slice of 2"},
      {"group=0 communicator=0 max", "group=0 communicator=0 max slice_first=1",
       "instruction 2 '' (all_reduce): 0 elements from 1 on are no slice of 2"},
      {"[5,4] group=0 communicator=0 dim=1", "[5,4] group=0 communicator=0 dim=1 slice_count=1",
       "instruction 1 '' (all_gather): only a sum of one tensor, or of flat runs of it, may be of "
       "a slice"},
  };
  ASSERT_TRUE(check_role(role_of(kBlocks)));
  for (const Case& each : cases) expect_refused(kBlocks, each.from, each.to, each.message);
}

// Which buffers a tensor may have; the text form cannot say it wrong.
TEST(CheckRole, BuffersAreOfTensors) {
  const std::pair<void (*)(RoleProgram&), const char*> cases[] = {
      {[](RoleProgram& role) { role.buffers[4].tensor = 5; }, "buffers[4]: there is no tensor 5"},
      {[](RoleProgram& role) { role.buffers[4].tensor = -1; }, "buffers[4]: its tensor is -1"},
      {[](RoleProgram& role) { role.buffers[4].micro = -2; }, "buffers[4]: its micro is -2"},
      {[](RoleProgram& role) { role.buffers[0].micro = 1; },
       "buffer 0 'w@1' cannot be of microbatch 1"},
      {[](RoleProgram& role) { role.buffers.push_back(role.buffers[0]); },
       "buffer 5 'w' cannot be of microbatch -1"},
      {[](RoleProgram& role) { role.tensors.push_back({.name = "none"}); },
       "tensor 'none' has no buffer"},
  };
  for (const auto& [change, message] : cases) {
    RoleProgram role = role_of(kStage0);
    change(role);
    const Status checked = check_role(role);
    ASSERT_FALSE(checked) << message;
    EXPECT_EQ(checked.error().message, message);
  }
}

// Random ids all over a plan: refused or harmless, never a crash. Whatever is accepted can be
// printed and encoded.
TEST(CheckRole, RandomIdsNeverCrash) {
  const uint32_t seed = 20240229;
  std::mt19937 random(seed);
  const std::string digits = "0123456789";
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = trial % 3 == 0 ? kBlocks : kStage0;
    for (int edit = 0; edit < 2; ++edit) {
      const size_t at = changed.find_first_of(digits, random() % changed.size());
      if (at == changed.npos) continue;
      const char* values[] = {
          "-1", "0", "7", "99", "2147483647", "-2147483648", "9223372036854775807"};
      changed.replace(at, 1, values[random() % 7]);
    }
    const auto role = parse_plan(changed);
    if (!role || !check_role(*role)) {
      ++refused;
      continue;
    }
    EXPECT_EQ(print_plan(role_of(print_plan(*role))), print_plan(*role))
        << "seed " << seed << " trial " << trial;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace piper
