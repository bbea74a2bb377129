// The texts of kernels, as NVRTC compiles them: without warnings, and within the registers of a
// thread. Skipped where there is no NVRTC.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "folder.h"
#include "nvrtc.h"
#include "piper/devices/cuda_kernels.h"
#include "piper/devices/program.h"
#include "piper/ir/signatures.h"
#include "piper/planner/compile.h"

namespace piper {
namespace {

std::string source(const std::string& path) { return std::string(PIPER_SOURCE_DIR) + "/" + path; }

// The programs of the sample model in bf16, trained on one device.
std::vector<Program> programs_of_sample() {
  const Folder folder;
  const std::string text =
      "piper: 1\ntrain:\n  global_batch: 64\n  optimizer: {adamw: {lr: 1e-3}}\n  clip_norm: 1\n"
      "directives:\n  - precision: {compute: bf16}\n";
  const auto compiled = compile({.model = source("samples/gpt/model.onnx"),
                                 .strategy = folder.write("strategy.yaml", text),
                                 .target = "cuda",
                                 .oracles = false});
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  return compiled ? compiled->set.roles[0].programs : std::vector<Program>();
}

// Each architecture for which the texts are written; sm_90a is the one that they are tuned for.
constexpr const char* kArchitectures[] = {"sm_80", "sm_90a", "sm_100", "sm_120"};

// Accesses of 32 bytes, which newer devices have.
size_t accesses_of_32_bytes(const std::string& assembly) {
  size_t count = 0;
  for (const std::string& line : split_text(assembly, '\n')) {
    if (line.find("ld.global") == std::string::npos && line.find("st.global") == std::string::npos)
      continue;
    const bool has_64_bits =
        line.find("64 ") != std::string::npos || line.find("64\t") != std::string::npos;
    count += line.find(".v8") != std::string::npos ||
             (line.find(".v4") != std::string::npos && has_64_bits);
  }
  return count;
}

// All ops of the sample have kernels; a thread keeps all it has in registers, but for a few bytes,
// and accesses 16 bytes at most.
TEST(Texts, OfTheSampleCompileWithinRegisters) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  size_t kernels = 0;
  for (const Program& program : programs_of_sample()) {
    const auto made = device_program(program);
    ASSERT_TRUE(made) << program.label << ": " << print_error(made.error());
    if (made->source.empty()) continue;
    for (const char* arch : kArchitectures) {
      SCOPED_TRACE(program.label + " for " + arch);
      const auto binary = nvrtc->compile(made->source, arch);
      ASSERT_TRUE(binary.ok) << binary.log;
      EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
      EXPECT_NE(binary.assembly.find("ld.global"), std::string::npos);
      EXPECT_EQ(accesses_of_32_bytes(binary.assembly), 0u);
      const auto costs = costs_of(binary.cubin);
      for (const DeviceKernel& kernel : made->kernels) {
        const auto cost = costs.find(kernel.name);
        ASSERT_NE(cost, costs.end()) << kernel.name;
        EXPECT_GT(cost->second.registers, 0u);
        EXPECT_LE(cost->second.registers, 128u) << kernel.name << "\n" << made->source;
        EXPECT_LE(cost->second.frame_bytes, 16u) << kernel.name << "\n" << made->source;
        ++kernels;
      }
    }
  }
  EXPECT_GT(kernels, 20u);
}

// A program's operands, each an argument.
struct Arguments {
  Program program;
  int32_t add(DType of, const Shape& shape, bool is_read = true) {
    program.values.push_back({of, shape});
    program.arg_read.push_back(is_read);
    program.arg_written.push_back(!is_read);
    return program.num_args++;
  }
};

// Experts' products of rows of k with matrices k × n, and their gradients, in this type.
Program experts(DType type, int64_t k, int64_t n) {
  Arguments args;
  constexpr int64_t kRows = 16384, kGroups = 8;
  const int32_t x = args.add(type, {kRows, k}), index = args.add(DType::kI64, {kRows});
  const int32_t w = args.add(type, {kGroups, k, n}), y = args.add(type, {kRows, n}, false);
  const int32_t dy = args.add(type, {kRows, n}), dx = args.add(type, {kRows, k}, false);
  const int32_t dw = args.add(type, {kGroups, k, n}, false);
  const Attrs plain{{"trans_b", int64_t{0}}}, trans{{"trans_b", int64_t{1}}};
  args.program.ops.push_back({"GroupedMatMul", plain, {x, index, w}, {y}});
  args.program.ops.push_back({"GroupedMatMul", trans, {dy, index, w}, {dx}});
  args.program.ops.push_back(
      {"GroupedMatMulGrad", {{"trans_b", int64_t{0}}, {"groups", kGroups}}, {x, index, dy}, {dw}});
  return args.program;
}

// Causal attention of 1,024 tokens and its gradients: plain, of parts of a ring, or with a mask.
struct AttentionForm {
  int64_t width;
  enum Kind { kPlain, kRing, kMasked } kind;
};
Program attention(const AttentionForm& form) {
  Arguments args;
  constexpr DType kType = DType::kBF16;
  const Shape all{2, 1024, 12, form.width};
  std::vector<int32_t> inputs, others, gradients;
  for (int i = 0; i < 3; ++i) inputs.push_back(args.add(kType, all));
  if (form.kind == AttentionForm::kMasked) others = {args.add(DType::kBool, {2, 1, 1024, 1024})};
  if (form.kind == AttentionForm::kRing)
    others = {-1, args.add(DType::kI64, {2}), args.add(DType::kI64, {2})};
  const int32_t y = args.add(kType, all, false), lse = args.add(DType::kF32, {2, 12, 1024}, false);
  for (int i = 0; i < 3; ++i) gradients.push_back(args.add(kType, all, false));
  Attrs attrs{{"tokens_first", Shape{1, 1, 1, 1}},
              {"scale", 0.125},
              {"causal", int64_t{1}},
              {"offset", int64_t{1}}};  // which no library takes
  std::vector<int32_t> of_gradient{inputs[0], inputs[1], inputs[2], y, lse, args.add(kType, all)};
  for (std::vector<int32_t>* each : {&inputs, &of_gradient})
    each->insert(each->end(), others.begin(), others.end());
  args.program.ops.push_back({"Attention", attrs, inputs, {y, lse}});
  args.program.ops.push_back({"AttentionGrad", attrs, of_gradient, gradients});
  return args.program;
}

// Blocks of 128 threads that have at most 255 registers each, and 40 KiB of shared memory: two of
// them fit a multiprocessor. Only elements that are brought one by one may take a few bytes more.
TEST(Texts, OfExpertsFitTwiceOnAMultiprocessor) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const bool is_odd : {false, true}) {
    const auto made = device_program(is_odd ? experts(DType::kF16, 4095, 14335)
                                            : experts(DType::kBF16, 4096, 14336));
    ASSERT_TRUE(made) << print_error(made.error());
    for (const std::string_view arch : kArchitectures) {
      if (is_odd && arch != "sm_90a") continue;
      SCOPED_TRACE(fmt::format("{} for {}", is_odd ? "odd" : "even", arch));
      const auto binary = nvrtc->compile(made->source, std::string(arch));
      ASSERT_TRUE(binary.ok) << binary.log;
      EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
      const auto costs = costs_of(binary.cubin);
      for (const DeviceKernel& kernel : made->kernels) {
        const KernelCost& cost = costs.at(kernel.name);
        EXPECT_GT(cost.registers, 0u);
        EXPECT_LE(cost.registers, 255u) << kernel.name;
        EXPECT_LE(cost.frame_bytes, is_odd ? 16u : 0u) << kernel.name;
      }
    }
  }
  const auto even = device_program(experts(DType::kBF16, 4096, 14336));
  ASSERT_TRUE(even) << print_error(even.error());
  const auto text = nvrtc->compile(even->source, "compute_80");
  ASSERT_TRUE(text.ok) << text.log;
  size_t products = 0, sixteen = 0, small = 0;
  for (const std::string& line : split_text(text.assembly, '\n')) {
    products += line.find("mma.sync.aligned.m16n8k16") != std::string::npos;
    sixteen += line.find("ld.global.v4") != std::string::npos;
    small += line.find("ld.global.u16") != std::string::npos ||
             line.find("ld.global.b16") != std::string::npos;
  }
  EXPECT_GT(products, 3 * 64u - 1);
  EXPECT_GT(sixteen, 3 * 8u - 1);
  EXPECT_EQ(small, 0u);
}

