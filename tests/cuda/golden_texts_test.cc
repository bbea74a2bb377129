// The kernels of plans of known models, as NVRTC compiles them for each architecture: without
// warnings, within the registers of a thread, and streaming 16 bytes at once. Kernels with one text
// are compiled once. PIPER_TEXTS=all has every kernel of every model; else some of them. Skipped
// where there is no NVRTC.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "equivalence/jobs.h"
#include "nvrtc.h"
#include "piper/devices/cuda_kernels.h"
#include "shell.h"

namespace piper {
namespace {

using namespace jobs;

constexpr const char* kArchitectures[] = {"sm_80", "sm_90a", "sm_100", "sm_120"};
constexpr uint32_t kMostRegisters = 128, kMostFrame = 16;  // bytes
// Of products of groups in 16 bits, whose tiles are as large as a multiprocessor of sm_90 holds of
// three blocks of 128 threads.
constexpr uint32_t kMostOfGroups = 168;
constexpr const char* kModels[] = {"bert-hf",      "gpt-deep",   "gpt-bf16", "gpt2-hf",
                                   "llama-hf",     "moe-gshard", "vit-hf",   "two-tower",
                                   "qwen3-moe-hf", "mlp"};

bool has_all() {
  const char* const wanted = std::getenv("PIPER_TEXTS");
  return wanted && std::string_view(wanted) == "all";
}

// ---- Texts --------------------------------------------------------------------------------------

// The body of each kernel of a source, by name; and what stands in front of the first.
struct Texts {
  std::string head;
  std::vector<std::pair<std::string, std::string>> kernels;
};
Texts texts_of(const DeviceProgram& program) {
  Texts texts;
  const std::string& source = program.source;
  size_t at = source.find("\nKERNEL(k");
  texts.head = source.substr(0, at);
  while (at != std::string::npos) {
    const size_t next = source.find("\nKERNEL(k", at + 1), comma = source.find(',', at);
    texts.kernels.emplace_back(
        source.substr(at + 8, comma - at - 8),
        source.substr(comma, next == std::string::npos ? next : next - comma));
    at = next;
  }
  return texts;
}

// Kernels that no earlier program had, together with the families that they need, as one source.
class Gathered {
 public:
  void add(const Program& program) {
    const auto made = device_program(program);
    ASSERT_TRUE(made) << program.label << ": " << print_error(made.error());
    if (made->source.empty()) return;
    const Texts texts = texts_of(*made);
    std::set<std::string> names, wanted;
    for (const auto& [name, text] : texts.kernels) names.insert(name);
    for (const DeviceKernel& kernel : made->kernels) wanted.insert(kernel.name);
    EXPECT_EQ(names, wanted);
    for (const auto& [name, text] : texts.kernels) {
      ++all_;
      if (seen_.insert(texts.head + text).second) by_head_[texts.head].push_back(text);
    }
  }
  size_t all() const { return all_; }
  size_t distinct() const { return seen_.size(); }
  // One for each set of families, of at most so many kernels, every `step`th of which counts.
  std::vector<std::string> sources(size_t step) const {
    std::vector<std::string> sources;
    size_t number = 0;
    for (const auto& [head, texts] : by_head_) {
      std::string source;
      size_t count = 0;
      for (const std::string& text : texts) {
        if (number++ % step != 0) continue;
        source += fmt::format("\nKERNEL(k{}{}", count++, text);
        if (count < kTogether) continue;
        sources.push_back(head + source);
        source.clear(), count = 0;
      }
      if (count > 0) sources.push_back(head + source);
    }
    return sources;
  }

