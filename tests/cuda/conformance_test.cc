// Every op that the cuda backend has gives what the CPU backend gives: for all samples of the table
// of ops, in all element types that the op allows, in place where it may, without results that
// nobody reads, in three orders of threads with the same bits (on a device twice, in its own
// order).
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "piper/ir/signatures.h"
#include "run_on_device.h"
#include "unit/op_uses.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test

constexpr emulator::Order kOrders[] = {
    {emulator::Order::kForward}, {emulator::Order::kBackward}, {emulator::Order::kRandom, kSeed}};

// One use of an op, as a part of a program.
struct Case {
  std::string label;
  const OpDef* def = nullptr;
  OpTypes types;
  std::vector<Bytes> inputs;
  std::vector<int32_t> results;  // arguments of the program; negative: nobody reads it
  std::vector<Bytes> expected;
};

// ---- Uses ---------------------------------------------------------------------------------------

// The sample with its f64 operands of another type; none where the op does not allow it.
std::optional<Case> make_case(const OpDef& def, size_t index, DType type) {
  const OpSample& sample = def.samples[index];
  std::mt19937_64 random(kSeed + index);
  Case made{.label = fmt::format("{} sample {} of {}", def.name, index, info(type).name),
            .def = &def};
  made.types.attrs = sample.attrs;
  if (made.types.attrs.text("to") == "f64") made.types.attrs.set("to", info(type).name);
  if (made.types.attrs.text("dtype") == "f64") made.types.attrs.set("dtype", info(type).name);
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const bool absent = std::count(sample.absent.begin(), sample.absent.end(), int(i)) > 0;
    made.types.present.push_back(!absent);
    TensorType of = absent ? TensorType{} : sample.inputs[i];
    if (!absent && of.dtype == DType::kF64) of.dtype = type;
    made.types.inputs.push_back(of);
    made.inputs.push_back(
        absent ? Bytes{} : to_bytes(draw(of, random, sample.low, sample.high, sample.int_high)));
  }
  const auto outputs = def.types(made.types);
  if (!outputs) return std::nullopt;
  made.types.outputs = *outputs;
  if (!check_use(def.name, made.types)) return std::nullopt;
  return made;
}

// All uses of an op. Those without operands of f64 have one type.
std::vector<Case> cases_of(const OpDef& def) {
  std::vector<Case> cases;
  for (size_t i = 0; i < def.samples.size(); ++i) {
    std::vector<OpTypes> seen;
    for (const DType type : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      std::optional<Case> made = make_case(def, i, type);
      if (!made) continue;
      const bool is_new = std::none_of(seen.begin(), seen.end(), [&](const OpTypes& other) {
        return other.inputs == made->types.inputs && other.outputs == made->types.outputs;
      });
      seen.push_back(made->types);
      if (is_new) cases.push_back(std::move(*made));
    }
    EXPECT_FALSE(seen.empty()) << def.name << " sample " << i << ": no element type is allowed";
  }
  return cases;
}

void expect(Case& one) {
  auto made =
      evaluate_op(one.def->name, one.types.attrs, one.types.inputs, one.inputs, one.types.outputs);
  ASSERT_TRUE(made.ok()) << one.label << ": " << made.error().message;
  one.expected = std::move(*made);
}

// ---- Programs -----------------------------------------------------------------------------------

struct Pack {
  Program program;
  std::vector<Bytes> arguments;
  std::vector<Case> cases;
  std::vector<TensorType> locals;
};

int32_t add_argument(Pack& pack, const TensorType& type, const Bytes* data) {
  pack.program.values.push_back(type);
  pack.arguments.push_back(data ? *data : Bytes{});
  pack.program.arg_read.push_back(data != nullptr);
  pack.program.arg_written.push_back(data == nullptr);
  return pack.program.num_args++;
}

enum class How { kApart, kInPlace, kUnread };