// So do those of attention, in the widths that models have; where scores are more than products, a
// thread may lack a few registers.
TEST(Texts, OfAttentionByTensorCoresFitTwiceOnAMultiprocessor) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const AttentionForm& form :
       {AttentionForm{64, AttentionForm::kPlain}, AttentionForm{128, AttentionForm::kPlain},
        AttentionForm{128, AttentionForm::kRing}, AttentionForm{128, AttentionForm::kMasked}}) {
    const bool is_plain = form.kind == AttentionForm::kPlain;
    const auto made = device_program(attention(form));
    ASSERT_TRUE(made) << print_error(made.error());
    for (const std::string_view arch : kArchitectures) {
      if (!is_plain && arch != "sm_90a") continue;
      SCOPED_TRACE(
          fmt::format("{} wide, form {}, for {}", form.width, static_cast<int>(form.kind), arch));
      const auto binary = nvrtc->compile(made->source, std::string(arch));
      ASSERT_TRUE(binary.ok) << binary.log;
      EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
      const auto costs = costs_of(binary.cubin);
      size_t by_mma = 0;
      for (const DeviceKernel& kernel : made->kernels) {
        const KernelCost& cost = costs.at(kernel.name);
        by_mma += kernel.threads == 128;
        EXPECT_LE(cost.registers, form.width > 64 ? 255u : 168u) << kernel.name;
        EXPECT_LE(cost.frame_bytes, is_plain ? 0u : 32u) << kernel.name;
      }
      EXPECT_EQ(by_mma, 3u);
    }
  }
}