 private:
  static constexpr size_t kTogether = 24;
  size_t all_ = 0;
  std::set<std::string> seen_;
  std::map<std::string, std::vector<std::string>> by_head_;
};

void gather(const CompileOptions& options, const std::string& what, Gathered& into) {
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << what << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) {
    const RoleProgram prepared = prepared_for_cuda(role);
    for (const Program& program : prepared.programs) into.add(program);
  }
}

// The plans of the exported models, in their own types and in 16 bits.
void gather_models(Gathered& into) {
  for (const char* const model : kModels) {
    if (!std::filesystem::exists(model_path(model, "model.onnx"))) continue;
    for (const char* const numerics : {"", "bf16", "f16"}) {
      const Folder folder;
      std::string text = strategy_text(model, kAdamW);
      if (*numerics)
        text +=
            fmt::format("directives: [{{precision: {{compute: {}, master: f32}}}}]\n", numerics);
      std::string strategy = text;
      strategy.replace(strategy.find("ORDER"), 5, "zb-h1");
      gather({.model = model_path(model, "model.onnx"),
              .strategy = folder.write("strategy.yaml", strategy),
              .defines = {{"stages", "2"}, {"dp", "1"}, {"microbatches", "2"}},
              .target = "cuda",
              .oracles = false},
             model, into);
    }
  }
}

// The sample under every complete strategy of the library.
void gather_library(Gathered& into) {
  for (const std::string& file : library_files()) {
    const std::string text = library_text(file);
    const bool both_ways = file == "dualpipe" || file == "dualpipev" || file == "chimera";
    Shape2 shape{.pp = 2, .dp = 2, .mb = both_ways ? 4 : 2, .order = file};
    const Folder folder;
    gather({.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx",
            .strategy = folder.write(
                "strategy.yaml",
                fmt::format("piper: 1\ninclude: {}/strategies/{}.yaml\ntrain: {{global_batch: 8, "
                            "{}}}\ndirectives: [{{precision: {{compute: bf16}}}}]\n",
                            PIPER_SOURCE_DIR, file, kAdamW)),
            .defines = definitions_of(text, shape),
            .target = "cuda",
            .oracles = false},
           file, into);
  }
}

void expect_within_bounds(const Nvrtc& nvrtc, const std::string& source, const char* arch,
                          KernelCost& most) {
  const auto binary = nvrtc.compile(source, arch);
  ASSERT_TRUE(binary.ok) << binary.log;
  EXPECT_EQ(binary.log.find("warning"), std::string::npos) << binary.log;
  for (const auto& [name, cost] : costs_of(binary.cubin)) {
    most.registers = std::max(most.registers, cost.registers);
    most.frame_bytes = std::max(most.frame_bytes, cost.frame_bytes);
    const size_t at = source.find("KERNEL(" + name + ","), end = source.find("\nKERNEL(", at);
    const std::string text = at == source.npos ? name : source.substr(at, end - at);
    const bool groups = text.find("grouped_") != text.npos;
    if (cost.registers <= (groups ? kMostOfGroups : kMostRegisters) &&
        cost.frame_bytes <= kMostFrame)
      continue;
    ADD_FAILURE() << arch << ": " << cost.registers << " registers, a frame of " << cost.frame_bytes
                  << " bytes\n"
                  << text;
  }
}

void expect_all_within_bounds(const Gathered& texts, size_t step) {
  const Nvrtc* nvrtc = Nvrtc::find();
  const std::vector<std::string> sources = texts.sources(has_all() ? 1 : step);
  KernelCost most;
  // A part of them has one architecture each, in turn.
  for (size_t s = 0; s < sources.size(); ++s)
    for (size_t a = 0; a < std::size(kArchitectures); ++a)
      if (has_all() || s % std::size(kArchitectures) == a)
        expect_within_bounds(*nvrtc, sources[s], kArchitectures[a], most);
  std::printf("%zu kernels, %zu distinct, %zu sources: at most %u registers, frames of %u bytes\n",
              texts.all(), texts.distinct(), sources.size(), most.registers, most.frame_bytes);
  EXPECT_GT(texts.distinct(), 20u);
  EXPECT_GT(most.registers, 0u);
}

TEST(GoldenTexts, OfKnownModelsAreWithinBounds) {
  if (!Nvrtc::find()) GTEST_SKIP() << "no NVRTC";
  NEED_MODEL("gpt2-hf");
  Gathered texts;
  gather_models(texts);
  expect_all_within_bounds(texts, 16);
}

TEST(GoldenTexts, OfTheLibraryAreWithinBounds) {
  if (!Nvrtc::find()) GTEST_SKIP() << "no NVRTC";
  Gathered texts;
  gather_library(texts);
  expect_all_within_bounds(texts, 6);
}

// GPT-2 with 124M parameters at 64 x 1024 in bf16: what threads have stays in registers, in
// attention by tensor cores, too.
TEST(GoldenTexts, OfGpt2StayInRegisters) {
  const Nvrtc* const nvrtc = Nvrtc::find();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Folder folder;
  const auto [code, output] = run_shell(
      fmt::format("{}/tests/make_models gpt2 64 {} 2>&1", PIPER_BINARY_DIR, folder.path()));
  ASSERT_EQ(code, 0) << output;
  Gathered texts;
  gather({.model = folder.path() + "/model.onnx",
          .strategy = folder.path() + "/bf16.yaml",
          .target = "cuda",
          .oracles = false},
         "gpt2", texts);
  const std::vector<std::string> sources = texts.sources(1);
  for (size_t s = 0; s < sources.size(); ++s)
    for (size_t a = 0; a < std::size(kArchitectures); ++a) {
      if (!has_all() && s % std::size(kArchitectures) != a) continue;
      const auto binary = nvrtc->compile(sources[s], kArchitectures[a]);
      ASSERT_TRUE(binary.ok) << binary.log;
      for (const auto& [name, cost] : costs_of(binary.cubin))
        EXPECT_LE(cost.frame_bytes, kMostFrame) << kArchitectures[a] << ", " << name << "\n"
                                                << sources[s];
    }
  EXPECT_GT(texts.distinct(), 20u);
}

// ---- Rows at multiples of sixteen bytes, and whole runs of these
// ---------------------------------------------------------

bool is_aligned(const DeviceProduct& p, std::string& what) {
  constexpr int64_t kLeast = 256, kElements = 8;
  what = fmt::format("{} {}x{}x{} lines {} {} {}", info(p.type).name, p.m, p.n, p.k, p.lda, p.ldb,
                     p.ldd);
  if (info(p.type).bytes != 2 || std::max(p.m, p.n) < kLeast || p.k < kLeast) return true;
  // The last elements of an extent that is no whole number of runs are a product of their own.
  const bool is_tail = std::min(p.m, p.n) < kElements;
  const bool adjoins_k = !p.trans_a || p.trans_b;
  const bool has_whole_runs = p.n % kElements == 0 && (!p.trans_a || p.m % kElements == 0) &&
                              (!adjoins_k || p.k % kElements == 0);
  return p.lda % kElements == 0 && p.ldb % kElements == 0 &&
         (info(p.result).bytes != 2 || p.ldd % kElements == 0) && (is_tail || has_whole_runs);
}

// Where the buffers of a role are on the device, by buffer, with the gaps of its rows.
std::vector<std::pair<int64_t, int64_t>> places_of(const RoleProgram& role) {
  std::vector<bool> is_wide(role.buffers.size());
  for (const auto* section : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *section) {
      if (one.kind != InstructionKind::kCompute) continue;
      for (const ProgramOp& op : role.programs[static_cast<size_t>(one.program)].ops)
        if (op.attrs.find("aligned_args"))
          for (const int64_t arg : op.attrs.integers("aligned_args"))
            is_wide[static_cast<size_t>(one.args[static_cast<size_t>(arg)])] = true;
    }
  std::vector<std::pair<int64_t, int64_t>> places;
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    int64_t bytes = tensor.host ? 0 : tensor.type.bytes();
    if (is_wide[b]) {
      const int64_t row = tensor.type.shape.back() * info(tensor.type.dtype).bytes;
      const int64_t to = row < 2048 ? 16 : 128;
      bytes = bytes / row * ((row + to - 1) / to * to);
    }
    places.emplace_back(role.buffers[b].offset, role.buffers[b].offset + bytes);
  }
  return places;
}

