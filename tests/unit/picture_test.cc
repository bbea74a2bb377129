// Pictures from plans: what runs when, what that costs, and that no form of them is cut or broken.
#include "piper/inspect/picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "folder.h"
#include "piper/plan/flops.h"
#include "piper/planner/compile.h"

namespace piper {
namespace {

// ---- Plans by hand ------------------------------------------------------------------------------

Instruction compute(TaskPass pass, int32_t stage, int32_t micro, int32_t stream = 0) {
  Instruction one;
  one.pass = pass;
  one.stage = stage;
  one.micro = micro;
  one.stream = stream;
  one.label = fmt::format("{} stage={} mb={}", static_cast<char>(pass), stage, micro);
  return one;
}
Instruction message(InstructionKind kind, int32_t peer, int32_t communicator, int32_t stream = 0) {
  Instruction one;
  one.kind = kind;
  one.pass = TaskPass::kMove;
  one.peer = {peer};
  one.communicator = communicator;
  one.stream = stream;
  one.label = fmt::format("{} of {}", to_string(kind), communicator);
  return one;
}
constexpr auto kSend = InstructionKind::kSend, kRecv = InstructionKind::kRecv;

// A role a rank, on an axis "pp".
PlanSet plans_of(std::vector<std::vector<Instruction>> bodies) {
  PlanSet set;
  for (auto& body : bodies) {
    set.role_of_rank.push_back(static_cast<int32_t>(set.roles.size()));
    RoleProgram& role = set.roles.emplace_back();
    role.mesh = {{"pp", static_cast<int64_t>(bodies.size())}};
    role.streams = {{"compute"}, {"side"}, {"overlap"}};
    role.body = std::move(body);
  }
  return set;
}

PlanSet one_forward_one_backward() {
  std::vector<std::vector<Instruction>> bodies(2);
  for (int32_t r = 0; r < 2; ++r) {
    const char* order = r == 0 ? "F0F1B0F2B1F3B2B3" : "F0B0F1B1F2B2F3B3";
    for (const char* at = order; *at != '\0'; at += 2) {
      const int32_t communicator = *at == 'F' ? 0 : 1;
      const bool receives = (*at == 'F') == (r == 1);
      if (receives) bodies[r].push_back(message(kRecv, 1 - r, communicator));
      for (int part = 0; part < 2; ++part)
        bodies[r].push_back(compute(static_cast<TaskPass>(*at), r, at[1] - '0'));
      if (!receives) bodies[r].push_back(message(kSend, 1 - r, communicator));
    }
  }
  return plans_of(bodies);
}

Picture units(const PlanSet& set) {
  auto picture = make_picture(set, PictureCosts::kUnits);
  EXPECT_TRUE(picture) << (picture ? "" : print_error(picture.error()));
  return picture ? *std::move(picture) : Picture{};
}
// "F0@0+1 B0@3+2": label, start and length.
std::string cells_of(const PictureRow& row) {
  std::string text;
  for (const PictureCell& cell : row.cells)
    text += fmt::format("{}{}@{:.4g}+{:.4g}",
                        text.empty()  ? ""
                        : cell.second ? "&"
                                      : " ",
                        cell.label, cell.start, cell.length);
  return text;
}

TEST(Picture, OneForwardOneBackward) {
  EXPECT_EQ(
      draw_text(units(one_forward_one_backward()), {}),
      "rank   idle  time ->\n"
      "   0   20 %  F0 F1 .. .. B0=== F2 B1=== F3 B2=== .. B3===\n"
      "   1   20 %  .. F0 B0=== F1 B1=== F2 B2=== F3 B3=== .. ..\n"
      "      F forward 1, B backward 2 (I its input part 1, W its weight part 1), .. idle 20 %\n");
}

TEST(Picture, GoesOnBelowWhereLinesEnd) {
  const Picture picture = units(one_forward_one_backward());
  EXPECT_EQ(draw_text(picture, {.width = 40}),
            "rank   idle  time ->\n"
            "   0   20 %  F0 F1 .. .. B0=== F2 B1===\n"
            "   1   20 %  .. F0 B0=== F1 B1=== F2 B2=\n"
            "\n"
            "rank   idle  from 9 units ->\n"
            "   0   20 %  F3 B2=== .. B3===\n"
            "   1   20 %  == F3 B3=== .. ..\n"
            "      F forward 1, B backward 2 (I its input part 1, W its weight part 1), .. idle 20 "
            "%\n");
}

TEST(Picture, ColoursEndWhereTheyBegan) {
  const std::string text = draw_text(units(one_forward_one_backward()), {.colour = true});
  EXPECT_NE(text.find("\x1b[44;97mF0\x1b[0m \x1b[44;97mF1\x1b[0m .. "), text.npos) << text;
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    text[i] == '\x1b' ? void(i = text.find('m', i)) : plain.push_back(text[i]);
  EXPECT_EQ(plain, draw_text(units(one_forward_one_backward()), {}));
}

// What another stream waits for keeps nobody else waiting but those that wait for it.
TEST(Picture, StreamsWaitOnlyWhereThePlanSaysSo) {
  for (const int32_t stream : {0, 1}) {
    Instruction last = compute(TaskPass::kB, 1, 0);
    last.waits = {1};
    const PlanSet set =
        plans_of({{compute(TaskPass::kF, 0, 0), compute(TaskPass::kF, 0, 1), message(kSend, 1, 0)},
                  {compute(TaskPass::kF, 1, 0), message(kRecv, 0, 0, stream),
                   compute(TaskPass::kF, 1, 1), last}});
    EXPECT_EQ(cells_of(units(set).rows[1]),
              stream == 0 ? "F0@0+1 F1@2+1 B0@3+2" : "F0@0+1 F1@1+1 B0@2+2");
  }
  Instruction late = compute(TaskPass::kB, 1, 0);
  late.waits = {1};
  const PlanSet set = plans_of(
      {{compute(TaskPass::kB, 0, 0), compute(TaskPass::kB, 0, 1), message(kSend, 1, 0)},
       {compute(TaskPass::kF, 1, 0), message(kRecv, 0, 0, 1), compute(TaskPass::kF, 1, 1), late}});
  EXPECT_EQ(cells_of(units(set).rows[1]), "F0@0+1 F1@1+1 B0@4+2");
}

// On streams of their own computations still share the device.
TEST(Picture, ADeviceDoesOneComputationAtATime) {
  const PlanSet set =
      plans_of({{compute(TaskPass::kF, 0, 0), message(kSend, 1, 0), compute(TaskPass::kF, 0, 1)},
                {message(kRecv, 0, 0), compute(TaskPass::kB, 1, 0), compute(TaskPass::kF, 1, 1, 1),
                 compute(TaskPass::kF, 1, 2, 1)}});
  EXPECT_EQ(cells_of(units(set).rows[1]), "F1@0+1 B0@1+2 F2@3+1");
}

TEST(Picture, PairsBeginAndEndTogether) {
  const PlanSet set = plans_of(
      {{compute(TaskPass::kF, 0, 0), message(kSend, 1, 0)},
       {compute(TaskPass::kF, 1, 1), compute(TaskPass::kF, 1, 2), compute(TaskPass::kBI, 1, 0, 2),
        compute(TaskPass::kBW, 1, 0, 2), message(kRecv, 0, 0), compute(TaskPass::kF, 1, 3)}});
  const Picture picture = units(set);
  EXPECT_EQ(cells_of(picture.rows[1]), "F1@0+1 F2@1+3&I0@1+1.5&W0@2.5+1.5 F3@4+1");
  EXPECT_DOUBLE_EQ(picture.rows[1].idle, 0);
  EXPECT_NE(draw_text(picture, {}).find(" F1 F2&I0+W0 F3\n"), std::string::npos)
      << draw_text(picture, {});
}

// A half that waits for another device in front of its last step leaves all of the device to the
// other half, and has all of it once that has ended.
TEST(Picture, AHalfWhosePartnerWaitsHasTheDevice) {
  Instruction late = compute(TaskPass::kBW, 1, 0, 2);
  late.waits = {4};
  const std::vector<Instruction> waits{compute(TaskPass::kB, 1, 2), compute(TaskPass::kB, 1, 2),
                                       compute(TaskPass::kB, 1, 2), compute(TaskPass::kBI, 1, 0, 2),
                                       message(kRecv, 0, 0, 1),     late};
  for (const auto& [sent, drawn] : {std::pair(1, "B2@0+4&I0@0+2&W0@2+2"),
                                    {3, "B2@0+3&I0@0+2&W0@3+1"},
                                    {5, "B2@0+3&I0@0+2&W0@5+1"}}) {
    std::vector<Instruction> other;
    for (int32_t micro = 0; micro < sent; ++micro) other.push_back(compute(TaskPass::kF, 0, micro));
    other.push_back(message(kSend, 1, 0));
    EXPECT_EQ(cells_of(units(plans_of({other, waits})).rows[1]), drawn) << sent;
  }
}

// Another device may pass the first half's result on to the second: legal, for a device that works
// in issue order, and then one after the other.
TEST(Picture, APairWhoseHalvesNeedEachOtherIsNone) {
  Instruction back = compute(TaskPass::kB, 0, 0, 2);
  back.waits = {2};
  Instruction there = message(kSend, 1, 0, 1);
  there.waits = {0};
  const PlanSet set =
      plans_of({{compute(TaskPass::kF, 0, 0), there, message(kRecv, 1, 1, 1), back},
                {message(kRecv, 0, 0), compute(TaskPass::kF, 1, 0), message(kSend, 0, 1)}});
  EXPECT_EQ(cells_of(units(set).rows[0]), "F0@0+1 B0@2+2");
}

TEST(Picture, CollectivesEndWhenAllHaveCome) {
  Instruction sum;
  sum.kind = InstructionKind::kAllReduce;
  sum.group = 0;
  PlanSet set = plans_of({{compute(TaskPass::kF, 0, 0), sum, compute(TaskPass::kF, 0, 1)},
                          {compute(TaskPass::kB, 1, 0), sum, compute(TaskPass::kF, 1, 1)}});
  for (RoleProgram& role : set.roles) role.groups = {{"pp", {0}}};
  EXPECT_EQ(cells_of(units(set).rows[0]), "F0@0+1 F1@2+1");
  EXPECT_EQ(cells_of(units(set).rows[1]), "B0@0+2 F1@2+1");
}

// Ranks on placed axes may run one role, and each has its own peers.
TEST(Picture, RanksOfOneRoleAreRowsWhereTheirPeersDiffer) {
  PlanSet set =
      plans_of({{compute(TaskPass::kF, 0, 0), message(kSend, 2, 0)},
                {},
                {message(kRecv, 0, 0), message(kRecv, 1, 0), compute(TaskPass::kF, 2, 0)}});
  set.role_of_rank = {0, 0, 2};
  const Picture picture = units(set);
  ASSERT_EQ(picture.rows.size(), 3u);
  EXPECT_EQ(cells_of(picture.rows[2]), "F0@1+1");
}

TEST(Picture, ReplicasAreOneRow) {
  PlanSet set = plans_of({{compute(TaskPass::kF, 0, 0)}, {compute(TaskPass::kB, 1, 0)}});
  for (RoleProgram& role : set.roles) role.mesh = {{"pp", 2}, {"dp", 8}};
  set.role_of_rank.assign(16, 0);
  std::fill(set.role_of_rank.begin() + 8, set.role_of_rank.end(), 1);
  EXPECT_EQ(draw_text(units(set), {}).substr(0, 120),
            "       rank   idle  time ->\n"
            "0,1,2,3,4+3   50 %  F0 ..\n"
            "8,9,10,11+4    0 %  B0===\n"
            "             F forward 1, B backward 2 (");
}

TEST(Picture, WhatWaitsForEverIsNamed) {
  const PlanSet set = plans_of(
      {{compute(TaskPass::kF, 0, 0)}, {message(kRecv, 0, 7), compute(TaskPass::kF, 1, 0)}});
  const auto picture = make_picture(set, PictureCosts::kUnits);
  ASSERT_FALSE(picture);
  EXPECT_EQ(picture.error().message,
            "the schedule cannot be followed: rank 1 waits for ever in 'recv of 7' (recv)");
  PlanSet alone = set;
  alone.roles[1] = {};
  EXPECT_FALSE(make_picture(alone, PictureCosts::kUnits));
}

// ---- Costs --------------------------------------------------------------------------------------

Compiled compiled(const std::string& strategy,
                  const std::string& model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx") {
  const Folder folder;
  CompileOptions options;
  options.model = model;
  options.strategy = folder.write("strategy.yaml", strategy);
  options.oracles = false;
  auto made = compile(options);
  EXPECT_TRUE(made) << (made ? "" : print_error(made.error()));
  return made ? *std::move(made) : Compiled{};
}
std::string strategy_text(std::string_view file, std::string_view params,
                          std::string_view more = "") {
  return fmt::format(
      "piper: 1\ninclude: {}/strategies/{}.yaml\nparams: {{{}}}\n"
      "train: {{optimizer: {{adamw: {{lr: 3e-4}}}}, global_batch: 8, clip_norm: 1.0}}\n{}",
      PIPER_SOURCE_DIR, file, params, more);
}
double flops_of(const RoleProgram& role, std::string_view passes = "FBIWU-") {
  const auto flops = program_flops(role);
  EXPECT_TRUE(flops) << (flops ? "" : print_error(flops.error()));
  double sum = 0;
  for (const Instruction& one : role.body)
    if (flops && one.kind == InstructionKind::kCompute &&
        passes.find(static_cast<char>(one.pass)) != passes.npos)
      sum += (*flops)[static_cast<size_t>(one.program)];
  return sum;
}

// A forward multiplies every matrix with every token, and does little else.
TEST(Flops, AreThoseOfTheProducts) {
  const Compiled made = compiled(strategy_text("1f1b", "stages: 2, microbatches: 4"));
  std::map<std::string, int64_t> matrices;
  double forward = 0, backward = 0;
  for (const RoleProgram& role : made.set.roles) {
    forward += flops_of(role, "F");
    backward += flops_of(role, "B");
    for (const Tensor& tensor : role.tensors)
      if (tensor.kind == BufferKind::kState && !tensor.param.empty() &&
          tensor.type.shape.size() == 2 && tensor.param.find("wpe") == tensor.param.npos)
        matrices[tensor.param] = num_elements(tensor.type.shape);
  }
  double products = 0;
  for (const auto& [name, elements] : matrices) products += 2.0 * 8 * 128 * elements;
  EXPECT_GT(forward / products, 1);
  EXPECT_LT(forward / products, 1.4);
  EXPECT_NEAR(backward / forward, 2, 0.1);
}

TEST(Flops, OfWhatIsNotKnownAreErrors) {
  RoleProgram role = compiled(strategy_text("ddp", "")).set.roles.at(0);
  ASSERT_TRUE(program_flops(role));
  const auto broken = [&](std::string_view op, auto change) {
    for (Program program : role.programs)
      for (size_t o = 0; o < program.ops.size(); ++o) {
        if (program.ops[o].op != op) continue;
        change(program, program.ops[o]);
        return !program_flops(program);
      }
    ADD_FAILURE() << "no " << op;
    return false;
  };
  EXPECT_TRUE(broken("MatMul", [](Program&, ProgramOp& op) { op.op = "Unheard"; }));
  EXPECT_TRUE(broken("MatMul", [](Program&, ProgramOp& op) { op.inputs.resize(1); }));
  EXPECT_TRUE(broken("MatMul", [](Program& program, ProgramOp& op) {
    program.values[static_cast<size_t>(op.inputs[0])].shape.back() += 1;
  }));
  EXPECT_TRUE(broken("Attention",
                     [](Program&, ProgramOp& op) { op.attrs.set("causal", std::string("yes")); }));
  EXPECT_TRUE(broken("AttentionGrad", [](Program&, ProgramOp& op) { op.inputs.resize(2); }));
}

// The cells of one pass and microbatch on a row, together.
double work_of(const PictureRow& row, TaskPass pass, int32_t micro) {
  double work = 0;
  for (const PictureCell& cell : row.cells)
    if (cell.pass == pass && cell.micro == micro) work += cell.work;
  return work;
}
Picture flops(const PlanSet& set) {
  auto picture = make_picture(set, PictureCosts::kFlops);
  EXPECT_TRUE(picture) << (picture ? "" : print_error(picture.error()));
  return picture ? *std::move(picture) : Picture{};
}

TEST(Picture, RecomputationLengthensABackward) {
  const std::string params = "stages: 2, microbatches: 4";
  const Picture kept = flops(compiled(strategy_text("1f1b", params)).set);
  const Picture again =
      flops(compiled(strategy_text(
                         "1f1b", params,
                         "directives: [recompute: {match: '**/h/{layer}/**', where: {stage: 0}}]"))
                .set);
  for (const auto& [row, more] : {std::pair(size_t{0}, 0.6), {size_t{1}, 0.0}}) {
    const double forward = work_of(kept.rows[row], TaskPass::kF, 1);
    EXPECT_NEAR(work_of(again.rows[row], TaskPass::kF, 1), forward,
                forward * 2e-2);  // slopes are not kept
    const double longer =
        work_of(again.rows[row], TaskPass::kB, 1) - work_of(kept.rows[row], TaskPass::kB, 1);
    EXPECT_GE(longer, forward * more - forward * 1e-3);
    EXPECT_LE(longer, forward * (more > 0 ? 1.0 : 0.0) + forward * 1e-3);
  }
  EXPECT_GT(again.length, kept.length);
  EXPECT_EQ(cells_of(units(compiled(strategy_text("1f1b", params)).set).rows[0]),
            "F0@0+1 F1@1+1 B0@4+2 F2@6+1 B1@7+2 F3@9+1 B2@10+2 B3@13+2");
}

// A stage of one layer waits for a stage of three.
TEST(Picture, UnevenStagesAreIdleForWhatTheyLack) {
  const std::string text =
      "piper: 1\nmesh: {pp: 2}\n"
      "train: {optimizer: {sgd: {lr: 0.1}}, global_batch: 8}\n"
      "annotate:\n  - {match: '**/h/{layer}/**', tags: {stage: 'layer > 0 ? 1 : 0'}}\n"
      "directives:\n  - split: {dim: batch, into: 4}\n"
      "  - place: {where: {stage: s}, on: {pp: s}}\n";
  const Compiled made = compiled(text);
  ASSERT_EQ(made.set.roles.size(), 2u);
  const Picture picture = flops(made.set);
  const double ratio = flops_of(made.set.roles[0]) / flops_of(made.set.roles[1]);
  EXPECT_LT(ratio, 0.5);
  EXPECT_NEAR((1 - picture.rows[0].idle) / (1 - picture.rows[1].idle), ratio, 0.02);
  EXPECT_GT(picture.rows[0].idle, 0.5);
  const std::string drawn = draw_text(picture, {.width = 100});
  EXPECT_NE(drawn.find("costs: the FLOPs of what a task runs, "), drawn.npos) << drawn;
}

// ---- Forms --------------------------------------------------------------------------------------

PlanSet long_pipeline(int32_t microbatches) {
  std::vector<Instruction> body;
  for (int32_t m = 0; m < microbatches; ++m) body.push_back(compute(TaskPass::kF, 0, m));
  for (int32_t m = 0; m < microbatches; ++m) body.push_back(compute(TaskPass::kB, 0, m));
  return plans_of({body});
}

TEST(Picture, LongOnesAreWhole) {
  const Picture picture = units(long_pipeline(256));
  const std::string whole = draw_text(picture, {});
  for (int m = 0; m < 256; ++m) {
    EXPECT_NE(whole.find(fmt::format("F{}{}", m, m < 100 ? '=' : ' ')), whole.npos) << m;
    EXPECT_NE(whole.find(fmt::format("B{}=", m)), whole.npos) << m;
  }
  for (const size_t width : {0, 1, 41, 100, 255, 100000}) {
    std::string joined, row;
    for (const std::string& line : split_text(draw_text(picture, {.width = width}), '\n')) {
      if (line.starts_with("   0 ")) row += line.substr(13) + " ";
      if (width >= 40 && !line.starts_with("     ")) {
        EXPECT_LE(line.size(), width);
      }
    }
    std::erase(row, ' ');
    for (const char c : whole.substr(whole.find("F0"), whole.find("\n      ") - whole.find("F0")))
      if (c != ' ') joined += c;
    EXPECT_EQ(row, joined) << width;
  }
}

// One program may cost a billion times what the others do.
TEST(Picture, OneLongTaskDoesNotMakeItEndless) {
  PlanSet set = long_pipeline(4);
  Program program;
  program.values.assign(3, {DType::kF32, {1}});
  program.num_args = 3;
  program.ops = {{"Add", {}, {0, 1}, {2}}};
  set.roles[0].programs = {program, program};
  for (TensorType& type : set.roles[0].programs[1].values) type.shape = {1 << 30};
  for (Instruction& one : set.roles[0].body) one.program = 0;
  set.roles[0].body[2].program = 1;
  const Picture picture = flops(set);
  EXPECT_LT(draw_text(picture, {}).size(), 10000u);
  EXPECT_LT(draw_svg(picture, "").size(), 10000u);
  EXPECT_NE(draw_text(picture, {}).find("7 pieces of less than half a column"), std::string::npos)
      << draw_text(picture, {});
}

// Whether the text is well-formed XML of the kind that is written here; where not.
std::string broken_at(const std::string& text) {
  std::vector<std::string> open;
  int roots = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '&' && text.compare(i, 5, "&amp;") != 0 && text.compare(i, 4, "&lt;") != 0 &&
        text.compare(i, 4, "&gt;") != 0 && text.compare(i, 6, "&quot;") != 0)
      return text.substr(i, 40);
    if (text[i] != '<') {
      const auto c = static_cast<unsigned char>(text[i]);
      if (text[i] == '>' || (c < 0x20 && c != '\n') || (open.empty() && c != '\n'))
        return text.substr(i, 40);
      ++i;
      continue;
    }
    const size_t end = text.find('>', i);
    if (end == text.npos) return text.substr(i, 40);
    std::string tag = text.substr(i + 1, end - i - 1);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return text.substr(i, 40);
      open.pop_back();
    } else {
      if (tag.find('<') != tag.npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0)
        return text.substr(i, 40);
      roots += open.empty() ? 1 : 0;
      if (!tag.ends_with('/')) open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end + 1;
  }
  return open.empty() && roots == 1 ? "" : "the end";
}