// A norm of 16-bit rows, and its gradients: all but what is one number a row, and partial sums,
// moves 16 bytes at once.
TEST(Texts, OfPassesMoveSixteenBytesAtOnce) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const auto role = parse_plan(R"(plan batch=2 arena=1048576 workspace=[0]
stream 0 "compute"
buffer 0 "x" bf16[64,768] step at=0
buffer 1 "r" f32[64,768] step at=131072
buffer 2 "w" f32[768] step at=393216
buffer 3 "y" bf16[64,768] step at=458752
program 0 label="F" args=4
  value 0 bf16[64,768] read
  value 1 f32[64,768] read
  value 2 f32[768] read
  value 3 bf16[64,768] written
  value 4 f32[64,768]
  value 5 f32[64,768]
  value 6 f32[64,768]
  value 7 f32[64,1]
  op Cast in=[0] out=[4] {to="f32"}
  op Add in=[4,1] out=[5]
  op RmsNorm in=[5,2] out=[6,7] {axis=1, epsilon=1e-05}
  op Cast in=[6] out=[3] {to="bf16"}
body
  0 compute label="F" program=0 args=[0,1,2,3] pass="F"
)");
  ASSERT_TRUE(role) << print_error(role.error());
  const auto made = device_program(role->programs[0]);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(made->steps.size(), 1u);
  const auto text = nvrtc->compile(made->source, "compute_90a");
  ASSERT_TRUE(text.ok) << text.log;
  size_t wide = 0, all = 0;
  for (const std::string& line : split_text(text.assembly, '\n')) {
    if (line.find("ld.global") == std::string::npos && line.find("st.global") == std::string::npos)
      continue;
    ++all;
    wide += line.find(".v4") != std::string::npos;
  }
  EXPECT_GT(wide, 3u);
  EXPECT_EQ(wide, all) << text.assembly;
}