// Buffers overlap only where those of the plan do, whose users wait for each other.
void expect_room(const RoleProgram& plan, const RoleProgram& prepared) {
  const auto before = places_of(plan), after = places_of(prepared);
  const auto overlap = [](const auto& a, const auto& b) {
    return a.first < b.second && b.first < a.second;
  };
  for (size_t b = 0; b < after.size(); ++b) {
    EXPECT_EQ(after[b].first % 256, 0);
    EXPECT_LE(after[b].second, prepared.arena_bytes);
    for (size_t c = 0; c < b; ++c)
      EXPECT_TRUE(!overlap(after[b], after[c]) || overlap(before[b], before[c]))
          << plan.name(static_cast<int32_t>(b)) << " and " << plan.name(static_cast<int32_t>(c));
  }
}

// The products of 16 bits that a plan has; what they are that begin rows elsewhere.
size_t count_products(const CompileOptions& options, const std::string& file) {
  const auto compiled = compile(options);
  EXPECT_TRUE(compiled) << file << ": " << print_error(compiled.error());
  if (!compiled) return 0;
  size_t count = 0;
  for (const RoleProgram& role : compiled->set.roles) {
    const RoleProgram prepared = prepared_for_cuda(role);
    EXPECT_EQ(prepared.arena_bytes - role.arena_bytes, role.packed_bytes);
    expect_room(role, prepared);
    for (const Program& program : prepared.programs) {
      const auto made = device_program(program);
      EXPECT_TRUE(made) << program.label << ": " << print_error(made.error());
      if (!made) continue;
      std::string what;
      for (const DeviceProduct& product : made->products) {
        EXPECT_TRUE(is_aligned(product, what)) << file << ", " << program.label << ": " << what;
        count += info(product.type).bytes == 2 && product.ldd % 8 == 0;
      }
    }
  }
  return count;
}

