// What the verifier says of values that ranks have in blocks, or as terms of a sum.
#include "piper/ir/ops.h"
#include "unit/verify_plans.h"

namespace piper::verify_layout_test {
namespace {

using Edits = std::vector<std::pair<std::string, std::string>>;
using Said = std::vector<std::string>;

// Fills in where buffers lie: "at=?", 256 bytes each.
std::string placed(std::string text) {
  int64_t at = 0;
  for (size_t mark = text.find("at=?"); mark != text.npos; mark = text.find("at=?"), at += 256)
    text.replace(mark, 4, fmt::format("at={}", at));
  return edited(std::move(text), {{"arena=?", fmt::format("arena={}", at)}});
}

// a = x · s;  h = a w1 (columns);  y = h w2 (rows), summed;  dy = (y + b)².
const std::string kColumnsAndRows = placed(
    R"(plan batch=2 arena=? workspace=[352] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[2,4]
sum 0 "w1.grad"
sum 1 "w2.grad"
sum 2 "s.grad"
sum 3 "b.grad"
buffer 0 "w1" f32[4,3] state at=? init="w1" param="w1" cuts=[S1@0] whole=[4,6]
buffer 1 "w2" f32[3,4] state at=? init="w2" param="w2" cuts=[S0@0] whole=[6,4]
buffer 2 "s" f32[4] state at=? init="s" param="s"
buffer 3 "b" f32[4] state at=? init="b" param="b"
buffer 4 "x@0" f32[2,4] step at=?
buffer 5 "a@0" f32[2,4] step at=?
buffer 6 "h@0" f32[2,3] step at=?
buffer 7 "y@0" f32[2,4] step at=?
buffer 8 "da@0" f32[2,4] step at=?
buffer 9 "g1" f32[4,3] step at=?
buffer 10 "g2" f32[3,4] step at=?
buffer 11 "gs" f32[4] step at=?
buffer 12 "gb" f32[4] step at=?
program 0 label="F" args=7
  value 0 f32[2,4] read
  value 1 f32[4] read
  value 2 f32[4,3] read
  value 3 f32[3,4] read
  value 4 f32[2,4] written
  value 5 f32[2,3] written
  value 6 f32[2,4] written
  op Mul in=[0,1] out=[4]
  op MatMul in=[4,2] out=[5]
  op MatMul in=[5,3] out=[6]
program 1 label="B" args=10
  value 0 f32[2,4] read
  value 1 f32[4] read
  value 2 f32[2,3] read
  value 3 f32[2,4] read
  value 4 f32[4,3] read
  value 5 f32[3,4] read
  value 6 f32[2,4] written
  value 7 f32[4,3] written
  value 8 f32[3,4] written
  value 9 f32[4] written
  value 10 f32[2,4]
  value 11 f32[2,3]
  value 12 f32[2,4]
  op Add in=[0,1] out=[12]
  op Mul in=[12,12] out=[10]
  op ReduceSum in=[10] out=[9] {axes=[0], keepdims=0}
  op MatMul in=[2,10] out=[8] {trans_a=1}
  op MatMul in=[10,5] out=[11] {trans_b=1}
  op MatMul in=[3,11] out=[7] {trans_a=1}
  op MatMul in=[11,4] out=[6] {trans_b=1}
program 2 label="B scale" args=3
  value 0 f32[2,4] read
  value 1 f32[2,4] read
  value 2 f32[4] written
  value 3 f32[2,4]
  op Mul in=[0,1] out=[3]
  op ReduceSum in=[3] out=[2] {axes=[0], keepdims=0}
program 3 label="U" args=8
  value 0 f32[4,3] read
  value 1 f32[4,3] read written
  value 2 f32[3,4] read
  value 3 f32[3,4] read written
  value 4 f32[4] read
  value 5 f32[4] read written
  value 6 f32[4] read
  value 7 f32[4] read written
  op Sub in=[1,0] out=[1]
  op Sub in=[3,2] out=[3]
  op Sub in=[5,4] out=[5]
  op Sub in=[7,6] out=[7]
body
  0 input label="input x" args=[4] input="x" count=2
  1 compute label="F" program=0 args=[4,2,0,1,5,6,7] pass="F" micro=0
  2 all_reduce label="sum y" args=[7] group=0 micro=0
  3 compute label="B" program=1 args=[7,3,6,5,0,1,8,9,10,12] pass="B" micro=0
    contribution arg=7 count=2
    contribution arg=8 target=1 count=2
    contribution arg=9 target=3 count=2
  4 all_reduce label="sum da" args=[8] group=0 micro=0
  5 compute label="B scale" program=2 args=[8,4,11] pass="B" micro=0
    contribution arg=2 target=2 count=2
  6 compute label="U" program=3 args=[9,0,10,1,11,2,12,3] pass="U"
    sum_read
    sum_read arg=2 target=1
    sum_read arg=4 target=2
    sum_read arg=6 target=3
)");

// The same with tokens in blocks where nothing is multiplied: gathered before, scattered behind.
const std::string kTokens = placed(
    R"(plan batch=1 arena=? workspace=[192] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[1,4,4]
sum 0 "w1.grad"
sum 1 "w2.grad"
sum 2 "s.grad"
buffer 0 "w1" f32[4,3] state at=? init="w1" param="w1" cuts=[S1@0] whole=[4,6]
buffer 1 "w2" f32[3,4] state at=? init="w2" param="w2" cuts=[S0@0] whole=[6,4]
buffer 2 "s" f32[4] state at=? init="s" param="s"
buffer 3 "x@0" f32[1,4,4] step at=?
buffer 4 "own x@0" f32[1,2,4] step at=?
buffer 5 "a@0" f32[1,2,4] step at=?
buffer 6 "all a@0" f32[1,4,4] step at=?
buffer 7 "h@0" f32[1,4,3] step at=?
buffer 8 "all y@0" f32[1,4,4] step at=?
buffer 9 "y@0" f32[1,2,4] step at=?
buffer 10 "dy@0" f32[1,2,4] step at=?
buffer 11 "all dy@0" f32[1,4,4] step at=?
buffer 12 "all da@0" f32[1,4,4] step at=?
buffer 13 "da@0" f32[1,2,4] step at=?
buffer 14 "g1" f32[4,3] step at=?
buffer 15 "g2" f32[3,4] step at=?
buffer 16 "gs" f32[4] step at=?
program 0 label="F scale" args=3
  value 0 f32[1,2,4] read
  value 1 f32[4] read
  value 2 f32[1,2,4] written
  op Mul in=[0,1] out=[2]
program 1 label="F" args=5
  value 0 f32[1,4,4] read
  value 1 f32[4,3] read
  value 2 f32[3,4] read
  value 3 f32[1,4,3] written
  value 4 f32[1,4,4] written
  op MatMul in=[0,1] out=[3]
  op MatMul in=[3,2] out=[4]
program 2 label="B loss" args=2
  value 0 f32[1,2,4] read
  value 1 f32[1,2,4] written
  op Mul in=[0,0] out=[1]
program 3 label="B" args=8
  value 0 f32[1,4,4] read
  value 1 f32[1,4,3] read
  value 2 f32[1,4,4] read
  value 3 f32[4,3] read
  value 4 f32[3,4] read
  value 5 f32[4,3] written
  value 6 f32[3,4] written
  value 7 f32[1,4,4] written
  value 8 f32[1,4,3]
  value 9 f32[4,4]
  value 10 f32[4,3]
  value 11 f32[4,4]
  value 12 f32[4,3]
  op Reshape in=[1] out=[10] {shape=[4,3]}
  op Reshape in=[0] out=[9] {shape=[4,4]}
  op MatMul in=[10,9] out=[6] {trans_a=1}
  op MatMul in=[0,4] out=[8] {trans_b=1}
  op Reshape in=[2] out=[11] {shape=[4,4]}
  op Reshape in=[8] out=[12] {shape=[4,3]}
  op MatMul in=[11,12] out=[5] {trans_a=1}
  op MatMul in=[8,3] out=[7] {trans_b=1}
program 4 label="B scale" args=3
  value 0 f32[1,2,4] read
  value 1 f32[1,2,4] read
  value 2 f32[4] written
  value 3 f32[1,2,4]
  op Mul in=[0,1] out=[3]
  op ReduceSum in=[3] out=[2] {axes=[0,1], keepdims=0}
program 5 label="U" args=6
  value 0 f32[4,3] read
  value 1 f32[4,3] read written
  value 2 f32[3,4] read
  value 3 f32[3,4] read written
  value 4 f32[4] read
  value 5 f32[4] read written
  op Sub in=[1,0] out=[1]
  op Sub in=[3,2] out=[3]
  op Sub in=[5,4] out=[5]
body
  0 input label="input x" args=[3] input="x" count=1
  1 own_part label="own x" args=[3,4] group=0 dim=1
  2 compute label="F scale" program=0 args=[4,2,5] pass="F" micro=0
  3 all_gather label="gather a" args=[5,6] group=0 micro=0 dim=1
  4 compute label="F" program=1 args=[6,0,1,7,8] pass="F" micro=0
  5 reduce_scatter label="scatter y" args=[8,9] group=0 micro=0 dim=1
  6 compute label="B loss" program=2 args=[9,10] pass="B" micro=0
  7 all_gather label="gather dy" args=[10,11] group=0 micro=0 dim=1
  8 compute label="B" program=3 args=[11,7,6,0,1,14,15,12] pass="B" micro=0
    contribution arg=5 count=1
    contribution arg=6 target=1 count=1
  9 reduce_scatter label="scatter da" args=[12,13] group=0 micro=0 dim=1
  10 compute label="B scale" program=4 args=[13,4,16] pass="B" micro=0
    contribution arg=2 target=2 count=1
  11 all_reduce label="sum gs" args=[16] group=0
  12 compute label="U" program=5 args=[14,0,15,1,16,2] pass="U"
    sum_read
    sum_read arg=2 target=1
    sum_read arg=4 target=2
)");

// Columns of what a weight makes become rows, each a whole one, of which the greatest is taken
// away.
const std::string kExchange = placed(
    R"(plan batch=1 arena=? workspace=[0] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[1,4,4]
buffer 0 "w" f32[4,3] state at=? init="w" param="w" cuts=[S1@0] whole=[4,6]
buffer 1 "x@0" f32[1,4,4] step at=?
buffer 2 "h@0" f32[1,4,3] step at=?
buffer 3 "rows@0" f32[1,2,6] step at=?
buffer 4 "y@0" f32[1,2,6] step at=?
buffer 5 "columns@0" f32[1,4,3] step at=?
buffer 6 "z@0" f32[1,4,3] step at=?
program 0 label="F" args=3
  value 0 f32[1,4,4] read
  value 1 f32[4,3] read
  value 2 f32[1,4,3] written
  op MatMul in=[0,1] out=[2]
program 1 label="F softmax" args=2
  value 0 f32[1,2,6] read
  value 1 f32[1,2,6] written
  op Softmax in=[0] out=[1] {axis=2}
program 2 label="F add" args=3
  value 0 f32[1,4,3] read
  value 1 f32[1,4,3] read
  value 2 f32[1,4,3] written
  op Add in=[0,1] out=[2]
body
  0 input label="input x" args=[1] input="x" count=1
  1 compute label="F" program=0 args=[1,0,2] pass="F" micro=0
  2 all_to_all label="rows" args=[2,3] group=0 micro=0 dim=2 to_dim=1
  3 compute label="F softmax" program=1 args=[3,4] pass="F" micro=0
  4 all_to_all label="columns" args=[4,5] group=0 micro=0 dim=1 to_dim=2
  5 compute label="F add" program=2 args=[2,5,6] pass="F" micro=0
)");

// Of four blocks of tokens, the one that is so far from each end attends to all before it.
const std::string kZigzag = placed(
    R"(plan batch=1 arena=? workspace=[64] transport=2097152 scratch=4194304
axis "cp" 2
stream 0 "compute"
group 0 "cp" axes=[0]
input "x" f32[1,8,1,4]
buffer 0 "x@0" f32[1,8,1,4] step at=?
buffer 1 "own@0" f32[1,4,1,4] step at=?
buffer 2 "first@0" i64[2] step at=?
buffer 3 "all@0" f32[1,8,1,4] step at=?
buffer 4 "y@0" f32[1,4,1,4] step at=?
program 0 label="F" args=4
  value 0 f32[1,4,1,4] read
  value 1 f32[1,8,1,4] read
  value 2 i64[2] read
  value 3 f32[1,4,1,4] written
  value 4 f32[1,1,4]
  op Attention in=[0,1,1,-1,2] out=[3,4] {causal=1, scale=1.0, tokens_first=[1,1,1,1], whole=8}
body
  0 input label="input x" args=[0] input="x" count=1
  1 own_part label="tokens" args=[0,1] group=0 micro=0 dim=1 outer=2 mirrored
  2 position label="first" args=[2] group=0 micro=0 outer=2 mirrored
  3 compute label="F" program=0 args=[1,0,2,4] pass="F" micro=0
  4 all_gather label="gather y" args=[4,3] group=0 micro=0 dim=1 outer=2 mirrored
)");

// q, k and v of one head of two, from one weight that nothing trains; then the rows of another.
const std::string kHeads = placed(
    R"(plan batch=1 arena=? workspace=[832] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[1,4,4]
buffer 0 "qkv" f32[4,6] state at=? init="qkv" param="qkv" cuts=[S1/3@0] whole=[4,12]
buffer 1 "out" f32[2,4] state at=? init="out" param="out" cuts=[S0@0] whole=[4,4]
buffer 2 "x@0" f32[1,4,4] step at=?
buffer 3 "y@0" f32[1,4,4] step at=?
buffer 4 "z@0" f32[1,4] step at=?
program 0 label="F" args=4
  value 0 f32[1,4,4] read
  value 1 f32[4,6] read
  value 2 f32[2,4] read
  value 3 f32[1,4,4] written
  value 4 f32[1,4,6]
  value 5 f32[1,4,1,2]
  value 6 f32[1,1,4]
  value 7 f32[1,4,2]
  value 8 f32[1,4,2]
  value 9 f32[1,4,2]
  value 10 f32[1,4,2]
  value 11 f32[1,4,1,2]
  value 12 f32[1,4,1,2]
  value 13 f32[1,4,1,2]
  op MatMul in=[0,1] out=[4]
  op Slice in=[4] out=[8] {ends=[1,4,2], starts=[0,0,0], steps=[1,1,1]}
  op Slice in=[4] out=[9] {ends=[1,4,4], starts=[0,0,2], steps=[1,1,1]}
  op Slice in=[4] out=[10] {ends=[1,4,6], starts=[0,0,4], steps=[1,1,1]}
  op Reshape in=[8] out=[11] {shape=[1,4,1,2]}
  op Reshape in=[9] out=[12] {shape=[1,4,1,2]}
  op Reshape in=[10] out=[13] {shape=[1,4,1,2]}
  op Attention in=[11,12,13] out=[5,6] {scale=1.0, tokens_first=[1,1,1,1]}
  op Reshape in=[5] out=[7] {shape=[1,4,2]}
  op MatMul in=[7,2] out=[3]
program 1 label="F square" args=2
  value 0 f32[1,4,4] read
  value 1 f32[1,4] written
  value 2 f32[1,4,4]
  op Mul in=[0,0] out=[2]
  op ReduceSum in=[2] out=[1] {axes=[2], keepdims=0}
body
  0 input label="input x" args=[2] input="x" count=1
  1 compute label="F" program=0 args=[2,0,1,3] pass="F" micro=0
  2 all_reduce label="sum y" args=[3] group=0 micro=0
  3 compute label="F square" program=1 args=[3,4] pass="F" micro=0
)");
// Rows of a table of which each rank has its own: it must know where they begin.
const std::string kRows = placed(
    R"(plan batch=8 arena=? workspace=[512] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "tokens" i64[8] high=5
buffer 0 "table" f32[3,4] state at=? init="table" param="table" cuts=[S0@0] whole=[6,4]
buffer 1 "tokens@0" i64[8] step at=?
buffer 2 "first@0" i64[1] step at=?
buffer 3 "y@0" f32[8,4] step at=?
buffer 4 "z@0" f32[8] step at=?
program 0 label="F" args=4
  value 0 f32[3,4] read
  value 1 i64[8] read
  value 2 i64[1] read
  value 3 f32[8,4] written
  value 4 i64[]
  op Reshape in=[2] out=[4] {shape=[]}
  op Gather in=[0,1,4] out=[3] {axis=0, whole=6}
program 1 label="F square" args=2
  value 0 f32[8,4] read
  value 1 f32[8] written
  value 2 f32[8,4]
  op Mul in=[0,0] out=[2]
  op ReduceSum in=[2] out=[1] {axes=[1], keepdims=0}
body
  0 input label="input tokens" args=[1] input="tokens" count=8
  1 input label="first row" args=[2] count=1 stride=[3]
  2 compute label="F" program=0 args=[0,1,2,3] pass="F" micro=0
  3 all_reduce label="sum y" args=[3] group=0 micro=0
  4 compute label="F square" program=1 args=[3,4] pass="F" micro=0
)");

// Rows at the ranks that own what their numbers name, multiplied there by their matrices twice,
// with a bias between, and back.
const std::string kExperts = placed(
    R"(plan batch=4 arena=? workspace=[768] transport=2097152 scratch=4194304
axis "ep" 2
stream 0 "compute"
group 0 "ep" axes=[0]
input "x" f32[4,3]
input "expert" i64[4] high=3
input "other" i64[4] high=3
buffer 0 "w" f32[2,3,3] state at=? init="w" param="w" cuts=[S0@0] whole=[4,3,3]
buffer 1 "x@0" f32[4,3] step at=?
buffer 2 "expert@0" i64[4] step at=?
buffer 3 "other@0" i64[4] step at=?
buffer 4 "own x@0" f32[2,3] step at=?
buffer 5 "first@0" i64[] step at=?
buffer 6 "sent x@0" f32[4,3] step at=?
buffer 7 "sent y@0" f32[4,3] step at=?
buffer 8 "y@0" f32[2,3] step at=?
buffer 9 "b" f32[2,3] state at=? init="b" param="b" cuts=[S0@0] whole=[4,3]
program 0 label="F" args=6
  value 0 f32[4,3] read
  value 1 i64[4] read
  value 2 f32[2,3,3] read
  value 3 i64[] read
  value 4 f32[4,3] written
  value 5 f32[2,3] read
  value 6 f32[4,3]
  value 7 f32[4,3]
  value 8 f32[4,3]
  op Gather in=[5,1,3] out=[6] {axis=0, whole=4}
  op GroupedMatMul in=[0,1,2,3] out=[7] {trans_b=0, whole=4}
  op Add in=[7,6] out=[8]
  op GroupedMatMul in=[8,1,2,3] out=[4] {trans_b=0, whole=4}
body
  0 input label="input x" args=[1] input="x" count=4
  1 input label="input expert" args=[2] input="expert" count=4
  2 input label="input other" args=[3] input="other" count=4
  3 own_part label="own x" args=[1,4] group=0 micro=0 dim=0
  4 position label="first" args=[5] group=0 micro=0 outer=2
  5 dispatch label="send x" args=[4,6,2] group=0 micro=0 dim=0 owned=2
  6 compute label="F" program=0 args=[6,2,0,5,7,9] pass="F" micro=0
  7 combine label="bring y" args=[7,8,2] group=0 micro=0 dim=0 owned=2
)");

// Rows in order of the ranks that own what their numbers name, exchanged, multiplied there, and
// back: room for two rows of each rank.
const std::string kPlaces = placed(
    R"(plan batch=4 arena=? workspace=[768] transport=2097152 scratch=4194304
axis "ep" 2
stream 0 "compute"
group 0 "ep" axes=[0]
input "x" f32[4,3]
input "expert" i64[4] high=3
input "other" i64[4] high=3
buffer 0 "w" f32[2,3,3] state at=? init="w" param="w" cuts=[S0@0] whole=[4,3,3]
buffer 1 "x@0" f32[4,3] step at=?
buffer 2 "expert@0" i64[4] step at=?
buffer 3 "other@0" i64[4] step at=?
buffer 4 "own x@0" f32[2,3] step at=?
buffer 5 "own expert@0" i64[2] step at=?
buffer 6 "own other@0" i64[2] step at=?
buffer 7 "first@0" i64[] step at=?
buffer 8 "places@0" i64[2] step at=?
buffer 9 "packed expert@0" i64[2,2] step at=?
buffer 10 "packed x@0" f32[2,2,3] step at=?
buffer 11 "other places@0" i64[2] step at=?
buffer 12 "packed other@0" i64[2,2] step at=?
buffer 13 "expert there@0" i64[1,4] step at=?
buffer 14 "other there@0" i64[1,4] step at=?
buffer 15 "x there@0" f32[1,4,3] step at=?
buffer 16 "y there@0" f32[1,4,3] step at=?
buffer 17 "packed y@0" f32[2,2,3] step at=?
buffer 18 "y@0" f32[2,3] step at=?
program 0 label="F places" args=7
  value 0 f32[2,3] read
  value 1 i64[2] read
  value 2 i64[2] read
  value 3 i64[2] written
  value 4 i64[2,2] written
  value 5 i64[2] written
  value 6 i64[2,2] written
  op RowPlaces in=[1] out=[3,4] {over=0, owned=2, ranks=2, rows=2}
  op RowPlaces in=[2] out=[5,6] {over=0, owned=2, ranks=2, rows=2}
program 1 label="F pack" args=3
  value 0 f32[2,3] read
  value 1 i64[2] read
  value 2 f32[2,2,3] written
  value 3 f32[4,3]
  op GatherGrad in=[0,1] out=[3] {axis=0, size=4}
  op Reshape in=[3] out=[2] {shape=[2,2,3]}
program 2 label="F" args=5
  value 0 f32[1,4,3] read
  value 1 i64[1,4] read
  value 2 f32[2,3,3] read
  value 3 i64[] read
  value 4 f32[1,4,3] written
  value 5 f32[4,3]
  value 6 i64[4]
  value 7 f32[4,3]
  op Reshape in=[0] out=[5] {shape=[4,3]}
  op Reshape in=[1] out=[6] {shape=[4]}
  op GroupedMatMul in=[5,6,2,3] out=[7] {trans_b=0, whole=4}
  op Reshape in=[7] out=[4] {shape=[1,4,3]}
program 3 label="F unpack" args=3
  value 0 f32[2,2,3] read
  value 1 i64[2] read
  value 2 f32[2,3] written
  value 3 f32[4,3]
  op Reshape in=[0] out=[3] {shape=[4,3]}
  op Gather in=[3,1] out=[2] {axis=0}
body
  0 input label="input x" args=[1] input="x" count=4
  1 input label="input expert" args=[2] input="expert" count=4
  2 input label="input other" args=[3] input="other" count=4
  3 own_part label="own x" args=[1,4] group=0 micro=0 dim=0
  4 own_part label="own expert" args=[2,5] group=0 micro=0 dim=0
  5 own_part label="own other" args=[3,6] group=0 micro=0 dim=0
  6 position label="first" args=[7] group=0 micro=0 outer=2
  7 compute label="F places" program=0 args=[4,5,6,8,9,11,12] pass="F" micro=0
  8 compute label="F pack" program=1 args=[4,8,10] pass="F" micro=0
  9 all_to_all label="expert" args=[9,13] group=0 micro=0 dim=1 to_dim=0
  10 all_to_all label="other" args=[12,14] group=0 micro=0 dim=1 to_dim=0
  11 all_to_all label="send x" args=[10,15] group=0 micro=0 dim=1 to_dim=0
  12 compute label="F" program=2 args=[15,13,0,7,16] pass="F" micro=0
  13 all_to_all label="bring y" args=[16,17] group=0 micro=0 dim=0 to_dim=1
  14 compute label="F unpack" program=3 args=[17,8,18] pass="F" micro=0
)");

Said said(const std::string& text, const Edits& edits) {
  const int64_t ranks = text.find("axis \"b\" 2") == text.npos ? 2 : 4;
  return findings_of(set_of({edited(text, edits)}, ranks));
}

// Whether rule layout refuses each, and what it says of the last.
std::string refused(const std::string& text, const std::vector<Edits>& mutants) {
  std::string last;
  for (const Edits& edits : mutants) {
    const Said all = said(text, edits);
    const auto found = std::find_if(all.begin(), all.end(), [](const std::string& finding) {
      return finding.starts_with("layout: ");
    });
    EXPECT_NE(found, all.end()) << edits[0].first << "\n -> " << edits[0].second
                                << (all.empty() ? "" : "\nsaid: " + all[0]);
    last = found == all.end() ? "" : *found;
  }
  return last;
}

TEST(VerifyLayout, BlocksOfWeightsAreAccepted) { EXPECT_EQ(said(kColumnsAndRows, {}), Said()); }
TEST(VerifyLayout, BlocksOfTokensAreAccepted) { EXPECT_EQ(said(kTokens, {}), Said()); }
TEST(VerifyLayout, BlocksOfThreeProjectionsAreAccepted) { EXPECT_EQ(said(kHeads, {}), Said()); }

TEST(VerifyLayout, BlocksOfOneDimBecomeThoseOfAnother) {
  EXPECT_EQ(said(kExchange, {}), Said());
  refused(kExchange, {{{"[2,3] group=0 micro=0 dim=2", "[2,3] group=0 micro=0 dim=2 outer=3"}},
                      {{"dim=2 to_dim=1", "dim=2 to_dim=1 to_outer=2"}}});
  EXPECT_EQ(said(kExchange, {{"4 all_to_all label=\"columns\" args=[4,5] group=0 micro=0 dim=1 "
                              "to_dim=2",
                              "4 copy label=\"columns\" args=[4,5] micro=0"}}),
            Said{"error: instruction 4 'columns' (copy): it copies f32[1,2,6] to f32[1,4,3]"});
}

TEST(VerifyLayout, EverySecondStretchIsCountedFromItsEnd) {
  EXPECT_EQ(said(kZigzag, {}), Said());
  EXPECT_EQ(refused(kZigzag, {{{"[0,1] group=0 micro=0 dim=1 outer=2 mirrored",
                                "[0,1] group=0 micro=0 dim=1 outer=2"}},
                              {{"outer=2 mirrored\n  3", "outer=2\n  3"}},
                              {{"[0,1] group=0 micro=0 dim=1 outer=2 mirrored",
                                "[0,1] group=0 micro=0 dim=1 outer=4 mirrored"}},
                              {{"outer=2 mirrored\n  3", "outer=1 mirrored\n  3"}},
                              {{"[4,3] group=0 micro=0 dim=1 outer=2 mirrored",
                                "[4,3] group=0 micro=0 dim=1 outer=2"}}}),
            "layout: over 'cp', 'gather y' on rank 0 (and 1 like it) joins 'y@0', cut at dim 1, "
            "outer 2 mirrored, as if it were cut at dim 1, outer 2");
}

TEST(VerifyLayout, RowsLieWhereTheirMatricesAre) {
  EXPECT_EQ(said(kExperts, {}), Said());
  EXPECT_EQ(refused(kExperts, {{{"args=[4,6,2] group=0 micro=0 dim=0 owned=2",
                                 "args=[4,6,2] group=0 micro=0 dim=0 owned=1"}},
                               {{"args=[7,8,2]", "args=[7,8,3]"}},
                               {{"args=[7,8,2]", "args=[6,8,3]"}},
                               {{"args=[5] group=0 micro=0 outer=2", "args=[5] group=0 micro=0"}},
                               {{"op GroupedMatMul in=[8,1,2,3] out=[4] {trans_b=0, whole=4}",
                                 "op Softmax in=[8] out=[4] {axis=0}"}},
                               {{"program=0 args=[6,2,0", "program=0 args=[6,3,0"}}}),
            "layout: over 'ep', 'F' on rank 0 (and 1 like it) cannot do op 1, GroupedMatMul, of "
            "f32[4,3] rows routed by an index, i64[4] whole, f32[2,3,3] cut at dim 0, i64[] begin "
            "of the rank's block: "
            "which reads other rows, or not all operands of these rows");
}

TEST(VerifyLayout, PackedRowsComeBackByTheirPlaces) {
  EXPECT_EQ(said(kPlaces, {}), Said());
  EXPECT_EQ(
      refused(kPlaces,
              {{{"args=[17,8,18]", "args=[17,11,18]"}},           // places of another index
               {{"args=[4,8,10]", "args=[4,11,10]"}},             // rows in another order
               {{"args=[15,13,0,7,16]", "args=[15,14,0,7,16]"}},  // others' matrices
               {{"op RowPlaces in=[1] out=[3,4] {over=0, owned=2",
                 "op RowPlaces in=[1] out=[3,4] {over=0, owned=1"}},
               {{"op RowPlaces in=[1] out=[3,4] {over=0", "op RowPlaces in=[1] out=[3,4] {over=1"}},
               {{"op GroupedMatMul in=[5,6,2,3] out=[7] {trans_b=0, whole=4}",
                 "op Softmax in=[5] out=[7] {axis=0}"}},
               {{"args=[7] group=0 micro=0 outer=2", "args=[7] group=0 micro=0"}},
               {{"op Gather in=[3,1] out=[2] {axis=0}",
                 "op Gather in=[3,1] out=[2] {axis=0, padding=1}"}},
               {{"args=[17,8,18]", "args=[10,11,18]"}}}),
      "layout: over 'ep', 'F unpack' on rank 0 (and 1 like it) cannot do op 1, Gather, of f32[4,3] "
      "rows in order of those that own them, 4 at most, i64[2] places of rows, 4 at most: which "
      "has "
      "places of other rows");
}

TEST(VerifyLayout, BlocksKnowWhereTheyBegin) {
  EXPECT_EQ(said(kRows, {}), Said());
  EXPECT_EQ(
      refused(kRows, {{{"stride=[3]", "stride=[2]"}},
                      {{"stride=[3]", "stride=[0]"}},
                      {{"in=[0,1,4] out=[3] {axis=0, whole=6}", "in=[0,1] out=[3] {axis=0}"}}}),
      "layout: over 'tp', 'F' on rank 0 (and 1 like it) cannot do op 1, Gather, of f32[3,4] "
      "cut at dim 0, i64[8] whole: which cannot be computed from such parts");
}

TEST(VerifyLayout, AxesWithBlocksAreNamed) {
  const auto with = verify_plan_set(set_of({kTokens}, 2)),
             without_any = verify_plan_set(set_of({kStage0, kStage1}, 2));
  ASSERT_TRUE(with && without_any);
  EXPECT_EQ(with->axes, Said{"tp"});
  EXPECT_EQ(without_any->axes, Said());
}

// Of one sample, whose dim may be the one that is cut just as well.
TEST(VerifyLayout, DimsThatCannotBeToldApartAreKeptOpen) {
  EXPECT_EQ(said(kTokens, {{"  value 1 f32[1,2,4] written\n  op Mul in=[0,0] out=[1]",
                            "  value 1 f32[1,2,4] written\n  value 2 f32[2,4]\n"
                            "  value 3 f32[2,4]\n  value 4 f32[1,2,4]\n"
                            "  op Reshape in=[0] out=[2] {shape=[2,4]}\n"
                            "  op Mul in=[2,2] out=[3]\n"
                            "  op Reshape in=[3] out=[4] {shape=[1,2,4]}\n"
                            "  op Neg in=[4] out=[1]"}}),
            Said());
}

// A change of shape and its way back: [samples, tokens, columns] as
// [rows, columns], of which each is repeated.
const std::string kRepeated = placed(
    R"(plan batch=2 arena=? workspace=[896] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[2,2,4]
sum 0 "s.grad"
buffer 0 "s" f32[4] state at=? init="s" param="s"
buffer 1 "x@0" f32[2,2,4] step at=?
buffer 2 "own x@0" f32[2,1,4] step at=?
buffer 3 "gs" f32[4] step at=?
program 0 label="F" args=3
  value 0 f32[2,1,4] read
  value 1 f32[4] read
  value 2 f32[4] written
  value 3 f32[2,1,4]
  value 4 f32[2,3,4]
  value 5 f32[2,3,4]
  op Reshape in=[0] out=[3] {shape=[2,1,4]}
  op Expand in=[3] out=[4] {shape=[2,3,4]}
  op Mul in=[4,1] out=[5]
  op ReduceSum in=[5] out=[2] {axes=[0,1], keepdims=0}
program 1 label="U" args=2
  value 0 f32[4] read
  value 1 f32[4] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x" args=[1] input="x" count=2
  1 own_part label="own x" args=[1,2] group=0 micro=0 dim=1
  2 compute label="F" program=0 args=[2,0,3] pass="F" micro=0
    contribution arg=2 count=2
  3 all_reduce label="sum" args=[3] group=0
  4 compute label="U" program=1 args=[3,0] pass="U"
    sum_read
)");

TEST(VerifyLayout, ViewsOfOneShapeMayHaveHadAnother) {
  EXPECT_EQ(said(kRepeated, {}), Said());
  EXPECT_EQ(refused(kRepeated, {{{"  op Expand in=[3]", "  op Expand in=[0]"}}}),
            "layout: over 'tp', 'F' on rank 0 (and 1 like it) cannot do op 1, Expand, of "
            "f32[2,1,4] cut at dim 1: which cannot be computed from such parts");
}

// Blocks of tokens, put together behind a change of shape.
const std::string kUnsqueezed = placed(
    R"(plan batch=2 arena=? workspace=[256] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[2,2,4]
sum 0 "s.grad"
buffer 0 "s" f32[4] state at=? init="s" param="s"
buffer 1 "x@0" f32[2,2,4] step at=?
buffer 2 "own x@0" f32[2,1,4] step at=?
buffer 3 "own y@0" f32[2,1,4,1] step at=?
buffer 4 "y@0" f32[2,2,4,1] step at=?
buffer 5 "gs" f32[4] step at=?
program 0 label="F" args=2
  value 0 f32[2,1,4] read
  value 1 f32[2,1,4,1] written
  value 2 f32[2,1,4,1]
  op Reshape in=[0] out=[2] {shape=[2,1,4,1]}
  op Neg in=[2] out=[1]
program 1 label="B" args=3
  value 0 f32[2,2,4,1] read
  value 1 f32[4] read
  value 2 f32[4] written
  value 3 f32[2,2,4]
  value 4 f32[2,2,4]
  op Reshape in=[0] out=[3] {shape=[2,2,4]}
  op Mul in=[3,1] out=[4]
  op ReduceSum in=[4] out=[2] {axes=[0,1], keepdims=0}
program 2 label="U" args=2
  value 0 f32[4] read
  value 1 f32[4] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x" args=[1] input="x" count=2
  1 own_part label="own x" args=[1,2] group=0 micro=0 dim=1
  2 compute label="F" program=0 args=[2,3] pass="F" micro=0
  3 all_gather label="y" args=[3,4] group=0 micro=0 dim=1
  4 compute label="B" program=1 args=[4,0,5] pass="B" micro=0
    contribution arg=2 count=2
  5 compute label="U" program=2 args=[5,0] pass="U"
    sum_read
)");

TEST(VerifyLayout, NoChangeOfShapeChangesTheBlocks) {
  EXPECT_EQ(said(kUnsqueezed, {}), Said());
  EXPECT_EQ(refused(kUnsqueezed, {{{"\"y@0\" f32[2,2,4,1]", "\"y@0\" f32[2,1,4,2]"},
                                   {"value 0 f32[2,2,4,1]", "value 0 f32[2,1,4,2]"},
                                   {"micro=0 dim=1\n  4", "micro=0 dim=3\n  4"}}}),
            "layout: over 'tp', 'y' on rank 0 (and 1 like it) joins 'own y@0', cut at dim "
            "0, outer 2, as if it were cut at dim 3");
}

// Of one sample: blocks of rows, or of samples for all that is known, are added up over samples and
// turned; put together are columns.
const std::string kTurned = placed(
    R"(plan batch=1 arena=? workspace=[448] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
group 0 "tp" axes=[0]
input "x" f32[1,6,4]
sum 0 "s.grad"
buffer 0 "s" f32[6] state at=? init="s" param="s"
buffer 1 "x@0" f32[1,6,4] step at=?
buffer 2 "own x@0" f32[1,3,4] step at=?
buffer 3 "own y@0" f32[1,4,3] step at=?
buffer 4 "y@0" f32[1,4,6] step at=?
buffer 5 "gs" f32[6] step at=?
program 0 label="F" args=2
  value 0 f32[1,3,4] read
  value 1 f32[1,4,3] written
  value 2 f32[1,3,4]
  value 3 f32[1,3,4]
  value 4 f32[1,1,3,4]
  value 5 f32[1,4,1,3]
  value 6 f32[1,4,3]
  op Reshape in=[0] out=[2] {shape=[1,3,4]}
  op ReduceSum in=[2] out=[3] {axes=[0], keepdims=1}
  op Reshape in=[3] out=[4] {shape=[1,1,3,4]}
  op Transpose in=[4] out=[5] {perm=[0,3,1,2]}
  op Reshape in=[5] out=[6] {shape=[1,4,3]}
  op Neg in=[6] out=[1]
program 1 label="B" args=3
  value 0 f32[1,4,6] read
  value 1 f32[6] read
  value 2 f32[6] written
  value 3 f32[1,4,6]
  op Mul in=[0,1] out=[3]
  op ReduceSum in=[3] out=[2] {axes=[0,1], keepdims=0}
program 2 label="U" args=2
  value 0 f32[6] read
  value 1 f32[6] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x" args=[1] input="x" count=1
  1 own_part label="own x" args=[1,2] group=0 micro=0 dim=1
  2 compute label="F" program=0 args=[2,3] pass="F" micro=0
  3 all_gather label="y" args=[3,4] group=0 micro=0 dim=2
  4 compute label="B" program=1 args=[4,0,5] pass="B" micro=0
    contribution arg=2 count=1
  5 compute label="U" program=2 args=[5,0] pass="U"
    sum_read
)");

TEST(VerifyLayout, NoReadingIsLostBesideTerms) { EXPECT_EQ(said(kTurned, {}), Said()); }

// What is whole, and the same for all columns, meets columns of a weight.
const std::string kSameForAll = placed(
    R"(plan batch=2 arena=? workspace=[256] transport=2097152 scratch=4194304
axis "tp" 2
stream 0 "compute"
input "x" f32[2,3]
sum 0 "w.grad"
buffer 0 "w" f32[3,3] state at=? init="w" param="w" cuts=[S1@0] whole=[3,6]
buffer 1 "x@0" f32[2,3] step at=?
buffer 2 "gw" f32[3,3] step at=?
program 0 label="F" args=3
  value 0 f32[2,3] read
  value 1 f32[3,3] read
  value 2 f32[3,3] written
  value 3 f32[3]
  value 4 f32[3,1]
  value 5 f32[3,3]
  value 6 f32[3,3]
  op ReduceSum in=[0] out=[3] {axes=[0], keepdims=0}
  op Reshape in=[3] out=[4] {shape=[3,1]}
  op Expand in=[4] out=[5] {shape=[3,3]}
  op Neg in=[5] out=[6]
  op Mul in=[6,1] out=[2]
program 1 label="U" args=2
  value 0 f32[3,3] read
  value 1 f32[3,3] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x" args=[1] input="x" count=2
  1 compute label="F" program=0 args=[1,0,2] pass="F" micro=0
    contribution arg=2 count=2
  2 compute label="U" program=1 args=[2,0] pass="U"
    sum_read
)");

TEST(VerifyLayout, WhatIsRepeatedIsAnyBlock) {
  EXPECT_EQ(said(kSameForAll, {}), Said());
  // Another number for each column, made so or turned so.
  EXPECT_EQ(
      refused(kSameForAll,
              {{{"f32[3,1]", "f32[1,3]"}, {"shape=[3,1]", "shape=[1,3]"}},
               {{"op Neg in=[5] out=[6]", "op Transpose in=[5] out=[6] {perm=[1,0]}"}}}),
      "layout: over 'tp', 'F' on rank 0 (and 1 like it) cannot do op 4, Mul, of f32[3,3] whole, "
      "f32[3,3] cut at dim 1: which cannot be computed from such parts");
}

// x in blocks of samples over b, or of columns for all that is known; in blocks of columns over a;
// sums of samples in blocks of these over b.
const std::string kBlocksOfBlocks = placed(
    R"(plan batch=2 arena=? workspace=[0] transport=2097152 scratch=4194304
axis "a" 2
axis "b" 2
stream 0 "compute"
group 0 "a" axes=[0]
group 1 "b" axes=[1]
input "x" f32[2,12]
sum 0 "s.grad"
buffer 0 "s" f32[3] state at=? init="s" param="s" cuts=[S0@0,S0@1] whole=[12]
buffer 1 "x@0" f32[2,12] step at=?
buffer 2 "samples@0" f32[1,12] step at=?
buffer 3 "h@0" f32[1,12] step at=?
buffer 4 "own h@0" f32[1,6] step at=?
buffer 5 "sums@0" f32[6] step at=?
buffer 6 "own sums@0" f32[3] step at=?
buffer 7 "gs" f32[3] step at=?
program 0 label="F" args=2
  value 0 f32[1,12] read
  value 1 f32[1,12] written
  value 2 f32[1,12]
  op Reshape in=[0] out=[2] {shape=[1,12]}
  op Neg in=[2] out=[1]
program 1 label="B" args=2
  value 0 f32[1,6] read
  value 1 f32[6] written
  op ReduceSum in=[0] out=[1] {axes=[0], keepdims=0}
program 2 label="B own" args=3
  value 0 f32[3] read
  value 1 f32[3] read
  value 2 f32[3] written
  op Mul in=[0,1] out=[2]
program 3 label="U" args=2
  value 0 f32[3] read
  value 1 f32[3] read written
  op Sub in=[1,0] out=[1]
body
  0 input label="input x" args=[1] input="x" count=2
  1 own_part label="samples" args=[1,2] group=1 micro=0 dim=0
  2 compute label="F" program=0 args=[2,3] pass="F" micro=0
  3 own_part label="columns" args=[3,4] group=0 micro=0 dim=1
  4 compute label="B" program=1 args=[4,5] pass="B" micro=0
  5 reduce_scatter label="blocks" args=[5,6] group=1 micro=0 dim=0
  6 compute label="B own" program=2 args=[6,0,7] pass="B" micro=0
    contribution arg=2 count=2
  7 compute label="U" program=3 args=[7,0] pass="U"
    sum_read
)");

TEST(VerifyLayout, WhatIsCutAnewWasNotCutBefore) {
  EXPECT_EQ(said(kBlocksOfBlocks, {}), Said());
  EXPECT_EQ(
      refused(kBlocksOfBlocks, {{{"cuts=[S0@0,S0@1]", "cuts=[S0@1,S0@0]"}}}),
      "layout: over 'a', 'B own' on rank 0 (and 3 like it) cannot do op 0, Mul, of f32[3] cut "
      "at dim 0, f32[3] cut at dim 0: which cannot be computed from such parts");
}

TEST(VerifyLayout, TermsAreAddedUpOnce) {
  EXPECT_EQ(
      refused(kColumnsAndRows,
              {{{"  3 compute label=\"B\"",
                 "  3 all_reduce args=[7] group=0 micro=0\n  4 compute label=\"B\""},
                {"  4 all_reduce", "  5 all_reduce"},
                {"  5 compute", "  6 compute"},
                {"  6 compute label=\"U\"", "  7 compute label=\"U\""}},
               {{"2 all_reduce label=\"sum y\" args=[7]", "2 all_reduce args=[5]"}},
               {{"4 all_reduce label=\"sum da\" args=[8]", "4 all_reduce args=[5]"}},
               {{"args=[8] group=0 micro=0", "args=[8] group=0 micro=0 max"}},
               {{"args=[7] group=0 micro=0", "args=[7] group=0 micro=0 max"}}}),
      "layout: over 'tp', 'sum y' on rank 0 (and 1 like it) cannot take the maximum of 'y@0', "
      "terms of a sum");
  // A bias that each rank adds.
  EXPECT_EQ(
      refused(
          kColumnsAndRows,
          {{{"program 0 label=\"F\" args=7", "program 0 label=\"F\" args=8"},
            {"  value 6 f32[2,4] written\n",
             "  value 6 f32[2,4] written\n  value 7 f32[4] read\n  value 8 f32[2,4]\n"},
            {"op MatMul in=[5,3] out=[6]", "op MatMul in=[5,3] out=[8]\n  op Add in=[8,7] out=[6]"},
            {"args=[4,2,0,1,5,6,7]", "args=[4,2,0,1,5,6,7,3]"}}}),
      "layout: over 'tp', 'F' on rank 0 (and 1 like it) cannot do op 3, Add, of f32[2,4] "
      "terms of a sum, f32[4] whole: which is not linear in its terms: sum them "
      "before");
}

const char* const kSumY = "  2 all_reduce label=\"sum y\" args=[7] group=0 micro=0\n";
const char* const kSumDa = "  4 all_reduce label=\"sum da\" args=[8] group=0 micro=0\n";

// The text without an instruction, the ones behind it numbered anew.
std::string without(std::string text, const std::string& line) {
  text = edited(std::move(text), {{line, ""}});
  for (int64_t i = std::stoll(line); i < 20; ++i) {
    const size_t at = text.find(fmt::format("\n  {} ", i + 1), text.find("body\n"));
    if (at != text.npos)
      text.replace(at, fmt::format("\n  {} ", i + 1).size(), fmt::format("\n  {} ", i));
  }
  return text;
}

TEST(VerifyLayout, NoSumIsLeftOut) {
  EXPECT_EQ(refused(without(kColumnsAndRows, kSumY), {{}}),
            "layout: over 'tp', 'B' on rank 0 (and 1 like it) cannot do op 0, Add, of f32[2,4] "
            "terms of a sum, f32[4] whole: which is not linear in its terms: sum them "
            "before");
  EXPECT_EQ(refused(without(kColumnsAndRows, kSumDa), {{}}),
            "layout: over 'tp', 'U' on rank 0 (and 1 like it) cannot do op 2, Sub, of f32[4] "
            "whole, f32[4] terms of a sum: which is not linear in its terms: sum them "
            "before");
  for (const char* line : {"  1 own_part label=\"own x\" args=[3,4] group=0 dim=1\n",
                           "  3 all_gather label=\"gather a\" args=[5,6] group=0 micro=0 dim=1\n",
                           "  11 all_reduce label=\"sum gs\" args=[16] group=0\n"})
    EXPECT_NE(findings_of(set_of({without(kTokens, line)}, 2)), Said()) << line;
  refused(without(kTokens, "  11 all_reduce label=\"sum gs\" args=[16] group=0\n"), {{}});
}

TEST(VerifyLayout, CollectivesNameTheBlocksThatRanksHave) {
  refused(
      kTokens,
      {{{"[5,6] group=0 micro=0 dim=1", "[5,6] group=0 micro=0 dim=1 outer=2"}},
       {{"[3,4] group=0 dim=1", "[3,4] group=0 dim=1 outer=2"}},
       {{"[8,9] group=0 micro=0 dim=1", "[8,9] group=0 micro=0 dim=1 outer=2"}},
       {{"5 reduce_scatter label=\"scatter y\" args=[8,9] group=0 micro=0 dim=1",
         "5 own_part label=\"own y\" args=[8,9] group=0 dim=1"}},
       {{"1 own_part label=\"own x\" args=[3,4] group=0 dim=1",
         "1 reduce_scatter label=\"scatter x\" args=[3,4] group=0 micro=0 dim=1"}},
       {{"11 all_reduce label=\"sum gs\" args=[16]", "11 all_reduce label=\"sum gs\" args=[14]"}}});
  EXPECT_EQ(refused(kTokens,
                    {{{"[10,11] group=0 micro=0 dim=1", "[10,11] group=0 micro=0 dim=1 outer=2"}}}),
            "layout: over 'tp', 'gather dy' on rank 0 (and 1 like it) joins 'dy@0', cut at "
            "dim 1, as if it were cut at dim 1, outer 2");
}

TEST(VerifyLayout, StatesLieAsTheyAreStated) {
  refused(kColumnsAndRows, {{{"cuts=[S1@0] whole=[4,6]", "cuts=[S0@0] whole=[8,3]"}},
                            {{"cuts=[S1@0] whole=[4,6]", "cuts=[S1/3@0] whole=[4,6]"}},
                            {{" cuts=[S1@0] whole=[4,6]", ""}},
                            {{"cuts=[S0@0] whole=[6,4]", "cuts=[S1@0] whole=[3,8]"}},
                            {{" cuts=[S0@0] whole=[6,4]", ""}}});
  refused(kHeads, {{{"cuts=[S1/3@0]", "cuts=[S1@0]"}},
                   {{"cuts=[S1/3@0]", "cuts=[S1/6@0]"}},
                   {{"cuts=[S1/3@0] whole=[4,12]", "cuts=[S0@0] whole=[8,6]"}},
                   {{"{ends=[1,4,4], starts=[0,0,2]", "{ends=[1,4,3], starts=[0,0,1]"}},
                   {{"cuts=[S0@0] whole=[4,4]", "cuts=[S1@0] whole=[2,8]"}}});
  EXPECT_EQ(refused(kHeads, {{{"cuts=[S1/3@0]", "cuts=[S1@0]"}}}),
            "layout: over 'tp', 'F' on rank 0 (and 1 like it) cannot do op 1, Slice, of f32[1,4,6] "
            "cut at dim 2: which cannot be computed from such parts");
  // The gradient of a whole weight, for one of which each rank has a block.
  EXPECT_EQ(refused(kColumnsAndRows,
                    {{{"value 12 f32[2,4]\n", "value 12 f32[2,4]\n  value 13 f32[2,3]\n"},
                      {"op MatMul in=[3,11] out=[7] {trans_a=1}",
                       "op Slice in=[10] out=[13] {ends=[2,3], starts=[0,0], steps=[1,1]}\n"
                       "  op MatMul in=[3,13] out=[7] {trans_a=1}"}}}),
            "layout: over 'tp', 'U' on rank 0 (and 1 like it) cannot do op 0, Sub, of f32[4,3] cut "
            "at dim 1, f32[4,3] whole: which cannot be computed from such parts");
}

// The plan for one device that kColumnsAndRows is cut from.
PlanSet one_device_of_columns_and_rows(const Edits& more = {}) {
  return set_of(
      {edited(edited(kColumnsAndRows, more),
              {{"axis \"tp\" 2\n", "axis \"one\" 1\n"},
               {"group 0 \"tp\" axes=[0]\n", ""},
               {"workspace=[352]", "workspace=[384]"},
               {"w1\" f32[4,3] state", "w1\" f32[4,6] state"},
               {"w2\" f32[3,4] state", "w2\" f32[6,4] state"},
               {" cuts=[S1@0] whole=[4,6]", ""},
               {" cuts=[S0@0] whole=[6,4]", ""},
               {"\"h@0\" f32[2,3]", "\"h@0\" f32[2,6]"},
               {"\"g1\" f32[4,3]", "\"g1\" f32[4,6]"},
               {"\"g2\" f32[3,4]", "\"g2\" f32[6,4]"},
               {"value 2 f32[4,3] read\n  value 3 f32[3,4] read\n",
                "value 2 f32[4,6] read\n  value 3 f32[6,4] read\n"},
               {"value 5 f32[2,3] written", "value 5 f32[2,6] written"},
               {"value 2 f32[2,3] read\n", "value 2 f32[2,6] read\n"},
               {"value 4 f32[4,3] read\n  value 5 f32[3,4] read\n",
                "value 4 f32[4,6] read\n  value 5 f32[6,4] read\n"},
               {"value 7 f32[4,3] written\n  value 8 f32[3,4] written\n",
                "value 7 f32[4,6] written\n  value 8 f32[6,4] written\n"},
               {"value 11 f32[2,3]\n", "value 11 f32[2,6]\n"},
               {"value 0 f32[4,3] read\n  value 1 f32[4,3] read written\n  value 2 f32[3,4] read\n"
                "  value 3 f32[3,4] read written\n",
                "value 0 f32[4,6] read\n  value 1 f32[4,6] read written\n  value 2 f32[6,4] read\n"
                "  value 3 f32[6,4] read written\n"},
               {"  2 all_reduce label=\"sum y\" args=[7] group=0 micro=0\n", ""},
               {"  4 all_reduce label=\"sum da\" args=[8] group=0 micro=0\n", ""},
               {"  3 compute label=\"B\"", "  2 compute label=\"B\""},
               {"  5 compute label=\"B scale\"", "  3 compute label=\"B scale\""},
               {"  6 compute label=\"U\"", "  4 compute label=\"U\""}})},
      1);
}

TEST(VerifyLayout, WholeValuesAreThoseOfOneDevice) {
  const PlanSet one = one_device_of_columns_and_rows();
  ASSERT_EQ(findings_of(one, &one), Said());
  const auto beside = [&](const Edits& edits) {
    const PlanSet set = set_of({edited(kColumnsAndRows, edits)}, 2);
    const Said alone = findings_of(set), all = findings_of(set, &one);
    EXPECT_EQ(alone, Said());  // as a plan of its own it does the same on all ranks
    return all.empty() ? std::string() : all[0];
  };
  EXPECT_EQ(beside({}), "");
  EXPECT_EQ(beside({{"op Mul in=[0,1] out=[4]", "op Sub in=[0,1] out=[4]"}}),
            "single: 'B' on rank 0 (and 1 like it) adds to 'w1.grad' something else than one "
            "device does; 'F' on rank 0 (and 1 like it) is the first that does, with 'a@0'");
  EXPECT_EQ(beside({{"op Mul in=[0,1] out=[4]", "op Mul in=[0,0] out=[4]"}}).substr(0, 6),
            "single");
  EXPECT_EQ(beside({{"op Add in=[0,1] out=[12]", "op Sub in=[0,1] out=[12]"}}),
            "single: 'B' on rank 0 (and 1 like it) adds to 'w1.grad' something else than one "
            "device does; 'B' on rank 0 (and 1 like it) is the first that does, with 'da@0'");
  EXPECT_EQ(beside({{"op Sub in=[5,4] out=[5]", "op Sub in=[4,5] out=[5]"}}),
            "single: 's' on rank 0 (and 1 like it) becomes something else than on one device");
}

// Of one value in two shapes, as of the numbers of queries and keys in a mask.
TEST(VerifyLayout, WholeValuesAreBroadcastAsOnOneDevice) {
  const auto with = [](const char* difference) {
    return Edits{
        {"value 12 f32[2,4]\n",
         "value 12 f32[2,4]\n  value 13 f32[4,1]\n  value 14 f32[1,4]\n  value 15 f32[4,4]\n"
         "  value 16 f32[4]\n"},
        {"op Add in=[0,1] out=[12]",
         fmt::format("op Reshape in=[1] out=[13] {{shape=[4,1]}}\n"
                     "  op Reshape in=[1] out=[14] {{shape=[1,4]}}\n  op Sub in={} "
                     "out=[15]\n  op ReduceSum in=[15] out=[16] {{axes=[0], keepdims=0}}\n"
                     "  op Add in=[0,16] out=[12]",
                     difference)}};
  };
  const PlanSet one = one_device_of_columns_and_rows(with("[13,14]"));
  ASSERT_EQ(findings_of(one, &one), Said());
  const auto beside = [&](const char* difference) {
    return findings_of(set_of({edited(kColumnsAndRows, with(difference))}, 2), &one);
  };
  EXPECT_EQ(beside("[13,14]"), Said());
  EXPECT_NE(beside("[14,13]"), Said());
}

// Nobody has looked yet whether an op has the operands that it takes.
TEST(VerifyLayout, WholeValuesOfOperandsThatAreMissing) {
  const PlanSet one = one_device_of_columns_and_rows();
  for (const OpDef* def : all_ops())
    for (const char* rest :
         {"in=[] out=[4]", "in=[-1] out=[4]", "in=[0] out=[4] {then=\"Mul\"}",
          "in=[0,1,-1] out=[4] {accumulate=1, axis=-9, axes=[9], starts=[0,7]}"}) {
      const Edits edits{{"op Mul in=[0,1] out=[4]", fmt::format("op {} {}", def->name, rest)}};
      EXPECT_NE(findings_of(set_of({edited(kColumnsAndRows, edits)}, 2), &one), Said())
          << def->name << rest;
    }
}

}  // namespace
}  // namespace piper::verify_layout_test