// Arguments begin at multiples of 16 bytes, so that no access is longer: where 16-bit floats are
// eight side by side, so are f32 beside them. Programs of the sample are looked at above.
TEST(Texts, AccessSixteenBytesAtMost) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  std::vector<Program> programs;
  for (const DType wide : {DType::kF32, DType::kF64}) {
    Arguments args;
    const Shape all{64, 768};
    const int32_t x = args.add(DType::kBF16, all), r = args.add(wide, all),
                  y = args.add(wide, all, false), as_wide = args.program.num_args;
    args.program.values.push_back({wide, all});
    args.program.ops = {{"Cast", {{"to", info(wide).name}}, {x}, {as_wide}},
                        {"Add", {}, {as_wide, r}, {y}}};
    programs.push_back(args.program);
  }
  size_t sources = 0;
  for (const Program& program : programs) {
    const auto made = device_program(program);
    ASSERT_TRUE(made) << print_error(made.error());
    if (made->source.empty()) continue;
    for (const char* arch : {"compute_100", "compute_120"}) {
      const auto text = nvrtc->compile(made->source, arch);
      ASSERT_TRUE(text.ok) << text.log;
      EXPECT_EQ(accesses_of_32_bytes(text.assembly), 0u) << program.label << " for " << arch;
      ++sources;
    }
  }
  EXPECT_EQ(sources, 4u);
}

// The control: what is aligned to 32 bytes is moved at once.
TEST(Texts, OfLongerTypesAccessMore) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const char* const type : {"float x[8]", "double x[4]"}) {
    const auto text = nvrtc->compile(
        fmt::format("struct alignas(32) Long {{ {}; }};\n"
                    "extern \"C\" __global__ void k(const Long* x, Long* y) {{ y[0] = x[1]; }}\n",
                    type),
        "compute_100");
    ASSERT_TRUE(text.ok) << text.log;
    EXPECT_EQ(accesses_of_32_bytes(text.assembly), 2u) << text.assembly;
  }
}

// A use of the op for each sample that may be of this type, each with operands of its own.
void add_uses(const OpDef& def, DType type, Program& program) {
  for (const OpSample& sample : def.samples) {
    OpTypes use{.inputs = sample.inputs, .present = {}, .outputs = {}, .attrs = sample.attrs};
    use.present.assign(sample.inputs.size(), true);
    for (const int i : sample.absent) use.present[static_cast<size_t>(i)] = false;
    for (TensorType& input : use.inputs)
      if (input.dtype == DType::kF64) input.dtype = type;
    for (const char* name : {"to", "dtype"})
      if (use.attrs.text(name) == "f64") use.attrs.set(name, info(type).name);
    auto outputs = def.types(use);
    if (!outputs) continue;
    use.outputs = *outputs;
    if (!check_use(def.name, use)) continue;
    ProgramOp op{std::string(def.name), use.attrs, {}, {}};
    const auto add = [&](const TensorType& of, bool is_read) {
      program.values.push_back(of);
      program.arg_read.push_back(is_read);
      program.arg_written.push_back(!is_read);
      return program.num_args++;
    };
    for (size_t i = 0; i < use.inputs.size(); ++i)
      op.inputs.push_back(use.present[i] ? add(use.inputs[i], true) : -1);
    for (const TensorType& output : use.outputs) op.outputs.push_back(add(output, false));
    Program alone = program;
    alone.ops = {op};
    if (device_program(alone)) program.ops.push_back(std::move(op));
  }
}

// As assembly: the machine code of those that models have is looked at above.
TEST(Texts, OfAllOpsCompile) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  constexpr size_t kTogether = 12;
  const std::vector<std::string> names = cuda_ops();
  for (size_t first = 0; first < names.size(); first += kTogether) {
    Program program;
    for (size_t n = first; n < std::min(first + kTogether, names.size()); ++n)
      for (const DType type : {DType::kF64, DType::kBF16})
        if (const OpDef* def = find_op(names[n])) add_uses(*def, type, program);
    SCOPED_TRACE("ops from " + names[first] + " on");
    const auto made = device_program(program);
    ASSERT_TRUE(made) << print_error(made.error());
    const auto binary = nvrtc->compile(made->source, "compute_90a");
    ASSERT_TRUE(binary.ok) << binary.log;
    EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
  }
}

// What goes with a library's attention: a mask's terms, and the rows that see no key.
TEST(Texts, BesideALibraryCompile) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const TensorType rows{type, {2, 16, 4, 8}};
    const Program program{
        .values =
            {rows, rows, rows, {DType::kBool, {2, 1, 16, 16}}, rows, {DType::kF32, {2, 4, 16}}},
        .num_args = 6,
        .ops = {{"Attention", {{"tokens_first", Shape{1, 1, 1, 1}}}, {0, 1, 2, 3}, {4, 5}}},
        .arg_written = {false, false, false, false, true, true},
        .arg_read = {true, true, true, true, false, false}};
    const auto made = device_program(program);
    ASSERT_TRUE(made) << print_error(made.error());
    EXPECT_EQ(made->steps[0].before + made->steps[0].after, 2);
    const auto binary = nvrtc->compile(made->source, "sm_80");
    ASSERT_TRUE(binary.ok) << binary.log;
    EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
    for (const auto& [name, cost] : costs_of(binary.cubin)) EXPECT_EQ(cost.frame_bytes, 0u) << name;
  }
}

// The control: what does not fit is seen.
TEST(Texts, OfTooMuchHaveAFrame) {
  const Nvrtc* nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const auto binary = nvrtc->compile(
      "extern \"C\" __global__ void k(int* x) {\n  int a[64] = {};\n"
      "  for (int i = 0; i < 64; ++i) a[x[i] & 63] = i;\n  x[0] = a[x[64] & 63];\n}\n",
      "sm_90a");
  ASSERT_TRUE(binary.ok) << binary.log;
  EXPECT_GE(costs_of(binary.cubin).at("k").frame_bytes, 256u);
  EXPECT_FALSE(nvrtc->compile("no text", "sm_90a").ok);
}

// A sum of 16-bit floats in f32, as fabrics form it of what members bring: one kernel that keeps
// nothing.
TEST(Programs, ThatSumSixteenBitsInThirtyTwoAreOneKernel) {
  const TensorType narrow{DType::kBF16, {1000}}, wide{DType::kF32, {1000}};
  Program program;
  program.label = "sum";
  program.values = {narrow, narrow, narrow, wide, wide, wide};
  program.num_args = 3;
  program.arg_read = {true, true, false};
  program.arg_written = {false, false, true};
  program.ops = {{"Cast", {{"to", "f32"}}, {0}, {3}},
                 {"Cast", {{"to", "f32"}}, {1}, {4}},
                 {"Add", {}, {3, 4}, {5}},
                 {"Cast", {{"to", "bf16"}}, {5}, {2}}};
  const auto made = device_program(program);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(made->kernels.size(), 1u);
  EXPECT_EQ(made->workspace_bytes, 0);
}

// Literals that are numbers of the text take no memory; those that kernels read do, and are found.
TEST(Programs, KeepTheLiteralsThatTheyRead) {
  const auto made_of = [](const char* op, Shape shape, Attrs attrs) {
    const float two = 2;
    Program program;
    program.label = op;
    program.values = {
        {DType::kF32, {4}}, {DType::kF32, shape}, {DType::kF32, {}}, {DType::kF32, {1}}};
    program.num_args = 2;
    program.literals = {{2, std::string(4, '\0')},
                        {3, std::string(reinterpret_cast<const char*>(&two), sizeof two)}};
    program.arg_read = {true, false};
    program.arg_written = {false, true};
    program.ops = {{op, std::move(attrs), {0, 3}, {1}}};
    auto made = device_program(program);
    EXPECT_TRUE(made) << print_error(made.error());
    return *std::move(made);
  };
  EXPECT_EQ(made_of("Mul", {4}, {}).literals, "");
  const DeviceProgram read = made_of("Concat", {5}, {{"axis", 0}});
  ASSERT_EQ(read.literals.size(), 256u);
  float kept = 0;
  std::memcpy(&kept, read.literals.data(), sizeof kept);
  EXPECT_EQ(kept, 2);
  int found = 0;
  for (const DeviceStep& step : read.steps)
    for (const DeviceOperand& operand : step.operands)
      if (operand.kind == DeviceOperand::kLiteral) {
        EXPECT_EQ(operand.offset, 0);
        ++found;
      }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace piper