// Every complete strategy of the library has a GPT-2 whose classes are no multiple of 8, with more
// of them than a matrix is wide.
TEST(AlignedRows, OfAllProductsOf16Bits) {
  const Folder folder;
  const auto [code, output] =
      run_shell(fmt::format("{}/tests/make_models gpt2 8 {} layers=4 width=256 heads=4 kv_heads=4 "
                            "hidden=1024 context=64 vocabulary=1030",
                            PIPER_BINARY_DIR, folder.path()));
  ASSERT_EQ(code, 0) << output;
  std::vector<std::string> files = library_files();
  for (const std::string& file : library_files("/tensor")) files.push_back("tensor/" + file);
  for (const std::string& file : files) {
    const std::string text = library_text(file);
    const bool both_ways = file == "dualpipe" || file == "dualpipev" || file == "chimera";
    Shape2 shape{.pp = 2, .dp = 2, .mb = both_ways ? 4 : 2, .order = file};
    std::vector<Definition> definitions = definitions_of(text, shape);
    if (file.starts_with("tensor/")) definitions = {{"tp", "2"}};
    const std::string strategy = fmt::format(
        "piper: 1\ninclude: {}/strategies/{}.yaml\n"
        "loss: {{cross_entropy: {{logits: logits, labels: labels, ignore_index: -100}}}}\n"
        "train: {{{}}}\ndirectives: [{{precision: {{compute: bf16}}}}]\n",
        PIPER_SOURCE_DIR, file, kAdamW);
    const size_t products = count_products({.model = folder.path() + "/model.onnx",
                                            .strategy = folder.write("strategy.yaml", strategy),
                                            .defines = definitions,
                                            .target = "cuda",
                                            .oracles = false},
                                           file);
    EXPECT_GT(products, 10u) << file;
  }
}

// ---- Sixteen bytes at once ----------------------------------------------------------------------