// The argument that a result is written over; -1: none.
int32_t place_in(const Case& one, const ProgramOp& op, size_t o) {
  for (const auto& [output, input] : one.def->in_place) {
    const auto i = static_cast<size_t>(input);
    if (output != static_cast<int>(o) || i >= op.inputs.size() || op.inputs[i] < 0) continue;
    const bool is_taken = std::count(op.outputs.begin(), op.outputs.end(), op.inputs[i]) > 0;
    if (!is_taken && one.types.inputs[i] == one.types.outputs[o]) return op.inputs[i];
  }
  return -1;
}

// The case beside those that are there, with operands of its own. Of kUnread, result `unread` is a
// local of the program: numbered from -2 downwards until all arguments are there.
void add(Pack& pack, Case one, How how, size_t unread = 0) {
  ProgramOp op{std::string(one.def->name), one.types.attrs, {}, {}};
  for (size_t i = 0; i < one.inputs.size(); ++i)
    op.inputs.push_back(
        one.types.present[i] ? add_argument(pack, one.types.inputs[i], &one.inputs[i]) : -1);
  for (size_t o = 0; o < one.types.outputs.size(); ++o) {
    if (how == How::kUnread && o == unread) {
      pack.locals.push_back(one.types.outputs[o]);
      op.outputs.push_back(-1 - static_cast<int32_t>(pack.locals.size()));
      continue;
    }
    int32_t into = how == How::kInPlace ? place_in(one, op, o) : -1;
    if (into < 0) into = add_argument(pack, one.types.outputs[o], nullptr);
    pack.program.arg_written[static_cast<size_t>(into)] = true;
    op.outputs.push_back(into);
  }
  if (how == How::kInPlace) one.label += " in place";
  if (how == How::kUnread) one.label += fmt::format(" without result {}", unread);
  one.results = op.outputs;
  pack.program.ops.push_back(std::move(op));
  pack.cases.push_back(std::move(one));
}

// Locals stand behind all arguments.
void finish(Pack& pack) {
  for (ProgramOp& op : pack.program.ops)
    for (int32_t& output : op.outputs)
      if (output < 0) output = pack.program.num_args - 2 - output;
  pack.program.values.insert(pack.program.values.end(), pack.locals.begin(), pack.locals.end());
}

bool can_be_in_place(const Case& one) {
  for (const auto& [output, input] : one.def->in_place) {
    const auto i = static_cast<size_t>(input), o = static_cast<size_t>(output);
    if (i < one.inputs.size() && o < one.types.outputs.size() && one.types.present[i] &&
        one.types.inputs[i] == one.types.outputs[o])
      return true;
  }
  return false;
}

Pack pack_of(const std::vector<std::string>& ops) {
  Pack pack;
  for (const std::string& name : ops) {
    const OpDef* def = find_op(name);
    if (!def) continue;
    for (Case& one : cases_of(*def)) {
      expect(one);
      Pack alone;
      add(alone, one, How::kApart);
      const auto made = device_program(alone.program);
      if (!made) ADD_FAILURE() << one.label << ": " << made.error().message;
      if (!made) continue;
      if (can_be_in_place(one)) add(pack, one, How::kInPlace);
      for (size_t o = 0; one.types.outputs.size() > 1 && o < one.types.outputs.size(); ++o)
        add(pack, one, How::kUnread, o);
      add(pack, std::move(one), How::kApart);
    }
  }
  finish(pack);
  return pack;
}

// ---- Comparing ----------------------------------------------------------------------------------

// Elements only move, or are counted: every bit is given.
bool is_exact(const Case& one, DType result) {
  constexpr std::string_view kMoves[] = {
      "Abs",    "Cast",           "Concat",    "Expand",    "Fill",      "FromBlocks",
      "Gather", "GatherElements", "GatherND",  "Max",       "Min",       "Neg",
      "Pad",    "Relu",           "ReduceMax", "ReduceMin", "Reshape",   "Slice",
      "TopK",   "Trilu",          "Unfold",    "Where",     "Transpose", "Dropout"};
  const bool moves =
      std::find(std::begin(kMoves), std::end(kMoves), one.def->name) != std::end(kMoves);
  return moves || one.def->elements != OpDef::Elements::kMade || !info(result).is_float;
}

// What rounding may leave between two ways of computing x, in a tensor of elements up to `scale`.
double bound_of(DType type, double x, double scale) {
  constexpr double kOfFloat = 4e-6;
  if (type == DType::kF64) return 1e-12 * scale;
  if (type == DType::kF32) return kOfFloat * scale;
  const double last = type == DType::kBF16 ? 0x1p-7 : 0x1p-10, least = 0x1p-24;
  return std::max(std::abs(x) * last, least) + kOfFloat * scale;  // may round to a neighbour
}

void compare(const Case& one, size_t output, const Bytes& made) {
  const TensorType& type = one.types.outputs[output];
  const Bytes& wanted = one.expected[output];
  ASSERT_EQ(made.size, wanted.size) << one.label;
  if (made.size == 0 || std::memcmp(made.data, wanted.data, made.size) == 0) return;
  const auto actual = to_tensor(type, made), expected = to_tensor(type, wanted);
  double scale = 1;
  for (const double x : expected.values)
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  for (size_t i = 0; i < actual.values.size(); ++i) {
    const double a = actual.values[i], e = expected.values[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double bound = is_exact(one, type.dtype) ? 0 : bound_of(type.dtype, e, scale);
    ASSERT_LE(std::abs(a - e), bound)
        << one.label << ", output " << output << ", element " << i << ": " << a << " is not " << e;
  }
}

// Into the file that PIPER_DIGESTS names, for whoever compares the bits of two machines
// (tests/gpu/more kernels): a line for each result, of the use of its op and what it was.
void write_digests(const Pack& pack, const std::vector<Bytes>& made) {
  const char* const path = std::getenv("PIPER_DIGESTS");
  if (!path) return;
  std::ofstream file(path, std::ios::app);
  for (const Case& one : pack.cases)
    for (size_t o = 0; o < one.results.size(); ++o)
      if (one.results[o] >= 0)
        file << fmt::format("{} output {} {}\n", one.label, o,
                            digest(as_text(made[static_cast<size_t>(one.results[o])].span())));
}

// A device has an order of its own: it runs what it is given a second time, for the same bits.
std::span<const emulator::Order> orders() {
  return std::span(kOrders).first(is_on_device() ? 2 : std::size(kOrders));
}

class Conformance : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Conformance, AgreesWithTheCpu) {
  const Pack pack = pack_of(GetParam());
  if (!only_compiled_for().empty()) {
    const Status compiled = compile_for(only_compiled_for(), pack.program);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    return;
  }
  std::vector<Bytes> first;
  for (const emulator::Order& order : orders()) {
    SCOPED_TRACE(fmt::format("order of threads {} (seed {})", static_cast<int>(order.kind), kSeed));
    auto made = run_where_wanted(pack.program, pack.arguments, order);
    ASSERT_TRUE(made.ok()) << made.error().message;
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_EQ(as_text(made->at(i).span()), as_text(first[i].span()))
          << "argument " << i << " depends on the order of threads";
    if (first.empty()) first = std::move(*made);
  }
  write_digests(pack, first);
  for (const Case& one : pack.cases)
    for (size_t o = 0; o < one.results.size(); ++o)
      if (one.results[o] >= 0) compare(one, o, first[static_cast<size_t>(one.results[o])]);
}

// A few ops share a compilation by the host's compiler. NVRTC starts at once and takes as long for
// each, on one core.
std::vector<std::vector<std::string>> packs() {
  const size_t kOps = is_on_device() ? 1 : 5;
  std::vector<std::vector<std::string>> packs;
  for (const std::string& op : cuda_ops()) {
    if (packs.empty() || packs.back().size() == kOps) packs.emplace_back();
    packs.back().push_back(op);
  }
  return packs;
}
std::string name_of(const ::testing::TestParamInfo<std::vector<std::string>>& info) {
  return join(info.param, "_");
}
INSTANTIATE_TEST_SUITE_P(Ops, Conformance, ::testing::ValuesIn(packs()), name_of);

}  // namespace
}  // namespace piper