// The number behind a word of a tag.
double number_in(const std::string& tag, std::string_view word, double otherwise) {
  const size_t at = tag.find(word);
  return at == tag.npos ? otherwise : std::strtod(tag.c_str() + at + word.size(), nullptr);
}

// Of the text that stands in a tag of an image: where it begins and ends.
std::pair<double, double> extent_of(const std::string& image, size_t at) {
  const std::string tag = image.substr(at, image.find('>', at) - at);
  const size_t begin = at + tag.size() + 1;
  const auto letters = static_cast<double>(image.find("</text>", begin) - begin);
  const double x = number_in(tag, " x=\"", 0);
  return {x, x + letters * 0.6 * number_in(tag, "font-size: ", 12)};
}

// Labels stay in their cells, however short these are, and heads of rows before all cells.
TEST(Picture, LabelsDoNotRunUnderCells) {
  PlanSet set = one_forward_one_backward();
  const std::string image = draw_svg(units(set), "");
  const size_t idle = image.find("<rect class=\"idle\"");
  const double left = number_in(image.substr(idle, 100), " x=\"", 0);
  int heads = 0, labels = 0, cells = 0;
  for (size_t at = image.find("<text", idle - 200); at != image.npos;
       at = image.find("<text", at + 1)) {
    const size_t next = image.find('\n', at) + 1;
    if (image.compare(next, 18, "<rect class=\"idle\"") != 0) continue;
    ++heads;
    EXPECT_LT(extent_of(image, at).second, left) << image.substr(at, 80);
  }
  for (size_t at = image.find("<g>"); at != image.npos; at = image.find("<g>", at + 1)) {
    ++cells;
    const std::string cell = image.substr(at, image.find("</g>", at) - at);
    const size_t rect = cell.find("<rect"), text = cell.find("<text");
    if (text == cell.npos) continue;
    ++labels;
    const double x = number_in(cell.substr(rect), " x=\"", 0),
                 width = number_in(cell.substr(rect), "width=\"", 0);
    EXPECT_GE(extent_of(cell, text).first, x) << cell;
    EXPECT_LE(extent_of(cell, text).second, x + width) << cell;
  }
  EXPECT_EQ(heads, 2);
  EXPECT_EQ(labels, cells);
  EXPECT_GT(cells, 8);
}

TEST(Picture, TheLegendHasTheColoursOfTheCells) {
  Picture picture = units(one_forward_one_backward());
  const std::string named = ">again</text>";
  EXPECT_EQ(draw_svg(picture, "").find(named), std::string::npos);
  picture.rows[0].cells[0].pass = TaskPass::kR;
  EXPECT_NE(draw_svg(picture, "").find(named), std::string::npos);
}

TEST(Picture, ImagesAreWellFormed) {
  PlanSet set = one_forward_one_backward();
  for (const int part : {0, 1}) set.roles[0].body[part].label = "F <&\">\x01\xff";
  const Picture picture = units(set);
  const std::string image = draw_svg(picture, "a < b & \"c\"");
  EXPECT_EQ(broken_at(image), "") << image;
  EXPECT_NE(image.find("a &lt; b &amp; &quot;c&quot;</title>"), image.npos);
  EXPECT_NE(image.find("<title>F stage=0 mb=1: 1 unit, from 1 unit</title>"), image.npos) << image;
  const auto count = [&](std::string_view word) {
    int found = 0;
    for (size_t at = image.find(word); at != image.npos; at = image.find(word, at + 1)) ++found;
    return found;
  };
  // Cells of both rows, and one in the legend.
  EXPECT_EQ(count("class=\"cell F\""), 9);
  EXPECT_EQ(count("class=\"cell B\""), 9);
  EXPECT_NE(broken_at("<svg><g></svg>"), "");
  EXPECT_NE(broken_at("<svg>a & b</svg>"), "");
}

}  // namespace
}  // namespace piper