// What an op over rows of this type and width loads from memory and stores to it, by the bytes of
// one access.
std::map<int, size_t> accesses_of(const std::string& ops, DType type, int64_t rows, int64_t width) {
  const std::string of = fmt::format("{}[{},{}]", info(type).name, rows, width);
  const auto role = parse_plan(fmt::format(
      "plan batch=2 arena=8388608 workspace=[0]\nstream 0 \"compute\"\n"
      "buffer 0 \"x\" {0} step at=0\nbuffer 1 \"r\" {0} step at=2097152\n"
      "buffer 2 \"w\" {1}[{2}] step at=4194304\nbuffer 3 \"y\" {0} step at=6291456\n"
      "program 0 label=\"F\" args=4\n  value 0 {0} read\n  value 1 {0} read\n"
      "  value 2 {1}[{2}] read\n  value 3 {0} written\n  value 4 {0}\n  value 5 {1}[{4},1]\n"
      "{3}body\n  0 compute label=\"F\" program=0 args=[0,1,2,3] pass=\"F\"\n",
      of, info(type).name, width, ops, rows));
  EXPECT_TRUE(role) << print_error(role.error());
  const auto made = device_program(role->programs[0]);
  EXPECT_TRUE(made) << print_error(made.error());
  const auto text = Nvrtc::find()->compile(made->source, "compute_90a");
  EXPECT_TRUE(text.ok) << text.log;
  std::map<int, size_t> accesses;
  for (const std::string& line : split_text(text.assembly, '\n')) {
    if (line.find("ld.global") == std::string::npos && line.find("st.global") == std::string::npos)
      continue;
    const int count = line.find(".v4") != std::string::npos   ? 4
                      : line.find(".v2") != std::string::npos ? 2
                                                              : 1;
    const int bits =
        line.find("64 ") != std::string::npos || line.find("64\t") != std::string::npos   ? 64
        : line.find("16 ") != std::string::npos || line.find("16\t") != std::string::npos ? 16
        : line.find("8 ") != std::string::npos || line.find("8\t") != std::string::npos   ? 8
                                                                                          : 32;
    ++accesses[count * bits / 8];
  }
  return accesses;
}

struct Streaming {
  const char* name;
  const char* ops;
};
std::ostream& operator<<(std::ostream& out, const Streaming& one) { return out << one.name; }
constexpr Streaming kStreaming[] = {
    {"Add", "  op Add in=[0,1] out=[3]\n"},
    {"AddAndTanh", "  op Add in=[0,1] out=[4]\n  op Tanh in=[4] out=[3]\n"},
    {"RowForAll", "  op Mul in=[0,2] out=[4]\n  op Max in=[4,1] out=[3]\n"},
    {"Softmax", "  op Add in=[0,1] out=[4]\n  op Softmax in=[4] out=[3] {axis=1}\n"},
    {"Norm",
     "  op Add in=[0,1] out=[4]\n  op RmsNorm in=[4,2] out=[3,5] {axis=1, epsilon=1e-05}\n"},
};
class StreamingTexts : public ::testing::TestWithParam<Streaming> {};

TEST_P(StreamingTexts, MoveSixteenBytesAtOnceWhereRowsAllowIt) {
  if (!Nvrtc::find()) GTEST_SKIP() << "no NVRTC";
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(info(type).name);
    const std::map<int, size_t> wide = accesses_of(GetParam().ops, type, 64, 768);
    EXPECT_GE(wide.contains(16) ? wide.at(16) : 0, 3u);
    for (const auto& [bytes, count] : wide)
      EXPECT_EQ(bytes, 16) << count << " accesses of " << bytes << " bytes";
    // The control: rows that begin anywhere.
    const std::map<int, size_t> odd = accesses_of(GetParam().ops, type, 63, 767);
    const auto element = static_cast<int>(info(type).bytes);
    EXPECT_FALSE(odd.contains(16));
    EXPECT_TRUE(odd.contains(element));
  }
}
INSTANTIATE_TEST_SUITE_P(Ops, StreamingTexts, ::testing::ValuesIn(kStreaming),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper
